"""What a client connection uses of the server that it belongs to. Layer 5."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from appliance.loop_turns import LoopTurns
from appliance.model import ColdPlace
from appliance.piece_queue import PieceQueue
from appliance.work_thread import Turn
from compat.kafka.network.answer_turns import AnswerTurns
from compat.kafka.network.batch_turns import BatchTurns, Producer
from compat.kafka.network.delay_reports import DelayReports
from compat.kafka.network.driven import Driver, ServedBroker
from compat.kafka.network.large_requests import LargeRequests
from compat.kafka.network.memory_budget import Claim, MemoryBudget
from compat.kafka.network.unsent_bounds import UnsentBounds
from compat.kafka.node import Node

Connection = TypeVar("Connection", bound=Producer)


class Host(Protocol[Connection]):
    """The part of the server that a connection uses."""

    broker: ServedBroker
    loop: asyncio.AbstractEventLoop
    node: Node
    turns: LoopTurns
    budget: MemoryBudget[Connection]
    answers: AnswerTurns[Connection]
    ended: PieceQueue[Connection]
    """Whose clients are gone."""

    unsent: UnsentBounds[Connection]
    delays: DelayReports
    large: LargeRequests
    batches: BatchTurns[Connection]
    copies_output: bool
    """The transport copies bytes that it cannot send at once."""

    @property
    def pump(self) -> Driver: ...

    def guard(self, step: Callable[[], None]) -> None: ...

    def admit(self, connection: Connection) -> bool:
        """Accept a new connection unless a limit is reached; returns whether it is accepted."""

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""

    def await_flush(self, connection: Connection, is_waiting: bool) -> None:
        """Set whether a connection is notified of the next flush."""

    def note_completed(self, connection: Connection) -> None:
        """Note a completed deferred response; it is sent once the turn's changes are written."""

    def end_turn(self) -> None:
        """Send the responses completed in this turn, after its changes were written."""

    def measured(self, step: Callable[[], None]) -> None:
        """Do a step that was queued, and note what it took of the loop."""

    def read_cold(
        self, places: list[ColdPlace], then: Callable[[], None], address: str = ""
    ) -> None:
        """Read frames and units from the disk for a control-plane request."""

    def ask_for_work(self, turn: Turn) -> None:
        """Let a connection wait for the thread that does the work of requests."""

    def note_memory(
        self,
        connection: Connection,
        held_bytes: int,
        claim: Claim | None,
        growth_bytes: int,
        *,
        is_arriving: bool,
        is_whole: bool,
    ) -> None:
        """Update the memory use of a connection, and resume others if that frees memory."""

    def note_shared(self) -> None:
        """Update the memory that belongs to no connection."""
