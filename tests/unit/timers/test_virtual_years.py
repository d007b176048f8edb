"""Ten years of timers under a virtual clock: each exactly once, in its millisecond, in order."""

import random
from typing import Final

import pytest

from appliance.config.config import Config
from appliance.units import MIB
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import Record, cancel, delay

DAY_MS: Final = 86_400_000
YEARS_MS: Final = 3_650 * DAY_MS
BATCH_COUNT: Final = 240
BATCH_RECORDS: Final = 500
"""120,000 records in all, most of them timers."""
PARTITION_COUNT: Final = 3
SEED: Final = 11


@pytest.fixture
def config() -> Config:
    return small_config(
        segment_size_bytes=8 * MIB,
        batch_size_max_bytes=MIB,
        decompressed_size_max_bytes=MIB,
        request_size_max_bytes=4 * MIB,
        delivery_chunk_records=1_024,
        delivery_batch_max_bytes=256 * 1024,
    )


class Years:
    """Sends timers during the first year, and knows which must come when."""

    def __init__(self, config: Config) -> None:
        self.rng = random.Random(SEED)
        self.harness = with_topic(
            PARTITION_COUNT, {"message.timestamp.type": "LogAppendTime"}, config=config
        )
        self.start_ms = self.harness.clock.wall_ms()
        self.arrivals = 0
        self.expected: dict[bytes, tuple[int, int, int]] = {}
        """Due, arrival and partition by value."""
        self.by_id: dict[bytes, bytes] = {}

    def send_batch(self) -> None:
        """Random delays up to ten years; some replace or cancel an earlier one."""
        partition = self.rng.randrange(PARTITION_COUNT)
        now_ms = self.harness.clock.wall_ms()
        records = []
        for _ in range(BATCH_RECORDS):
            self.arrivals += 1
            value = b"%06d" % self.arrivals
            kind = self.rng.random()
            if kind < 0.02 and self.by_id:
                user_id, old = self.rng.choice(list(self.by_id.items())[-200:])
                del self.by_id[user_id]
                if self.expected[old][0] > now_ms:
                    del self.expected[old]
                records.append(Record(value, headers=cancel(user_id)))
                continue
            # Every fifth shares its millisecond with others.
            delay_ms = self.rng.randrange(1, YEARS_MS)
            if kind < 0.2:
                delay_ms -= delay_ms % (30 * DAY_MS) - 1
            name: bytes | None = None
            if kind > 0.8:
                name = b"id-%d" % self.rng.randrange(20_000)
                old_value = self.by_id.get(name)
                if old_value is not None and self.expected[old_value][0] > now_ms:
                    del self.expected[old_value]
                self.by_id[name] = value
            self.expected[value] = (now_ms + delay_ms, self.arrivals, partition)
            records.append(Record(value, headers=delay(delay_ms, name)))
        answer = self.harness.produce("t", partition, records)
        assert answer.error == 0, answer.message

    def run_until(self, until_ms: int) -> int:
        """Wake as the pump does, up to an instant; how many were delivered."""
        harness, count = self.harness, 0
        while (wake_ms := harness.broker.next_wake_ms()) is not None and wake_ms <= until_ms:
            harness.clock.advance_to_ms(max(wake_ms, harness.clock.wall_ms()))
            while harness.deliver_once().count:
                pass
            count += 1
            if count % 100 == 0:
                harness.flush()
        harness.flush()
        if harness.clock.wall_ms() < until_ms:
            harness.clock.advance_to_ms(until_ms)
        return count

    def check(self) -> None:
        """Each once, none early or late, in order of due time and arrival."""
        for partition in range(PARTITION_COUNT):
            due = sorted(
                (due_ms, arrival, value)
                for value, (due_ms, arrival, place) in self.expected.items()
                if place == partition
            )
            seen = self.harness.fetch("t", partition)
            assert [record.value for record in seen] == [value for _, _, value in due]
            for record, (due_ms, _, _) in zip(seen, due, strict=True):
                assert record.header("x-due-at") == b"%d" % due_ms
                # The topic's records carry the time of their delivery.
                assert record.timestamp_ms == due_ms


def test_ten_years_of_timers(config: Config) -> None:
    years = Years(config)
    step_ms = 365 * DAY_MS // BATCH_COUNT
    for number in range(BATCH_COUNT):
        years.send_batch()
        years.run_until(years.start_ms + (number + 1) * step_ms)
        if number % 80 == 39:
            years.harness = years.harness.restart()
        elif number % 80 == 79:
            years.harness = years.harness.crash("dropped", years.rng)
    years.run_until(years.start_ms + YEARS_MS + 366 * DAY_MS)
    assert years.harness.broker.pending_timers == 0
    years.check()
