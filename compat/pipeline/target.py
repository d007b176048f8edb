"""The output directory: commits that are whole or absent whenever the job is killed. Layer 5.

A commit has four steps. Files are written to a stage and made durable. The manifest that names them
replaces the last one, by a rename: this is the commit. The files are moved to their places, and
those that they supersede are removed. The stage is removed. `open` repeats the last two steps, for
a job that was killed within them, and removes the stages of commits that never were.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from appliance.errors import ConfigError, DataDirectoryLockedError
from appliance.system.files import FileSystem, Lock
from compat.pipeline.layout import STATE_DIR
from compat.pipeline.manifest import DataFile, Manifest

MANIFEST: Final = "progress.json"
STAGES: Final = "stage"
ROW_GROUP_ROWS: Final = 128 * 1024


class Target:
    """The output directory of one job.

    Attributes:
        root: its path.
        manifest: the last commit.
    """

    def __init__(self, fs: FileSystem, root: Path) -> None:
        self.root = root
        self.manifest = Manifest()
        self._fs = fs
        self._state = root / STATE_DIR
        self._lock: Lock | None = None

    def open(self) -> None:
        """Lock the directory, and finish or undo what a killed job left.

        Raises:
            ConfigError: another job is running, or the directory holds something else.
            StorageError: the directory cannot be written.
        """
        fs = self._fs
        if not fs.exists(self._state):
            if fs.exists(self.root) and fs.list_dir(self.root):
                raise ConfigError(
                    f"{self.root} holds other files: give an empty directory as --out, or one that "
                    "an earlier run made"
                )
            fs.make_dirs(self._state)
        try:
            self._lock = fs.lock(self._state)
        except DataDirectoryLockedError as error:
            raise ConfigError(
                f"another pipeline (pid {error.pid}) is running on {self.root}: wait for its end"
            ) from None
        self.manifest = read_manifest(fs, self.root)
        self._roll_forward()
        fs.remove_tree(self._state / STAGES)

    def close(self) -> None:
        """Release the lock; may be called twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def begin_stage(self) -> Path:
        """Make a directory for the files of the next commit.

        Its name is new each time: tasks of a job that was killed may still be writing to its own.
        """
        stage = self._state / STAGES / uuid4().hex
        self._fs.make_dirs(stage)
        return stage

    def read_state(self, name: str) -> bytes:
        """Read a file of the job itself."""
        return _content(self._fs, self._state / name)

    def commit(
        self,
        changed: Manifest,
        stage: Path,
        *,
        added: list[tuple[str, DataFile]],
        removed: list[DataFile],
        known: bytes | None = None,
    ) -> None:
        """Make a manifest the last commit.

        Args:
            changed: the manifest, still with the files of the last one.
            stage: where the new files are, each of them durable.
            added: names in the stage, and the files that they become.
            removed: files of the last commit that are superseded.
            known: new content of the file that says which timers were completed.
        """
        fs, before = self._fs, self.manifest
        sequence = before.sequence + 1
        moves = [(name, file.path) for name, file in added]
        paths = {path for _, path in moves}
        removes = [file.path for file in removed if file.path not in paths]
        if known is not None:
            name = f"known-{sequence:08d}"
            write_file(fs, stage / name, known)
            moves.append((name, f"{STATE_DIR}/{name}"))
            if before.known is not None:
                removes.append(f"{STATE_DIR}/{before.known}")
            changed = replace(changed, known=name)
        fs.sync_dir(stage)
        manifest = replace(
            changed.with_files([file for _, file in added], removed),
            sequence=sequence,
            moves=tuple(moves),
            removes=tuple(removes),
            stage=stage.name,
        )
        self._write_manifest(manifest)
        self.manifest = manifest
        self._roll_forward()
        fs.remove_tree(stage)

    def _write_manifest(self, manifest: Manifest) -> None:
        new = self._state / f"{MANIFEST}.new"
        if self._fs.exists(new):
            self._fs.unlink(new)
        write_file(self._fs, new, manifest.encode())
        self._fs.rename(new, self._state / MANIFEST)
        self._fs.sync_dir(self._state)

    def _roll_forward(self) -> None:
        """Do what the manifest says; what is done already is passed over.

        The stage exists until all of it is durable: the next commit no longer knows these moves.
        """
        fs, manifest = self._fs, self.manifest
        if not is_moving(fs, self.root, manifest):
            return
        stage = self._state / STAGES / manifest.stage
        self._make_directories({(self.root / new).parent for _, new in manifest.moves})
        for old, new in manifest.moves:
            if fs.exists(stage / old):
                fs.rename(stage / old, self.root / new)
        for path in manifest.removes:
            if fs.exists(self.root / path):
                fs.unlink(self.root / path)
        fs.sync_tree(self.root)

    def _make_directories(self, paths: set[Path]) -> None:
        """Make directories, durable before a file is moved to one: or a crash may lose the file."""
        for path in sorted(paths):
            self._fs.make_dirs(path, is_synced=False)
        self._fs.sync_tree(self.root)


def is_moving(fs: FileSystem, root: Path, manifest: Manifest) -> bool:
    """Return whether files of the last commit may not be at their places yet."""
    return manifest.sequence > 0 and fs.exists(root / STATE_DIR / STAGES / manifest.stage)


def read_manifest(fs: FileSystem, root: Path) -> Manifest:
    """Read the last commit of an output directory, an empty one if there is none.

    Raises:
        ConfigError: it cannot be understood.
    """
    path = root / STATE_DIR / MANIFEST
    if not fs.exists(path):
        return Manifest()
    return Manifest.decode(_content(fs, path), str(path))


def _content(fs: FileSystem, path: Path) -> bytes:
    file = fs.open(path, writable=False)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write_file(fs: FileSystem, path: Path, data: bytes | memoryview) -> None:
    """Write a new file; its content is durable when this returns, its name is not."""
    file = fs.open(path, create=True)
    try:
        file.pwritev([data], 0)
        file.fdatasync()
    finally:
        file.close()


def write_parquet(
    fs: FileSystem, path: Path, schema: pa.Schema, row_groups: Iterable[pa.Table]
) -> int:
    """Write a new Parquet file as `write_file` does; return its size.

    It is encoded in memory, so that every file is written by one function.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for rows in row_groups:
            writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
    encoded = sink.getvalue()
    write_file(fs, path, memoryview(encoded))
    return int(encoded.size)
