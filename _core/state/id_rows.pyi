from typing import Literal

from _core.queue.partition import Topic
from _core.state.projections import Projections

def recall_ids(projections: Projections, found: list[tuple[bytes, bytes]]) -> None: ...
def named_timer(
    projections: Projections, topic: Topic, user_id: bytes
) -> tuple[Literal["pending", "cancelled", "delivered"], int, int, int, int] | None: ...
