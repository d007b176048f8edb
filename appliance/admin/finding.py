"""`GET /api/v1/find`: what its query means, and how a running broker answers it. Layer 5."""

import json
from dataclasses import replace
from functools import partial
from typing import Final

from appliance.admin.queries import Fields
from appliance.broker import Broker
from appliance.errors import ColdFrameError, FindError
from appliance.find import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    FindAnswer,
    FindRequest,
    add_state,
    answer_in_json,
    place_of,
    until,
)
from appliance.offset_search import NO_RECORD
from appliance.pump import Pump
from appliance.store.keys.key_search import Piece
from appliance.units import KIB, MS_PER_SECOND, NS_PER_MS

FIND_NS: Final = MS_PER_SECOND * NS_PER_MS
"""How long one request searches; its answer says where the next one goes on."""

ENCODED_MAX_BYTES: Final = 64 * KIB
"""Bytes of records that are encoded on the loop, in less than a millisecond."""

COLD_READS_MAX: Final = 100
"""Frames read to find an offset; more of them are damaged."""

PARAMETERS: Final = (
    "key", "id", "position", "offset", "topic", "partition", "from", "to", "limit", "after",
)  # fmt: skip
SUBJECTS: Final = ("key", "id", "position", "offset")


def parse_query(query: str) -> FindRequest:
    """Return the request in the query of a URL.

    Raises:
        FindError: it is something else.
    """
    fields = Fields(query, PARAMETERS)
    given = [name for name in SUBJECTS if name in fields]
    if len(given) > 1 or not (given or "from" in fields or "to" in fields):
        raise FindError(
            "request", "look for one of key, id, position and offset, or for a time: from, to"
        )
    topic = fields.text("topic")
    partition, offset = fields.number("partition", 0, 1 << 31), None
    if "offset" in fields:
        topic, partition, offset = place_of(fields.text("offset") or "")
    user_id = fields.octets("id")
    if user_id is not None and not 1 <= len(user_id) <= 255:
        raise FindError("request", f"an id has 1 to 255 bytes, not {len(user_id)}")
    limit = fields.number("limit", 1, LIMIT_MAX)
    return FindRequest(
        key=fields.octets("key"),
        user_id=user_id,
        position=fields.number("position", 0, 1 << 62),
        offset=offset,
        topic=topic,
        partition=partition,
        stored=(fields.instant("from"), fields.instant("to")),
        limit=LIMIT_DEFAULT if limit is None else limit,
        after=fields.text("after"),
    )


async def find(broker: Broker, pump: Pump, request: FindRequest) -> str:
    """Answer a request by a broker, as JSON. The search runs on a thread.

    Raises:
        FindError: it cannot be answered; the error says why.
        NotReadyError: the broker is stopping.
    """
    if request.offset is not None:
        request = await _with_position(broker, pump, request)
    finder, part = broker.begin_find()
    in_time = until(FIND_NS, broker.clock.monotonic_ns)
    damaged: list[Piece] = []

    def search() -> FindAnswer:
        try:
            return finder.find(request, goes_on=lambda: in_time() and not pump.is_stopped)
        finally:
            part.close()

    try:
        answer = await pump.find(search)
        damaged = answer.damaged
    finally:
        broker.key_index.end_search(damaged)
    for item in answer.found:
        add_state(item, broker.timers.state_of)
    if answer.size_bytes > ENCODED_MAX_BYTES:
        return await pump.find(partial(_encode, answer))
    return _encode(answer)


def _encode(answer: FindAnswer) -> str:
    return json.dumps(answer_in_json(answer))


async def _with_position(broker: Broker, pump: Pump, request: FindRequest) -> FindRequest:
    """Return the request with the position of the frame that holds its offset."""
    assert request.topic is not None
    assert request.offset is not None
    assert request.partition is not None
    place = f"{request.topic}/{request.partition}"
    topic = broker.topics.find(request.topic)
    if topic is None:
        raise FindError("unknown", f"there is no topic {request.topic!r}")
    if request.partition >= len(topic.partitions):
        raise FindError("unknown", f"{place} does not exist: {len(topic.partitions)} partitions")
    partition = topic.partitions[request.partition]
    if request.offset < partition.start_offset:
        raise FindError(
            "unknown",
            f"offset {request.offset} of {place} is gone: it begins at {partition.start_offset}",
        )
    if request.offset >= partition.visible_offset:
        raise FindError(
            "unknown",
            f"offset {request.offset} of {place} does not exist yet: it ends at "
            f"{partition.visible_offset}",
        )
    for _ in range(COLD_READS_MAX):
        try:
            position, _ = broker.search.positions_from(partition, request.offset)
        except ColdFrameError as error:
            await pump.cold(error.place)
            continue
        if position != NO_RECORD:
            return replace(request, position=position)
        break
    raise FindError("unknown", f"offset {request.offset} of {place} is lost")
