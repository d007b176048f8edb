"""Replies through crashes, restarts and carries: one for each decision, and it is true.

The random walks print their seed, which repeats them.
"""

import json
import random
from typing import Any, Final, get_args

import pytest

from _core.bytes.layout import RUN_ID_SIZE, RUN_IDS
from _core.state.run_loader import RunLoader
from appliance.units import MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.harness.checkpoints import crashed, rebuild, take_checkpoint
from tests.support.simulator.sim_fs import CrashMode
from tests.support.values.kafka_records import Record, delay
from tests.unit.retention.test_freeing import MEMORY_MS, broker, fill, run, start_pos

STOPS: Final[tuple[Stop, ...]] = ("clean", *get_args(CrashMode))
REPLY: Final = ("x-deliver-reply", b"r")
Reply = tuple[bytes, dict[str, Any]]


def schedule(user_id: bytes, delay_ms: int, value: bytes = b"v") -> Record:
    return Record(value, headers=(*delay(delay_ms), ("x-deliver-id", user_id), REPLY))


def at_once(user_id: bytes, value: bytes = b"v") -> Record:
    return Record(value, headers=(("x-deliver-id", user_id), REPLY))


def cancel(user_id: bytes) -> Record:
    return Record(b"", headers=(("x-deliver-cancel", user_id), REPLY))


def replies(harness: BrokerHarness) -> list[Reply]:
    """Key and content of each reply, by partition."""
    harness.deliver_all()
    found: list[Reply] = []
    for partition in harness.topic("r").partitions:
        for each in harness.fetch("r", partition.index, partition.start_offset):
            found.append((each.key or b"", json.loads(each.value or b"")))
    return found


def ask(harness: BrokerHarness, user_id: bytes) -> dict[str, Any]:
    """Cancel, and return the reply."""
    assert harness.produce("t", 0, [cancel(user_id)]).error == 0
    return [said for key, said in replies(harness) if key == user_id][-1]


def too_late(partition: int, offset: int) -> dict[str, Any]:
    return {"outcome": "too-late", "topic": "t", "partition": partition, "offset": offset}


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_cancel_after_a_restart_says_where_the_record_is(how: Stop, is_saved: bool) -> None:
    """From runs, and from a replay."""
    harness = BrokerHarness()
    harness.create_topic("t", 2)
    batch = [Record(b"plain"), schedule(b"a", 5, b"a"), at_once(b"n", b"n"), schedule(b"b", 5)]
    assert harness.produce("t", 1, batch).error == 0
    assert harness.tick(5) == 2
    if is_saved:
        take_checkpoint(harness)
    harness = harness.reborn(how)
    for each in (harness, rebuild(harness, crashed(harness))):
        assert ask(each, b"a") == too_late(1, 2)
        assert ask(each, b"n") == too_late(1, 1)
        assert ask(each, b"b") == too_late(1, 3)
        assert ask(each, b"x") == {"outcome": "unknown", "topic": "t"}
        assert [one.value for one in each.fetch("t", 1, 1)][:2] == [b"n", b"a"]


@pytest.mark.parametrize("how", STOPS)
def test_a_reply_that_is_pending_survives_every_stop(how: Stop) -> None:
    harness = BrokerHarness()
    harness.create_topic("t", 1)
    harness.produce("t", 0, [schedule(b"a", 5_000), cancel(b"a")])
    assert harness.broker.pending_timers == 1
    harness = harness.reborn(how)
    assert replies(harness) == [(b"a", {"outcome": "cancelled", "topic": "t"})]
    harness = harness.reborn(how, 2)
    assert len(replies(harness)) == 1
    assert offline_scenario.check(crashed(harness)).faults == []
    assert harness.tick(5_000) == 0


@pytest.mark.parametrize("seed", range(12))
def test_a_cancel_and_its_reply_are_there_both_or_neither(seed: int) -> None:
    harness = BrokerHarness()
    harness.create_topic("t", 1)
    harness.create_topic("r", 1)
    assert harness.produce("t", 0, [schedule(b"a", 5_000)]).error == 0
    harness.send_produce("t", 0, [Record(b"now"), cancel(b"a")])
    harness.broker.commit()
    harness = harness.crash("torn", random.Random(seed))
    is_cancelled = harness.timer_state("t", b"a")[0] == "cancelled"
    assert len(harness.fetch("t", 0)) == len(replies(harness)) == is_cancelled
    assert harness.tick(5_000) == (not is_cancelled)


@pytest.mark.parametrize("is_saved", [False, True])
def test_an_id_whose_frames_are_freed_still_says_where_its_record_is(is_saved: bool) -> None:
    harness = broker()
    harness.create_topic("t", 2)
    harness.produce("t", 1, [Record(b"plain"), schedule(b"a", 5), at_once(b"n")])
    harness.tick(5)
    if is_saved:
        take_checkpoint(harness)
    fill(harness, 3)
    run(harness, MEMORY_MS - 4 * MS_PER_MINUTE)
    assert start_pos(harness) > 0
    for each in (harness, harness.reborn("kept"), rebuild(harness, crashed(harness))):
        assert ask(each, b"a") == too_late(1, 2)
        assert ask(each, b"n") == too_late(1, 1)


def test_an_id_that_was_forgotten_is_unknown() -> None:
    harness = broker()
    harness.create_topic("t", 1)
    harness.produce("t", 0, [schedule(b"a", 5)])
    harness.tick(5)
    for _ in range(3):
        fill(harness, 4)
        run(harness, 26 * MS_PER_HOUR)
    assert ask(harness, b"a") == {"outcome": "unknown", "topic": "t"}


def test_an_id_that_an_older_version_carried_has_no_offset() -> None:
    """A row of such a version has the position of the accept frame, and a zero byte."""
    harness = BrokerHarness()
    harness.create_topic("t", 1)
    harness.produce("t", 0, [schedule(b"a", 5), schedule(b"b", 5)])
    harness.tick(5)
    projections = harness.broker._store.state.projections
    memtable = projections.memtable
    assert memtable is not None
    projections.memtable = None
    memtable.sort()
    rows = memtable.next_block(RUN_IDS)
    assert [rows[at + 49] for at in range(0, len(rows), RUN_ID_SIZE)] == [1, 1]
    older = b"".join(
        rows[at : at + 49] + bytes(RUN_ID_SIZE - 49) for at in range(0, len(rows), RUN_ID_SIZE)
    )
    RunLoader(projections).carry_ids(older)
    assert ask(harness, b"a") == {"outcome": "too-late", "topic": "t"}
    RunLoader(projections).carry_ids(rows)
    assert ask(harness, b"b") == too_late(0, 1)


class Walk:
    """A broker, and what each id must get as a reply."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = BrokerHarness()
        self.harness.create_topic("t", 2)
        self.harness.create_topic("r", 3)
        self.number = 0
        self.pending: dict[bytes, tuple[int, bytes, int]] = {}
        """Due time, value and partition by id."""
        self.done: dict[bytes, bytes] = {}
        """Value of the last delivered record by id, empty for a cancelled one."""
        self.wanted: list[tuple[bytes, str, bytes]] = []
        """Key, outcome, and the value of the record that is too late to cancel."""

    def settle(self) -> None:
        """What is due is delivered."""
        now_ms = self.harness.clock.wall_ms()
        for user_id, (due_ms, value, _) in list(self.pending.items()):
            if due_ms <= now_ms:
                del self.pending[user_id]
                self.done[user_id] = value

    def act(self) -> None:
        """Send a batch of a few ids, so that they often meet."""
        partition, now_ms = self.rng.randrange(2), self.harness.clock.wall_ms()
        batch = []
        for _ in range(self.rng.randrange(1, 6)):
            self.number += 1
            user_id, value = b"%d" % self.rng.randrange(6), b"v%d" % self.number
            what = self.rng.choice(["cancel", "schedule", "now", "plain"])
            was_pending = user_id in self.pending
            if what == "plain":
                batch.append(Record(b"plain"))
            elif what == "cancel":
                batch.append(cancel(user_id))
                known = self.done.get(user_id)
                if was_pending or known == b"":
                    self.wanted.append((user_id, "cancelled", b""))
                    self.pending.pop(user_id, None)
                    self.done[user_id] = b""
                elif known is None:
                    self.wanted.append((user_id, "unknown", b""))
                else:
                    self.wanted.append((user_id, "too-late", known))
            else:
                if was_pending:
                    self.wanted.append((user_id, "replaced", b""))
                    del self.pending[user_id]
                if what == "now":
                    batch.append(at_once(user_id, value))
                    self.done[user_id] = value
                else:
                    wait_ms = self.rng.choice([1, 1_000, 60_000])
                    batch.append(schedule(user_id, wait_ms, value))
                    self.pending[user_id] = (now_ms + wait_ms, value, partition)
        assert self.harness.produce("t", partition, batch).error == 0

    def check(self) -> None:
        found = []
        for key, said in replies(self.harness):
            assert said["topic"] == "t"
            value = b""
            if said["outcome"] == "too-late":
                value = self.harness.fetch("t", said["partition"], said["offset"])[0].value or b""
            found.append((key, said["outcome"], value))
        assert sorted(found) == sorted(self.wanted)

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.6:
            self.act()
        elif what < 0.8:
            self.harness.tick(self.rng.choice([1, 1_000, 60_000]))
            self.settle()
        elif what < 0.87:
            take_checkpoint(self.harness)
        elif what < 0.93:
            self.harness = rebuild(self.harness, crashed(self.harness))
        else:
            self.harness = self.harness.reborn(self.rng.choice(STOPS), self.rng.randrange(99))


@pytest.mark.parametrize("seed", range(12))
def test_each_decision_has_one_reply_whatever_happens(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(60):
        walk.step()
        walk.check()
    assert {outcome for _, outcome, _ in walk.wanted} >= {"cancelled", "replaced", "too-late"}
    assert offline_scenario.check(crashed(walk.harness)).faults == []
