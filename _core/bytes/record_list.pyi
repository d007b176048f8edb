from collections.abc import Container

from typing_extensions import Buffer

def records(
    section: Buffer, count: int, wanted: Container[int] | None = None
) -> list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]]: ...
