"""Long answers of all connections take turns, and wait while memory is scarce.

A slice is a heavy piece of work of the loop (`appliance.loop_turns`): one runs in each turn.
While memory is scarce only one answer goes on that holds more than SMALL_BYTES, until it is sent:
all answers together never hold more than the limit and one answer, and there is always one that
comes to its end. Layer 5.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from appliance.loop_turns import LoopTurns
from compat.kafka.network.limits import SMALL_BYTES
from compat.kafka.protocol.slices import SlicedAnswer


class _Budget(Protocol):
    @property
    def is_scarce(self) -> bool: ...


Member = TypeVar("Member")


class AnswerTurns(Generic[Member]):
    """The answers that are being produced.

    Attributes:
        slice_count: slices that were done.
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
        self._answers: dict[Member, SlicedAnswer] = {}
        self._ready: deque[Member] = deque()
        self._waiting: dict[Member, None] = {}
        """Who waits for memory, in order."""
        self._ahead: Member | None = None
        """Whose answer goes on although memory is scarce, until it is sent."""
        self._asked_count = 0
        """Turns that were asked for and have not come: each ready answer has one."""
        self.slice_count = 0

    @property
    def waiting_count(self) -> int:
        """Answers that wait for memory."""
        return len(self._waiting)

    def add(self, member: Member, answer: SlicedAnswer) -> None:
        """Let an answer go on in a later turn."""
        self._answers[member] = answer
        self._ready.append(member)
        self._arm()

    def note_memory(self, member: Member, held_bytes: int) -> None:
        """Note that a connection holds so many bytes; those that wait may go on then."""
        is_sent = member not in self._answers and held_bytes <= SMALL_BYTES
        if member is self._ahead and is_sent:
            self._ahead = None
        self._release()

    def forget(self, member: Member) -> None:
        """Remove a closed connection."""
        self._answers.pop(member, None)
        self._waiting.pop(member, None)
        if member is self._ahead:
            self._ahead = None
        self._release()

    def _release(self) -> None:
        if not self._waiting or (self._ahead is not None and self._budget.is_scarce):
            return
        released = list(self._waiting)[:1] if self._budget.is_scarce else list(self._waiting)
        for member in released:
            del self._waiting[member]
        self._ready.extend(released)
        self._arm()

    def _arm(self) -> None:
        while self._asked_count < len(self._ready):
            self._asked_count += 1
            self._turns.ask(self._turn)

    def _turn(self) -> None:
        """Do one slice of the answer that has waited longest."""
        self._asked_count -= 1
        while self._ready:
            member = self._ready.popleft()
            answer = self._answers.get(member)
            if answer is None:
                continue  # its connection is closed
            if self._may_go_on(member, answer):
                del self._answers[member]
                self.slice_count += 1
                self._run(member, answer)
                self._pass_on(member, answer)
                break
            self._waiting[member] = None
        self._arm()

    def _may_go_on(self, member: Member, answer: SlicedAnswer) -> bool:
        if answer.held_bytes <= SMALL_BYTES or not self._budget.is_scarce:
            return True
        if self._ahead is None:
            self._ahead = member
        return member is self._ahead

    def _pass_on(self, member: Member, answer: SlicedAnswer) -> None:
        """Let another go ahead if this one waits for something else, such as its group."""
        is_waiting = member not in self._answers and not answer.is_complete
        if member is self._ahead and is_waiting:
            self._ahead = None
            self._release()
