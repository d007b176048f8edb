from typing import Self

from _core.paths.retry_rules import RetryRules

class Retries:
    rules: RetryRules | None
    def __new__(cls, rules: RetryRules | None) -> Self: ...
