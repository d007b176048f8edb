"""The frames that a search by time walks over cost work, so that the walk takes several slices."""

from typing import Final

from compat.kafka import dispatch
from compat.kafka.protocol.slices import SlicedAnswer
from tests.support.clients.wire_client import WireClient, framed
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.harness.turns import Turns
from tests.support.oracles.kafka_oracle import encode_request
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import produce_request
from tests.support.values.topic_requests import list_offset_request

FAR_MS: Final = 10**13
PARTITIONS: Final = 12
FRAMES: Final = 300


def test_a_walk_over_many_frames_takes_several_slices() -> None:
    """A deleted record has the highest time, so that each partition is walked to its end."""
    harness = with_topic(PARTITIONS, config=small_config(segment_size_bytes=16 << 20))
    client = WireClient(harness)

    def send(batch: bytes) -> None:
        request = produce_request([("t", [(index, batch) for index in range(PARTITIONS)])])
        client.feed(framed(request, 8, 1), client.end_turn)

    send(make_batch([Raw(b"a")], base_timestamp=FAR_MS, max_timestamp=FAR_MS))
    for _ in range(FRAMES):
        send(make_batch([Raw(b"a")], base_timestamp=1, max_timestamp=1))
    harness.flush()
    client.take()
    harness.broker.topics.delete_records(harness.topic(), dict.fromkeys(range(PARTITIONS), 1))
    harness.flush()
    turns = harness._node.later
    assert isinstance(turns, Turns)
    turns.is_held = True
    request = list_offset_request("t", range(PARTITIONS), FAR_MS)
    answer = dispatch.answer(harness._node, encode_request(request, 5))
    assert isinstance(answer, SlicedAnswer)
    while turns.do_one():
        pass
    assert answer.is_complete
    # Of 12 x 300 looks at frames, 256 each, and 256 KiB in a slice.
    assert answer.slice_count >= 4
