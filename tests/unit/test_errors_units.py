"""Errors carry facts; durations are read and written as people write them."""

from pathlib import Path

import pytest

from appliance.errors import (
    CorruptionError,
    LatermqError,
    StorageError,
)
from appliance.units import counted, format_duration_ms, parse_duration_ms


def test_the_base_error_is_never_raised_itself() -> None:
    with pytest.raises(TypeError):
        LatermqError("who must act?")


def test_corruption_says_where_and_what() -> None:
    error = CorruptionError(Path("/d/log"), 4096, "crc 0x1", "crc 0x2")
    assert str(error) == "/d/log is damaged at byte 4096: expected crc 0x1, found crc 0x2"
    assert (error.offset, error.expected, error.found) == (4096, "crc 0x1", "crc 0x2")


def test_only_a_failed_sync_is_fatal() -> None:
    fatal = {
        operation
        for operation in ("pwritev", "fdatasync", "fsync", "open", "pread")
        if StorageError(Path("x"), operation, 5, "I/O error").is_fatal
    }
    assert fatal == {"fdatasync", "fsync"}


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("0ms", 0),
        ("250ms", 250),
        ("1s", 1_000),
        ("90s", 90_000),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("007s", 7_000),
    ],
)
def test_durations_are_read(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    "text",
    [
        "1" * 16 + "s",
        "5s\n",
        *["", "5", "s", "5 s", " 5s", "5s ", "-5s", "+5s", "1.5s", "5S", "5w", "1h30m", "५s"],
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["0ms", "1ms", "999ms", "1s", "90s", "2m", "1h", "25h", "3d"])
def test_a_written_duration_reads_back(text: str) -> None:
    assert format_duration_ms(parse_duration_ms(text)) == text


def test_one_thing_is_not_several() -> None:
    assert [counted(count, "row") for count in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
