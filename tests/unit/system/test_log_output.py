"""Whoever logs never waits for whoever reads the log."""

import logging
import threading

import pytest

from appliance.system import log_output
from appliance.system.log_output import QUEUED_MAX_BYTES, LogOutput

LINE = "x" * 99


class Reader:
    """Takes what is written, once it is let."""

    def __init__(self, *, is_ready: bool = True) -> None:
        self.ready = threading.Event()
        if is_ready:
            self.ready.set()
        self.began = threading.Event()
        self.data = b""

    def write(self, data: bytes) -> None:
        self.began.set()
        assert self.ready.wait(60)
        self.data += data


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("latermq.test", logging.INFO, "", 0, text, None, None)


def test_lines_are_written_in_their_order() -> None:
    reader = Reader()
    output = LogOutput(reader.write)
    for number in range(1_000):
        output.emit(record(f"line {number}"))
    output.flush()
    assert reader.data == b"".join(b"line %d\n" % number for number in range(1_000))


def test_lines_that_nobody_reads_are_counted_and_take_little_memory() -> None:
    reader = Reader(is_ready=False)
    output = LogOutput(reader.write)
    output.emit(record("first"))
    assert reader.began.wait(60)
    count = 3 * QUEUED_MAX_BYTES // 100
    for _ in range(count):
        output.emit(record(LINE))
    assert output._size <= QUEUED_MAX_BYTES
    reader.ready.set()
    output.flush()
    kept = QUEUED_MAX_BYTES // 100
    first, *lines, last = reader.data.decode().splitlines()
    assert first == "first"
    assert lines == [LINE] * kept
    assert last == f"{count - kept} lines are missing here: nobody read the log"
    output.emit(record("after"))
    output.flush()
    assert reader.data.endswith(b"the log\nafter\n")


def test_a_flush_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_output, "FLUSH_S", 0.01)
    reader = Reader(is_ready=False)
    output = LogOutput(reader.write)
    output.emit(record("first"))
    output.flush()
    assert reader.data == b""
    reader.ready.set()


def test_an_output_that_is_closed_is_no_error() -> None:
    written = []

    def write(data: bytes) -> None:
        written.append(data)
        raise BrokenPipeError

    output = LogOutput(write)
    for text in ("one", "two"):
        output.emit(record(text))
        output.flush()
    assert written == [b"one\n", b"two\n"]
