"""The disk with unreadable sectors is what the tests take it for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.errors import StorageError
from appliance.store.log.reads import read_around
from appliance.system.files import OsFileSystem
from appliance.units import MIB
from tests.support.disks.bad_disk import BadDisk


def test_chosen_blocks_cannot_be_read_until_they_are_healed(
    make_bad_disk: Callable[..., BadDisk], tmp_path: Path
) -> None:
    disk = make_bad_disk(tmp_path / "bad", size_bytes=32 * MIB)
    path = disk.path / "file"
    content = os.urandom(8 * MIB)
    path.write_bytes(content)
    disk.move_to_edge(path, 3 * MIB)
    disk.move_to_edge(path, 5 * MIB, 8192)
    assert path.read_bytes() == content
    file = OsFileSystem().open(path)
    assert file.pread(10, 3 * MIB) == content[3 * MIB : 3 * MIB + 10]

    disk.spoil()
    with pytest.raises(StorageError, match="EIO"):
        file.pread(1, 3 * MIB + 4095)
    memory = memoryview(bytearray(8 * MIB))
    why = "Input/output error"
    assert read_around(file, memory, 0) == [
        (3 * MIB, 3 * MIB + 4096, why),
        (5 * MIB, 5 * MIB + 8192, why),
    ]
    expected = bytearray(content)
    expected[3 * MIB : 3 * MIB + 4096] = bytes(4096)
    expected[5 * MIB : 5 * MIB + 8192] = bytes(8192)
    assert memory == expected

    disk.heal()
    assert read_around(file, memory, 0) == []
    assert memory == content
    file.close()
