"""Reads rows for `latermq import` from Parquet files and JSON lines. Layer 6."""

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from appliance.errors import ConfigError
from appliance.system.files import FileSystem, OsFileSystem
from appliance.units import MIB

STDIN: Final = "-"
PARQUET_SUFFIX: Final = ".parquet"
ROWS_AT_ONCE: Final = 1024

COLUMNS: Final = (
    "topic",
    "partition",
    "key",
    "value",
    "headers",
    "timestamp",
    "due_at",
    "delay_state",
    "id",
    "index",
    "level",
    "completed_at",
    "cron",
    "zone",
    "missed",
)
"""What an import looks at; a table may have others."""

REQUIRED: Final = frozenset({"topic", "value"})


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        place: file and number, for people.
        fields: by column; instants are epoch ms, bytes may be text or `{"base64": ...}`.
    """

    place: str
    fields: Mapping[str, Any]


class Rows:
    """The rows of some files, in order.

    Attributes:
        is_stream: they can be read once only.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Find the files; reads none of them.

        Args:
            names: Parquet files, directories of them, files of JSON lines, or `-`.

        Raises:
            ConfigError: there is no such file.
        """
        self._paths = [path for name in names for path in _files_of(name)]
        self.is_stream = any(path is None for path in self._paths)

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows.

        Raises:
            ConfigError: a file is not what its name says, or lacks a column.
        """
        for path in self._paths:
            if path is None:
                yield from _json_rows("standard input", sys.stdin.buffer)
            elif path.name.endswith(PARQUET_SUFFIX):
                yield from _parquet_rows(path)
            else:
                yield from _json_rows(path.name, _lines_of(OsFileSystem(), path))


def _files_of(name: str) -> list[Path | None]:
    if name == STDIN:
        return [None]
    path = Path(name)
    if path.is_dir():
        found: list[Path | None] = [*sorted(path.glob(f"*{PARQUET_SUFFIX}"))]
        if not found:
            raise ConfigError(f"{path} has no file whose name ends in {PARQUET_SUFFIX}")
        return found
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    return [path]


# Parquet


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in COLUMNS]
            _check_columns(path.name, names)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=names):
                columns = [_values(batch.column(at)) for at in range(len(names))]
                for values in zip(*columns, strict=True):
                    number += 1
                    place = f"{path.name}, row {number}"
                    yield Row(place, dict(zip(names, values, strict=True)))
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read after row {number}: {error}") from None


def _values(column: Any) -> list[Any]:
    """Return the values of a column; instants as epoch ms."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        ms = pa.timestamp("ms", tz=column.type.tz)
        return list(column.cast(ms, safe=False).cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _check_columns(place: str, names: Iterable[str]) -> None:
    missing = sorted(REQUIRED - set(names))
    if missing:
        raise ConfigError(
            f"{place} has no column {missing[0]}: only rows with a topic and a value can be sent, "
            "such as those of the tables messages and timers"
        )


# JSON lines


def _json_rows(name: str, lines: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{name}, row {number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{place} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ConfigError(f"{place} is not a JSON object")
        _check_columns(place, fields)
        yield Row(place, fields)


def _lines_of(fs: FileSystem, path: Path) -> Iterator[bytes]:
    file = fs.open(path, writable=False)
    rest, at = b"", 0
    try:
        while data := file.pread(MIB, at):
            at += len(data)
            *whole, rest = (rest + data).split(b"\n")
            yield from whole
        if rest:
            yield rest
    finally:
        file.close()


def octets(value: Any) -> bytes | None:
    """Return the bytes of a field.

    Raises:
        ValueError: it is neither bytes, nor text, nor `{"base64": ...}`, nor null.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    raise ValueError("is neither bytes, nor text, nor base64")
