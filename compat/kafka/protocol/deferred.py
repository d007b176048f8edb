"""A response that completes later, for example when all members of a group have joined.

Layer 3; does no I/O.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


def _unchanged(value: Any) -> Any:
    return value


class DeferredResponse(Generic[Answer]):
    """A placeholder for a response; `complete` sends it to the waiting connection.

    A handler returns it in place of a response. Later requests on that connection wait as well,
    because Kafka answers in order.

    Attributes:
        is_abandoned: the connection is closed, so no one waits for the response.
        is_complete: the answer is known.
    """

    def __init__(self, convert: Callable[[Answer], Any] = _unchanged) -> None:
        """Defer a response.

        Args:
            convert: makes the response from the answer.
        """
        self.is_abandoned = False
        self._convert: Callable[[Any], Any] = convert
        self._response: Any = None
        self.is_complete = False
        self._answered: Callable[[Any], None] | None = None

    def complete(self, answer: Answer) -> None:
        """Set the answer; call it once, at any time, also before the handler returns."""
        assert not self.is_complete, "answered twice"
        self._response = answer
        self.is_complete = True
        if self._answered is not None:
            self._answered(self._convert(self._response))

    def abandon(self) -> None:
        """Note that nobody waits for the response any more."""
        self.is_abandoned = True

    def when_complete(self, answered: Callable[[Any], None]) -> None:
        """Register a function to call with the response, at once if it is already complete."""
        self._answered = answered
        if self.is_complete:
            answered(self._convert(self._response))
