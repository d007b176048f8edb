from typing_extensions import Buffer

from _core.paths.produce import ProducePath
from _core.queue.partition import Partition

def accept_own(
    path: ProducePath, partition: Partition, batch: Buffer, now_ns: int
) -> tuple[int, str | None]: ...
