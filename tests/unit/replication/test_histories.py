"""Random lives of a pair: nodes change roles, lose tails, free segments, and are cut off anywhere.

An oracle that sees both logs says what is common. Seeds are in the names of the tests.
"""

import random

import pytest

from appliance.replication.states import State
from tests.support.harness.replica_logs import MemoryLog
from tests.support.harness.replica_sessions import SessionPair

ROUNDS = 15


class Life:
    """Two logs, either of which may be the master's in the next round."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.logs = (MemoryLog(1), MemoryLog(2))
        self.clock = 10
        self.streams = 0

    def play_round(self) -> None:
        chance = self.chance
        source, replica = chance.sample(self.logs, 2)
        if not source.data and replica.data:
            source, replica = replica, source
        for log in self.logs:
            self.crash(log)
        self.begin_epoch(source)
        self.write(source)
        if chance.random() < 0.3:
            source.flush()
            source.free(chance.choice([pos for pos, _ in source.frames()]))
        self.connect(source, replica)

    def crash(self, log: MemoryLog) -> None:
        """Lose bytes of a frame that is not whole, and perhaps what was not flushed."""
        ends = [pos for pos, _ in log.frames() if pos >= log.flushed_pos]
        log.truncate(self.chance.choice([log.end_pos, log.end_pos, *ends]))

    def begin_epoch(self, log: MemoryLog) -> None:
        """As a start does: the number is above all of this log, later ones are higher."""
        self.clock += self.chance.randrange(1, 4)
        epoch = max(log.epoch + 1, self.clock)
        epoch += (epoch - log.node) % 2
        self.clock = epoch
        log.write(epoch, b"epoch")

    def write(self, log: MemoryLog) -> None:
        chance = self.chance
        for _ in range(chance.randrange(8)):
            log.write(log.epoch, chance.randbytes(chance.randrange(400)))
            if chance.random() < 0.3:
                log.flush()

    def connect(self, source: MemoryLog, replica: MemoryLog) -> None:
        chance = self.chance
        expected = common_end(source, replica)
        has_lost_head = replica.start_pos > source.start_pos and expected < replica.end_pos
        if has_lost_head:
            expected = 0  # what was carried out of it may be in the tail that is cut off
        before = replica.data[: max(0, expected - replica.start_pos)]
        pair = SessionPair(source, replica)
        end = chance.choice((None, None, chance.randrange(800), chance.randrange(4_000)))
        passed = 0
        while end is None or passed < end:
            wanted = pair.master.next_read(pair.now_ms)
            if wanted is not None:
                pair.master.loaded(wanted[0], source.read(*wanted), pair.now_ms)
            data = b"".join(pair.master.take_output())
            size = len(data) if end is None else min(len(data), end - passed)
            passed += size
            if data:
                pair.give_slave(data[:size])
            pair.is_flushing = chance.random() < 0.7
            if not pair.step_slave() and not data:
                break
            if chance.random() < 0.2:
                self.write(source)
                pair.master.moved(pair.now_ms)
        assert pair.master.state is not State.LOST, pair.master.reason
        assert pair.slave.state is not State.LOST, pair.slave.reason
        if pair.master.has_stream:
            self.streams += 1
            assert pair.master.common_pos == max(expected, source.start_pos)
        if pair.slave.is_begun:
            self.check_stream(pair, before)
        if end is None:
            pair.is_flushing = True
            pair.settle()
            start_pos = max(source.start_pos, replica.start_pos)
            ours = source.data[start_pos - source.start_pos :]
            assert replica.data[start_pos - replica.start_pos :] == ours
            assert pair.master.durable_pos == source.committed_pos

    def check_stream(self, pair: SessionPair, before: bytes) -> None:
        """The slave has whole frames of the master and nothing else, and none was given up."""
        source, replica = pair.source, pair.replica
        frames = dict(source.frames())
        assert all(
            frames.get(pos) == frame for pos, frame in replica.frames() if pos >= source.start_pos
        )
        assert pair.master.durable_pos <= replica.flushed_pos <= replica.end_pos
        if before and not any(call.startswith("restart") for call in replica.calls[-1:]):
            assert replica.data.startswith(before)


def common_end(source: MemoryLog, replica: MemoryLog) -> int:
    """Return the end of the last frame up to which both logs have the same ones, 0 if none."""
    lowest_pos = max(source.start_pos, replica.start_pos)
    sources = [each for each in source.frames() if each[0] >= lowest_pos]
    replicas = [each for each in replica.frames() if each[0] >= lowest_pos]
    count = 0
    for ours, theirs in zip(sources, replicas, strict=False):
        if ours != theirs:
            break
        count += 1
    if not count:
        return 0
    return sources[count][0] if count < len(sources) else source.end_pos


@pytest.mark.parametrize("seed", range(150))
def test_a_slave_follows_whatever_happened_before(seed: int) -> None:
    life = Life(seed)
    for _ in range(ROUNDS):
        life.play_round()
    assert life.streams > ROUNDS // 3
