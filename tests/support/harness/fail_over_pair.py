"""Two nodes that decide with `FailOver`, a model of etcd between them, and faults of everything.

Virtual time in ms. The nodes' clocks run at different rates. What a node does with a decision is
what the real one does, in a few lines: a record is a number, a log a list of them.
"""

import random
from dataclasses import dataclass, field

from appliance.coordination.fail_over import FailOver, Step
from appliance.coordination.records import PairKeys, name_keys
from appliance.coordination.standing import SLAVE, Standing
from appliance.errors import CoordinatorError
from appliance.store.role_file import RoleRecord, next_term
from tests.support.oracles.etcd_model import EtcdModel, Refused

KEYS = name_keys("/latermq", bytes(16))
TICK_MS = 20
LEASE_MS = 5_000
REPLICATION_LEASE_MS = 2_000
SILENCE_MS = 600
REQUEST_LIMIT_MS = 800
COMPARED_MS = 100
"""From the connection of a slave to the end of its catching up."""


@dataclass
class Call:
    """A request on its way."""

    step: Step
    arrives_ms: int | None
    answered_ms: int | None
    given_up_ms: int
    result: bytes | CoordinatorError | None = None


@dataclass
class Node:
    """One node.

    Attributes:
        number: 1 or 2.
        rate: of its clock.
        is_master, has_yielded, role_term: what its role file says.
        log: records.
    """

    number: int
    rate: float
    is_master: bool
    role_term: int = 1
    log: list[int] = field(default_factory=list)
    has_yielded: bool = False
    is_running: bool = False
    is_stopped: bool = False
    serves: bool = False
    is_solo: bool = False
    begins_promotion: bool = False
    ends_with: FailOver | None = None
    call: Call | None = None
    proved_ms: int = -(10**9)
    heard_ms: int = -(10**9)
    acked_ms: int = -(10**9)
    connected_ms: int | None = None

    def clock_ms(self, now_ms: int) -> int:
        return int(now_ms * self.rate) + 7_000 * self.number

    @property
    def decides(self) -> FailOver:
        assert self.ends_with is not None
        return self.ends_with


class Broken(AssertionError):
    """A promise does not hold."""


class FailOverPair:
    """The pair and its world.

    Attributes:
        now_ms: true time.
        acknowledged: records that a client was told of, in sync mode.
        promotions: how many there were.
        hand_overs: how many the other node took.
    """

    def __init__(self, seed: int, *, keys: PairKeys = KEYS) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000_000
        self.etcd = EtcdModel()
        self.keys = keys
        self.is_etcd_up = True
        self.reaches_etcd = {1: True, 2: True}
        self.is_linked = True
        self.loss = 0.0
        self.acknowledged: set[int] = set()
        self.promotions = self.hand_overs = 0
        self.nodes = {
            1: Node(1, self.rng.uniform(0.995, 1.005), is_master=True),
            2: Node(2, self.rng.uniform(0.995, 1.005), is_master=False),
        }
        self._late: list[Call] = []
        self._next = 0
        self.begin(1)
        self.begin(2)

    def begin(self, number: int) -> None:
        """Start a node that does not run."""
        node = self.nodes[number]
        node.is_running, node.is_stopped, node.serves = True, False, False
        node.is_solo = node.begins_promotion = False
        node.call, node.connected_ms = None, None
        node.proved_ms = node.heard_ms = node.acked_ms = -(10**9)
        node.ends_with = FailOver(
            self.keys,
            node=number,
            role=RoleRecord(node.role_term, is_master=node.is_master, has_yielded=node.has_yielded),
            lease_ms=LEASE_MS,
        )

    def kill(self, number: int) -> None:
        """End a node at once. Its request may arrive later."""
        node = self.nodes[number]
        if node.call is not None:
            self._late.append(node.call)
        node.is_running, node.call, node.serves = False, None, False
        self._disconnect()

    def cut(self) -> None:
        self.is_linked = False
        self._disconnect()

    def _disconnect(self) -> None:
        for node in self.nodes.values():
            node.connected_ms = None

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms += TICK_MS
            self._step_etcd()
            self._step_link()
            for node in self.nodes.values():
                if node.is_running and not node.is_stopped:
                    self._step_node(node)
            self._check()

    def licensed(self, node: Node) -> bool:
        now_ms = node.clock_ms(self.now_ms)
        return node.is_running and node.serves and now_ms < node.decides.licensed_until_ms

    def _check(self) -> None:
        if sum(self.licensed(node) for node in self.nodes.values()) > 1:
            raise Broken("two masters acknowledge")

    def _step_etcd(self) -> None:
        self.etcd.expire(self.now_ms if self.is_etcd_up else 0)
        calls = [node.call for node in self.nodes.values() if node.call] + self._late
        for call in calls:
            if call.arrives_ms is not None and self.now_ms >= call.arrives_ms and self.is_etcd_up:
                call.arrives_ms = None
                try:
                    call.result = self.etcd.handle(call.step.call, self.now_ms)
                except Refused as error:
                    call.result = CoordinatorError(str(error), is_refused=True)
        self._late = [call for call in self._late if call.arrives_ms is not None]

    def _step_link(self) -> None:
        """Let a master and its slave be heard."""
        pair = list(self.nodes.values())
        for master, slave in (pair, pair[::-1]):
            if not (self.is_linked and master.is_running and slave.is_running):
                continue
            if master.is_stopped or slave.is_stopped:
                continue
            if master.has_yielded:
                self._ask_who_took_over(master, slave)
            if not master.is_master:
                continue
            if slave.is_master and not slave.serves and slave.role_term < master.role_term:
                slave.is_master, slave.role_term = False, master.role_term
                slave.decides.demoted(master.role_term)
            if slave.is_master:
                continue
            if slave.begins_promotion or slave.role_term > master.role_term:
                continue
            if slave.connected_ms is None:
                slave.connected_ms = self.now_ms
            slave.role_term = max(slave.role_term, master.role_term)
            slave.decides.note_term(slave.role_term)
            master.proved_ms = master.clock_ms(self.now_ms - TICK_MS)
            slave.heard_ms = slave.acked_ms = slave.clock_ms(self.now_ms)
            if self.now_ms - slave.connected_ms >= COMPARED_MS:
                self._catch_up(master, slave)

    def _ask_who_took_over(self, yielded: Node, other: Node) -> None:
        """Let a node that yielded hear of the other one."""
        if other.is_master:
            yielded.has_yielded, yielded.role_term = False, other.role_term
            self.kill(yielded.number)
            self.begin(yielded.number)
        elif not other.begins_promotion:
            yielded.decides.refused_ms = yielded.clock_ms(self.now_ms)

    def _catch_up(self, master: Node, slave: Node) -> None:
        is_longer = slave.log[: len(master.log)] == master.log
        if is_longer and not master.serves:
            # A master that compares takes what its slave has more: only a crash loses a tail.
            master.log = list(slave.log)
        slave.log = list(master.log)
        slave.decides.may_follow = True
        master.is_solo = False
        master.decides.wants_in_sync = True

    def _step_node(self, node: Node) -> None:
        now_ms = node.clock_ms(self.now_ms)
        decides = node.decides
        if decides.standing in SLAVE:
            decides.hear(node.heard_ms + SILENCE_MS)
        else:
            decides.hear(node.proved_ms + REPLICATION_LEASE_MS)
        self._ask(node, now_ms)
        if decides.standing is Standing.YIELDS and node.serves:
            self.kill(node.number)  # it starts again, and compares
            self.begin(node.number)
            return
        if decides.standing is Standing.SUCCEEDS or node.begins_promotion:
            self._promote(node, now_ms)
        if node.has_yielded and decides.standing is Standing.HOLDS:
            node.has_yielded, node.is_master = False, True
            node.role_term = next_term(node.role_term, node.number)
        if node.is_master and decides.standing in (Standing.HOLDS, Standing.LEANS):
            node.serves = True
        if node.is_master:
            self._serve(node, now_ms)

    def _ask(self, node: Node, now_ms: int) -> None:
        call = node.call
        if call is not None:
            self._end_call(node, call, now_ms)
        if node.call is not None:
            return
        step = node.decides.next_step(now_ms)
        if step is None:
            return
        reaches = self.is_etcd_up and self.reaches_etcd[node.number]
        arrives_ms: int | None = self.now_ms + self.rng.randrange(0, 60)
        if not reaches or self.rng.random() < self.loss:
            # It arrives when nobody waits for it any more, or never.
            late = self.now_ms + self.rng.randrange(REQUEST_LIMIT_MS, 4 * REQUEST_LIMIT_MS)
            arrives_ms = late if self.rng.random() < 0.5 else None
        answered_ms = None
        if reaches and self.rng.random() >= self.loss:
            answered_ms = self.now_ms + self.rng.choice((60, 100, 150, 700))
        node.call = Call(step, arrives_ms, answered_ms, self.now_ms + REQUEST_LIMIT_MS)

    def _end_call(self, node: Node, call: Call, now_ms: int) -> None:
        if call.answered_ms is not None and self.now_ms >= call.answered_ms and call.result:
            node.call = None
            if isinstance(call.result, bytes):
                node.decides.answered(call.result, now_ms)
            else:
                node.decides.failed(call.result, now_ms)
        elif self.now_ms >= call.given_up_ms:
            node.call = None
            if call.arrives_ms is not None:
                self._late.append(call)
            node.decides.failed(CoordinatorError("no answer", is_refused=False), now_ms)

    def _promote(self, node: Node, now_ms: int) -> None:
        if not node.begins_promotion and now_ms < node.heard_ms + SILENCE_MS - TICK_MS:
            raise Broken("a slave that hears its master is promoted")
        node.begins_promotion = True
        node.connected_ms = None
        is_over = now_ms > node.acked_ms + REPLICATION_LEASE_MS * 102 // 100
        if is_over and now_ms < node.decides.key_until_ms:
            lost = self.acknowledged - set(node.log)
            if lost:
                raise Broken(f"{len(lost)} acknowledged records are lost")
            node.begins_promotion = False
            node.is_master = node.is_solo = True
            node.role_term = max(next_term(node.role_term, node.number), node.decides.term)
            node.decides.promoted(node.role_term)
            self.promotions += 1

    def _serve(self, node: Node, now_ms: int) -> None:
        if not self.licensed(node):
            return
        record = self._next = self._next + 1
        node.log.append(record)
        other = self.nodes[3 - node.number]
        is_there = other.connected_ms is not None and not other.is_stopped
        if is_there and self.now_ms - (other.connected_ms or 0) >= COMPARED_MS:
            other.log.append(record)
            self.acknowledged.add(record)
        elif node.is_solo and node.decides.is_alone(now_ms):
            self.acknowledged.add(record)

    def hand_over(self, number: int) -> None:
        """As an operator; any message of it may be lost."""
        node, other = self.nodes[number], self.nodes[3 - number]
        pair = node.decides.pair if node.is_running else None
        is_connected = other.connected_ms is not None and not other.is_stopped
        if not (self.licensed(node) and pair and pair.in_sync and is_connected):
            return
        if node.decides.standing is not Standing.HOLDS or other.log != node.log:
            return
        node.is_master, node.has_yielded = False, True
        node.role_term = next_term(node.role_term, other.number)
        fate = self.rng.choice(("YIELD is lost", "TAKEN is lost", "nothing is lost"))
        if fate != "YIELD is lost":
            other.is_master = other.is_solo = True
            other.role_term = node.role_term
            other.decides.promoted(other.role_term, is_handed=True)
            self.hand_overs += 1
        node.has_yielded = fate != "nothing is lost"
        self.kill(number)
        self.begin(number)

    def go_solo(self, number: int) -> None:
        """As an operator: the master is to go on without its slave."""
        node = self.nodes[number]
        other = self.nodes[3 - number]
        if node.is_running and node.serves and other.connected_ms is None:
            node.decides.wants_in_sync = False
            node.is_solo = True
