"""Compares the files of a backup with its manifest. Layer 4."""

from collections.abc import Iterator
from contextlib import closing

from appliance.errors import BackupError, CorruptionError, StorageError
from appliance.offline import manifest
from appliance.offline.file_copies import Amount, crc_of, measured
from appliance.offline.findings import Fault, Findings
from appliance.offline.manifest import BackupFile, Manifest
from appliance.store.paths import DataPaths
from appliance.system.files import FileSystem


class BackupCheck:
    """One comparison; exhaust `run`."""

    def __init__(self, fs: FileSystem, paths: DataPaths, findings: Findings) -> None:
        self._fs, self._paths, self._findings = fs, paths, findings

    def run(self, end: int) -> Iterator[tuple[int, int]]:
        """Compare every file.

        Args:
            end: log position at which the log of the backup ends.

        Yields:
            Bytes read so far, and in total.
        """
        found = self._read()
        if found is None:
            return
        path = self._paths.manifest
        if found.end != end:
            self._findings.fault(Fault(path, 0, f"the log up to position {found.end}", f"{end}"))
        self._check_names(found)
        amount = Amount("comparing", found.size_bytes)
        for file in found.files:
            yield from self._compare(file, amount)

    def _read(self) -> Manifest | None:
        path = self._paths.manifest
        try:
            return manifest.read(self._fs, self._paths.root)
        except BackupError as error:
            self._findings.fault(Fault(path, 0, "the manifest of a complete backup", str(error)))
        except CorruptionError as error:
            self._findings.fault(Fault(path, 0, str(error.expected), str(error.found)))
        return None

    def _check_names(self, found: Manifest) -> None:
        directory = self._paths.commit_log
        named = {file.name for file in found.files}
        for name in self._fs.list_dir(directory):
            if f"{directory.name}/{name}" not in named:
                fault = Fault(directory / name, 0, "no file that the manifest does not name", name)
                self._findings.fault(fault)

    def _compare(self, file: BackupFile, amount: Amount) -> Iterator[tuple[int, int]]:
        path = self._paths.root / file.name
        try:
            opened = self._fs.open(path, writable=False)
        except StorageError as error:
            if not error.is_missing:
                raise
            self._findings.fault(Fault(path, 0, f"{file.size} bytes", "no such file", file.size))
            return
        with closing(opened):
            size = opened.size()
            if size != file.size:
                at = min(size, file.size)
                self._findings.fault(Fault(path, at, f"{file.size} bytes", f"{size}"))
                return
            steps = measured(crc_of(opened, file.size), amount)
            while True:
                try:
                    _, done, total = next(steps)
                except StopIteration as end:
                    crc = end.value
                    break
                yield done, total
        if crc != file.crc32c:
            expected = f"CRC32C {file.crc32c} of {file.size} bytes, as the manifest says"
            self._findings.fault(Fault(path, 0, expected, f"CRC32C {crc}", file.size))
