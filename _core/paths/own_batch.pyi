from collections.abc import Sequence

from typing_extensions import Buffer

from _core.paths.produce import ProducePath
from _core.queue.partition import Partition

def encode_own(
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[Buffer, Buffer | None]],
    timestamp_ms: int,
) -> bytes: ...
def accept_own(
    path: ProducePath, partition: Partition, batch: Buffer, now_ns: int
) -> tuple[int, str | None]: ...
