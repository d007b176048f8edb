from typing import Self

from _core.paths.retry_rules import RetryRules
from _core.state.projections import Projections

OUTCOMES: tuple[str, ...]

class Replies:
    def __new__(cls, projections: Projections, rules: RetryRules | None) -> Self: ...
    @property
    def written(self) -> dict[str, int]: ...
