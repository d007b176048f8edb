"""Freeing large objects without the interpreter's lock."""

import os

from _core.bytes.pages import free_all

MIB = 1 << 20


def test_list_is_empty_after_its_parts_are_freed() -> None:
    parts = [os.urandom(size) for size in (0, 1, 4096, MIB, 3 * MIB + 1)]
    free_all(parts)
    assert not parts


def test_bytes_that_somebody_else_refers_to_stay_as_they_are() -> None:
    kept = os.urandom(2 * MIB)
    copy = bytes(bytearray(kept))
    parts = [kept, os.urandom(MIB), kept]
    free_all(parts)
    assert not parts
    assert kept == copy


def test_view_keeps_the_bytes_behind_it() -> None:
    parts = [os.urandom(MIB)]
    view = memoryview(parts[0])
    copy = bytes(view)
    free_all(parts)
    assert view == copy
