"""A disk that promises more than it has: writes succeed, and a later fsync fails.

The kernel then marks the pages that it could not write as clean: a reader gets bytes that are not
on the disk, and a second sync reports success. So the process must stop, and the
next one must not believe the page cache.
"""

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.cli import EXIT_STORAGE
from appliance.units import MIB
from tests.support.disks.loop_disk import LoopDisk
from tests.support.harness.appliance_process import ApplianceError, ApplianceProcess
from tests.system.kill9.rounds import CONFIG
from tests.system.realdisk.load import Fill, read_all

DISK_BYTES = 200 * MIB
BACKING_BYTES = 36 * MIB
MORE_RECORDS = 40


def sync_again(path: Path) -> None:
    """Sync a file until the kernel reports success, as it soon does."""
    with path.open("rb") as file:
        for _ in range(5):
            with suppress(OSError):
                os.fsync(file.fileno())
                return
    pytest.fail("the kernel is more honest than this test expects")


def phantom_pages(path: Path) -> int:
    """Return how many pages of a file differ between the page cache and the disk."""
    cached = path.read_bytes()
    buffer = mmap.mmap(-1, len(cached))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        assert os.preadv(fd, [buffer], 0) == len(cached)
    finally:
        os.close(fd)
    pages = [slice(at, at + mmap.PAGESIZE) for at in range(0, len(cached), mmap.PAGESIZE)]
    return sum(cached[page] != buffer[page] for page in pages)


@pytest.mark.parametrize("is_repaired_first", [True, False])
def test_a_failed_fsync_stops_the_process_and_a_restart_serves_nothing_phantom(
    make_loop_disk: Callable[..., LoopDisk], tmp_path: Path, is_repaired_first: bool
) -> None:
    disk = make_loop_disk(size_bytes=DISK_BYTES, backing_bytes=BACKING_BYTES)
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG.replace("prewrite_segments = true\n", ""))
    appliance = ApplianceProcess(disk.path / "data", ["--config", str(config)], tmp_path / "stderr")
    try:
        appliance.start()
        fill = Fill(appliance.kafka)
        fill.send()
        fill.finish()
        disk.complete()
        fill.send_until_ended(appliance)

        # The process has stopped and says why.
        assert appliance.wait() == EXIT_STORAGE
        logged, said = appliance.stderr_path.read_text().splitlines()[-2:]
        assert ": stopped, not cleanly: fdatasync of " in logged, logged
        assert said.startswith("latermq: fdatasync of "), said
        assert str(appliance.data_dir) in said
        assert "ENOSPC" in said or "EIO" in said
        segments = sorted((appliance.data_dir / "commitlog").iterdir())
        for path in segments:
            sync_again(path)
        assert sum(map(phantom_pages, segments)), "the page cache is what the disk is"
        assert len(fill.acknowledged) > 100

        if not is_repaired_first:
            # It ends as before, or needs nothing but what the disk holds; then it is killed.
            with suppress(ApplianceError):
                appliance.start()
            appliance.close()
        disk.resize_backing(DISK_BYTES + 16 * MIB)
        appliance.start()
        served = read_all(appliance.kafka)
        check_served(served, fill)
        # It may go on in a file whose pages the kernel could not write.
        more = Fill(appliance.kafka)
        for _ in range(MORE_RECORDS):
            more.send()
        more.finish()
        assert len(more.acknowledged) == MORE_RECORDS
        served = read_all(appliance.kafka)

        # What was served is on the disk: a power cut takes nothing of it.
        disk.cut_power()
        appliance.kill()
        disk.restore_power()
        appliance.start()
        again = read_all(appliance.kafka)
        assert len(again) == len(served), "what was served was not on the disk"
        assert again == served
        appliance.stop()
    finally:
        appliance.close()


def check_served(served: list[bytes], fill: Fill) -> None:
    """All that was acknowledged is there, and nothing that nobody sent."""
    assert len(served) > max(fill.acknowledged), "what was acknowledged last is gone"
    for offset, value in fill.acknowledged.items():
        assert served[offset] == value, f"what was acknowledged at {offset} is gone"
    assert set(served) <= fill.sent
    assert len(set(served)) == len(served)
