"""A group of ten members of three libraries that come, leave and are killed, under load."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.support.clients.client_setup import ROOT
from tests.support.harness.appliance_process import CONFIG, ApplianceProcess, running_appliance
from tests.support.oracles.group_history import Event, parse, problems

LIBRARIES: Final = ("confluent", "aiokafka", "kafka_python")
MEMBER_COUNT_MAX: Final = 10
PARTITION_COUNT: Final = 12
RECORDS_PER_STEP: Final = 60

CATCH_UP_LIMIT_S: Final = 200.0
"""From a change of the group to the last record that was sent before it: seconds, if idle."""


class Members:
    """The processes, and what all that ever were have said."""

    def __init__(self, address: str, root: Path, choose: random.Random) -> None:
        self._address = address
        self._root = root
        self._choose = choose
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._paths: list[Path] = []
        self.done: list[str] = []

    def start(self) -> None:
        library = self._choose.choice(LIBRARIES)
        name = f"{len(self._paths)}-{library}"
        path = self._root / f"{name}.txt"
        self._paths.append(path)
        command = (
            "-m",
            "tests.system.clients.suites.member",
            library,
            self._address,
            "group",
            "topic",
        )
        with path.open("wb") as said, path.with_suffix(".stderr").open("wb") as errors:
            self._running[name] = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, stdout=said, stderr=errors
            )
        self.done.append(f"start {name}")

    def end(self, number: signal.Signals) -> None:
        """Kill one, or ask one to leave; a member that leaves continues until it has ended."""
        name = self._choose.choice(sorted(self._running))
        self._running[name].send_signal(number)
        self.done.append(f"{number.name} {name}")
        if number == signal.SIGKILL:
            self._running.pop(name).wait()

    def reap(self) -> None:
        """Forget those that have left, and see that nobody else ended."""
        for name, process in list(self._running.items()):
            status = process.poll()
            if status is None:
                continue
            errors = (self._root / f"{name}.stderr").read_text()[-2_000:]
            # The signal may come before its handler; then it ends like any other program.
            assert status in (0, -signal.SIGTERM), f"{name} ended with status {status}: {errors}"
            assert f"SIGTERM {name}" in self.done, f"{name} ended by itself: {errors}"
            del self._running[name]

    def count(self) -> int:
        return sum(f"SIGTERM {name}" not in self.done for name in self._running)

    def change(self) -> None:
        """Do something at random; the group always keeps a member."""
        choices: list[Callable[[], None]] = []
        if len(self._running) < MEMBER_COUNT_MAX:
            choices += [self.start] * 3
        if self.count() > 1:
            choices.append(lambda: self.end(signal.SIGKILL))
            choices.append(lambda: self.end(signal.SIGTERM))
        self._choose.choice(choices)()

    def events(self) -> list[Event]:
        return [event for path in self._paths for event in parse(path.stem, path.read_text())]

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


class Load:
    """A producer of numbered records, some of which are delayed; `sent` has the acknowledged."""

    def __init__(self, address: str, choose: random.Random) -> None:
        self.sent: dict[str, int] = {}
        self._choose = choose
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0}
        )
        self._count = 0

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        value, partition = message.value(), message.partition()
        assert value is not None
        assert partition is not None
        self.sent[value.decode()] = partition

    def send(self, count: int) -> None:
        for _ in range(count):
            headers = [("x-delay", b"200")] if self._choose.random() < 0.2 else []
            self._producer.produce(
                "topic",
                b"%d" % self._count,
                partition=self._choose.randrange(PARTITION_COUNT),
                headers=headers,
                on_delivery=self._on_delivery,
            )
            self._count += 1
        assert self._producer.flush(120) == 0


@contextmanager
def broker_of(root: Path) -> Iterator[ApplianceProcess]:
    """A broker that takes short sessions, so that a crash is noticed soon."""
    config = root / "latermq.toml"
    config.write_text(
        f"{CONFIG}[groups]\nsession_timeout_min_ms = 1000\n"
        f"[topics]\ndefault_partition_count = {PARTITION_COUNT}\n"
    )
    with running_appliance(root, ["--config", str(config)]) as broker:
        yield broker


def wait_until_all_is_read(members: Members, load: Load) -> None:
    deadline_s = time.monotonic() + CATCH_UP_LIMIT_S
    while True:
        members.reap()
        got = {event.value for event in members.events() if event.kind == "got"}
        if load.sent.keys() <= got:
            return
        assert time.monotonic() < deadline_s, (
            f"the group is stuck: {len(load.sent.keys() - got)} records not read, "
            f"after {members.done}"
        )
        time.sleep(0.1)


def share_the_load(members: Members, load: Load) -> None:
    """Go on until several members have read: the first ones may be killed before they do."""
    deadline_s = time.monotonic() + CATCH_UP_LIMIT_S
    while len({event.member for event in members.events() if event.kind == "got"}) < 3:
        assert time.monotonic() < deadline_s, f"one reads all, after {members.done}"
        if members.count() < 3:
            members.start()
        load.send(RECORDS_PER_STEP)
        wait_until_all_is_read(members, load)


@pytest.mark.timeout(0)  # for as many rounds as are asked for; each has a limit of its own
def test_members_that_come_leave_and_crash_lose_nothing(tmp_path: Path, rounds: int) -> None:
    """Also: what was committed never comes again, and no member skips or repeats a record."""
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    sys.stdout.write(f"LATERMQ_SEED={seed}\n")  # shown if the test fails
    choose = random.Random(seed)
    with broker_of(tmp_path) as broker:
        load = Load(broker.kafka, choose)
        members = Members(broker.kafka, tmp_path, choose)
        try:
            for _ in range(3):
                members.start()
            for _ in range(max(2, rounds // 2)):
                for _ in range(choose.randint(2, 4)):
                    load.send(RECORDS_PER_STEP)
                    members.change()
                    time.sleep(choose.random() * 0.6)  # so that they meet all states of the group
                wait_until_all_is_read(members, load)
            share_the_load(members, load)
            events = members.events()
            found = problems(events, load.sent)
            assert not found, f"{found[:10]} after {members.done}; what they said is in {tmp_path}"
        finally:
            members.close()
