"""The OpenAPI 3.1 description of the admin API, as it is served. Layer 5; only data."""

from typing import Any, Final

from appliance.admin.openapi_dlq import DLQ_PATHS, DLQ_SCHEMAS
from appliance.admin.openapi_pair import PAIR_PATHS, PAIR_SCHEMA
from appliance.admin.openapi_parts import (
    ADDRESS as _ADDRESS,
)
from appliance.admin.openapi_parts import (
    COUNT as _COUNT,
)
from appliance.admin.openapi_parts import (
    INSTANT as _INSTANT,
)
from appliance.admin.openapi_parts import (
    MAYBE_COUNT as _MAYBE_COUNT,
)
from appliance.admin.openapi_parts import (
    MAYBE_INSTANT as _MAYBE_INSTANT,
)
from appliance.admin.openapi_parts import (
    MAYBE_TEXT as _MAYBE_TEXT,
)
from appliance.admin.openapi_parts import (
    NOT_READY as _NOT_READY,
)
from appliance.admin.openapi_parts import (
    POSITION as _POSITION,
)
from appliance.admin.openapi_parts import (
    TEXT as _TEXT,
)
from appliance.admin.openapi_parts import (
    TOPIC_NAME as _TOPIC_NAME,
)
from appliance.admin.openapi_parts import (
    UUID as _UUID,
)
from appliance.admin.openapi_parts import (
    body as _body,
)
from appliance.admin.openapi_parts import (
    error as _error,
)
from appliance.admin.openapi_parts import (
    get as _get,
)
from appliance.admin.openapi_parts import (
    in_path as _in_path,
)
from appliance.admin.openapi_parts import (
    in_query as _in_query,
)
from appliance.admin.openapi_parts import (
    json_of as _json,
)
from appliance.admin.openapi_parts import (
    list_of as _list,
)
from appliance.admin.openapi_parts import (
    object_of as _object,
)
from appliance.admin.openapi_parts import (
    ref as _ref,
)
from appliance.admin.openapi_timers import TIMER_PATHS, TIMER_SCHEMAS

_GROUP_PARAMETER: Final = _in_path("group", "name of a consumer group, percent-encoded UTF-8")
_NAME_PARAMETER: Final = _in_path("name", "name of a snapshot")

_SCHEMAS: Final[dict[str, Any]] = {
    "Error": _object(error={"type": "string", "description": "an error message"}),
    "NotReady": _object(
        ready={"const": False}, phase=_TEXT, recovered_bytes=_COUNT, total_bytes=_COUNT
    ),
    "Refusing": _object(
        ready={"const": False}, error={"type": "string", "description": "why, and what to do"}
    ),
    "Replication": PAIR_SCHEMA,
    "Status": _object(
        version=_TEXT,
        cluster_id=_UUID,
        epoch={**_COUNT, "description": "the leader epoch of every partition"},
        kafka=_ADDRESS,
        advertised={**_ADDRESS, "description": "the address that Kafka clients connect to"},
        admin=_ADDRESS,
        insecure={
            "type": "boolean",
            "description": "other machines can connect without encryption or password",
        },
        flush={"enum": ["sync", "async"]},
        clock_ahead_ms={
            **_MAYBE_COUNT,
            "description": "how far a virtual clock is ahead; null for the machine's clock",
        },
        started_at=_INSTANT,
        uptime_ms=_COUNT,
        log=_object(
            start=_POSITION,
            wrote=_POSITION,
            committed=_POSITION,
            flushed=_POSITION,
            visible=_POSITION,
        ),
        key_index={
            **_object(
                on={"type": "boolean"},
                indexed=_POSITION,
                lag_bytes={**_COUNT, "description": "flushed bytes of the log after that"},
                rows=_COUNT,
                runs={**_COUNT, "description": "files"},
            ),
            "description": "how far the index of keys and ids is",
        },
        disk={
            **_object(
                state={"enum": ["ok", "warn", "refusing"]},
                total_bytes=_COUNT,
                free_bytes=_COUNT,
                used_percent={"type": "number", "minimum": 0, "maximum": 100},
                log_bytes={**_COUNT, "description": "bytes of the log's segments"},
                seconds_until_full={
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "description": "at the rate of the last minutes; null if it does not grow",
                },
                refusal={**_MAYBE_TEXT, "description": "why new records are refused"},
            ),
            "description": "the file system that holds the data",
        },
        freeing={
            **_object(
                reclaimable_bytes={
                    **_COUNT,
                    "description": "of the first segments in which nothing is needed",
                },
                dead_bytes={
                    **_COUNT,
                    "description": "of the log that nothing needs, wherever they are; an estimate",
                },
                held_back={
                    "type": "boolean",
                    "description": "what lives on is not moved at this hour (store.delete_when)",
                },
                expires_early={
                    "type": "boolean",
                    "description": "records expire before their retention is over "
                    "(disk.expire_percent)",
                },
                early_expired_records={**_COUNT, "description": "that did so since the start"},
            ),
            "description": "how the first segments of the log are freed",
        },
        connections=_COUNT,
        topics=_COUNT,
        partitions=_COUNT,
        groups=_COUNT,
        pending_timers={**_COUNT, "description": "records that are not due yet"},
        pending_timers_max={**_COUNT, "description": "how many there may be"},
        unreadable_timers={**_COUNT, "description": "due records that the disk cannot read"},
        held_timers={**_COUNT, "description": "due records that their topics hold back"},
        unloaded_timers={**_COUNT, "description": "delayed records on the disk alone, about"},
        stopped_stages={**_list(_TEXT), "description": "`enqueue`, `dequeue`: an operator did it"},
        next_due_at={**_MAYBE_INSTANT, "description": "no record is due earlier, epoch ms"},
        damage_count=_COUNT,
        damage={
            **_list(_object(file=_TEXT, offset=_COUNT, size=_COUNT, fault=_TEXT)),
            "maxItems": 100,
            "description": "the first damaged parts of files",
        },
    ),
    "TopicSummary": _object(
        name=_TEXT,
        id=_UUID,
        partition_count=_COUNT,
        record_count={**_COUNT, "description": "offsets that can be fetched"},
        pending_timers=_COUNT,
    ),
    "Topic": _object(
        name=_TEXT,
        id=_UUID,
        settings={
            "type": "object",
            "additionalProperties": _TEXT,
            "description": "the settings given for it; all others have their defaults",
        },
        partitions=_list(
            _object(
                partition=_COUNT,
                start_offset=_COUNT,
                visible_offset={**_COUNT, "description": "offsets below it can be fetched"},
                next_offset=_COUNT,
                pending_timers=_COUNT,
            )
        ),
    ),
    "GroupSummary": _object(name=_TEXT, state=_TEXT, protocol_type=_TEXT, member_count=_COUNT),
    "Group": _object(
        name=_TEXT,
        state={"type": "string", "description": "Kafka's name of it, such as Stable or Empty"},
        protocol_type=_TEXT,
        protocol=_TEXT,
        generation={"type": "integer", "minimum": -1},
        members=_list(
            _object(
                member_id=_TEXT,
                instance_id=_MAYBE_TEXT,
                client_id=_TEXT,
                host=_TEXT,
                assignment={
                    "type": ["array", "null"],
                    "items": _object(topic=_TEXT, partition=_COUNT),
                    "description": "null if the broker does not know its format, or a topic in "
                    "it has a name of more than 249 bytes",
                },
            )
        ),
        offsets=_list(
            _object(
                topic=_TEXT,
                partition=_COUNT,
                offset={"type": "integer", "description": "of the next record to read"},
                metadata=_MAYBE_TEXT,
                committed_at=_INSTANT,
                end_offset=_COUNT,
                lag=_COUNT,
            )
        ),
    ),
    "Snapshot": _object(
        name=_TEXT,
        path={**_TEXT, "description": "its directory, on the machine of the broker"},
        created_at=_INSTANT,
        start=_POSITION,
        end=_POSITION,
        size_bytes={**_COUNT, "description": "bytes of its segments, which it shares"},
        kept_bytes={**_COUNT, "description": "bytes of segments that the log no longer has"},
    ),
    "Clock": _object(
        kind={"enum": ["system", "virtual"]},
        now_at=_INSTANT,
        ahead_ms={**_COUNT, "description": "how far it is ahead of the machine's"},
        delivered={
            "type": ["integer", "null"],
            "minimum": 0,
            "description": "records that were delivered while it was advanced",
        },
    ),
    "Cleanup": _object(
        topics=_list(_object(topic=_TEXT, expired_records=_COUNT)),
        age_jump_ms={**_COUNT, "description": "by how much the confirmed clock aged all records"},
        clock_jump_ms={**_COUNT, "description": "how far the wall clock is ahead, in doubt"},
    ),
    "Found": _object(
        found=_list(_ref("FoundItem")),
        next={**_MAYBE_TEXT, "description": "the next `after`; null if nothing is left"},
        scanned_bytes={**_COUNT, "description": "bytes of the log read: they are not indexed"},
        unreadable={
            **_list(_object(**{"from": _POSITION, "to": _POSITION})),
            "description": "parts of the log without a whole frame",
        },
    ),
    "FoundItem": {
        "type": "object",
        "description": "a record, a timer, or what was done to one; docs/ADMIN.md has the fields",
    },
    **TIMER_SCHEMAS,
    **DLQ_SCHEMAS,
}

_ADVANCE_PATH: Final[dict[str, Any]] = {
    "post": {
        "operationId": "advanceClock",
        "summary": "advance the clock of a broker for tests",
        "description": "Only with process.clock = virtual.",
        "requestBody": _body(by_ms={**_COUNT, "description": "by how many milliseconds"}),
        "responses": {
            "200": _json("consumers see what is due by then", _ref("Clock")),
            "400": _error("the body is something else"),
            "403": _error("the request comes from a web page of another origin"),
            "409": _error("the clock is the machine's"),
            "413": _error("the body is too large"),
            "415": _error("the body is not of the type application/json"),
            "503": _NOT_READY,
        },
    },
}

_CLEANUP_PATH: Final[dict[str, Any]] = {
    "post": {
        "operationId": "cleanUp",
        "summary": "expire records now",
        "description": "Without before_at: what the age and size limits of the topics say.",
        "requestBody": _body(
            topic={**_MAYBE_TEXT, "description": "only this topic"},
            before_at={
                "type": ["integer", "null"],
                "description": "expire what is older than this instant, epoch ms",
            },
            dry_run={"type": "boolean", "description": "only count"},
            confirm_clock={
                "type": "boolean",
                "description": "the wall clock is right: its jump counts at once",
            },
        ),
        "responses": {
            "200": _json("what expired, or would; it is durable", _ref("Cleanup")),
            "400": _error("the body is something else"),
            "403": _error("the request comes from a web page of another origin"),
            "404": _error("there is no such topic"),
            "413": _error("the body is too large"),
            "415": _error("the body is not of the type application/json"),
            "503": _NOT_READY,
            "507": _error("the disk is full"),
        },
    },
}


_FIND_PARAMETERS: Final = [
    _in_query("key", "records with this key: bytes of any kind, percent-encoded"),
    _in_query("id", "what was done to timers with this x-deliver-id, percent-encoded"),
    _in_query("position", "the frame at this position of the log", _POSITION),
    _in_query("offset", "TOPIC/PARTITION@OFFSET"),
    _in_query("topic", "only this topic"),
    _in_query("partition", "only this partition", _COUNT),
    _in_query("from", "received or delivered from this instant on", _INSTANT),
    _in_query("to", "received or delivered before this instant", _INSTANT),
    _in_query("limit", "items at most", {"type": "integer", "minimum": 1, "maximum": 1000}),
    _in_query("after", "`next` of the answer before"),
]

_FIND_PATH: Final[dict[str, Any]] = {
    "get": {
        "operationId": "find",
        "parameters": _FIND_PARAMETERS,
        "summary": "records and timers by key, id, position, offset or time",
        "description": "Give one of key, id, position and offset, or a time. One request searches "
        "for a second at most; `next` says where the next one goes on.",
        "responses": {
            "200": _json("in the order of the log", _ref("Found")),
            "400": _error("the query is something else, or no frame begins at the position"),
            "404": _error("there is no such topic, offset or position"),
            "503": _NOT_READY,
        },
    },
}

_SNAPSHOTS_PATH: Final[dict[str, Any]] = {
    "get": {
        "operationId": "listSnapshots",
        "summary": "all snapshots of the log",
        "responses": {
            "200": _json("oldest first", _object(snapshots=_list(_ref("Snapshot")))),
            "503": _NOT_READY,
        },
    },
    "post": {
        "operationId": "createSnapshot",
        "summary": "make a snapshot of the log",
        "description": "It has everything that was accepted before the request, and stays as it "
        "is. Its segments take disk space of their own only when the log no longer has them.",
        "requestBody": _body(
            name={
                **_MAYBE_TEXT,
                "description": "1 to 64 letters, digits, dots, dashes and underscores; without it, "
                "the time",
            }
        ),
        "responses": {
            "201": _json("it is durable", _ref("Snapshot")),
            "400": _error("the name is not allowed, or the body is something else"),
            "403": _error("the request comes from a web page of another origin"),
            "409": _error("there is a snapshot of that name"),
            "413": _error("the body is too large"),
            "415": _error("the body is not of the type application/json"),
            "501": _error("the file system has no hard links"),
            "503": _NOT_READY,
            "507": _error("the disk is full"),
        },
    },
}

_SNAPSHOT_PATH: Final[dict[str, Any]] = {
    "parameters": [_NAME_PARAMETER],
    "get": {
        "operationId": "getSnapshot",
        "summary": "a snapshot of the log",
        "responses": {
            "200": _json("the snapshot", _ref("Snapshot")),
            "404": _error("there is no such snapshot"),
            "503": _NOT_READY,
        },
    },
    "delete": {
        "operationId": "deleteSnapshot",
        "summary": "remove a snapshot, and nothing else",
        "responses": {
            "200": _json("what it was", _ref("Snapshot")),
            "403": _error("the request comes from a web page of another origin"),
            "404": _error("there is no such snapshot"),
            "503": _NOT_READY,
        },
    },
}


_PATHS: Final[dict[str, Any]] = {
    "/healthz": _get(
        "getHealth",
        "liveness: the event loop runs",
        {"200": _json("it runs", _object(status={"const": "ok"}))},
    ),
    "/readyz": _get(
        "getReadiness",
        "readiness: clients are served, and new records accepted",
        {
            "200": _json("they are", _object(ready={"const": True})),
            "503": _json(
                "the broker is starting or stopping, or refuses new records on a full disk",
                {"oneOf": [_ref("NotReady"), _ref("Refusing")]},
            ),
        },
    ),
    "/metrics": _get(
        "getMetrics",
        "metrics for Prometheus",
        {"200": {"description": "all metrics", "content": {"text/plain": {"schema": _TEXT}}}},
    ),
    "/metrics/topics": _get(
        "getTopicMetrics",
        "metrics of delayed records by topic, for Prometheus",
        {
            "200": {
                "description": "those of topics that had delayed records since the start",
                "content": {"text/plain": {"schema": _TEXT}},
            },
            "503": _NOT_READY,
        },
    ),
    "/api/v1/openapi.json": _get(
        "getDescription", "this description", {"200": _json("OpenAPI 3.1", {"type": "object"})}
    ),
    **PAIR_PATHS,
    "/api/v1/status": _get(
        "getStatus",
        "the broker as a whole",
        {"200": _json("its state", _ref("Status")), "503": _NOT_READY},
    ),
    "/api/v1/topics": _get(
        "listTopics",
        "all topics",
        {
            "200": _json("in order of creation", _object(topics=_list(_ref("TopicSummary")))),
            "503": _NOT_READY,
        },
    ),
    "/api/v1/topics/{topic}": _get(
        "getTopic",
        "a topic and its partitions",
        {
            "200": _json("the topic", _ref("Topic")),
            "404": _error("there is no such topic"),
            "503": _NOT_READY,
        },
        _TOPIC_NAME,
    ),
    **TIMER_PATHS,
    **DLQ_PATHS,
    "/api/v1/clock": _get(
        "getClock",
        "the clock by which records are due",
        {"200": _json("its state", _ref("Clock")), "503": _NOT_READY},
    ),
    "/api/v1/clock/advance": _ADVANCE_PATH,
    "/api/v1/cleanup": _CLEANUP_PATH,
    "/api/v1/find": _FIND_PATH,
    "/api/v1/snapshots": _SNAPSHOTS_PATH,
    "/api/v1/snapshots/{name}": _SNAPSHOT_PATH,
    "/api/v1/groups": _get(
        "listGroups",
        "all consumer groups",
        {
            "200": _json("in no order", _object(groups=_list(_ref("GroupSummary")))),
            "503": _NOT_READY,
        },
    ),
    "/api/v1/groups/{group}": _get(
        "getGroup",
        "a consumer group, its members and committed offsets",
        {
            "200": _json("the group", _ref("Group")),
            "404": _error("there is no such group"),
            "503": _NOT_READY,
        },
        _GROUP_PARAMETER,
    ),
}

DESCRIPTION: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {
        "title": "latermq admin API",
        "version": "1",
        "description": "Served on the admin address. Every path may also answer 421 if the Host "
        "header names another server, and 500 for an internal error, with a body of the schema "
        "Error.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": _PATHS,
    "components": {"schemas": _SCHEMAS},
}
