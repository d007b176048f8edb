"""A group, its consumers and their broker, in virtual time; see `ScheduleHarness.run`.

All that happens follows from the seed. What must hold whatever happens:

- one generation has one assignment, and each of its members gets what its leader sent for it;
- generations only grow, for each member and for all;
- every request is answered once, at the latest when all have settled;
- what is in the log is what the coordinator has in memory, so that a restart changes nothing;
- after the last trouble all that are alive are soon in one generation, and stay there.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

from appliance.units import NS_PER_MS
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.groups.group import GROUP_OVERHEAD_BYTES, Group, GroupState
from compat.kafka.groups.member import MEMBER_OVERHEAD_BYTES, JoinAnswer, SyncAnswer
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.configs import small_config
from tests.support.simulator.virtual_clock import VirtualClock
from tests.unit.groups.actors import REBALANCE_MS, SESSION_MS, Consumer, Reply
from tests.unit.groups.harness import HarnessLog

TROUBLE_MS: Final = 15_000
REST_MS: Final = 4 * REBALANCE_MS + 8 * SESSION_MS
"""So long after the last trouble all must be in one generation: sessions end, some twice as one
comes back under a name that is expected still, and a rebalance or two follow."""
CALM_MS: Final = REBALANCE_MS + 2 * SESSION_MS
"""And stay there: no deadline of the group lies further ahead."""
LOOK_MS: Final = 500

Asked = TypeVar("Asked", bound=Reply[Any])


class ScheduleHarness:
    """One run.

    Attributes:
        rng: all chance.
        groups: the broker's coordinator; another one after each restart.
        counts: what happened how often.
        is_over: no more trouble is made.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.log = HarnessLog()
        self._config = small_config(
            session_timeout_min_ms=1,
            initial_rebalance_delay_ms=self.rng.choice((0, 200, 1_000)),
            group_size_max_bytes=16_384,
        )
        self.groups = GroupCoordinator(self.log, self.clock, self._config)
        self.consumers: list[Consumer] = []
        self.counts: Counter[str] = Counter()
        self.is_over = False
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self._asked: list[Reply[Any]] = []
        self._sent: dict[int, list[dict[str, bytes]]] = {}
        self._used: dict[int, int] = {}
        self._generation_max = 0
        self._compared_count = 0
        self._is_modern = self.rng.random() < 0.8
        self._is_cooperative = self.rng.random() < 0.4
        self._consumer_max = self.rng.randrange(2, 13)

    # Time

    @property
    def now_ms(self) -> int:
        return self.clock.monotonic_ns() // NS_PER_MS

    def at(self, at_ms: int, step: Callable[[], None]) -> None:
        """Have something happen at a time."""
        self._event_count += 1
        heapq.heappush(self._events, (at_ms, self._event_count, step))

    def _run_until(self, end_ms: int) -> None:
        while True:
            due_ms = self.groups.next_deadline_ms()
            next_ms = self._events[0][0] if self._events else end_ms
            if due_ms is not None and due_ms <= min(next_ms, end_ms):
                self._advance_to(due_ms)
                self.groups.expire(self.now_ms)
            elif next_ms < end_ms:
                self._advance_to(next_ms)
                _, _, step = heapq.heappop(self._events)
                step()
            else:
                break
            if self.rng.random() < 0.1:
                self.check()
        self._advance_to(end_ms)

    def _advance_to(self, at_ms: int) -> None:
        self.clock.advance_ms(max(0, at_ms - self.now_ms))

    # The run

    def run(self) -> None:
        """Make trouble for a while, then check that the group settles."""
        for _ in range(self.rng.randrange(1, self._consumer_max + 1)):
            self._begin_consumer()
        end_ms = self.now_ms + self.rng.randrange(TROUBLE_MS)
        while self.now_ms < end_ms:
            self._run_until(self.now_ms + self.rng.choice((1, 10, 100, 1_000, 3_000)))
            self._make_trouble()
            self.check()
        self.is_over = True
        self.log.is_full = False
        for consumer in self.consumers:
            consumer.is_mute = False
        self._await_rest()
        generation = self._generation_max
        self._run_until(self.now_ms + CALM_MS)
        assert self._is_at_rest(), "the group settled and did not stay so"
        assert generation == self._generation_max, "a rebalance without a reason"
        assert all(reply.is_answered for reply in self._asked), "a request was not answered"

    def _await_rest(self) -> None:
        end_ms = self.now_ms + REST_MS
        # What the last trouble was is still on its way.
        self._run_until(self.now_ms + LOOK_MS)
        while not self._is_at_rest():
            assert self.now_ms < end_ms, f"no rest: {self._describe()}"
            self._run_until(self.now_ms + LOOK_MS)
        self.counts["at rest"] += 1

    def _is_at_rest(self) -> bool:
        self.check()
        alive = [each for each in self.consumers if each.is_alive]
        group = self.groups.find("g")
        if group is None or not group.members:
            return not alive and (group is None or group.state is GroupState.EMPTY)
        return (
            group.state is GroupState.STABLE
            and set(group.members) == {each.member_id for each in alive}
            and all(
                each.assignment is not None
                and each.generation == group.generation
                and not each.is_frozen
                for each in alive
            )
        )

    def _describe(self) -> str:
        group = self.groups.find("g")
        state = None if group is None else (group.state, group.generation, list(group.members))
        alive = [(each.member_id, each.generation) for each in self.consumers if each.is_alive]
        return f"{state}, alive {alive}"

    # Trouble

    def _begin_consumer(self, instance_id: str | None = None) -> None:
        if instance_id is None and self.rng.random() < 0.4:
            instance_id = f"i{len(self.consumers)}"
        consumer = Consumer(
            self,
            instance_id=instance_id,
            is_modern=self._is_modern if self.rng.random() < 0.9 else not self._is_modern,
            is_cooperative=self._is_cooperative,
        )
        self.consumers.append(consumer)
        consumer.soon(consumer.join)

    def _make_trouble(self) -> None:
        alive = [each for each in self.consumers if each.is_alive]
        if len(alive) < self._consumer_max and self.rng.random() < 0.3:
            self._begin_consumer()
            return
        if not alive:
            return
        consumer = self.rng.choice(alive)
        troubles: dict[str, Callable[[], None]] = {
            "crash": lambda: self._end(consumer, lambda: consumer.crash(is_noticed=True)),
            "vanish": lambda: self._end(consumer, lambda: consumer.crash(is_noticed=False)),
            "leave": lambda: self._end(consumer, consumer.leave),
            "freeze": lambda: consumer.freeze(self.rng.randrange(3 * SESSION_MS)),
            "reconnect": consumer.reconnect,
            "resubscribe": consumer.resubscribe,
            "mute": lambda: setattr(consumer, "is_mute", True),
            "double": lambda: self._double(consumer),
            "evict": lambda: self._evict(consumer),
            "stray": self._send_stray,
            "restart": self._restart,
            "full": lambda: setattr(self.log, "is_full", not self.log.is_full),
        }
        name = self.rng.choice(list(troubles))
        self.counts[name] += 1
        troubles[name]()

    def _end(self, consumer: Consumer, end: Callable[[], None]) -> None:
        """End a consumer; often another one takes its place."""
        end()
        if self.rng.random() < 0.6:
            self._begin_consumer(consumer.instance_id)

    def _double(self, consumer: Consumer) -> None:
        """Begin a second one with the same instance id, by mistake."""
        if consumer.instance_id is not None:
            self._begin_consumer(consumer.instance_id)

    def _evict(self, consumer: Consumer) -> None:
        """An operator removes a static member by its name; the consumer comes back."""
        if consumer.instance_id is not None:
            self.groups.leave("g", [("", consumer.instance_id)], self.now_ms)

    def _send_stray(self) -> None:
        """Send what does not fit; nothing may come of it."""
        group = self.groups.find("g")
        before = None if group is None else group.to_frame()
        now_ms, generation = self.now_ms, self.rng.randrange(-1, self._generation_max + 2)
        errors = [
            self.groups.heartbeat("g", "stray", None, generation, now_ms),
            self.groups.heartbeat("g", "", "stray", generation, now_ms),
            *self.groups.leave("g", [("stray", None), ("", "stray"), ("", None)], now_ms),
        ]
        assert set(errors) == {ErrorCode.unknown_member_id}
        if group is not None:
            for member_id in group.members:
                error = self.groups.heartbeat("g", member_id, None, group.generation + 1, now_ms)
                assert error is ErrorCode.illegal_generation
        after = self.groups.find("g")
        assert before == (None if after is None else after.to_frame())

    def _restart(self) -> None:
        """Kill the broker and start it again; what is not in the log would be lost."""
        group = self.groups.find("g")
        if group is not None and not self._is_as_logged(group):
            return
        self.groups = GroupCoordinator(self.log, self.clock, self._config)
        self.groups.restore(self.now_ms)
        for reply in self._asked:
            reply.is_abandoned = True
        # No consumer waits for those replies any more.
        self._asked = [reply for reply in self._asked if reply.is_answered]
        for consumer in self.consumers:
            consumer.reconnect()

    def _is_as_logged(self, group: Group) -> bool:
        return group.is_saved or (group.generation == 0 and not group.members)

    # What consumers receive

    def note_asked(self, reply: Asked) -> Asked:
        """A request is sent; it must be answered."""
        self._asked.append(reply)
        return reply

    def assign(self, answer: JoinAnswer) -> dict[str, bytes]:
        """A leader makes an assignment: of each member, whose it is, and how many they are."""
        attempts = self._sent.setdefault(answer.generation, [])
        mark = f"{answer.generation}/{len(attempts)}/{len(answer.members)}"
        named = {instance or member_id: member_id for member_id, instance, _ in answer.members}
        attempts.append({key: f"{mark}/{key}".encode() for key in named})
        return {member_id: attempts[-1][key] for key, member_id in named.items()}

    def check_joined(self, consumer: Consumer, answer: JoinAnswer) -> None:
        """A consumer is in a generation."""
        assert answer.generation >= consumer.generation
        assert consumer.member_id in {"", answer.member_id}
        if answer.members:
            assert answer.leader_id == answer.member_id
            assert answer.member_id in {member_id for member_id, _, _ in answer.members}
        self.counts["joined"] += 1

    def check_assigned(self, consumer: Consumer, answer: SyncAnswer) -> int:
        """A consumer has its assignment; of how many members its leader knew."""
        self.counts["assigned"] += 1
        attempts = self._sent[consumer.generation]
        if not answer.assignment:
            # It had come to the generation's members after its leader had seen them.
            raise AssertionError(f"{consumer.key} got nothing in {consumer.generation}")
        generation, attempt, count, key = answer.assignment.decode().split("/")
        assert int(generation) == consumer.generation
        assert key == consumer.key
        assert answer.assignment == attempts[int(attempt)][key]
        used = self._used.setdefault(consumer.generation, int(attempt))
        assert used == int(attempt), f"generation {generation} has two assignments"
        return int(count)

    def check_fenced(self, consumer: Consumer) -> None:
        """A consumer learns that another one has its instance id."""
        assert consumer.instance_id is not None
        self.counts["fenced"] += 1
        others = [each for each in self.consumers if each.instance_id == consumer.instance_id]
        assert len(others) > 1

    # What the coordinator has

    def check(self) -> None:
        """Check the coordinator from the inside."""
        group = self.groups.find("g")
        if group is None:
            assert self.groups.size_bytes == 0
            assert self._generation_max == 0
            return
        assert group.generation >= self._generation_max
        self._generation_max = group.generation
        self._check_group(group)
        is_new = self.log.saved_count != self._compared_count
        if is_new and group.is_saved and not group.is_rebalancing:
            self._compared_count = self.log.saved_count
            self._check_log(group)

    def _check_group(self, group: Group) -> None:
        members = group.members
        assert all(member_id == each.member_id for member_id, each in members.items())
        assert group.static_ids == {
            each.instance_id: each.member_id for each in members.values() if each.instance_id
        }
        assert group.awaiting_join_count == sum(
            each.awaiting_join is not None for each in members.values()
        )
        assert group.unsynced <= set(members)
        assert (group.leader_id in members) if members else group.leader_id is None
        pending = sum(MEMBER_OVERHEAD_BYTES + len(member_id) for member_id in group.pending)
        sizes = sum(each.size_bytes for each in members.values())
        assert group.size_bytes == GROUP_OVERHEAD_BYTES + len("g") + sizes + pending
        assert self.groups.size_bytes == group.size_bytes
        for name in ("range", "sticky"):
            count = sum(name in each.protocols for each in members.values())
            assert group.supports("consumer", {name: b""}) == (count == len(members))
        self._check_state(group)

    def _check_state(self, group: Group) -> None:
        """Nobody waits for nothing: whatever is awaited has an end."""
        members = group.members.values()
        match group.state:
            case GroupState.EMPTY:
                assert not group.members
            case GroupState.PREPARING_REBALANCE:
                assert group.join_deadline.at_ms is not None
                assert group.is_initial or not group.have_all_joined, "nobody is waited for"
                assert not any(each.awaiting_sync for each in members)
            case GroupState.COMPLETING_REBALANCE:
                assert group.leader_id in group.unsynced
                assert group.sync_deadline.at_ms is not None
                assert not any(each.awaiting_join for each in members)
            case _:
                assert group.state is GroupState.STABLE
                assert not any(each.awaiting_join or each.awaiting_sync for each in members)
                assert bool(group.unsynced) == (group.sync_deadline.at_ms is not None)
        for each in members:
            is_waiting = each.awaiting_join is not None or each.awaiting_sync is not None
            assert is_waiting or each.session.at_ms is not None, "it would stay for ever"

    def _check_log(self, group: Group) -> None:
        """What a broker would begin with after a crash just now is what there is."""
        self.counts["compared"] += 1
        other = GroupCoordinator(self.log, self.clock, self._config)
        other.restore(self.now_ms)
        restored = other.find("g")
        assert restored is not None
        assert restored.to_frame() == group.to_frame()
        assert restored.static_ids == group.static_ids
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert restored.unsynced == set(group.members)
