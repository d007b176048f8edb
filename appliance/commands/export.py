"""`latermq export`: a table of a data directory as Parquet files or JSON lines. Layer 6."""

import multiprocessing
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from appliance.commands import usage
from appliance.commands.arguments import load_pyarrow, read_past, to_bytes
from appliance.commands.offline import EXIT_FAULTS, DirArgument, Meter, reports_failure
from appliance.commands.output import complain, print_lines, printable
from appliance.errors import ConfigError, StorageError
from appliance.system.clock import SystemClock
from appliance.system.files import OsFileSystem
from appliance.units import counted

if TYPE_CHECKING:
    from appliance.commands.table_files import Progress
    from compat.tables.batches import Task
    from compat.tables.selection import Bounds, Selection
    from compat.tables.table import Query

STDOUT: Final = "-"
PARQUET_SUFFIX: Final = ".parquet"

EXAMPLES: Final = """\
Examples:

\b
  latermq export /var/lib/latermq --out messages/
  latermq export /var/lib/latermq --topic orders --from 24h --out orders.parquet
  latermq export /var/lib/latermq --table timers --columns topic,id,due_at --format jsonl
  latermq export /var/lib/latermq/snapshots/before --table deliveries --out late/ --force

The directory of a running broker is read up to what it has flushed; a snapshot stays as it is.
docs/EXPORT.md has the tables and their columns.
"""


class Format(StrEnum):
    """What is written."""

    PARQUET = "parquet"
    JSONL = "jsonl"


class Compression(StrEnum):
    """How Parquet files are compressed."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    NONE = "none"


Table = Annotated[
    str,
    usage.Option(metavar="TABLE", help="messages, timers, deliveries, queues, groups or frames."),
]
Out = Annotated[
    str | None,
    usage.Option(
        metavar="FILE|DIR",
        help="Where to write: for Parquet a file that ends in .parquet, or a directory of files, "
        "which all processors write; for JSON lines a file, else standard output.",
    ),
]
FormatOption = Annotated[Format, usage.Option("--format", help="What to write.")]
TopicNames = Annotated[
    list[str] | None,
    usage.Option("--topic", "-T", metavar="TOPIC", help="Only this topic; may be repeated."),
]
PartitionNumber = Annotated[
    int | None, usage.Option(min=0, metavar="N", help="Only this partition of each topic.")
]
From = Annotated[
    str | None,
    usage.Option(
        "--from",
        metavar="INSTANT",
        help="Only rows from this time on, or this long ago: 15m. The time is that of the record "
        "for messages, of its storage for other tables.",
    ),
]
To = Annotated[str | None, usage.Option(metavar="INSTANT", help="Only rows before this time.")]
DueBetween = Annotated[
    str | None,
    usage.Option(
        metavar="FROM,TO",
        help="Only timers or deliveries due from one instant to before another; either may be "
        "empty.",
    ),
]
Columns = Annotated[
    str | None, usage.Option(metavar="NAME,...", help="Only these columns, in this order.")
]
CompressionOption = Annotated[
    Compression | None,
    usage.Option(
        help="Of Parquet files; snappy if left out. zstd takes half the space and more time."
    ),
]
Workers = Annotated[
    int | None,
    usage.Option(min=1, metavar="N", help="Threads that write; all processors if left out."),
]
Force = Annotated[bool, usage.Option("--force", help="Replace what an earlier export has written.")]
IncludeExpired = Annotated[
    bool,
    usage.Option(
        "--include-expired",
        help="Also messages and queue units that have expired or were deleted, but whose topic "
        "exists and which the log still has.",
    ),
]
AcceptDataLoss = Annotated[
    bool,
    usage.Option(
        "--accept-data-loss", help="Go on without the parts of the log that cannot be read."
    ),
]


@reports_failure
def export(  # noqa: PLR0917 (these are flags: click passes them by name)
    directory: DirArgument,
    table: Table = "messages",
    out: Out = None,
    format_: FormatOption = Format.PARQUET,
    topic: TopicNames = None,
    partition: PartitionNumber = None,
    from_: From = None,
    to: To = None,
    due_between: DueBetween = None,
    columns: Columns = None,
    compression: CompressionOption = None,
    workers: Workers = None,
    force: Force = False,
    include_expired: IncludeExpired = False,
    accept_data_loss: AcceptDataLoss = False,
) -> None:
    """Write a table of a data directory to Parquet files or JSON lines.

    Read-only: it creates and changes nothing in the directory. A broker may be running on it.
    """
    load_pyarrow("this command needs pyarrow")
    from appliance.commands.table_files import LossError
    from compat.tables.table import Query

    query = Query(
        table=table,
        columns=None if columns is None else tuple(each.strip() for each in columns.split(",")),
        selection=_selection(table, topic, partition, (from_, to), due_between),
        fails_on_loss=not accept_data_loss,
        with_expired=include_expired,
    )
    _ = query.schema
    job = _Job(query, Path(directory), workers or multiprocessing.cpu_count(), force=force)
    try:
        if format_ is Format.PARQUET:
            if out is None or out == STDOUT:
                raise ConfigError("--out is missing: give a directory, or a file.parquet")
            job.write_parquet(Path(out).resolve(), compression or Compression.SNAPPY)
        elif compression is not None:
            raise ConfigError("--compression is for Parquet: pipe JSON lines through a compressor")
        else:
            job.write_json(None if out in (None, STDOUT) else Path(str(out)).resolve())
    except LossError as error:
        complain(error.message)
        raise usage.Exit(EXIT_FAULTS) from None


COMMAND: Final = usage.Command(export, EXAMPLES)


def _selection(
    table: str,
    topics: list[str] | None,
    partition: int | None,
    times: tuple[str | None, str | None],
    due_between: str | None,
) -> "Selection":
    from compat.tables.selection import ANY, Selection

    if table == "groups" and times != (None, None):
        raise ConfigError("the table groups is not selected by a time: leave --from and --to out")
    if table == "frames" and topics:
        raise ConfigError(
            "the table frames has frames of no topic as well: leave --topic out, or use "
            "`latermq dump DIR frames --topic`"
        )
    now_ms = SystemClock().wall_ms()
    low, high = (
        None if text is None else read_past(option, text, now_ms)
        for option, text in zip(("--from", "--to"), times, strict=True)
    )
    bounds: Bounds = low, high
    by_record = table == "messages"
    return Selection(
        topics=None if topics is None else frozenset(topics),
        partition=partition,
        timestamps=bounds if by_record else ANY,
        stored=ANY if by_record else bounds,
        due=ANY if due_between is None else _due_bounds(due_between),
    )


def _due_bounds(text: str) -> "Bounds":
    from _core.paths.delay_text import parse

    low, comma, high = text.partition(",")
    if not comma:
        raise ConfigError(f"--due-between {text!r} is invalid: use FROM,TO")
    found: list[int | None] = []
    for each in (low.strip(), high.strip()):
        try:
            found.append(parse("x-deliver-at", to_bytes(each)) if each else None)
        except ValueError as error:
            problem = str(error).replace("x-deliver-at", "--due-between")
            raise ConfigError(problem) from None
    return found[0], found[1]


class _Job:
    """One export."""

    def __init__(self, query: "Query", root: Path, worker_count: int, *, force: bool) -> None:
        self._query = query
        self._root = root
        self._worker_count = worker_count
        self._force = force
        self._fs = OsFileSystem()
        self._meter = Meter()

    def _tasks(self) -> "list[Task]":
        """Plan the table, and note what of the log is left out."""
        from appliance.commands.table_files import as_loss
        from compat.tables.batches import DataLossError
        from compat.tables.plan import Plan
        from compat.tables.table import tasks

        plan = Plan(self._fs, self._root)
        try:
            plan.advance(self._meter.show)
            found = tasks(plan, self._query)
        except DataLossError as error:
            raise as_loss(error) from None
        finally:
            self._meter.clear()
        for begin, end, fault in plan.damage:
            complain(f"log position {begin} to {end} is left out: {printable(fault)}")
        return found

    def _progress(self, task_count: int) -> "Progress":
        # Tasks are of about the same size.
        split_bytes = self._query.split_bytes
        return lambda done: self._meter.show(done * split_bytes, task_count * split_bytes)

    def _say_what_is_gone(self, gone: Iterable[Path]) -> None:
        for path in sorted(gone):
            complain(f"{printable(str(path))} is gone: rows of it are left out")

    def _finish(self, rows: int, target: Path, gone: Iterable[Path]) -> None:
        self._meter.clear()
        self._say_what_is_gone(gone)
        complain(
            f"{counted(rows, 'row')} of {self._query.table} written to {printable(str(target))}"
        )

    def write_parquet(self, target: Path, compression: Compression) -> None:
        """Write one file, or a directory of files."""
        from appliance.commands.table_files import Part, write_parts

        is_file = target.name.endswith(PARQUET_SUFFIX)
        with self._replacing(target, is_file=is_file) as new:
            found = self._tasks()
            if is_file:
                shares = [(new, found)]
            else:
                self._fs.make_dirs(new, is_synced=False)
                # Without a row, too, there is a file that has the columns.
                each_alone = [[task] for task in found] or [[]]
                shares = [(new / _part_name(at), each) for at, each in enumerate(each_alone)]
            schema = self._query.schema
            parts = [Part(tuple(share), path, schema, compression) for path, share in shares]
            with self._no_progress_left():
                progress = self._progress(len(parts))
                rows, gone = write_parts(parts, self._worker_count, progress)
        self._finish(rows, target, gone)

    def write_json(self, target: Path | None) -> None:
        """Write lines to a file, or to standard output."""
        from appliance.commands.table_files import json_lines

        gone: set[Path] = set()
        if target is None:
            found = self._tasks()
            with self._no_progress_left():
                for lines in json_lines(found, self._progress(len(found)), gone.add):
                    print_lines(lines)
            self._say_what_is_gone(gone)
            return
        with self._replacing(target, is_file=True) as new:
            found = self._tasks()
            file = self._fs.open(new, create=True)
            rows = size = 0
            with self._no_progress_left():
                for lines in json_lines(found, self._progress(len(found)), gone.add):
                    rows += len(lines)
                    size += file.pwritev(["".join(f"{each}\n" for each in lines).encode()], size)
            file.close()
        self._finish(rows, target, gone)

    @contextmanager
    def _no_progress_left(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._meter.clear()

    @contextmanager
    def _replacing(self, target: Path, *, is_file: bool) -> Iterator[Path]:
        """Yield a new name next to the target, which it gets at the end if all went well.

        Raises:
            ConfigError: the target exists, or must not be replaced.
        """
        self._check_target(target, is_file=is_file)
        new = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            yield new
            if is_file or not self._fs.exists(target):
                self._fs.rename(new, target)
            else:
                self._swap(new, target)
        except BaseException:
            with suppress(StorageError):
                if is_file and self._fs.exists(new):
                    self._fs.unlink(new)
                elif not is_file:
                    self._fs.remove_tree(new)
            raise

    def _swap(self, new: Path, target: Path) -> None:
        """Replace a directory that has files."""
        old = new.with_name(f"{new.name}.old")
        self._fs.rename(target, old)
        try:
            self._fs.rename(new, target)
        except StorageError:
            self._fs.rename(old, target)
            raise
        self._fs.remove_tree(old)

    def _check_target(self, target: Path, *, is_file: bool) -> None:
        if not target.parent.is_dir():
            raise ConfigError(f"there is no directory {target.parent}: make it first")
        if not self._fs.exists(target):
            return
        if not self._force:
            raise ConfigError(f"{target} exists already: use --force to replace it")
        if target.is_dir() == is_file:
            what = "a directory" if is_file else "no directory"
            raise ConfigError(f"{target} is {what}: remove it, or use another name")
        # Whoever mistypes a path must not lose what is there.
        if not is_file and any(
            not name.endswith(PARQUET_SUFFIX) for name in self._fs.list_dir(target)
        ):
            raise ConfigError(
                f"{target} has files that no export wrote: remove it, or use another name"
            )


def _part_name(number: int) -> str:
    return f"part-{number:05d}{PARQUET_SUFFIX}"
