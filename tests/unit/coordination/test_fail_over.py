"""Each rule of the fail-over alone, with a model of etcd that answers at once."""

from typing import Final

import pytest

from appliance.coordination import etcd_wire
from appliance.coordination.etcd_wire import Call, Put
from appliance.coordination.fail_over import CLOCK_MARGIN_PERCENT, POLL_MS, Ask, FailOver, Step
from appliance.coordination.records import (
    Holder,
    PairRecord,
    encode_holder,
    encode_pair,
    name_keys,
)
from appliance.coordination.standing import STANDINGS, Happening, Standing
from appliance.errors import CoordinatorError
from appliance.store.role_file import RoleRecord
from tests.support.oracles.etcd_model import EtcdModel, Refused

KEYS: Final = name_keys("/latermq/", bytes(range(16)))
LEASE_MS: Final = 5_000
FOREVER_MS: Final = 10**9

STOPPED: Final = CoordinatorError("no answer", is_refused=False)


class Desk:
    """Nodes that ask one etcd.

    Attributes:
        etcd: the model.
        now_ms: the time of all.
    """

    def __init__(self) -> None:
        self.etcd = EtcdModel()
        self.now_ms = 1_000_000

    def node(self, number: int, *, is_master: bool, term: int = 1) -> FailOver:
        role = RoleRecord(term, is_master=is_master)
        return FailOver(KEYS, node=number, role=role, lease_ms=LEASE_MS)

    def write(self, *, holder: Holder | None, pair: PairRecord | None) -> None:
        """Write the keys as the other node does; its lease is alive for LEASE_MS."""
        lease, _ = etcd_wire.decode_grant(self._do(etcd_wire.grant(LEASE_MS // 1000)))
        puts = []
        if holder is not None:
            puts.append(Put(KEYS.master, encode_holder(holder), lease))
        if pair is not None:
            puts.append(Put(KEYS.pair, encode_pair(pair)))
        self._do(etcd_wire.transact({}, puts))

    def _do(self, call: Call) -> bytes:
        return self.etcd.handle(call, self.now_ms)

    def ask(self, node: FailOver) -> Step | None:
        """Let a node do its next step; return it."""
        step = node.next_step(self.now_ms)
        if step is None:
            return None
        try:
            node.answered(self._do(step.call), self.now_ms)
        except Refused as error:
            node.failed(CoordinatorError(str(error), is_refused=True), self.now_ms)
        return step

    def run(self, node: FailOver, duration_ms: int = 1_000) -> list[Ask]:
        """Let a node ask for a while, and return what it asked."""
        asked = []
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            step = self.ask(node)
            if step is None:
                self.now_ms += 10
            else:
                asked.append(step.ask)
        return asked

    def run_to(self, node: FailOver, ask: Ask) -> Step:
        """Let a node ask until the next one is of this kind; that one has no answer yet."""
        for _ in range(10_000):
            step = node.next_step(self.now_ms)
            if step is None:
                self.now_ms += 10
            elif step.ask is ask:
                return step
            else:
                node.answered(self._do(step.call), self.now_ms)
        pytest.fail(f"it never asks to {ask.value}")

    def holder(self) -> dict[str, object] | None:
        found: dict[str, object] | None = self.etcd.value(KEYS.master)
        return found

    def pair(self) -> dict[str, object] | None:
        found: dict[str, object] | None = self.etcd.value(KEYS.pair)
        return found


def where(node: FailOver) -> Standing:
    """Where it stands now."""
    return node.standing


@pytest.fixture
def desk() -> Desk:
    return Desk()


def slave_of(desk: Desk, pair: PairRecord, holder: Holder | None = None) -> FailOver:
    """Node 2, which has caught up once and does not hear its master."""
    desk.write(holder=holder, pair=pair)
    slave = desk.node(2, is_master=False)
    slave.may_follow = True
    return slave


def holding(desk: Desk) -> FailOver:
    """Node 1, which has the key and hears nobody."""
    master = desk.node(1, is_master=True)
    desk.run(master)
    assert where(master) is Standing.HOLDS
    return master


def test_a_slave_that_hears_its_master_asks_nothing(desk: Desk) -> None:
    slave = slave_of(desk, PairRecord(1, 1, in_sync=True))
    slave.hear(FOREVER_MS)
    assert desk.run(slave) == []
    assert where(slave) is Standing.FOLLOWS


def test_a_silent_slave_takes_the_key_once_it_is_gone_and_in_the_next_term(desk: Desk) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=True), Holder(1, 7))
    desk.run(slave, LEASE_MS - 100)
    assert where(slave) is Standing.MISSES
    assert desk.holder() == {"node": 1, "term": 7}
    desk.run(slave, 400)
    assert where(slave) is Standing.SUCCEEDS
    assert slave.term == 8
    assert desk.holder() == {"node": 2, "term": 8}
    assert desk.pair() == {"node": 2, "term": 8, "in_sync": False}
    assert slave.licensed_until_ms == 0, "it is no master yet"
    slave.promoted(8)
    desk.run(slave, 3 * LEASE_MS)
    assert where(slave) is Standing.HOLDS
    assert slave.licensed_until_ms > desk.now_ms


@pytest.mark.parametrize("lacks", ["in_sync", "may_follow", "pair"])
def test_a_slave_that_may_lack_something_does_not_take_the_key(desk: Desk, lacks: str) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=lacks != "in_sync"))
    slave.may_follow = lacks != "may_follow"
    if lacks == "pair":
        desk.etcd.keys.clear()
    assert set(desk.run(slave, 3_000)) == {Ask.READ}
    assert desk.holder() is None


def test_a_slave_that_hears_its_master_again_follows_it(desk: Desk) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=True), Holder(1, 7))
    desk.run(slave)
    slave.hear(FOREVER_MS)
    desk.run(slave, 2 * LEASE_MS)
    assert where(slave) is Standing.FOLLOWS
    assert slave.holder == Holder(1, 7), "what it read last"


@pytest.mark.parametrize("arrives", ["before", "after", "never"])
def test_a_taking_without_an_answer_is_undone_before_anything_else(
    desk: Desk, arrives: str
) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=True))
    step = desk.run_to(slave, Ask.TAKE)
    if arrives == "before":
        desk.etcd.handle(step.call, desk.now_ms)
    slave.failed(STOPPED, desk.now_ms)
    assert where(slave) is Standing.WITHDRAWS
    slave.hear(FOREVER_MS)
    desk.now_ms += POLL_MS
    revoked = desk.ask(slave)
    assert revoked is not None
    assert revoked.ask is Ask.REVOKE
    if arrives == "after":
        with pytest.raises(Refused):
            desk.etcd.handle(step.call, desk.now_ms)
    assert desk.holder() is None
    desk.run(slave)
    assert where(slave) is Standing.FOLLOWS
    slave.hear(0)
    desk.run(slave, 2_000)
    assert where(slave) is Standing.SUCCEEDS
    assert slave.term == (10 if arrives == "before" else 8)


def test_a_slave_that_hears_its_master_while_it_takes_the_key_gives_it_back(desk: Desk) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=True))
    step = desk.run_to(slave, Ask.TAKE)
    body = desk.etcd.handle(step.call, desk.now_ms)
    slave.hear(FOREVER_MS)
    slave.answered(body, desk.now_ms)
    assert where(slave) is Standing.WITHDRAWS
    assert desk.holder() == {"node": 2, "term": 8}
    desk.run(slave)
    assert where(slave) is Standing.FOLLOWS
    assert desk.holder() is None
    master = desk.node(1, is_master=True, term=7)
    master.hear(FOREVER_MS)
    desk.run(master)
    assert desk.holder() == {"node": 1, "term": 9}


def test_of_two_that_take_the_key_one_does(desk: Desk) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=True))
    step = desk.run_to(slave, Ask.TAKE)
    master = desk.node(1, is_master=True, term=7)
    master.may_go_alone = True
    desk.run(master)
    assert where(master) is Standing.HOLDS
    slave.answered(desk.etcd.handle(step.call, desk.now_ms), desk.now_ms)
    assert where(slave) is Standing.MISSES
    assert desk.holder() == {"node": 1, "term": 7}


def test_a_promotion_whose_lease_ended_begins_again(desk: Desk) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=True))
    desk.run(slave)
    assert where(slave) is Standing.SUCCEEDS
    desk.now_ms += 2 * LEASE_MS
    assert slave.key_until_ms <= desk.now_ms
    desk.run(slave, 2_000)
    assert where(slave) is Standing.SUCCEEDS
    assert slave.key_until_ms > desk.now_ms
    assert slave.term == 10


def test_a_promotion_whose_key_the_other_node_took_meanwhile_is_given_up(desk: Desk) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=True))
    desk.run(slave)
    assert where(slave) is Standing.SUCCEEDS
    desk.now_ms += 2 * LEASE_MS
    master = desk.node(1, is_master=True, term=7)
    master.appoint()
    desk.run(master)
    assert where(master) is Standing.HOLDS
    assert not slave.is_passed_over
    desk.run(slave, 2_000)
    assert where(slave) is Standing.MISSES
    assert slave.is_passed_over


def test_a_license_counts_from_when_the_request_left_and_is_shorter_than_the_lease(
    desk: Desk,
) -> None:
    master = desk.node(1, is_master=True)
    step = desk.run_to(master, Ask.GRANT)
    left_ms = desk.now_ms
    body = desk.etcd.handle(step.call, desk.now_ms)
    desk.now_ms += 700
    master.answered(body, desk.now_ms)
    take = desk.ask(master)
    assert take is not None
    assert take.ask is Ask.TAKE
    assert where(master) is Standing.HOLDS
    assert master.licensed_until_ms == left_ms + LEASE_MS * (100 - CLOCK_MARGIN_PERCENT) // 100


def test_a_master_without_etcd_goes_on_while_it_hears_its_slave_and_no_longer(desk: Desk) -> None:
    master = holding(desk)
    assert desk.now_ms < master.licensed_until_ms < desk.now_ms + LEASE_MS

    def run_alone(duration_ms: int, *, heard: bool) -> None:
        end_ms = desk.now_ms + duration_ms
        while desk.now_ms < end_ms:
            if heard:
                master.hear(desk.now_ms + 2_000)
            if master.next_step(desk.now_ms) is not None:
                master.failed(STOPPED, desk.now_ms)
            desk.now_ms += 50

    run_alone(3 * LEASE_MS, heard=True)
    assert where(master) is Standing.LEANS
    assert master.licensed_until_ms > desk.now_ms
    assert master.problem == "no answer"
    run_alone(2_100, heard=False)
    assert where(master) is Standing.STOPS
    assert master.licensed_until_ms <= desk.now_ms
    desk.run(master)
    assert where(master) is Standing.HOLDS, "etcd is back, and nobody took the key"
    assert master.problem == ""


def test_a_master_whose_slave_took_over_yields(desk: Desk) -> None:
    master = holding(desk)
    desk.now_ms += 2 * LEASE_MS
    desk.write(holder=Holder(2, 2), pair=PairRecord(2, 2, in_sync=False))
    desk.run(master)
    assert where(master) is Standing.YIELDS
    assert master.licensed_until_ms == 0
    assert desk.run(master, 3_000) == []
    desk.now_ms += LEASE_MS
    # The slave ended before its promotion was done, and follows again.
    master.hear(FOREVER_MS)
    desk.run(master)
    assert where(master) is Standing.HOLDS
    assert desk.pair() == {"node": 1, "term": 3, "in_sync": False}


def test_a_master_whose_slave_was_promoted_by_force_yields(desk: Desk) -> None:
    master = holding(desk)
    slave = desk.node(2, is_master=False)
    slave.promoted(2)
    desk.run(slave)
    assert where(slave) is Standing.HOLDS
    desk.run(master, LEASE_MS // 2)
    assert where(master) is Standing.YIELDS
    assert master.licensed_until_ms == 0


@pytest.mark.parametrize(
    ("pair", "goes_on"),
    [
        (None, True),
        (PairRecord(1, 3, in_sync=False), True),
        (PairRecord(1, 3, in_sync=True), False),
        (PairRecord(2, 3, in_sync=False), False),
        (PairRecord(2, 2, in_sync=True), False),
        (PairRecord(2, 2, in_sync=False), True),
    ],
)
def test_a_master_that_compares_goes_on_by_itself_if_the_slave_lacks_something(
    desk: Desk, pair: PairRecord | None, *, goes_on: bool
) -> None:
    """In term 3: what etcd says of term 2 is older than what made this node the master."""
    desk.write(holder=None, pair=pair)
    master = desk.node(1, is_master=True, term=3)
    desk.run(master, 3_000)
    assert (where(master) is Standing.HOLDS) == goes_on
    if pair is not None and pair.node == 1:
        master.may_go_alone = True
        desk.run(master)
        assert where(master) is Standing.HOLDS
        assert desk.pair() == {"node": 1, "term": 3, "in_sync": pair.in_sync}


def test_solo_begins_when_nothing_can_make_the_slave_in_sync_any_more(desk: Desk) -> None:
    master = holding(desk)
    assert master.is_alone(desk.now_ms), "the first record says that nobody is in sync"
    master.wants_in_sync = True
    note = desk.run_to(master, Ask.NOTE)
    assert not master.is_alone(desk.now_ms)
    master.failed(STOPPED, desk.now_ms)
    master.wants_in_sync = False
    desk.now_ms += POLL_MS
    first = desk.ask(master)
    assert first is not None
    assert first.ask is Ask.READ
    assert master.pair == PairRecord(1, 1, in_sync=False)
    assert not master.is_alone(desk.now_ms), "the first writing may still arrive"
    desk.run(master)
    assert master.is_alone(desk.now_ms)
    desk.etcd.handle(note.call, desk.now_ms)
    assert desk.pair() == {"node": 1, "term": 1, "in_sync": False}
    desk.now_ms += LEASE_MS
    assert not master.is_alone(desk.now_ms)


def test_a_master_that_starts_again_leaves_open_whether_its_slave_is_in_sync(desk: Desk) -> None:
    desk.write(holder=Holder(1, 3), pair=PairRecord(1, 3, in_sync=True))
    master = desk.node(1, is_master=True, term=3)
    master.hear(FOREVER_MS)
    desk.run(master)
    assert where(master) is Standing.HOLDS, "the key of its last life is its own"
    assert desk.pair() == {"node": 1, "term": 3, "in_sync": True}
    assert not master.is_alone(desk.now_ms)


def test_an_operator_promotes_a_slave_that_hears_its_master_but_not_against_the_key(
    desk: Desk,
) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=False), Holder(1, 7))
    slave.hear(FOREVER_MS)
    slave.order()
    desk.run(slave)
    assert "node 1 has the key in etcd, in term 7" in slave.refusal
    assert where(slave) is Standing.FOLLOWS
    desk.now_ms += LEASE_MS
    slave.order()
    desk.run(slave)
    assert slave.refusal == ""
    assert where(slave) is Standing.SUCCEEDS


def test_an_operator_promotes_by_force_whatever_etcd_says(desk: Desk) -> None:
    slave = slave_of(desk, PairRecord(1, 7, in_sync=False), Holder(1, 7))
    slave.promoted(2)
    desk.run(slave)
    assert where(slave) is Standing.HOLDS
    assert desk.holder() == {"node": 2, "term": 8}
    assert desk.pair() == {"node": 2, "term": 8, "in_sync": False}


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_slave_that_takes_over_while_it_gives_the_key_back_takes_it_again(
    *, is_refused: bool, desk: Desk
) -> None:
    """A hand-over may come at any moment."""
    slave = slave_of(desk, PairRecord(1, 4, in_sync=True))
    slave.term = 4
    desk.run_to(slave, Ask.TAKE)
    slave.hear(FOREVER_MS)
    slave.failed(STOPPED, desk.now_ms)
    step = desk.run_to(slave, Ask.REVOKE)
    assert where(slave) is Standing.WITHDRAWS
    slave.promoted(6)
    if is_refused:
        slave.failed(CoordinatorError("not found", is_refused=True), desk.now_ms)
    else:
        slave.answered(desk._do(step.call), desk.now_ms)
    slave.hear(0)
    desk.run(slave)
    assert where(slave) is Standing.HOLDS
    assert desk.holder() == {"node": 2, "term": 6}


def test_a_master_that_yields_goes_on_if_an_operator_says_so(desk: Desk) -> None:
    desk.write(holder=Holder(2, 9), pair=PairRecord(2, 9, in_sync=True))
    master = desk.node(1, is_master=True)
    desk.run(master)
    assert where(master) is Standing.YIELDS
    master.appoint()
    desk.run(master)
    assert where(master) is Standing.HOLDS
    assert desk.holder() == {"node": 1, "term": 11}


def yielded_node(desk: Desk) -> FailOver:
    """Node 1, which gave term 4 to the other one."""
    role = RoleRecord(4, is_master=False, has_yielded=True)
    return FailOver(KEYS, node=1, role=role, lease_ms=LEASE_MS)


def test_a_node_that_yielded_takes_the_key_only_if_the_other_one_did_not_take_over(
    desk: Desk,
) -> None:
    desk.write(holder=None, pair=PairRecord(1, 3, in_sync=True))
    yielded = yielded_node(desk)
    desk.run(yielded, 3 * LEASE_MS)
    assert where(yielded) is Standing.COMPARES
    assert desk.holder() is None
    yielded.refused_ms = desk.now_ms
    desk.run(yielded)
    assert where(yielded) is Standing.HOLDS
    # The term of its role file is that of the other node; this one begins the next of its own.
    assert desk.holder() == {"node": 1, "term": 5}


def test_what_the_other_node_said_before_it_took_the_key_does_not_count(desk: Desk) -> None:
    desk.write(holder=None, pair=PairRecord(1, 3, in_sync=True))
    yielded = yielded_node(desk)
    yielded.refused_ms = desk.now_ms
    desk.write(holder=Holder(2, 4), pair=PairRecord(2, 4, in_sync=False))
    desk.now_ms += 10
    desk.run(yielded, 3 * LEASE_MS)
    assert where(yielded) is Standing.COMPARES
    assert desk.pair() == {"node": 2, "term": 4, "in_sync": False}


def test_a_promotion_that_came_to_nothing_does_not_keep_a_node_that_yielded_waiting(
    desk: Desk,
) -> None:
    """The other node took the key, ended, and follows again."""
    desk.write(holder=Holder(2, 4), pair=PairRecord(2, 4, in_sync=False))
    yielded = yielded_node(desk)
    desk.run(yielded, 3 * LEASE_MS)
    assert desk.holder() is None
    yielded.refused_ms = desk.now_ms
    desk.run(yielded)
    assert where(yielded) is Standing.HOLDS
    assert desk.holder() == {"node": 1, "term": 5}


def test_a_master_by_hand_over_that_starts_again_before_it_came_to_etcd_compares(
    desk: Desk,
) -> None:
    """A power cut may have taken what its slave has."""
    desk.write(holder=None, pair=PairRecord(1, 3, in_sync=True))
    master = desk.node(2, is_master=True, term=4)
    desk.run(master)
    assert where(master) is Standing.COMPARES
    master.hear(FOREVER_MS)
    desk.run(master)
    assert where(master) is Standing.HOLDS
    assert desk.holder() == {"node": 2, "term": 4}


def test_a_master_by_hand_over_yields_if_the_old_one_was_promoted_before_it_came_to_etcd(
    desk: Desk,
) -> None:
    desk.write(holder=Holder(1, 3), pair=PairRecord(1, 3, in_sync=True))
    taken = desk.node(2, is_master=False, term=3)
    taken.hear(desk.now_ms + 2_000)
    taken.promoted(4, is_handed=True)
    old = desk.node(1, is_master=False, term=4)
    old.may_follow = True
    desk.now_ms += 2 * LEASE_MS
    desk.run(old)
    assert where(old) is Standing.SUCCEEDS
    old.promoted(old.term)
    desk.run(taken)
    assert where(taken) is Standing.YIELDS
    assert desk.holder() == {"node": 1, "term": 5}


def test_a_node_that_became_a_slave_follows_without_the_right_to_the_key(desk: Desk) -> None:
    master = holding(desk)
    master.demoted(4)
    assert where(master) is Standing.FOLLOWS
    assert master.term == 4
    assert not master.may_follow
    desk.now_ms += 2 * LEASE_MS
    desk.run(master)
    assert desk.holder() is None


@pytest.mark.parametrize("key", KEYS.both)
@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b'{"node":3,"term":1}', b'{"node":1,"term":-1}', b'{"node":true,"term":1}'],
)
def test_what_somebody_else_wrote_is_a_problem_and_not_a_decision(
    desk: Desk, key: bytes, value: bytes
) -> None:
    desk.write(holder=None, pair=PairRecord(1, 7, in_sync=True))
    desk.etcd.handle(etcd_wire.transact({}, [Put(key, value)]), desk.now_ms)
    slave = desk.node(2, is_master=False)
    slave.may_follow = True
    assert set(desk.run(slave)) == {Ask.READ}
    assert "key" in slave.problem
    assert where(slave) is Standing.MISSES


def test_every_row_of_the_table_begins_and_ends_where_a_node_can_be() -> None:
    begins = {standing for standing, _ in STANDINGS}
    assert begins == set(Standing)
    assert set(STANDINGS.values()) | {Standing.COMPARES} == set(Standing)
    assert {happening for _, happening in STANDINGS} == set(Happening)
