from typing import Protocol, Self

class _InstantRules(Protocol):
    def next_after(self, expression: bytes, zone: bytes, after_ms: int) -> int | None: ...

class Recurrences:
    rules: _InstantRules | None
    def __new__(cls, rules: _InstantRules | None) -> Self: ...
