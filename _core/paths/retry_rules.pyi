from collections.abc import Callable
from typing import Self

from _core.queue.partition import Topic
from _core.state.projections import Projections

RETRY_SUFFIX: bytes
DEAD_SUFFIX: bytes
ATTEMPT_MAX_DEFAULT: int

class RetryGroup:
    name: bytes
    attempt_max: int

class RetryRules:
    retried: int
    dead: int
    def __new__(
        cls,
        projections: Projections,
        level_ms: list[int],
        make_topic: Callable[[str, int], tuple[Topic | None, str, bool]],
    ) -> Self: ...
