"""What an output directory holds, as of one commit: `_latermq/progress.json`. Layer 5.

The manifest is the truth: it names the files of every table, and how far the log is read. It also
says how files that were staged for this commit come to their places, and which files the commit
supersedes. Both steps can be repeated, so a job that was killed within them goes on with them.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from appliance.errors import ConfigError
from compat.pipeline.layout import AGGREGATES, CORRECTED, FACTS, Partition, Span, directory_of
from compat.tables.selection import ReadBefore

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of a table.

    Attributes:
        table, partition: where it belongs.
        name: its name in the directory of the partition.
        rows, size: rows, and bytes on the disk.
        accepted, due: dates of the timers of its rows; None if they do not matter.
    """

    table: str
    partition: Partition
    name: str
    rows: int
    size: int
    accepted: Span | None = None
    due: Span | None = None

    @property
    def path(self) -> str:
        """The path in the output directory."""
        return f"{directory_of(self.table, self.partition)}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One commit.

    Attributes:
        cluster: of the log, None before the first commit.
        epochs: (epoch, log position where it starts) of each epoch that was read.
        position: log position up to which facts are exported.
        gap, gap_end: the part of the log that was freed before it could be exported, and where the
            log ended then; see `ReadBefore`.
        known: name of the file that says which timers were completed.
        sequence: number of the commit.
        due_position: log position of the table `due`.
        files: files of each table and partition.
        dirty: partitions of each aggregate that facts have changed since they were computed.
        moves: (path in the stage, path in the output directory).
        removes: paths in the output directory.
        stage: name of the directory that the moves start from.
    """

    cluster: str | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    position: int = 0
    gap: tuple[int, int] = (0, 0)
    gap_end: int = 0
    known: str | None = None
    sequence: int = 0
    due_position: int = -1
    files: dict[str, dict[Partition, tuple[DataFile, ...]]] = field(default_factory=dict)
    dirty: dict[str, frozenset[Partition]] = field(default_factory=dict)
    moves: tuple[tuple[str, str], ...] = ()
    removes: tuple[str, ...] = ()
    stage: str = ""

    @property
    def read(self) -> ReadBefore:
        """What was exported."""
        return ReadBefore(position=self.position, gap=self.gap, gap_end=self.gap_end)

    def files_of(self, table: str, partitions: Iterable[Partition] | None = None) -> list[DataFile]:
        """Return the files of a table, or of some of its partitions."""
        found = self.files.get(table, {})
        if partitions is None:
            return [file for files in found.values() for file in files]
        return [file for each in sorted(partitions) for file in found.get(each, ())]

    def dates_of(self, table: str, topic: str) -> list[str]:
        """Return the dates for which a table has rows of a topic."""
        return [date for name, date in self.files.get(table, {}) if name == topic]

    def with_files(self, added: Iterable[DataFile], removed: Iterable[DataFile]) -> "Manifest":
        """Return a manifest with other files; a file of the same path is replaced."""
        added = list(added)
        gone = {file.path for file in (*removed, *added)}
        files = {
            table: {
                partition: kept
                for partition, each in partitions.items()
                if (kept := tuple(file for file in each if file.path not in gone))
            }
            for table, partitions in self.files.items()
        }
        for file in added:
            partitions = files.setdefault(file.table, {})
            partitions[file.partition] = (*partitions.get(file.partition, ()), file)
        return replace(self, files=files)

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        values: dict[str, Any] = {
            "version": VERSION,
            "cluster": self.cluster,
            "position": self.position,
            "gap": [*self.gap, self.gap_end],
            "sequence": self.sequence,
            "epochs": self.epochs,
            "known": self.known,
            "due_position": self.due_position,
            "dirty": {table: sorted(each) for table, each in sorted(self.dirty.items())},
            "stage": self.stage,
            "moves": self.moves,
            "removes": self.removes,
            "files": {
                table: [_row(file) for file in self.files_of(table)] for table in sorted(self.files)
            },
        }
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, place: str) -> "Manifest":
        """Read a manifest.

        Args:
            data: the content of the file.
            place: its path, for an error message.

        Raises:
            ConfigError: it is no manifest, or one of a newer latermq.
        """
        try:
            return cls._read(json.loads(data))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{place} cannot be read: {error}; give an empty directory as --out"
            ) from None

    @classmethod
    def _read(cls, values: dict[str, Any]) -> "Manifest":
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']} is not {VERSION}")
        files: dict[str, dict[Partition, tuple[DataFile, ...]]] = {}
        for table, rows in values["files"].items():
            if table not in FACTS and table not in AGGREGATES:
                raise ValueError(f"there is no table {table!r}")
            partitions = files.setdefault(table, {})
            for file in _files(table, rows):
                partitions[file.partition] = (*partitions.get(file.partition, ()), file)
        begin, behind, gap_end = values.get("gap", (0, 0, 0))
        return cls(
            cluster=values["cluster"],
            epochs=tuple((epoch, pos) for epoch, pos in values["epochs"]),
            position=values["position"],
            gap=(begin, behind),
            gap_end=gap_end,
            known=values["known"],
            sequence=values["sequence"],
            due_position=values["due_position"],
            files=files,
            dirty={
                table: frozenset((topic, date) for topic, date in values["dirty"].get(table, ()))
                for table in CORRECTED
            },
            moves=tuple((old, new) for old, new in values["moves"]),
            removes=tuple(values["removes"]),
            stage=values["stage"],
        )


def _row(file: DataFile) -> list[Any]:
    spans = [
        None if each is None else [each.first, each.last] for each in (file.accepted, file.due)
    ]
    return [*file.partition, file.name, file.rows, file.size, *spans]


def _files(table: str, rows: list[list[Any]]) -> Iterator[DataFile]:
    for topic, date, name, row_count, size, accepted, due in rows:
        yield DataFile(
            table=table,
            partition=(topic, date),
            name=name,
            rows=row_count,
            size=size,
            accepted=None if accepted is None else Span(*accepted),
            due=None if due is None else Span(*due),
        )
