"""A run of the pipeline that ends itself by SIGKILL when it comes to a point."""

import os
import signal
from pathlib import Path

from appliance.system.files import File, OsFileSystem
from compat.pipeline.job import Job, Limits
from compat.pipeline.session import spark_session
from tests.system.spark.machine import take_session

SMALL_LIMITS = Limits(slice_bytes=1 << 14, small_files=2)


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


def run_until_killed(
    address: dict[str, str], data_dir: Path, out: Path, point: tuple[str, str, int]
) -> None:
    """Run the pipeline in this process, which is to do nothing else.

    Args:
        address: environment that names a Java machine.
        data_dir, out: the directories.
        point: the process ends just before the nth call of an operation, on a path that contains
            some text: operation, text, n. Tasks of Spark count for themselves, and end it as well.
    """
    os.environ.update(address)
    take_session("local[1]")
    with spark_session("local[1]") as spark:
        job = Job(
            spark,
            KillingFileSystem(*point),
            data_dir=data_dir,
            out=out,
            report=print,
            limits=SMALL_LIMITS,
        )
        job.open()
        job.run()
