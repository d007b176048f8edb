"""Long answers of all connections take turns, and wait while memory is scarce.

A slice is a heavy piece of work of the loop (`appliance.loop_turns`): one runs in each turn.
While memory is scarce, one answer of an address that holds more than SMALL_BYTES goes on until it
is sent, for up to AHEAD_MAX addresses. So all answers together hold at most the limit and one
answer of each of these, and there is always one that comes to its end. Layer 5.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from appliance.loop_turns import LoopTurns
from compat.kafka.network.limits import SMALL_BYTES
from compat.kafka.network.memory_lines import MemoryLines
from compat.kafka.protocol.slices import SlicedAnswer

AHEAD_MAX: Final = 4
"""Of so many addresses an answer goes on although memory is scarce; one may have many megabytes."""


class _Budget(Protocol):
    @property
    def is_scarce(self) -> bool: ...


Member = TypeVar("Member")


class AnswerTurns(Generic[Member]):
    """The answers that are being produced.

    Attributes:
        slice_count: slices that were done.
        garbage_bytes: what is left of answers whose clients are gone, and is freed in turns.
    """

    def __init__(
        self,
        turns: LoopTurns,
        budget: _Budget,
        run: Callable[[Member, SlicedAnswer], None],
    ) -> None:
        """Begin without answers.

        Args:
            turns: calls back, a slice at a time.
            budget: says whether memory is scarce.
            run: does a slice of the answer of a connection, and what belongs to a turn.
        """
        self._turns = turns
        self._budget = budget
        self._run = run
        self._answers: dict[Member, tuple[str, SlicedAnswer]] = {}
        """What is to go on, and the address it is for."""
        self._lines: MemoryLines[Member] = MemoryLines(AHEAD_MAX)
        self.slice_count = 0
        self.garbage_bytes = 0

    @property
    def has_waiting(self) -> bool:
        """Whether an answer waits for memory."""
        return self._lines.has_waiting

    def add(self, member: Member, address: str, answer: SlicedAnswer) -> None:
        """Let an answer go on in a later turn.

        Args:
            member: the connection.
            address: of its client.
            answer: the answer.
        """
        self._answers[member] = (address, answer)
        self.garbage_bytes += answer.garbage_bytes
        self._ask(member)

    def note_memory(self, member: Member, held_bytes: int) -> None:
        """Note that a connection holds so many bytes; those that wait may go on then."""
        if member not in self._answers and held_bytes <= SMALL_BYTES:
            self._lines.leave(member)  # it is sent
        self._release()

    def forget(self, member: Member) -> None:
        """Remove a closed connection."""
        self._answers.pop(member, None)
        self._lines.leave(member)
        self._release()

    def _release(self) -> None:
        while (member := self._lines.release(has_room=not self._budget.is_scarce)) is not None:
            self._ask(member)

    def _ask(self, member: Member) -> None:
        address, _ = self._answers[member]
        self._turns.ask(partial(self._turn, member), address=address)

    def _turn(self, member: Member) -> None:
        """Do one slice of an answer, unless it has to wait."""
        address, answer = self._answers.get(member, ("", None))
        if answer is None:
            return  # its connection is closed
        if answer.held_bytes > SMALL_BYTES and self._budget.is_scarce:
            held_bytes = answer.held_bytes
            self._lines.hold_or_wait(member, address, held_bytes, is_low=True, is_scarce=True)
            if self._lines.is_waiting(member):
                self._release()  # it may be the one that goes ahead
                return
        del self._answers[member]
        self.garbage_bytes -= answer.garbage_bytes
        self.slice_count += 1
        self._run(member, answer)
        if answer.awaits_clients:
            # Such as others of its group, whose requests may be held back.
            self._lines.leave(member)
            self._release()
