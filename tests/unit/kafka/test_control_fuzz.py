"""Whatever bytes arrive: an answer with the right correlation id, or RemoteProtocolError."""

import random
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _core.paths.answer import Reply
from appliance.errors import RemoteProtocolError
from compat.kafka import dispatch
from compat.kafka.protocol.registry import Api
from compat.kafka.protocol.wire import read_key_and_version
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.response_oracle import decode_any_response
from tests.system.fuzz.schema_requests import RequestMaker

CONTROL_APIS = [api for api in dispatch.REGISTRY.apis if api.handler is not None]
SAMPLE_COUNT = 3
MUTATION_COUNT = 50
SIZE_MAX = 300
LONG_MS = 1 << 40


def try_frame(frame: bytes) -> bool:
    """Send a frame to a small broker; return whether it was answered."""
    broker = MemoryBroker(small_config(topic_count_max=5))
    broker.topics.create("t", 2, {}).partitions[0].append(1, 2, 3)
    node = memory_node(broker)
    replies: list[Reply] = []
    try:
        answer = dispatch.answer(node, frame)
    except RemoteProtocolError:
        return False
    if isinstance(answer, Reply):
        replies.append(answer)
    else:
        answer.when_complete(replies.append)
        # What still waits is answered when its time is over.
        node.groups.expire(node.now_ms() + LONG_MS)
    (reply,) = replies
    assert reply.payload[:4] == frame[4:8]
    return True


def samples(api: Api, count: int) -> Iterator[bytes]:
    """Yield short requests of every version that are answered, with an item in every array."""
    for version in range(api.served_from, api.versions[1] + 1):
        makers = (RequestMaker(random.Random(s), lambda: None, counts=(1,)) for s in range(200))
        made = (b"".join(part.data for part in one.make(api.key, version, 7)) for one in makers)
        found = list(
            islice((each for each in made if len(each) < SIZE_MAX and try_frame(each)), count)
        )
        assert len(found) == count, f"version {version}"
        yield from found


@pytest.mark.parametrize("api", CONTROL_APIS, ids=lambda api: api.name)
def test_every_truncated_request_is_refused(api: Api) -> None:
    for frame in samples(api, 1):
        for size in range(len(frame)):
            assert not try_frame(frame[:size]), f"answered {frame[:size]!r} of {frame!r}"


@pytest.mark.parametrize("api", CONTROL_APIS, ids=lambda api: api.name)
def test_damaged_requests_do_no_harm(api: Api) -> None:
    seed = 18_000 + api.key
    chance = random.Random(seed)
    for frame in samples(api, SAMPLE_COUNT):
        for _ in range(MUTATION_COUNT):
            damaged = bytearray(frame)
            for _ in range(chance.randrange(1, 4)):
                pos = chance.randrange(4, len(damaged))
                match chance.randrange(3):
                    case 0:
                        damaged[pos] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
                    case 1:
                        damaged[pos] ^= 1 << chance.randrange(8)
                    case _:
                        damaged[pos:pos] = chance.randbytes(chance.randrange(1, 6))
            try:
                try_frame(bytes(damaged))
            except Exception as error:
                raise AssertionError(f"seed {seed}, frame {bytes(damaged).hex()}") from error


@given(
    api=st.sampled_from(CONTROL_APIS),
    version=st.integers(0, 12),
    client_id=st.binary(max_size=3),
    body=st.binary(max_size=80),
)
def test_random_bodies_do_no_harm(api: Api, version: int, client_id: bytes, body: bytes) -> None:
    header = api.key.to_bytes(2) + version.to_bytes(2) + b"\x00\x00\x00\x05"
    try_frame(header + len(client_id).to_bytes(2) + client_id + body)


@given(frame=st.binary(max_size=60))
def test_random_frames_do_no_harm(frame: bytes) -> None:
    try_frame(frame)


@pytest.mark.parametrize(
    "api", [api for api in CONTROL_APIS if api.needs is not None], ids=lambda api: api.name
)
def test_every_request_has_an_answer_for_when_the_disk_does_not_respond(api: Api) -> None:
    """Whatever it says: an error in the response that its version has."""
    broker = MemoryBroker(small_config())
    for frame in samples(api, SAMPLE_COUNT):
        _, version, number = read_key_and_version(frame)
        header, body_pos = dispatch.read_header(frame)
        broker.groups.changes.note("g", 1)
        broker.topics.changes.note("t", 1)
        payload = dispatch._encode_late(memory_node(broker), api, header, frame[body_pos:])
        assert payload[:4] == number.to_bytes(4, "big")
        decode_any_response(api.key, version, payload)
