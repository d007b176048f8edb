"""Answers that are worked out a slice at a time, so that no request keeps the loop from others.

A handler that may take long is written as steps: a generator that yields after a small part of the
work what that part cost (`Step`), or what it has to wait for (`Wait`). `SlicedAnswer` runs it until
the work of a slice is done, and goes on in a later turn. Small answers end in their first slice,
before the handler's caller returns.

Between two slices anything may change. What a step reads or writes before it yields is consistent.
Layer 3; does no I/O.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from appliance.errors import StorageError
from appliance.units import KIB
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.pieces import PieceWriter

VALUE_WORK: Final = 64
"""The price of a look at something: a number, a name that is compared."""

FIRST_SLICE_WORK: Final = 64 * KIB
"""Done at once, while the request is handled: about half a millisecond."""

SLICE_WORK: Final = 256 * KIB
"""Done in each later turn, unless it takes longer than SLICE_NS."""

SLICE_NS: Final = 300_000
"""A slice ends after this time too, should its items take longer than their price says. Others wait
for one in each step of their own requests, and an answer in longer slices is not ready sooner."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A step that goes on only when something has happened.

    Args:
        start: called once, with a function to be called once when the work can go on; it may call
            it before it returns.
        cancel: called if nobody waits for the answer any more.
        is_for_clients: requests of other clients may be what has to happen.
    """

    start: Callable[[Callable[[], None]], None]
    cancel: Callable[[], None] = lambda: None
    is_for_clients: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """A step that changes what the work holds besides its answer.

    Args:
        size_bytes: how many bytes more, or if negative less.
    """

    size_bytes: int


Step: TypeAlias = int | Wait | Hold
"""The price of the work since the last step, or something else about the work."""

Result = TypeVar("Result")

Steps: TypeAlias = Generator[Step, None, Result]
"""Work in steps, and its result."""


FREED_AT_ONCE: Final = 16
"""Items that are freed in one step."""


def free_in_steps(items: list[Any] | dict[Any, Any]) -> Steps[None]:
    """Empty a list or a dict, and those in its values.

    A hundred thousand values that are freed at once keep the loop for ten milliseconds.
    """
    while items:
        for _ in range(min(FREED_AT_ONCE, len(items))):
            item = items.pop() if isinstance(items, list) else items.popitem()[1]
            if isinstance(item, list) or (isinstance(item, dict) and len(item) > FREED_AT_ONCE):
                yield from free_in_steps(item)
            elif isinstance(item, dict):
                for value in item.values():
                    if isinstance(value, list | dict):
                        yield from free_in_steps(value)
        yield FREED_AT_ONCE * VALUE_WORK


@dataclass(frozen=True, slots=True)
class EncodedItems:
    """Several items of an array, encoded by hand because there may be many.

    Args:
        count: the number of items.
        data: their bytes, one after the other.
    """

    count: int
    data: bytes


Items: TypeAlias = Iterator[dict[str, Any] | bytes | EncodedItems | Step]
"""The items of an array of structures, with steps between them."""


@dataclass(frozen=True, slots=True)
class InPieces:
    """A response that is produced while it is encoded.

    Args:
        fields: as of any response. Any array of structures, also within another, may be a generator
            instead of a list: it yields the items, each as fields or encoded, or several of them
            as EncodedItems, and between them steps. It is advanced only when its next item is to be
            encoded.
    """

    fields: dict[str, Any]


def await_response(deferred: DeferredResponse[Any]) -> Steps[Any]:
    """Wait for a deferred response; return it."""
    found: list[Any] = []

    def start(then: Callable[[], None]) -> None:
        def note(response: Any) -> None:
            found.append(response)
            then()

        deferred.when_complete(note)

    yield Wait(start, deferred.abandon, is_for_clients=True)
    return found[0]


def answer_in_slices(
    steps: Steps[None],
    writer: PieceWriter,
    convert: Callable[[bytes | list[bytes]], Result],
    now_ns: Callable[[], int],
    later: Callable[["SlicedAnswer"], None],
    *,
    held_bytes: int = 0,
    left: dict[str, Any] | None = None,
) -> "Result | SlicedAnswer":
    """Do the first slice of an answer; return the answer if that was all.

    Args:
        steps: writes the answer.
        writer: where to.
        convert, now_ns, later, left: see SlicedAnswer.
        held_bytes: what the work holds from its begin, besides the answer.

    Raises:
        whatever the work raises.
    """
    work = FIRST_SLICE_WORK
    for step in steps:
        if not isinstance(step, int) or step >= work:
            answer = SlicedAnswer(
                steps, writer, convert, now_ns, later, held_bytes=held_bytes, left=left
            )
            return convert(writer.finish()) if answer.begin(step) else answer
        work -= step
    return convert(writer.finish())


class SlicedAnswer(DeferredResponse[Any]):
    """One answer that is being worked out; it completes with what its encoded pieces make.

    Attributes:
        slice_count: slices so far.
        garbage_bytes: what is left of it since it was abandoned, until the last of it is freed.
    """

    def __init__(
        self,
        steps: Steps[None],
        writer: PieceWriter,
        convert: Callable[[list[bytes]], Any],
        now_ns: Callable[[], int],
        later: Callable[["SlicedAnswer"], None],
        *,
        held_bytes: int = 0,
        left: dict[str, Any] | None = None,
    ) -> None:
        """Prepare the work.

        Args:
            steps: writes the answer; it may have begun.
            writer: where to.
            convert: makes the answer from the pieces, when all are there.
            now_ns: the monotonic clock.
            later: called with this answer after each slice that leaves work; it calls `step` in a
                later turn.
            held_bytes: what the work holds from its begin, besides the answer.
            left: is emptied in later slices if the answer is abandoned.
        """
        super().__init__(convert)
        self._steps: Steps[None] | None = steps
        self._writer = writer
        self._now_ns = now_ns
        self._later = later
        self._more_held_bytes = held_bytes
        self._left = None if left is None else free_in_steps(left)
        self.garbage_bytes = 0
        self._is_running = False
        self._wait: Wait | None = None
        self._failed: Callable[[Exception], None] | None = None
        self.slice_count = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the pieces so far, and of what the work holds besides."""
        return self._writer.size_bytes + self._more_held_bytes

    @property
    def awaits_clients(self) -> bool:
        """Whether it may need requests of other clients to go on."""
        return self._wait is not None and self._wait.is_for_clients

    def begin(self, step: Step) -> bool:
        """Go on with the first slice after a step; return whether that was all.

        Raises:
            whatever the work raises.
        """
        self._run(step, FIRST_SLICE_WORK)
        if self._steps is None:
            return True
        if self._wait is None:
            self._later(self)
        return False

    def step(self) -> None:
        """Do another slice; free a part of what is left if the answer is abandoned."""
        if self._steps is None:
            if self.is_abandoned and self._left is not None:
                self._free_some(self._left)
            return
        try:
            self._run(None, SLICE_WORK)
        except StorageError:
            raise
        except Exception as error:
            self._steps = None
            if self._failed is None:
                raise
            self._failed(error)
            return
        if self._has_ended():
            self.complete(self._writer.finish_pieces())
        elif self._wait is None:
            self._later(self)

    def _has_ended(self) -> bool:
        return self._steps is None

    def when_failed(self, failed: Callable[[Exception], None]) -> None:
        """Register a function to call with an error of a later slice; else `step` raises it."""
        self._failed = failed

    def abandon(self) -> None:
        """End the work where it stands and free what it holds: nobody waits for the answer.

        Of a long request, the items are freed in later slices.
        """
        super().abandon()
        self._convert = bytes  # it holds the request
        if self._steps is not None and not self._is_running:
            self._steps.close()
        self._steps = None
        self._writer = PieceWriter()
        if self._wait is not None:
            self._wait.cancel()
        if self._left is not None:
            self.garbage_bytes = self._more_held_bytes
            self._later(self)
        self._more_held_bytes = 0

    def _free_some(self, left: Steps[None]) -> None:
        work = SLICE_WORK
        for step in left:
            assert isinstance(step, int)
            work -= step
            if work <= 0:
                self._later(self)
                return
        self._left = None
        self.garbage_bytes = 0

    def _run(self, step: Step | None, work: int) -> None:
        """Go on, after a step if one is given, until so much work is done.

        `_steps` is None if that was all.
        """
        steps = self._steps
        assert steps is not None
        self.slice_count += 1
        self._is_running = True
        end_ns = self._now_ns() + SLICE_NS
        try:
            while work > 0:
                step = next(steps, None) if step is None else step
                if step is None:
                    self._steps = None
                    self._more_held_bytes = 0
                    break
                if isinstance(step, int):
                    work -= step
                elif isinstance(step, Hold):
                    self._more_held_bytes += step.size_bytes
                elif self._must_wait(step):
                    break
                step = None
                if self._now_ns() >= end_ns:
                    break
        finally:
            self._is_running = False
        self._writer.cut()

    def _must_wait(self, wait: Wait) -> bool:
        """Start to wait; return False if that is over already."""
        self._wait = wait
        wait.start(self._go_on)
        return self._wait is not None

    def _go_on(self) -> None:
        """What the work waited for has happened."""
        self._wait = None
        if not self._is_running:
            self.step()
