"""Dead letters in the OpenAPI description. Layer 5; only data."""

from typing import Any, Final

from appliance.admin.openapi_parts import (
    COUNT,
    INSTANT,
    MAYBE_COUNT,
    MAYBE_TEXT,
    NOT_READY,
    TEXT,
    body,
    error,
    in_path,
    in_query,
    json_of,
    list_of,
    object_of,
    ref,
)

_GROUP: Final = in_path("group", "name of a consumer group, percent-encoded UTF-8")

_PLACE: Final = {"type": "string", "pattern": "^[0-9]{1,9}:[0-9]{1,18}$"}
"""PARTITION:OFFSET"""

_OCTETS: Final = {
    "description": "text, or base64 of bytes that are not UTF-8; null if there is none",
    "oneOf": [MAYBE_TEXT, object_of(base64=TEXT)],
}

_RECORD: Final = {
    "place": _PLACE,
    "partition": COUNT,
    "offset": COUNT,
    "came_at": {**INSTANT, "description": "x-accepted-at, epoch ms; the timestamp without it"},
    "timestamp": {**INSTANT, "description": "of the record, epoch ms"},
    "key": _OCTETS,
    "attempts": {**MAYBE_COUNT, "description": "x-retry-attempt"},
    "origin": {**_OCTETS, "description": "x-origin"},
    "reason": {**_OCTETS, "description": "x-retry-reason"},
}

_UNKNOWN: Final = error("the group has no dead letters, or there is no such partition or record")

_CHANGES: Final = {
    "403": error("the request comes from a web page of another origin"),
    "404": _UNKNOWN,
    "413": error("the body is too large"),
    "415": error("the body is not of the type application/json"),
    "503": NOT_READY,
    "507": error("the disk is full"),
}

_LIST_PATH: Final[dict[str, Any]] = {
    "parameters": [_GROUP],
    "get": {
        "operationId": "listDeadLetters",
        "parameters": [
            in_query("partition", "only this partition", COUNT),
            in_query("after", "only records after this place; `next` of the answer before", _PLACE),
            in_query(
                "limit", "records at most", {"type": "integer", "minimum": 1, "maximum": 1000}
            ),
        ],
        "summary": "the records that a group could not process",
        "description": "They are in the topic GROUP.dlq. One request reads for a second at most.",
        "responses": {
            "200": json_of("in order of partition and offset", ref("DeadLetters")),
            "400": error("the query is something else"),
            "404": _UNKNOWN,
            "503": NOT_READY,
        },
    },
}

_SHOW_PATH: Final[dict[str, Any]] = {
    "parameters": [_GROUP, in_path("place", "partition and offset of the record: 0:17")],
    "get": {
        "operationId": "getDeadLetter",
        "summary": "all of a dead record",
        "responses": {
            "200": json_of("the record", ref("WholeDeadLetter")),
            "400": error("the place is something else"),
            "404": _UNKNOWN,
            "503": NOT_READY,
        },
    },
}

_REPLAY_PATH: Final[dict[str, Any]] = {
    "parameters": [_GROUP],
    "post": {
        "operationId": "replayDeadLetters",
        "summary": "give dead records back to their group",
        "description": "Each goes into the topic GROUP.retry at once, without x-retry-attempt and "
        "x-retry-reason. `all` replays what no earlier `all` has replayed, for five seconds at "
        "most: ask again while something is left.",
        "requestBody": body(
            places={**list_of(_PLACE), "minItems": 1, "maxItems": 100},
            all={"type": "boolean"},
            partition={**MAYBE_COUNT, "description": "of all: only this partition"},
        ),
        "responses": {
            "200": json_of("they are durably replayed", ref("ReplayedDeadLetters")),
            "400": error("the body is something else"),
            "409": error("a record is refused, those before it are replayed; or none can be"),
            **_CHANGES,
        },
    },
}

_PURGE_PATH: Final[dict[str, Any]] = {
    "parameters": [_GROUP],
    "post": {
        "operationId": "purgeDeadLetters",
        "summary": "delete dead records",
        "requestBody": body(
            before={
                **MAYBE_TEXT,
                "description": "only those of the partition of this place with lower offsets",
            },
        ),
        "responses": {
            "200": json_of("they are durably deleted", ref("DeletedDeadLetters")),
            "400": error("the body is something else"),
            **_CHANGES,
        },
    },
}

DLQ_SCHEMAS: Final[dict[str, Any]] = {
    "DeadLetter": object_of(**_RECORD),
    "WholeDeadLetter": object_of(
        **_RECORD,
        headers={**list_of(list_of(_OCTETS)), "description": "name and value of each, in order"},
        value=_OCTETS,
    ),
    "DeadLetters": object_of(
        records=list_of(ref("DeadLetter")),
        next={**MAYBE_TEXT, "description": "the next `after`; null if nothing is left"},
    ),
    "ReplayedDeadLetters": object_of(
        replayed=COUNT,
        left={**COUNT, "description": "of all: offsets that were not come to in time"},
    ),
    "DeletedDeadLetters": object_of(deleted=COUNT),
}

DLQ_PATHS: Final[dict[str, Any]] = {
    "/api/v1/groups/{group}/dlq": _LIST_PATH,
    "/api/v1/groups/{group}/dlq/replay": _REPLAY_PATH,
    "/api/v1/groups/{group}/dlq/purge": _PURGE_PATH,
    "/api/v1/groups/{group}/dlq/{place}": _SHOW_PATH,
}
