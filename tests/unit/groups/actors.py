"""Consumers in virtual time: they join, sync, send heartbeats, and get into trouble.

Their ScheduleHarness checks the answers (tests/unit/groups/schedule_harness.py).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from compat.kafka.groups.member import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from compat.kafka.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from tests.unit.groups.schedule_harness import ScheduleHarness

SESSION_MS: Final = 3_000
HEARTBEAT_MS: Final = 1_000
REBALANCE_MS: Final = 5_000
LATENCY_MS: Final = 40
"""Of a message in either direction, at most."""

Answer = TypeVar("Answer")


class Reply(Generic[Answer]):
    """Carries an answer to its consumer, if the connection is still there.

    Attributes:
        is_abandoned: the connection is closed, and the broker knows it.
        is_answered: the broker has answered.
    """

    def __init__(self, arrived: Callable[[Answer], None]) -> None:
        self.is_abandoned = False
        self.is_answered = False
        self._arrived = arrived

    def complete(self, answer: Answer) -> None:
        assert not self.is_answered, "answered twice"
        self.is_answered = True
        if not self.is_abandoned:
            self._arrived(answer)


class Consumer:
    """One process that consumes in a group.

    Attributes:
        instance_id: of a static member.
        member_id, generation: as it knows them.
        assignment: of that generation, None while it has none.
        is_alive: it has not crashed, left or been fenced.
        is_mute: it sends heartbeats and never asks for its assignment.
    """

    def __init__(
        self,
        schedule_harness: "ScheduleHarness",
        *,
        instance_id: str | None,
        is_modern: bool,
        is_cooperative: bool,
    ) -> None:
        self._world = schedule_harness
        self._is_modern = is_modern
        self._is_cooperative = is_cooperative
        self._metadata = b"0"
        self._peers = 0
        self._turn = 0
        """Counts what it does; what was planned in an earlier turn is not done any more."""
        self._frozen_until_ms = 0
        self._reply: Reply[JoinAnswer] | Reply[SyncAnswer] | None = None
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.assignment: bytes | None = None
        self.is_alive = True
        self.is_mute = False

    @property
    def key(self) -> str:
        """What an assignment is for: a static member keeps it under another member id."""
        return self.instance_id or self.member_id

    # Time

    def after(self, delay_ms: int, step: Callable[[], None]) -> None:
        """Do something later, unless something else is begun before."""
        self._turn += 1
        self._plan(delay_ms, self._turn, step)

    def _plan(self, delay_ms: int, turn: int, step: Callable[[], None]) -> None:
        def run() -> None:
            if not self.is_alive or turn != self._turn:
                return
            frozen_ms = self._frozen_until_ms - self._world.now_ms
            if frozen_ms > 0:
                self._plan(frozen_ms, turn, step)
            else:
                step()

        self._world.at(self._world.now_ms + delay_ms, run)

    def soon(self, step: Callable[[], None]) -> None:
        """Do something after a moment."""
        self.after(self._world.rng.randrange(LATENCY_MS), step)

    # Trouble

    @property
    def is_frozen(self) -> bool:
        """It stalls, or did so recently: its session may have ended meanwhile."""
        return self._frozen_until_ms + SESSION_MS >= self._world.now_ms

    def freeze(self, duration_ms: int) -> None:
        """Stand still, as in a long collection of garbage."""
        self._frozen_until_ms = self._world.now_ms + duration_ms

    def crash(self, *, is_noticed: bool) -> None:
        """End; the broker learns of it at once (a process) or never (a machine)."""
        self.is_alive = False
        if self._reply is not None:
            self._reply.is_abandoned = self._reply.is_abandoned or is_noticed

    def leave(self) -> None:
        """End, and say so if there is something to say."""
        self.crash(is_noticed=True)
        if self.member_id:
            named = (self.member_id, self.instance_id)
            self._world.groups.leave("g", [named], self._world.now_ms)

    def reconnect(self) -> None:
        """Lose the connection, and ask again what was asked."""
        if self._reply is not None and not self._reply.is_answered:
            self._reply.is_abandoned = True
            self.soon(self.join)

    def resubscribe(self) -> None:
        """Want something else from now on."""
        self._metadata = str(self._world.rng.randrange(1000)).encode()
        self.soon(self.join)

    # The protocol

    def join(self) -> None:
        """Send JoinGroup."""
        if self._reply is not None and not self._reply.is_answered:
            self._reply.is_abandoned = True
        self.assignment = None
        protocols = {"range": self._metadata, "sticky": b"s"}
        reply = Reply[JoinAnswer](lambda answer: self.soon(lambda: self._joined(answer)))
        self._reply = self._world.note_asked(reply)
        request = JoinRequest(
            group_id="g",
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id="c",
            client_host="h",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=protocols,
            is_member_id_required=self._is_modern,
            can_skip_assignment=self._is_modern,
        )
        self._world.groups.join(request, reply, self._world.now_ms)

    def _joined(self, answer: JoinAnswer) -> None:
        match answer.error:
            case ErrorCode.none:
                self._world.check_joined(self, answer)
                self.member_id, self.generation = answer.member_id, answer.generation
                assignments = {}
                if answer.leader_id == answer.member_id and not answer.skip_assignment:
                    assignments = self._world.assign(answer)
                if self.is_mute:
                    self.after(HEARTBEAT_MS, self._send_heartbeat)
                else:
                    self.after(self._time_to_assign(), lambda: self._sync(assignments))
            case ErrorCode.member_id_required:
                assert self._is_modern
                assert not self.member_id
                self.member_id = answer.member_id
                self.soon(self.join)
            case _:
                self._recover(answer.error)

    def _time_to_assign(self) -> int:
        """Now and then it takes so long that the group has gone on without it."""
        rng = self._world.rng
        slow = not self._world.is_over and rng.random() < 0.03
        return rng.randrange(2 * REBALANCE_MS if slow else LATENCY_MS)

    def _sync(self, assignments: dict[str, bytes]) -> None:
        reply = Reply[SyncAnswer](lambda answer: self.soon(lambda: self._synced(answer)))
        self._reply = self._world.note_asked(reply)
        request = SyncRequest(
            group_id="g",
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
            protocol_type="consumer" if self._is_modern else None,
            assignments=assignments,
        )
        self._world.groups.sync(request, reply, self._world.now_ms)

    def _synced(self, answer: SyncAnswer) -> None:
        if answer.error is not ErrorCode.none:
            self._recover(answer.error)
            return
        peers = self._world.check_assigned(self, answer)
        if self._is_cooperative and peers != self._peers:
            # It gives back what it has too much of, and joins again.
            self._peers = peers
            self._metadata = f"owns {answer.assignment!r}".encode()
            self.soon(self.join)
        else:
            self.assignment = answer.assignment
            self.after(HEARTBEAT_MS, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        error = self._world.groups.heartbeat(
            "g", self.member_id, self.instance_id, self.generation, self._world.now_ms
        )
        if self.assignment is None and not self.is_mute:
            self.soon(self.join)
        elif error is ErrorCode.none:
            self.after(HEARTBEAT_MS, self._send_heartbeat)
        elif error is ErrorCode.rebalance_in_progress:
            # Now and then it takes longer to end what is under way than the group waits.
            slow = not self._world.is_over and self._world.rng.random() < 0.1
            self.after(self._world.rng.randrange(REBALANCE_MS if slow else 200), self.join)
        else:
            self._recover(error)

    def _recover(self, error: ErrorCode) -> None:
        """Go on after an error as clients do."""
        match error:
            case ErrorCode.fenced_instance_id:
                self._world.check_fenced(self)
                self.is_alive = False
                return
            case ErrorCode.unknown_member_id:
                self.member_id, self.generation = "", -1
            case ErrorCode.illegal_generation:
                self.generation = -1
            case ErrorCode.rebalance_in_progress:
                pass
            case _:
                raise AssertionError(f"a consumer got {error!r}")
        self.soon(self.join)
