from typing_extensions import Buffer

def batch_header(data: Buffer) -> dict[str, int]: ...
def find_timestamp(
    records: Buffer,
    count: int,
    *,
    base_offset: int,
    base_timestamp: int,
    start: int,
    least: int,
) -> tuple[int, int] | None: ...
def highest_timestamp(
    records: Buffer, count: int, *, base_offset: int, base_timestamp: int, start: int
) -> int: ...
