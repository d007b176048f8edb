from typing_extensions import Buffer

def records(
    section: Buffer, count: int
) -> list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]]: ...
