"""Carries visible records and frees the first segments of a broker in process, as the pump does."""

from collections.abc import Callable
from typing import Final

from _core.bytes.layout import FRAME_HEADER_SIZE, KIND_CARRIED_RECORDS
from _core.log.frames import read_header
from appliance.store.head.record_carrier import RecordCarrier
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.harness.harness_connection import FETCH_VERSION, encode_fetch
from tests.support.oracles.kafka_oracle import FetchResponse
from tests.support.values.kafka_records import end_of_batches

SEGMENT: Final = 64 * 1024


def carrier_of(harness: BrokerHarness) -> RecordCarrier:
    return harness.broker._store.carriers.records


def last_base(harness: BrokerHarness) -> int:
    """The base of the segment that is being written: the highest cut."""
    return harness.broker.log.files.bases[-1]


def sweep(harness: BrokerHarness) -> None:
    """Let a whole sweep of retention pass."""
    retention = harness.broker.retention
    harness.clock.advance_ms(harness.config.retention_check_interval_ms)
    harness.expire()
    while retention._sweep is not None:
        harness.expire()


def carry(
    harness: BrokerHarness, cut: int, between: Callable[[], None] = lambda: None
) -> RecordCarrier:
    """Carry all records below a cut; call `between` after each step."""
    carrier = carrier_of(harness)
    carrier.begin(cut)
    while not carrier.is_done:
        job = carrier.step()
        harness.broker.commit()
        between()
        if job is not None:
            job.run()
            between()
            carrier.end(job)
        assert not carrier.is_full
    return carrier


def free_below(harness: BrokerHarness, cut: int) -> None:
    """Free the segments below a cut, below which nothing is needed but control values."""
    harness.broker.head_freer._tried_ns = None
    for _ in range(3):
        while True:
            job = harness.broker.head_freer.step(cut)
            if job is not None:
                job.run()
                harness.broker.head_freer.end(job)
            elif not harness.broker.head_freer.is_carrying:
                break
        harness.flush()


def carry_and_free(harness: BrokerHarness, cut: int | None = None) -> None:
    """Carry the records below a cut, by default all they can be, and free what lies below it."""
    if cut is None:
        cut = last_base(harness)
    harness.flush()
    take_checkpoint(harness)
    assert carry(harness, cut).blocked_at is None
    harness.flush()
    free_below(harness, cut)
    # As long as that is worth the control values that must be carried.
    size = harness.broker.checkpoints.snapshot_bytes
    assert harness.broker.log.start_pos == cut or cut - harness.broker.log.start_pos < 5 * size


def raw_records(harness: BrokerHarness, topic: str, partition: int = 0) -> bytes:
    """The bytes of all batches of a partition, as a consumer gets them."""
    found = b""
    offset = harness.partition(partition, topic).start_offset
    while True:
        request = encode_fetch(topic, partition, offset, harness.config.fetch_size_max_bytes)
        payload = harness.fetch_once(request)
        response = FetchResponse.decode(payload, version=FETCH_VERSION, header=True)
        answer = response.responses[0].partitions[0]
        assert answer.error_code == 0, answer
        section = bytes(answer.records or b"")
        if not section:
            return found
        found += section
        offset = end_of_batches(section)


def frame_of(harness: BrokerHarness, topic: str, offset: int) -> tuple[dict[str, int], int, int]:
    """The header of the frame of an offset, its original position and its carry time.

    The last two are -1 if it is no frame of carried records.
    """
    pos = harness.position_of(harness.partition(topic=topic), offset)
    frame = harness.broker.log.read_frame(pos)
    header = read_header(frame)
    if header["kind"] != KIND_CARRIED_RECORDS:
        return header, -1, -1
    origin = frame[FRAME_HEADER_SIZE : FRAME_HEADER_SIZE + 16]
    return header, int.from_bytes(origin[:8], "big"), int.from_bytes(origin[8:], "big")
