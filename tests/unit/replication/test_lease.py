"""How long a master may acknowledge, and how long a slave waits before it is one."""

import pytest

from appliance.replication.lease import Lease, wait_ms
from appliance.replication.states import State
from tests.support.harness.replica_logs import MemoryLog
from tests.support.harness.replica_sessions import LIMITS, SessionPair
from tests.support.simulator.virtual_clock import VirtualClock

LEASE_MS = 2_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(monotonic_ns=10**12)


def written() -> MemoryLog:
    """The log of a master."""
    log = MemoryLog(1)
    log.write(1, b"first")
    return log


def now_ms(clock: VirtualClock) -> int:
    return clock.boottime_ns() // 1_000_000


def test_a_lease_lasts_from_the_time_at_which_the_answered_beat_left(clock: VirtualClock) -> None:
    lease = Lease(clock, LEASE_MS)
    assert not lease.is_held, "no slave has answered yet"
    sent_ms = now_ms(clock)
    clock.advance_ms(1_500)  # so long the answer took
    lease.renew(sent_ms)
    assert lease.left_ms() == 500
    clock.advance_ms(499)
    assert lease.is_held
    clock.advance_ms(1)
    assert not lease.is_held
    lease.renew(now_ms(clock))
    assert lease.left_ms() == LEASE_MS


def test_an_old_answer_renews_nothing(clock: VirtualClock) -> None:
    lease, first_ms = Lease(clock, LEASE_MS), now_ms(clock)
    clock.advance_ms(100)
    lease.renew(now_ms(clock))
    lease.renew(first_ms)
    assert lease.left_ms() == LEASE_MS


def test_the_time_of_a_suspended_machine_counts(clock: VirtualClock) -> None:
    lease = Lease(clock, LEASE_MS)
    lease.renew(now_ms(clock))
    clock.suspend_ms(LEASE_MS)
    assert not lease.is_held


def test_a_master_that_is_alone_needs_no_lease(clock: VirtualClock) -> None:
    lease = Lease(clock, LEASE_MS)
    lease.is_required = False
    assert lease.is_held


@pytest.mark.parametrize("lease_ms", [100, 800, 2_000, 60_000])
def test_a_promotion_waits_longer_than_the_lease_by_a_margin_for_the_clocks(lease_ms: int) -> None:
    assert wait_ms(lease_ms) >= lease_ms + 50
    assert wait_ms(lease_ms) >= 1.05 * lease_ms


@pytest.mark.parametrize("delay_ms", [0, 30, 400])
def test_the_slave_outlasts_every_lease_that_the_master_may_have(delay_ms: int) -> None:
    """Whatever arrives when: the wait begins at the last ACK, the lease at the BEAT before it."""
    pair = SessionPair(written(), MemoryLog(2))
    pair.settle()
    last_acked_ms = 0
    for _ in range(10):
        pair.now_ms += LIMITS.beat_ms
        pair.master.tick(pair.now_ms)
        data = b"".join(pair.master.take_output())
        pair.now_ms += delay_ms
        pair.give_slave(data)
        last_acked_ms = pair.slave.acked_ms or 0
        data = b"".join(pair.slave.take_output())
        pair.now_ms += delay_ms
        pair.master.received(data, pair.now_ms)
        assert pair.master.proved_ms is not None
        assert pair.master.proved_ms <= last_acked_ms
    assert pair.master.state is State.STREAMING


def test_a_beat_is_answered_while_a_flush_takes_its_time() -> None:
    """Otherwise the lease would be over although the slave is there."""
    pair = SessionPair(written(), MemoryLog(2))
    pair.settle()
    pair.is_flushing = False
    pair.source.write(1, b"not flushed")
    pair.settle()
    for _ in range(10):
        pair.now_ms += LIMITS.beat_ms
        sent_ms = pair.now_ms
        pair.master.tick(pair.now_ms)
        pair.settle()
        assert pair.master.proved_ms == sent_ms


@pytest.mark.parametrize(("slave_ms", "is_refused"), [(2_000, False), (1_999, True), (0, True)])
def test_a_slave_that_would_wait_for_a_shorter_lease_is_refused(
    slave_ms: int, *, is_refused: bool
) -> None:
    pair = SessionPair(written(), MemoryLog(2), leases_ms=(2_000, slave_ms))
    pair.settle()
    assert (pair.slave.state is State.LOST) is is_refused
    if is_refused:
        assert "replication.lease_ms = 2000" in pair.slave.reason
    else:
        assert pair.slave.welcome is not None
        assert pair.slave.welcome.facts.lease_ms == 2_000
