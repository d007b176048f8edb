"""kcat, with the librdkafka that Debian ships: old, strict, and on everybody's machine.

One command for each thing, as people type it. What it cannot do has no method here.
"""

import itertools
import json
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.system.clients.delayed import Received, now_ms
from tests.system.clients.suites.library import INVALID_RECORD, RefusedError, Sent, ignore
from tests.system.clients.suites.using import LIMIT_S


def received(line: bytes) -> Received:
    record = json.loads(line)
    flat = record.get("headers") or []
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return Received(
        value=record["payload"].encode(),
        key=None if record["key"] is None else record["key"].encode(),
        headers=tuple((name, value.encode()) for name, value in pairs),
        partition=record["partition"],
        offset=record["offset"],
        timestamp_ms=record["ts"],
        at_ms=now_ms(),
    )


class Reader:
    """Starts a command to read with, and follows what it prints."""

    def __init__(self, address: str, group: str | None, settings: Sequence[str]) -> None:
        self._command = ["kcat", "-b", address, *settings]
        self._group = group
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []
        self._records: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._share: set[int] = set()
        self._on_change: Callable[[str, Iterable[int]], None] = ignore

    def _start(self, *arguments: str) -> None:
        self.close()
        self._process = subprocess.Popen(
            [*self._command, "-J", "-u", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        follow = (self._follow_records, self._process.stdout), (self._follow, self._process.stderr)
        self._threads = [threading.Thread(target=run, args=(stream,)) for run, stream in follow]
        for thread in self._threads:
            thread.start()

    def _follow_records(self, stream: Any) -> None:
        for line in stream:
            self._records.put(received(line))

    def _follow(self, stream: Any) -> None:
        for line in stream:
            text = line.decode()
            match = re.search(r"rebalanced\b.*?\b(assign|revok|unassign|incremental )", text)
            if match is None:
                continue
            partitions = {int(one) for one in re.findall(r"\[(\d+)\]", text)}
            if "assigned:" in text:
                self._share = partitions
            elif "incremental assignment" in text:
                self._share = self._share | partitions
            else:
                self._share = self._share - partitions
                self._on_change("revoked", partitions)

    def assign(self, topic: str, places: Mapping[int, int | None]) -> None:
        where = ["-C", "-t", topic]
        if len(places) == 1:
            ((partition, offset),) = places.items()
            where += ["-p", str(partition), "-o", "beginning" if offset is None else str(offset)]
        self._start(*where)

    def subscribe(
        self,
        topic: str,
        on_change: Callable[[str, Iterable[int]], None] = ignore,
        on_records: Callable[[Sequence[Received]], None] = ignore,
    ) -> None:
        assert self._group is not None
        self._on_change = on_change
        self._start("-G", self._group, topic)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.assign(topic, {partition: offset})

    def poll(self, limit_s: float, count: int = 500) -> list[Received]:
        records: list[Received] = []
        try:
            while len(records) < count:
                records.append(self._records.get(timeout=0 if records else limit_s))
        except queue.Empty:
            pass
        return records

    def share(self) -> set[int]:
        return self._share

    def _offset_at(self, topic: str, time: int) -> int:
        done = subprocess.run(
            [*self._command, "-Q", "-t", f"{topic}:0:{time}"], capture_output=True, timeout=LIMIT_S
        )
        return int(done.stdout.split()[-1])

    def ends(self, topic: str) -> tuple[int, int]:
        return self._offset_at(topic, -2), self._offset_at(topic, -1)

    def offset_at(self, topic: str, time_ms: int) -> int | None:
        offset = self._offset_at(topic, time_ms)
        # After the last record it shows the end, or -1, as its version has it.
        return None if offset in (-1, self._offset_at(topic, -1)) else offset

    def close(self) -> None:
        """Interrupt it, as the keyboard does; a dynamic member leaves its group then."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        self._process.wait(LIMIT_S)
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        self._process = None


class Adapter:
    is_binary = False
    sets_time = False
    invalid_record = INVALID_RECORD
    shows_reason = False

    def __init__(self, address: str) -> None:
        self.address = address

    def _run(self, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = ["kcat", "-b", self.address, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT_S)

    def create(self, topic: str, _partition_count: int = 1) -> None:
        """To ask for a topic creates it."""
        self._run("-L", "-t", topic)

    def topics(self) -> set[str]:
        return {each["topic"] for each in json.loads(self._run("-L", "-J").stdout)["topics"]}

    def describe_topic(self, topic: str) -> int:
        (shown,) = json.loads(self._run("-L", "-J", "-t", topic).stdout)["topics"]
        return len(shown["partitions"])

    def try_send(
        self,
        topic: str,
        records: Sequence[Sent],
        *,
        partition: int = 0,
        acks: int = -1,
        codec: str = "none",
        is_idempotent: bool = False,
        batch_bytes: int | None = None,
    ) -> list[int | RefusedError]:
        """One command for those that have the same headers. It shows no offsets: they are -1."""
        settings = ["-X", "linger.ms=30", "-X", f"acks={acks}", "-z", codec]
        if is_idempotent:
            settings += ["-X", "enable.idempotence=true"]
        if batch_bytes is not None:
            settings += ["-X", f"batch.size={batch_bytes}"]
        outcomes: list[int | RefusedError] = []
        for headers, group in itertools.groupby(records, lambda one: tuple(one.headers)):
            some = list(group)
            flags = [flag for name, value in headers for flag in ("-H", f"{name}={value.decode()}")]
            if some[0].key is not None:
                flags += ["-K", ":"]
            lines = [b":".join(filter(None, (one.key, one.value))) for one in some]
            where = ("-P", "-t", topic, "-p", str(partition), "-d", "msg")
            done = self._run(*where, *flags, *settings, stdin=b"\n".join(lines))
            said = done.stderr.decode()
            # Not switched off silently, as it does with a broker that looks too old.
            assert codec == "none" or len(some) == 1 or f", {codec})\n" in said, said
            if done.returncode:
                code = INVALID_RECORD if "validate" in said else -1
                outcomes += [RefusedError(code, said)] * len(some)
            else:
                outcomes += [-1] * len(some)
        return outcomes

    @contextmanager
    def consuming(
        self,
        group: str | None = None,
        *,
        instance: str | None = None,
        is_cooperative: bool = False,
        can_reset: bool = True,
        session_timeout_ms: int = 45_000,
        fetch_wait_ms: int = 500,
    ) -> Iterator[Reader]:
        reset = "earliest" if can_reset else "error"
        settings = {
            "auto.offset.reset": reset,
            "fetch.wait.max.ms": str(fetch_wait_ms),
            "session.timeout.ms": str(session_timeout_ms),
            "heartbeat.interval.ms": str(session_timeout_ms // 6),
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        if is_cooperative:
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        flags = [flag for each in settings.items() for flag in ("-X", "=".join(each))]
        reader = Reader(self.address, group, flags)
        try:
            yield reader
        finally:
            reader.close()
