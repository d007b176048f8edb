"""The functions of docs/CLIENTS.md that have a record again later, in workers of each client.

A worker gets records that fail a few times or always, and others that do not. Another worker ends
where the function commits, and a second one takes over. Another one has its record refused.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.clients.client_page import Snippet, retry_functions
from tests.support.clients.client_runs import JAVA
from tests.support.clients.client_setup import CLIENTS, ROOT, ClientMissingError, find
from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.command_line import CommandLine
from tests.system.clients.retry.work import CRASHED

LIMIT_S: Final = 90.0
PARTITION_COUNT: Final = 2
ATTEMPT_MAX: Final = 3
ALWAYS: Final = 99
SCHEDULE: Final = "20ms 40ms"
REASON_SIZE_MAX: Final = 500

WORKERS: Final = {
    "confluent-kafka": "confluent_worker",
    "aiokafka": "aiokafka_worker",
    "kafka-python": "kafka_python_worker",
    "KafkaJS": "worker.js",
    "Java": "RetryWorker.java",
}
"""Client, as the page has it -> its worker."""

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Sent:
    """A record; `fails` is how many times its handler fails."""

    key: bytes | None
    value: bytes | None
    fails: int
    headers: Sequence[tuple[str, bytes | None]] = ()


OWN: Final = [("a", b""), ("b", b"\x00\xff"), ("a", b"2"), ("\u00e9", b"\xc3\xa9")]
SENT: Final = (
    Sent(None, b"not disturbed", 0),
    Sent(b"not disturbed", b"", 0, OWN),
    Sent(b"\x00\xff", None, 2, OWN),
    Sent(b"", b"", 1),
    Sent(None, b"\xff\x00", ATTEMPT_MAX, OWN),
    Sent(b"dead", b"\x80", ALWAYS, OWN),
    Sent(None, None, 1, [("null", None), ("a", b"1")]),
    Sent(b"dead", None, ALWAYS),
)
"""In turn to each partition, so that those that fail are not the first of theirs."""

FAILING: Final = (Sent(b"", b"", 1, OWN),)

HANDLED_COUNT: Final = sum(min(one.fails, ATTEMPT_MAX) + 1 for one in SENT)


@dataclass(frozen=True, slots=True)
class Run:
    """What workers of a client did.

    Args:
        topic, group: their own.
        shown: each record that they handled: place, key, value and headers.
    """

    topic: str
    group: str
    shown: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Runs:
    """All workers of a client: the usual one, two of which the first one crashed, and one whose
    record was refused."""

    usual: Run
    crash: Run
    refusal: Run


# Workers


def command(client: str, directory: Path) -> tuple[list[str], dict[str, str]]:
    """Return how the worker is run, beside the function of the page, and its environment.

    Raises:
        ClientMissingError: something is not installed.
    """
    function, worker = retry_functions()[client], WORKERS[client]
    if client == "KafkaJS":
        path = f"{find('kafkajs') / 'node_modules'}:{directory}"
        (directory / "retry_later.js").write_text(function.text)
        return ["node", str(CLIENTS / "retry" / worker)], {"NODE_PATH": path}
    if client == "Java":
        return java_command(function, CLIENTS / "retry" / worker, directory), {}
    (directory / "retry_later.py").write_text(function.text)
    python = [sys.executable, "-m", f"tests.system.clients.retry.{worker}"]
    return python, {"PYTHONPATH": str(directory)}


def java_command(function: Snippet, worker: Path, directory: Path) -> list[str]:
    jars = f"{find('java_4')}/jars/*"
    path = directory / "Retry.java"
    path.write_text(function.text)
    words = ["javac", "-nowarn", "-cp", jars, "-d", str(directory)]
    done = subprocess.run(
        [*words, str(path), str(worker)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [*JAVA, "-Dstdout.encoding=UTF-8", "-cp", f"{jars}:{directory}", worker.stem]


def work(
    worker: tuple[list[str], dict[str, str]], address: str, topic: str, count: int, status: int = 0
) -> list[Mapping[str, Any]]:
    """Run a worker until it has handled so many records, or fails; return what it showed."""
    mode = "crash" if status == CRASHED else "work"
    done = subprocess.run(
        [*worker[0], address, topic, group_of(topic), str(count), mode],
        cwd=ROOT,
        env={**os.environ, **worker[1]},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"place')]


def group_of(topic: str) -> str:
    return f"{topic}-workers"


def run_workers(address: str, client: str, directory: Path) -> Runs:
    directory.mkdir()
    worker = command(client, directory)

    def run(purpose: str, *calls: tuple[int, int]) -> Run:
        topic = f"{purpose}-{client}"
        shown = [one for call in calls for one in work(worker, address, topic, *call)]
        return Run(topic, group_of(topic), shown)

    return Runs(
        run("again", (HANDLED_COUNT, 0)), run("crash", (1, CRASHED), (3, 0)), run("off", (1, 1))
    )


@pytest.fixture(scope="module")
def started(
    broker: ApplianceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Runs]]]:
    """The workers of all clients at the same time: they wait most of the time."""
    root = tmp_path_factory.mktemp("retry")
    rules = {"retry.schedule": SCHEDULE, "retry.max": str(ATTEMPT_MAX)}
    for client in WORKERS:
        for topic, settings, records in (
            (f"again-{client}", {}, SENT),
            (f"crash-{client}", {}, FAILING),
            (f"off-{client}", {"delay.headers": "off"}, FAILING),
        ):
            create(broker.kafka, topic, settings)
            send(broker.kafka, topic, records)
        create(broker.kafka, f"{group_of(f'crash-{client}')}.retry", rules)
        with pytest.MonkeyPatch.context() as patch:
            shell = CommandLine(patch, broker.kafka, broker.admin)
            options = f"--retry-schedule '{SCHEDULE}' --retry-max {ATTEMPT_MAX}"
            shell.ok(f"groups alter {group_of(f'again-{client}')} {options}")
    with ThreadPoolExecutor(len(WORKERS)) as pool:
        yield {
            client: pool.submit(run_workers, broker.kafka, client, root / client)
            for client in WORKERS
        }


@pytest.fixture(params=WORKERS)
def client(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def runs(started: dict[str, Future[Runs]], client: str) -> Runs:
    try:
        return started[client].result(4 * LIMIT_S)
    except ClientMissingError as missing:
        pytest.skip(str(missing))


# The broker


def create(address: str, topic: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    (answer,) = admin.create_topics([NewTopic(topic, PARTITION_COUNT, config=settings)]).values()
    answer.result(30)


def send(address: str, topic: str, records: Sequence[Sent]) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for number, one in enumerate(records):
        headers = [("number", b"%d" % number), ("fails", b"%d" % one.fails), *one.headers]
        place = number % PARTITION_COUNT
        producer.produce(topic, one.value, one.key, partition=place, headers=headers)
    assert producer.flush(30) == 0


def consumer_of(address: str, group: str) -> Consumer:
    settings = {"bootstrap.servers": address, "group.id": group, "log_level": 0}
    return Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})


def topics(address: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    return set(admin.list_topics(timeout=30).topics)


def partitions_of(consumer: Consumer, topic: str) -> list[TopicPartition]:
    found = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    return [TopicPartition(topic, index, 0) for index in sorted(found)]


def committed(address: str, group: str, topic: str) -> dict[int, int]:
    """The committed offsets of a group by partition."""
    consumer = consumer_of(address, group)
    found = consumer.committed(partitions_of(consumer, topic), timeout=30)
    consumer.close()
    return {one.partition: one.offset for one in found if one.offset >= 0}


def ends_of(address: str, topic: str) -> dict[int, int]:
    """The next offset of each partition."""
    consumer = consumer_of(address, "unused")  # of its own: one that fetches answers later
    places = partitions_of(consumer, topic)
    ends = {one.partition: consumer.get_watermark_offsets(one, 30)[1] for one in places}
    consumer.close()
    return ends


def read(address: str, topic: str, count: int) -> list[Message]:
    """Wait for so many records of a topic; fail if there is another one."""
    consumer = consumer_of(address, "unused")
    consumer.assign(partitions_of(consumer, topic))
    found = consumer.consume(count, LIMIT_S)
    consumer.close()
    assert not [one.error() for one in found if one.error()]
    assert len(found) == count == sum(ends_of(address, topic).values())
    return found


def headers_of(message: Message) -> Headers:
    return list(message.headers() or [])


def text_of(message: Message, name: str) -> str:
    """The value of a header that a record has once."""
    (value,) = (value for key, value in headers_of(message) if key == name)
    assert value is not None
    return value.decode()


def own_headers(headers: Sequence[tuple[str, bytes | None]]) -> Headers:
    added = ("x-accepted-at", "x-due-at", "x-retry-", "x-origin")
    return [(name, value) for name, value in headers if not name.startswith(added)]


def by_number(messages: Sequence[Message]) -> dict[int, list[Message]]:
    found = defaultdict(list)
    for message in messages:
        found[int(text_of(message, "number"))].append(message)
    return dict(found)


def expected_headers(client: str, headers: Headers) -> Headers:
    """What is left of headers: two clients send none that is null; KafkaJS groups them by name."""
    if client not in {"kafka-python", "KafkaJS"}:
        return headers
    whole = [header for header in headers if header[1] is not None]
    if client == "KafkaJS":
        names = list(dict.fromkeys(name for name, _ in headers))
        whole.sort(key=lambda header: names.index(header[0]))
    return whole


def check_same(client: str, first: Message, again: Message) -> None:
    """Check that a record that came again is what it was."""
    value = first.value()
    if client in {"aiokafka", "kafka-python"} and first.key() is None:
        value = value or b""  # they send no record that has neither
    assert (again.key(), again.value()) == (first.key(), value)
    assert own_headers(headers_of(again)) == expected_headers(client, headers_of(first))
    assert text_of(again, "x-origin") == f"{first.topic()}/{first.partition()}/{first.offset()}"


def check_reason(message: Message, expected: str) -> None:
    reason = text_of(message, "x-retry-reason")
    assert expected in reason
    assert len(reason) <= REASON_SIZE_MAX


def shown_header(shown: Mapping[str, Any], name: str) -> str:
    """The value of a header in what a worker showed."""
    (value,) = (value for key, value in shown["headers"] if key == name)
    return bytes.fromhex(value).decode()


# What it shows


def test_every_function_of_the_page_has_a_worker() -> None:
    assert set(retry_functions()) == set(WORKERS)


def test_a_record_comes_again_until_it_is_handled(
    broker: ApplianceProcess, runs: Runs, client: str
) -> None:
    """The attempts are counted, and the origin stays that of the first delivery."""
    run = runs.usual
    firsts = by_number(read(broker.kafka, run.topic, len(SENT)))
    retry_count = sum(min(one.fails, ATTEMPT_MAX) for one in SENT)
    retries = by_number(read(broker.kafka, f"{run.group}.retry", retry_count))
    assert len(run.shown) == HANDLED_COUNT
    for number, sent in enumerate(SENT):
        (first,) = firsts[number]
        again = retries.get(number, [])
        attempts = range(1, min(sent.fails, ATTEMPT_MAX) + 1)
        assert [text_of(one, "x-retry-attempt") for one in again] == [f"{one}" for one in attempts]
        for one in again:
            check_same(client, first, one)
            attempt = int(text_of(one, "x-retry-attempt"))
            check_reason(one, f"attempt {attempt - 1} \u2713 ")
        handled = [one for one in run.shown if shown_header(one, "number") == str(number)]
        assert [one["place"] for one in handled] == [
            [one.topic(), one.partition(), one.offset()] for one in (first, *again)
        ]


def test_a_record_that_always_fails_ends_among_the_dead_letters(
    broker: ApplianceProcess, runs: Runs, client: str
) -> None:
    run = runs.usual
    firsts = by_number(read(broker.kafka, run.topic, len(SENT)))
    always = {number for number, one in enumerate(SENT) if one.fails == ALWAYS}
    dead = by_number(read(broker.kafka, f"{run.group}.dlq", len(always)))
    assert set(dead) == always
    for number, (letter,) in dead.items():
        check_same(client, firsts[number][0], letter)
        assert text_of(letter, "x-retry-attempt") == str(ATTEMPT_MAX)
        check_reason(letter, f"attempt {ATTEMPT_MAX} \u2713 ")


def test_offsets_are_committed_and_other_groups_see_no_retry(
    broker: ApplianceProcess, runs: Runs
) -> None:
    for run in (runs.usual, runs.crash):
        for topic in (run.topic, f"{run.group}.retry"):
            ends = ends_of(broker.kafka, topic)
            expected = {partition: end for partition, end in ends.items() if end}
            assert committed(broker.kafka, run.group, topic) == expected
    run = runs.usual
    consumer = consumer_of(broker.kafka, f"{run.group}-other")
    consumer.subscribe([run.topic])
    found = consumer.consume(len(SENT), LIMIT_S)
    consumer.close()
    assert sorted(by_number(found)) == list(range(len(SENT)))
    for message in read(broker.kafka, run.topic, len(SENT)):
        number = int(text_of(message, "number"))
        sent = SENT[number]
        names = ("number", "fails")
        headers = [header for header in headers_of(message) if header[0] not in names]
        assert (message.key(), message.value(), headers) == (sent.key, sent.value, [*sent.headers])
    assert f"{run.group}-other.retry" not in topics(broker.kafka)


def test_a_crash_before_the_commit_loses_nothing(
    broker: ApplianceProcess, runs: Runs, client: str
) -> None:
    """The record was produced back when the worker ended, and is so again by the next one."""
    run = runs.crash
    (first,) = read(broker.kafka, run.topic, 1)
    retries = read(broker.kafka, f"{run.group}.retry", 2)
    for one in retries:
        check_same(client, first, one)
        assert text_of(one, "x-retry-attempt") == "1"
        assert one.partition() == first.partition()
    places = sorted(one["place"] for one in run.shown)
    again = [[one.topic(), one.partition(), one.offset()] for one in (first, first, *retries)]
    assert places == sorted(again)


def test_a_record_that_is_refused_is_not_committed(broker: ApplianceProcess, runs: Runs) -> None:
    """The worker ends instead, and its next start reads the record again."""
    run = runs.refusal
    (first,) = read(broker.kafka, run.topic, 1)
    assert [one["place"] for one in run.shown] == [
        [first.topic(), first.partition(), first.offset()]
    ]
    assert committed(broker.kafka, run.group, run.topic) == {}
