"""kcat, with the librdkafka that Debian ships: old, strict, and on everybody's machine."""

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.clients.delayed import (
    BAD,
    CODECS,
    Header,
    Received,
    check_delivery,
    now_ms,
    wishes,
)

LIMIT_S: Final = 60.0

pytestmark = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed: apt-get install kcat"
)


def kcat(
    broker: ApplianceProcess, *arguments: str, stdin: bytes = b"", check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        ["kcat", "-b", broker.kafka, *arguments], input=stdin, capture_output=True, timeout=LIMIT_S
    )
    if check and done.returncode != 0:
        raise AssertionError(f"kcat {arguments}: {done.stderr.decode()}")
    return done


def produce(
    broker: ApplianceProcess,
    topic: str,
    *values: bytes,
    headers: Sequence[Header] = (),
    more: Sequence[str] = (),
    check: bool = True,
) -> subprocess.CompletedProcess[bytes]:
    """Send each value, one a line, all with the same headers, to partition 0."""
    flags = [flag for name, value in headers for flag in ("-H", f"{name}={value.decode()}")]
    command = ("-P", "-t", topic, "-p", "0", *flags, *more)
    return kcat(broker, *command, stdin=b"\n".join(values), check=check)


def consume(broker: ApplianceProcess, topic: str, count: int) -> list[Received]:
    """Wait for so many records of partition 0; values and headers here are plain text."""
    command = ("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-J", "-u")
    lines = kcat(broker, *command).stdout.splitlines()
    at_ms = now_ms()  # when the last came: enough to see that none came early
    return [received_from(json.loads(line), at_ms) for line in lines]


def received_from(record: dict[str, Any], at_ms: int) -> Received:
    flat = record.get("headers") or []
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return Received(
        value=record["payload"].encode(),
        key=None if record["key"] is None else record["key"].encode(),
        headers=tuple((name, value.encode()) for name, value in pairs),
        partition=record["partition"],
        offset=record["offset"],
        timestamp_ms=record["ts"],
        at_ms=at_ms,
    )


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_records_come_back_as_they_were_sent(
    broker: ApplianceProcess, topic: str, codec: str
) -> None:
    """Key, value and headers, through each codec; this old client checks what is supported."""
    lines = [b"key-%d:" % index + b"value %d " % index * 50 for index in range(200)]
    headers = (("a", b"1"), ("b", b"2"), ("a", b"3"))
    more = ("-K", ":", "-z", codec, "-X", "linger.ms=50")
    said = produce(broker, topic, *lines, headers=headers, more=(*more, "-d", "msg")).stderr
    assert codec == "none" or f", {codec})\n".encode() in said  # not silently switched off
    for index, one in enumerate(consume(broker, topic, 200)):
        assert (one.offset, one.key, one.headers) == (index, b"key-%d" % index, headers)
        assert one.value == b"value %d " % index * 50


def test_every_form_of_request_is_understood(broker: ApplianceProcess, topic: str) -> None:
    """Each record comes out when it is due, in order of the due times."""
    sent = [wish for wish in wishes() if wish.value != b"Java long"]
    sent_ms = now_ms()
    produce(broker, topic, sent[0].value)
    for wish in reversed(sent[1:]):
        produce(broker, topic, wish.value, headers=wish.request)
    received = consume(broker, topic, len(sent))
    assert {one.value for one in received} == {wish.value for wish in sent}
    wish_of = {wish.value: wish for wish in sent}
    due_ms = []
    for one in received:
        wish = wish_of[one.value]
        if wish.request:
            check_delivery(one, sent_ms, delay_ms=wish.delay_ms, due_ms=wish.due_ms, own=())
            headers = dict(one.headers)
            # On a slow machine an instant may have passed when the request arrived.
            due_ms.append(max(int(headers["x-due-at"]), int(headers["x-accepted-at"])))
    assert due_ms[1:] == sorted(due_ms[1:])


def test_cancelled_timer_never_comes_and_a_replaced_one_comes_once(
    broker: ApplianceProcess, topic: str
) -> None:
    """By id, and acknowledged like any other record."""
    sent_ms = now_ms()
    for name in (b"one", b"two"):
        headers = (("x-delay", b"1h"), ("x-deliver-id", name))
        produce(broker, topic, b"old", headers=headers)
    produce(broker, topic, b"nothing", headers=[("x-deliver-cancel", b"one")])
    headers = (("x-delay", b"500ms"), ("x-deliver-id", b"two"))
    produce(broker, topic, b"new", headers=headers)
    produce(broker, topic, b"end", headers=[("x-delay", b"700ms")])
    new, end = consume(broker, topic, 2)
    assert (new.value, end.value) == (b"new", b"end")
    check_delivery(new, sent_ms, delay_ms=500, timer_id=b"two", own=())
    path = f"/api/v1/topics/{topic}/timers"
    states = [broker.get_json(f"{path}/{name}")[1]["state"] for name in ("one", "two")]
    assert states == ["cancelled", "delivered"]


def test_bad_request_is_refused(broker: ApplianceProcess, topic: str) -> None:
    """kcat says that the delivery failed; nothing is stored."""
    refused = produce(broker, topic, b"bad", headers=[BAD], check=False)
    assert refused.returncode != 0
    assert b"validate" in refused.stderr
    produce(broker, topic, b"good")
    assert [one.value for one in consume(broker, topic, 1)] == [b"good"]


def test_offsets_are_found_by_time(broker: ApplianceProcess, topic: str) -> None:
    """The query mode, for the end and for a time that is past."""
    before_ms = now_ms()
    produce(broker, topic, b"one", b"two")
    for time_ms, offset in ((-1, 2), (-2, 0), (before_ms, 0)):
        answer = kcat(broker, "-Q", "-t", f"{topic}:0:{time_ms}").stdout
        assert answer.split()[-1] == b"%d" % offset


def test_waiting_consumer_gets_a_delayed_record_at_once(
    broker: ApplianceProcess, topic: str
) -> None:
    """Started before the record is there, it ends soon after the record is due."""
    produce(broker, topic, b"first")
    command = ["kcat", "-b", broker.kafka, "-C", "-t", topic, "-p", "0", "-c", "2", "-u", "-q"]
    patient = ("-X", "fetch.wait.max.ms=30000", "-o", "beginning")
    with subprocess.Popen([*command, *patient], stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"first\n"
        begin_s = time.monotonic()
        produce(broker, topic, b"second", headers=[("x-delay", b"300")])
        assert waiting.stdout.readline() == b"second\n"
        assert 0.3 <= time.monotonic() - begin_s < 20.0  # the poll would last 30 s
