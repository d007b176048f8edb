"""The features, tried with kcat: one command for each thing, as people type it."""

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tests.system.clients.suites.harness import (
    GAP_END,
    GAP_RECORDS,
    GAP_STARTS,
    LIMIT_S,
    TIME_MS,
    Header,
    Suite,
    cancelled_records,
    check_delayed,
    codec_values,
    now_ms,
    replaced_records,
    wait_until,
)

SUITE: Final = Suite("kcat")

FROM_BEGINNING: Final = ("-X", "auto.offset.reset=earliest")


def kcat(*arguments: str, stdin: bytes = b"") -> bytes:
    """Run a command to its end and return its output."""
    command = ["kcat", "-b", SUITE.address, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{arguments}: {done.stderr.decode()}"
    return done.stdout


def send(topic: str, *values: bytes, headers: Sequence[Header] = (), more: str = "") -> None:
    """Send each value, one a line, all with the same headers, to partition 0."""
    flags = [flag for name, value in headers for flag in ("-H", f"{name}={value.decode()}")]
    kcat("-P", "-t", topic, "-p", "0", *flags, *more.split(), stdin=b"\n".join(values))


def send_all(topic: str, records: Sequence[tuple[bytes, Sequence[Header]]]) -> None:
    for value, headers in records:
        send(topic, value or b"-", headers=headers)


def receive(topic: str, count: int, offset: str = "beginning") -> list[dict[str, Any]]:
    more = ("-o", offset, "-c", str(count), "-J", "-u")
    return [json.loads(line) for line in kcat("-C", "-t", topic, "-p", "0", *more).splitlines()]


def values_of(records: Sequence[dict[str, Any]]) -> list[bytes]:
    return [record["payload"].encode() for record in records]


def headers_of(record: dict[str, Any]) -> list[Header]:
    flat = record["headers"]
    return [(name, value.encode()) for name, value in zip(flat[::2], flat[1::2], strict=True)]


def partition_count(topic: str) -> int:
    (shown,) = json.loads(kcat("-L", "-J", "-t", topic))["topics"]
    return len(shown["partitions"])


@SUITE.feature
def list_topics(name: str) -> None:
    send(name, b"first")
    assert name in [shown["topic"] for shown in json.loads(kcat("-L", "-J"))["topics"]]


@SUITE.feature
def auto_create(name: str) -> None:
    send(name, b"first")
    assert partition_count(name) == 4


def produce_with_acks(name: str, acks: str) -> None:
    send(name, b"one", b"two", more=f"-X acks={acks}")
    assert values_of(receive(name, 2)) == [b"one", b"two"]


@SUITE.feature
def acks_0(name: str) -> None:
    produce_with_acks(name, "0")


@SUITE.feature
def acks_1(name: str) -> None:
    produce_with_acks(name, "1")


@SUITE.feature
def acks_all(name: str) -> None:
    produce_with_acks(name, "all")


def use_codec(name: str, codec: str) -> None:
    send(name, *codec_values(), more=f"-z {codec} -X linger.ms=30")
    assert values_of(receive(name, 100)) == codec_values()


@SUITE.feature
def codec_gzip(name: str) -> None:
    use_codec(name, "gzip")


@SUITE.feature
def codec_snappy(name: str) -> None:
    use_codec(name, "snappy")


@SUITE.feature
def codec_lz4(name: str) -> None:
    use_codec(name, "lz4")


@SUITE.feature
def codec_zstd(name: str) -> None:
    use_codec(name, "zstd")


@SUITE.feature
def headers(name: str) -> None:
    sent = [("a", b"1"), ("b", b"text"), ("a", b"")]  # a command line has no binary ones
    send(name, b"value", headers=sent)
    assert headers_of(receive(name, 1)[0]) == sent


@SUITE.feature
def idempotent(name: str) -> None:
    values = [b"%d" % index for index in range(1_000)]
    send(name, *values, more="-X enable.idempotence=true -X batch.num.messages=50")
    assert values_of(receive(name, 1_000)) == values


@SUITE.feature
def delay(name: str) -> None:
    sent_ms = now_ms()
    send(name, b"late", headers=[("x-delay", b"300ms")])
    (late,) = receive(name, 1)
    check_delayed(headers_of(late), sent_ms)


@SUITE.feature
def deliver_at(name: str) -> None:
    sent_ms = now_ms()
    send(name, b"late", headers=[("x-deliver-at", b"%d" % (sent_ms + 400))])
    (late,) = receive(name, 1)
    check_delayed(headers_of(late), sent_ms, sent_ms + 400)


@SUITE.feature
def cancel(name: str) -> None:
    send_all(name, cancelled_records())
    assert values_of(receive(name, 1)) == [b"end"]


@SUITE.feature
def replace(name: str) -> None:
    send_all(name, replaced_records())
    assert values_of(receive(name, 2)) == [b"new", b"end"]


@SUITE.feature
def bad_delay(name: str) -> None:
    command = ["kcat", "-b", SUITE.address, "-P", "-t", name, "-p", "0", "-H", "x-delay=soon"]
    done = subprocess.run(command, input=b"bad", capture_output=True, timeout=LIMIT_S)
    assert done.returncode != 0
    assert b"validate" in done.stderr, done.stderr


@SUITE.feature
def assign(name: str) -> None:
    send(name, b"one")
    assert values_of(receive(name, 1)) == [b"one"]


@SUITE.feature
def seek(name: str) -> None:
    send(name, *[b"%d" % index for index in range(10)])
    assert values_of(receive(name, 3, "7")) == [b"7", b"8", b"9"]


@SUITE.feature
def gaps(name: str) -> None:
    found = receive(name, len(GAP_RECORDS))
    assert [(one["offset"], one["payload"].encode()) for one in found] == GAP_RECORDS
    send(name, b"after")
    for start in GAP_STARTS:
        (after,) = receive(name, 1, str(start))
        assert (after["offset"], after["payload"]) == (GAP_END, "after")


@SUITE.feature
def wait(name: str) -> None:
    send(name, b"first")
    command = ["kcat", "-b", SUITE.address, "-C", "-t", name, "-p", "0", "-c", "2", "-u", "-q"]
    with subprocess.Popen([*command, "-o", "beginning"], stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"first\n"
        begin_s = time.monotonic()
        send(name, b"late", headers=[("x-delay", b"300ms")])
        assert waiting.stdout.readline() == b"late\n"
        assert time.monotonic() - begin_s >= 0.3


@SUITE.feature
def ends(name: str) -> None:
    send(name, b"one", b"two")
    for end, offset in ((-2, 0), (-1, 2)):
        assert kcat("-Q", "-t", f"{name}:0:{end}").split()[-1] == b"%d" % offset


@SUITE.feature
def offsets_by_time(name: str) -> None:
    send(name, b"one", b"two")  # a producer's clock is what it is: there is no flag for the time
    assert kcat("-Q", "-t", f"{name}:0:{TIME_MS}").split()[-1] == b"0"
    assert kcat("-Q", "-t", f"{name}:0:{now_ms() + 60_000}").split()[-1] in (b"2", b"-1")


class Member:
    """A consumer of a group that runs; what it says of its partitions is followed."""

    def __init__(self, group: str, *settings: str) -> None:
        command = ["kcat", "-b", SUITE.address, *FROM_BEGINNING, *settings, "-G", group, group]
        self.share: set[int] = set()
        self.rebalance_count = 0
        self.said = ""
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._follow)
        self._reader.start()

    def _follow(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said += line
            match = re.search(r"rebalanced\b.*?\b(assign|revok|unassign|incremental )", line)
            if match is None:
                continue
            partitions = {int(one) for one in re.findall(r"\[(\d+)\]", line)}
            self.rebalance_count += 1
            if "assigned:" in line:
                self.share = partitions
            elif "incremental assignment" in line:
                self.share = self.share | partitions
            else:
                self.share = self.share - partitions

    def stop(self) -> None:
        """Interrupt it, as the keyboard does; a dynamic member leaves its group then."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(LIMIT_S)
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


@contextmanager
def joined(group: str, *settings: str) -> Iterator[Member]:
    member = Member(group, *settings)
    try:
        yield member
    finally:
        member.stop()


def wait_for_shares(count: int, *members: Member) -> None:
    def have_it() -> bool:
        return all(len(member.share) == count for member in members)

    try:
        wait_until(have_it, f"every member has {count} partitions")
    except AssertionError as late:
        raise AssertionError(f"{late}; they said {[one.said for one in members]}") from None


def receive_in_group(group: str, count: int) -> list[bytes]:
    """Read so many records as the only member; its position is committed at the end."""
    return kcat(*FROM_BEGINNING, "-c", str(count), "-u", "-G", group, group).splitlines()


@SUITE.feature
def subscribe(name: str) -> None:
    for partition in range(3):
        kcat("-P", "-t", name, "-p", str(partition), stdin=b"%d" % partition)
    assert sorted(receive_in_group(name, 3)) == [b"0", b"1", b"2"]


@SUITE.feature
def resume(name: str) -> None:
    send(name, b"one", b"two", b"three")
    assert receive_in_group(name, 3) == [b"one", b"two", b"three"]
    send(name, b"four")
    assert receive_in_group(name, 1) == [b"four"]


def share_out(name: str, *settings: str) -> None:
    send(name, b"first")
    with joined(name, *settings) as first:
        wait_for_shares(4, first)
        with joined(name, *settings) as second:
            wait_for_shares(2, first, second)
            assert first.share | second.share == {0, 1, 2, 3}
        wait_for_shares(4, first)


@SUITE.feature
def rebalance(name: str) -> None:
    share_out(name)


@SUITE.feature
def cooperative(name: str) -> None:
    share_out(name, "-X", "partition.assignment.strategy=cooperative-sticky")


@SUITE.feature
def static_member(name: str) -> None:
    send(name, b"first")
    with joined(name, "-X", "group.instance.id=first") as first:
        with joined(name, "-X", "group.instance.id=second") as second:
            wait_for_shares(2, first, second)
            had = second.share
        before = first.rebalance_count
        with joined(name, "-X", "group.instance.id=second") as second:
            wait_for_shares(2, first, second)
            assert second.share == had
        assert first.rebalance_count == before


if __name__ == "__main__":
    SUITE.run()
