"""The delay levels as queues: offsets and lag, whatever becomes of their timers."""

import random
from typing import get_args

import pytest

from _core.log.frames import read_header
from appliance.config.config import Config
from appliance.pending_timers import LEVEL_TOPIC, LevelQueue
from tests.support.harness.broker_harness import BrokerHarness, Stop, with_topic
from tests.support.harness.configs import small_config
from tests.support.harness.forecast import Forecast
from tests.support.oracles import frames_model as model
from tests.support.simulator.sim_fs import CrashMode
from tests.support.values.kafka_records import Record, cancel, delay
from tests.unit.timers.test_pending_timers import purge

SECOND_MS = 1_000


def at_level(level: int, user_id: bytes | None = None) -> Record:
    ids = [] if user_id is None else [("x-deliver-id", user_id)]
    return Record(b"v", headers=[("x-delay-level", b"%d" % level), *ids])


def levels_of(harness: BrokerHarness) -> dict[int, tuple[int | None, int, int | None]]:
    """Offset, maximum offset and lag of the levels that had timers."""
    levels = harness.broker.timers.levels(harness.broker.config.delay_levels)
    return {
        each.level: (each.offset, each.max_offset, each.lag) for each in levels if each.max_offset
    }


@pytest.mark.parametrize("end", ["clean", *get_args(CrashMode)])
def test_offset_and_lag_follow_deliveries_cancels_and_restarts(end: Stop) -> None:
    harness = with_topic(2)
    for number in range(6):
        harness.produce("t", number % 2, [at_level(1), at_level(2, b"%d" % number)])
    harness.produce("t", 0, [Record(b"v", headers=delay(1_000))])
    assert levels_of(harness) == {1: (0, 6, 6), 2: (0, 6, 6)}
    assert harness.tick(SECOND_MS) == 7
    assert levels_of(harness) == {1: (6, 6, 0), 2: (0, 6, 6)}
    harness.produce("t", 0, [Record(b"", headers=cancel(b"0")), at_level(3, b"2")])
    harness.cancel_timer("t", b"1")
    expected = {1: (6, 6, 0), 2: (3, 6, 3), 3: (0, 1, 1)}
    assert levels_of(harness) == expected
    harness.flush()
    harness = harness.reborn(end)
    assert levels_of(harness) == expected
    assert purge(harness) == 4
    assert levels_of(harness) == {1: (6, 6, 0), 2: (6, 6, 0), 3: (1, 1, 0)}


def test_a_checkpoint_keeps_the_level_of_a_pending_id() -> None:
    """What cancels a record by its id knows its level from there."""
    harness = with_topic()
    harness.produce("t", 0, [at_level(4, b"a"), at_level(4, b"b"), at_level(4)])
    harness = harness.restart()
    assert harness.report.checkpoint
    harness.cancel_timer("t", b"a")
    harness.produce("t", 0, [Record(b"", headers=cancel(b"b"))])
    assert levels_of(harness) == {4: (2, 3, 1)}
    assert levels_of(harness.restart()) == {4: (2, 3, 1)}


def test_a_deleted_topic_takes_its_timers_out_of_the_levels() -> None:
    harness = with_topic(2)
    harness.create_topic("gone", 2)
    for name in ("t", "gone"):
        for index in (0, 1):
            harness.produce(name, index, [at_level(5), at_level(6 + index)])
    before = levels_of(harness)
    assert before[5] == (0, 4, 4)
    harness.delete_topic("gone")
    assert levels_of(harness)[5] == (2, 4, 2)
    assert levels_of(harness.restart())[5] == (2, 4, 2)


def test_levels_that_are_no_longer_configured_keep_their_queues() -> None:
    """A timer keeps the time that its level had when it was accepted."""
    harness = with_topic()
    harness.produce("t", 0, [at_level(1), at_level(3)])
    harness.broker.close()
    config = small_config(delay_levels=(60_000, 120_000))
    harness = BrokerHarness(harness.disk, harness.clock, config)
    assert harness.broker.timers.levels(config.delay_levels) == [
        LevelQueue(1, 60_000, LEVEL_TOPIC, 0, 1, 0, 1),
        LevelQueue(2, 120_000, LEVEL_TOPIC, 1, 0, 0, 0),
        LevelQueue(3, None, LEVEL_TOPIC, 2, 1, 0, 1),
    ]
    harness.produce("t", 0, [at_level(1)])
    assert harness.tick(Config().delay_levels[2]) == 2
    assert levels_of(harness) == {1: (1, 2, 1), 3: (1, 1, 0)}


def test_a_log_of_an_older_version_has_no_lag_until_it_is_saved() -> None:
    """Its frames do not say the due time and the level of what they complete."""
    harness = with_topic()
    accept_pos = harness.broker.wrote_pos
    harness.produce("t", 0, [at_level(2), at_level(2), at_level(3)])
    pos, topic = harness.broker.wrote_pos, harness.topic()
    disk = harness.disk.crashed("kept", random.Random(0))
    path = harness.segment_paths()[-1]
    frame = model.Frame(
        kind=model.CANCEL,
        position=pos,
        flushed=pos,
        epoch=harness.broker.epoch,
        salt=read_header(disk.files()[path])["salt"],
        topic_id=topic.topic_id,
        store_time=harness.clock.wall_ms(),
        partition=0,
        timer_count=1,
        tables=model.completed_table([model.Completed(accept_pos=accept_pos, index=0)]),
    )
    disk.open(path).pwritev([frame.encode()], pos)
    found = BrokerHarness(disk, harness.clock, harness.config)
    assert found.broker.pending_timers == 2
    assert levels_of(found) == {2: (None, 2, None), 3: (None, 1, None)}
    assert found.broker.gauges(0).level_lag == {}
    found.housekeep()
    forecast = Forecast(found.broker._store.state.projections.due, found.clock.wall_ms())
    due_ms = found.clock.wall_ms() + harness.config.delay_levels[1]
    forecast.check([due_ms, found.clock.wall_ms() + harness.config.delay_levels[2]])
    found = found.restart()
    assert levels_of(found) == {2: (1, 2, 1), 3: (0, 1, 1)}


def test_metrics_have_the_queues() -> None:
    harness = with_topic()
    harness.produce("t", 0, [at_level(1), at_level(2), at_level(2)])
    harness.tick(SECOND_MS)
    gauges = harness.broker.gauges(0)
    assert [gauges.level_next_offset[level] for level in (1, 2, 3)] == [1, 2, 0]
    assert [gauges.level_lag[level] for level in (1, 2, 3)] == [0, 2, 0]
