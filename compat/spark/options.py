"""The options of the Spark source, as a query. Layer 5."""

import multiprocessing
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from appliance.errors import ConfigError
from appliance.store.paths import DataPaths
from compat.tables.schema import TABLE_NAMES
from compat.tables.selection import ANY, Bounds, Selection
from compat.tables.table import SPLIT_BYTES, Query, check_query

NAMES: Final = (
    "path",
    "table",
    "topics",
    "startTimestamp",
    "endTimestamp",
    "dueBetween",
    "columns",
    "snapshot",
    "splitBytes",
    "maxBytesPerTrigger",
    "includeExpired",
    "pushFilters",
    "failOnDataLoss",
    "verifyCrc",
)
_SIZE: Final = re.compile(r"([0-9]{1,15})([kmg]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_BY_TIMESTAMP: Final = frozenset({"messages"})
_WITHOUT_TIME: Final = frozenset({"groups"})


@dataclass(frozen=True, slots=True)
class Options:
    """What `spark.read` was asked.

    Attributes:
        root: the data directory, or the snapshot of one.
        query: what to read of it.
        trigger_bytes: bytes of the log that one micro-batch reads at most; None for no limit.
        takes_filters: leave out parts of the log that filters of Spark exclude.
        needs_snapshot: refuse a directory that is no snapshot: it is named as one, or its batches
            are not checked.
    """

    root: Path
    query: Query
    trigger_bytes: int | None
    takes_filters: bool
    needs_snapshot: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Read the options of a source. Their names do not depend on the case of letters.

        Raises:
            ConfigError: an option is unknown, is missing, or has a bad value.
        """
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(options) - {name.lower() for name in (*NAMES, "paths")})
        if unknown:
            raise ConfigError(
                f"there is no option {unknown[0]!r}: the options are {', '.join(NAMES)}"
            )
        root = _root(options)
        table = options.get("table", "messages")
        if table not in TABLE_NAMES:
            raise ConfigError(f"there is no table {table!r}: use one of {', '.join(TABLE_NAMES)}")
        query = Query(
            table=table,
            columns=_names(options.get("columns")),
            selection=_selection(table, options),
            split_bytes=_size("splitBytes", options.get("splitbytes")) or SPLIT_BYTES,
            # Who names a size gets it. The executors may have another number; it does no harm.
            processors=1 if "splitbytes" in options else multiprocessing.cpu_count(),
            verifies=_verifies(options),
            fails_on_loss=_truth("failOnDataLoss", options.get("failondataloss", "true")),
            with_expired=_truth("includeExpired", options.get("includeexpired", "false")),
        )
        check_query(query)
        trigger = _size("maxBytesPerTrigger", options.get("maxbytespertrigger"))
        takes_filters = _truth("pushFilters", options.get("pushfilters", "false"))
        snapshot = options.get("snapshot", "")
        needs_snapshot = not query.verifies or _is_name(snapshot)
        return cls(root, query, trigger, takes_filters, needs_snapshot)


def _is_name(snapshot: str) -> bool:
    return snapshot != "" and "/" not in snapshot


def _root(options: Mapping[str, str]) -> Path:
    """Return the directory to read: the snapshot if there is one."""
    if "paths" in options:
        raise ConfigError("give one data directory, not several")
    snapshot, path = options.get("snapshot", ""), options.get("path", "")
    is_name = _is_name(snapshot)
    if not path and (is_name or not snapshot):
        raise ConfigError('give the data directory: .option("path", DIR)')
    root = Path((path if is_name or not snapshot else snapshot).removeprefix("file:"))
    # An executor may run in another directory.
    root = root.absolute()
    return DataPaths(root).log_snapshot(snapshot) if is_name else root


def _verifies(options: Mapping[str, str]) -> bool:
    verifies = _truth("verifyCrc", options.get("verifycrc", "true"))
    if not verifies and not options.get("snapshot"):
        raise ConfigError(
            "verifyCrc is false: that is allowed for a snapshot alone, whose frames were checked; "
            'give .option("snapshot", NAME), or leave verifyCrc out'
        )
    return verifies


def _selection(table: str, options: Mapping[str, str]) -> Selection:
    topics = _names(options.get("topics"))
    times: Bounds = (
        _instant("startTimestamp", options.get("starttimestamp")),
        _instant("endTimestamp", options.get("endtimestamp")),
    )
    if table in _WITHOUT_TIME and times != ANY:
        raise ConfigError(f"table {table} has no startTimestamp and endTimestamp: leave them out")
    due: Bounds = ANY
    if "duebetween" in options:
        bounds = options["duebetween"].split(",")
        if len(bounds) != 2:
            raise ConfigError(f"dueBetween is FROM,TO, not {options['duebetween']!r}")
        low, high = (_instant("dueBetween", each.strip()) for each in bounds)
        due = low, high
    by_timestamp = table in _BY_TIMESTAMP
    return Selection(
        topics=None if topics is None else frozenset(topics),
        timestamps=times if by_timestamp else ANY,
        stored=ANY if by_timestamp else times,
        due=due,
    )


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name for name in (each.strip() for each in text.split(",")) if name)


def _size(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"{name} is {text!r}: give bytes, such as 67108864 or 64m")
    return int(match[1]) * _UNITS[match[2].lower()]


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}: use true or false")
    return text.lower() == "true"


def _instant(name: str, text: str | None) -> int | None:
    """Read an instant as epoch ms; an empty text is no bound."""
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{name} has {text!r}: give epoch ms, or RFC 3339 such as 2026-01-01T00:00:00Z"
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return int(instant.timestamp() * 1000)
