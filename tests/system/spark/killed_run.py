"""A run of the pipeline that ends itself by SIGKILL when it comes to a point.

    python -m tests.system.spark.killed_run DATA_DIR OUT OPERATION PATTERN COUNT

It ends just before the COUNTth call of OPERATION on a path that contains PATTERN; tasks of Spark
end it as well.
"""

import os
import signal
import sys
from pathlib import Path

from appliance.system.files import File, OsFileSystem
from compat.pipeline.job import Job, Limits
from compat.pipeline.session import spark_session

SMALL_LIMITS = Limits(slice_bytes=1 << 13, small_files=3)


class KillingFileSystem(OsFileSystem):
    """The files of Linux, until a point is reached."""

    def __init__(self, operation: str, pattern: str, count: int) -> None:
        self._point = operation, pattern
        self._count = count
        self._pid = os.getpid()

    def _pass(self, operation: str, path: Path) -> None:
        if operation == self._point[0] and self._point[1] in str(path):
            self._count -= 1
            if self._count == 0:
                os.kill(self._pid, signal.SIGKILL)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        if create:
            self._pass("create", path)
        return super().open(path, create=create, writable=writable)

    def rename(self, old: Path, new: Path) -> None:
        self._pass("rename", new)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._pass("unlink", path)
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        self._pass("remove_tree", path)
        super().remove_tree(path)

    def sync_tree(self, path: Path) -> None:
        self._pass("sync_tree", path)
        super().sync_tree(path)


def main() -> None:
    data_dir, out, operation, pattern, count = sys.argv[1:]
    fs = KillingFileSystem(operation, pattern, int(count))
    with spark_session("local[1]") as spark:
        job = Job(
            spark,
            fs,
            data_dir=Path(data_dir),
            out=Path(out),
            report=print,
            limits=SMALL_LIMITS,
        )
        job.open()
        job.run()


if __name__ == "__main__":
    main()
