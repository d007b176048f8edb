from typing import Self

from _core.log.view import LogView
from _core.paths.read_replica import ReadReplica
from _core.queue.partition import Partition
from _core.state.projections import Projections

class FetchPath:
    projections: Projections
    view: LogView
    epoch: int
    is_shut: bool
    is_slave: bool
    replica: ReadReplica
    cold: list[int | tuple[int, int]]
    ahead: list[tuple[Partition, int]]
    sent_bytes: int
    work_bytes: int
    refused: dict[int, int]
    requests: int
    def __new__(
        cls,
        projections: Projections,
        view: LogView,
        *,
        size_max: int,
        item_count_max: int,
        closed_topics: frozenset[bytes],
    ) -> Self: ...
    def save_memory(self, is_scarce: bool) -> None: ...
    def read_ahead(self) -> None: ...
