"""What `process.log_level = debug` says of what happens inside, one kind of line at a time."""

import dataclasses
import errno
import logging
import re
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.config import Config, settings
from appliance.config.shown import log_settings, show_setting
from appliance.errors import StorageError
from appliance.log_text import quoted, quoted_bytes
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import capture, take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import Record, delay
from tests.unit.groups.harness import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupHarness

A, B = {"client_id": "a"}, {"client_id": "b"}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> "Lines":
    """The debug log of what the test makes."""
    caplog.set_level(logging.DEBUG)
    return Lines(caplog)


class Lines:
    """Lines of the log, by how they begin."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def of(self, beginning: str) -> list[str]:
        """Those at levels debug and info that begin so."""
        found = [r.getMessage() for r in self._caplog.records if r.levelno <= logging.INFO]
        return [each for each in found if each.startswith(beginning)]


# Texts of clients


@given(st.text())
def test_no_text_leaves_its_quotes_or_its_line(text: str) -> None:
    shown = quoted(text)
    assert set(shown) <= set(string.printable) - set("\n\r\t\v\f")
    assert re.fullmatch(r'"(?:[^"\\]|\\.)*"(\.\.\.)?', shown)
    assert len(shown) <= 100 + len('""...')


@given(st.text())
def test_what_was_not_cut_can_be_read_back(text: str) -> None:
    shown = quoted(text, char_count_max=10_000)
    assert not shown.endswith("...") or text.endswith("...")
    assert shown[1:-1].encode().decode("unicode_escape") == text


@given(st.binary(max_size=1_000))
def test_bytes_of_any_kind_are_shown(data: bytes) -> None:
    assert len(quoted_bytes(data)) <= 100 + len('""...')


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("billing-7", '"billing-7"'),
        ("", '""'),
        ('a" peer=1', '"a\\" peer=1"'),
        ("a\nb\r\x1b[2J\x7f", '"a\\nb\\r\\x1b[2J\\x7f"'),
        ("\\n", '"\\\\n"'),
        ("ü\u2028", '"\\xfc\\u2028"'),
        ("x" * 100, f'"{"x" * 100}"'),
        ("x" * 101, f'"{"x" * 100}"...'),
        ("x" * 99 + "\n", f'"{"x" * 99}"...'),
    ],
)
def test_text_is_shown_as_one_word_in_quotes(text: str, shown: str) -> None:
    assert quoted(text) == shown


def test_bytes_that_are_no_text_are_told_apart() -> None:
    assert quoted_bytes(b"a\xff") == '"a\\udcff"'
    assert quoted_bytes("ü".encode() * 500) == '"' + "\\xfc" * 25 + '"...'


# The start


def test_every_setting_is_said(lines: Lines) -> None:
    log_settings(small_config(default_partition_count=7))
    said = lines.of("setting ")
    assert len(said) == len(settings()) == len(dataclasses.fields(Config))
    assert 'setting network.listen="127.0.0.1:0"' in said
    assert "setting network.advertise=none" in said
    assert "setting network.allow_insecure=false" in said
    assert "setting topics.default_partition_count=7" in said
    assert any(each.startswith('setting delay.levels="1s 5s 10s') for each in said)


def test_secret_of_a_setting_is_not_said() -> None:
    assert show_setting("network.sasl_password", "hunter2") == "hidden"
    assert show_setting("data_dir", Path("a\nb")) == '"a\\nb"'


# The store


def test_changes_of_topics_are_said(lines: Lines) -> None:
    harness = with_topic(2, {"delay.timestamp": "due"})
    topic = harness.topic()
    harness.broker.topics.add_partitions(topic, 3)
    harness.broker.topics.replace_settings(topic, {})
    harness.produce("t", 0, [Record(b"a")])
    harness.broker.topics.delete_records(topic, {0: 1})
    uuid = topic.uuid
    harness.delete_topic("t")
    assert lines.of("topic ") == [
        f'topic created name="t" id={uuid} partitions=2 settings="delay.timestamp=due"',
        f'topic extended name="t" id={uuid} partitions=3 settings="delay.timestamp=due"',
        f'topic configured name="t" id={uuid} partitions=3 settings=""',
        f'topic trimmed name="t" id={uuid} partitions=3 settings=""',
        f'topic deleted name="t" id={uuid} partitions=3 settings=""',
    ]


def test_next_segment_is_said(lines: Lines) -> None:
    harness = with_topic()
    size = harness.config.segment_size_bytes
    while harness.broker.wrote_pos < 2 * size:
        assert len(lines.of("segment ")) == harness.broker.wrote_pos // size
        harness.produce("t", 0, [Record(bytes(6_000))])
    assert lines.of("segment ") == [
        "segment rolled base=65536 bytes=65536 segments=2 took_us=0",
        "segment rolled base=131072 bytes=65536 segments=3 took_us=0",
    ]


def test_checkpoint_is_said(lines: Lines) -> None:
    harness = with_topic()
    job = capture(harness)
    harness.clock.advance_ms(12)
    job.run()
    harness.broker.checkpoints.end(job)
    (said,) = lines.of("checkpoint ")
    applied = harness.broker.flushed_pos
    assert re.fullmatch(rf"checkpoint number=1 applied={applied} bytes=\d+ took_ms=12", said)


def test_merge_of_older_runs_is_said(lines: Lines) -> None:
    harness = with_topic()
    checkpoints = harness.broker.checkpoints
    checkpoints._runs.at_once_rows = 0
    for _ in range(4):
        harness.produce("t", 0, [Record(b"a", headers=delay(60_000))])
        take_checkpoint(harness)
    merge = checkpoints.begin_merge()
    assert merge is not None
    harness.clock.advance_ms(12)
    merge.run()
    checkpoints.end_merge(merge)
    assert lines.of("merge ") == ["merge directory=timer runs=4 rows=4 left=4 took_ms=12"]


def test_checkpoint_that_failed_is_said(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = BrokerHarness()

    def refuse(*_: Any) -> None:
        raise StorageError(Path("snapshot"), "pwritev", errno.ENOSPC, "no\nroom")

    monkeypatch.setattr("appliance.store.state.snapshot.write", refuse)
    assert take_checkpoint(harness).error is not None
    (said,) = lines.of("checkpoint ")
    assert re.fullmatch(r'checkpoint failed number=1 reason=".*snapshot.*"', said)


def test_chunk_of_deliveries_is_said(lines: Lines) -> None:
    harness = with_topic(2)
    harness.produce("t", 0, [Record(b"a", headers=delay(10)), Record(b"b", headers=delay(12))])
    harness.produce("t", 1, [Record(b"c", headers=delay(14))])
    harness.tick(9)
    assert lines.of("delivered ") == []
    harness.tick(6)
    assert lines.of("delivered ") == ["delivered timers=3 frames=2 late_ms_max=5 waiting=0"]
    harness.produce("t", 0, [Record(b"d", headers=delay(10))])
    harness.tick(10)
    assert lines.of("delivered ")[1:] == ["delivered timers=1 frames=1 late_ms_max=0 waiting=0"]


# Groups


def test_each_transition_of_a_group_is_said_with_its_reason(lines: Lines) -> None:
    harness = GroupHarness()
    leader, follower = harness.stable(A, B)
    one, two = quoted(leader.member_id), quoted(follower.member_id)
    harness.leave(follower.member_id)
    harness.join("g", leader.member_id)
    harness.advance(SESSION_MS + REBALANCE_MS)
    harness.groups.delete("g")
    assert lines.of("group ") == [
        'group "g": Empty -> PreparingRebalance generation=0 members=1 '
        f'reason="a member joins" member={one}',
        'group "g": PreparingRebalance -> CompletingRebalance generation=1 members=2 '
        'reason="the time to join is over"',
        'group "g": CompletingRebalance -> Stable generation=1 members=2 '
        f'reason="the leader has assigned" member={one}',
        'group "g": Stable -> PreparingRebalance generation=1 members=1 '
        f'reason="a member leaves" member={two}',
        'group "g": PreparingRebalance -> CompletingRebalance generation=2 members=1 '
        'reason="all members have joined"',
        'group "g": CompletingRebalance -> PreparingRebalance generation=2 members=0 '
        f'reason="the session of a member is over" member={one}',
        'group "g": PreparingRebalance -> Empty generation=3 members=0 reason="no member is left"',
        'group "g": Empty -> Dead generation=3 members=0 reason="it is deleted"',
    ]


def test_group_that_a_start_finds_is_said(lines: Lines) -> None:
    harness = GroupHarness()
    harness.stable(A)
    count = len(lines.of("group "))
    harness.restart()
    assert lines.of("group ")[count:] == [
        'group "g": Dead -> Stable generation=1 members=1 reason="the broker starts"'
    ]


def test_names_of_a_group_forge_no_line(lines: Lines) -> None:
    harness = GroupHarness()
    name = 'g": Stable -> Dead\ngroup "h'
    harness.join(name, client_id="a\nb")
    harness.advance(DELAY_MS)
    said = lines.of("group ")
    assert len(said) == 2
    assert all(each.startswith('group "g\\": Stable -> Dead\\ngroup \\"h": ') for each in said)
    assert 'member="a\\nb-' in said[0]


# Level info


def test_what_is_not_asked_for_is_not_said_at_level_info(caplog: pytest.LogCaptureFixture) -> None:
    """Nor is it made up: the level is looked at once, when each part is made."""
    caplog.set_level(logging.INFO)
    harness = BrokerHarness()
    groups = GroupHarness()
    caplog.set_level(logging.DEBUG)
    log_settings(harness.config)
    assert caplog.records, "the level itself works"
    caplog.clear()
    harness.create_topic("t")
    harness.produce("t", 0, [Record(b"a", headers=delay(1))])
    harness.tick(1)
    while harness.broker.wrote_pos < harness.config.segment_size_bytes:
        harness.produce("t", 0, [Record(bytes(6_000))])
    take_checkpoint(harness)
    groups.stable(A)
    (created,) = caplog.records  # one of the few things that are said at every level
    assert created.getMessage().startswith("topic created ")
