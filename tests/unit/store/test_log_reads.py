"""Reading around what the disk cannot read."""

import errno
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from appliance.errors import StorageError
from appliance.store.log.reads import FILE_ENDS, read_around
from appliance.units import PAGE_SIZE_BYTES
from tests.support.simulator.sim_fs import SimFileSystem

PATH: Final = Path("/data/file")
PAGES: Final = 8
WHY: Final = "Input/output error"


@pytest.fixture
def disk() -> SimFileSystem:
    disk = SimFileSystem()
    disk.make_dirs(PATH.parent)
    content = b"".join(bytes([number]) * PAGE_SIZE_BYTES for number in range(1, PAGES + 1))
    disk.open(PATH, create=True).pwritev([content], 0)
    return disk


@pytest.mark.parametrize("offset", [0, 8, PAGE_SIZE_BYTES, 5000])
@pytest.mark.parametrize("bad", [(), (0,), (7,), (2, 3), (0, 2, 7), range(PAGES)])
def test_all_but_the_bad_pages_is_read(disk: SimFileSystem, bad: list[int], offset: int) -> None:
    expected = bytearray(disk.files()[PATH])
    for page in bad:
        disk.spoil(PATH, page * PAGE_SIZE_BYTES + 100, 1)
        expected[page * PAGE_SIZE_BYTES : (page + 1) * PAGE_SIZE_BYTES] = bytes(PAGE_SIZE_BYTES)
    memory = memoryview(bytearray(b"?" * (PAGES * PAGE_SIZE_BYTES - offset)))
    lost = read_around(disk.open(PATH), memory, offset)
    assert memory == expected[offset:]
    # Parts that touch are one.
    assert all(one[1] < other[0] for one, other in pairwise(lost))
    assert {why for _, _, why in lost} <= {WHY}
    covered = {at for begin, end, _ in lost for at in range(begin, end)}
    places = range(offset, PAGES * PAGE_SIZE_BYTES)
    assert covered == {at for at in places if at // PAGE_SIZE_BYTES in bad}


def test_what_lies_after_the_end_of_the_file_is_reported(disk: SimFileSystem) -> None:
    memory = memoryview(bytearray(b"?" * 300))
    end = PAGES * PAGE_SIZE_BYTES
    lost = read_around(disk.open(PATH), memory, end - 100)
    assert lost == [(end, end + 200, FILE_ENDS)]
    assert memory == bytes([PAGES]) * 100 + bytes(200)


def test_another_error_than_of_the_disk_is_no_damage(disk: SimFileSystem) -> None:
    file = disk.open(PATH)
    file.close()
    with pytest.raises(StorageError) as raised:
        read_around(file, memoryview(bytearray(10)), 0)
    assert raised.value.errno == errno.EBADF
