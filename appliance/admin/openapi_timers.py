"""Timers in the OpenAPI description. Layer 5; only data."""

from typing import Any, Final

from appliance.admin.openapi_parts import (
    COUNT,
    INSTANT,
    MAYBE_COUNT,
    MAYBE_INSTANT,
    MAYBE_TEXT,
    NOT_READY,
    STATES,
    TEXT,
    TOPIC_NAME,
    body,
    error,
    in_path,
    in_query,
    json_of,
    list_of,
    object_of,
    ref,
)

_ID_PARAMETER: Final = in_path(
    "id", "the record's x-deliver-id: 1 to 255 bytes of any kind, percent-encoded"
)

_TIMER: Final = {
    "state": {"enum": STATES},
    "due_at": MAYBE_INSTANT,
    "partition": {"type": ["integer", "null"], "minimum": 0},
    "offset": {
        "type": ["integer", "null"],
        "minimum": 0,
        "description": "where a delivered record is, if that is known",
    },
}

_TIMER_PATH: Final[dict[str, Any]] = {
    "parameters": [TOPIC_NAME, _ID_PARAMETER],
    "get": {
        "operationId": "getTimer",
        "summary": "the state of a delayed record, by its x-deliver-id",
        "description": "The broker remembers delivered and cancelled records for a day "
        "(delay.completed_id_memory_ms); after that their state is unknown.",
        "responses": {
            "200": json_of("its state, durable like an acknowledged record", ref("Timer")),
            "400": error("the id is empty, too long or badly encoded"),
            "404": error("there is no such topic"),
            "503": NOT_READY,
        },
    },
    "delete": {
        "operationId": "cancelTimer",
        "summary": "cancel a delayed record, by its x-deliver-id",
        "description": "Has the effect of a record with x-deliver-cancel: after status 200 the "
        "record is never delivered. May be repeated.",
        "responses": {
            "200": json_of("it is durably cancelled, now or before", ref("Timer")),
            "400": error("the id is empty, too long or badly encoded"),
            "403": error("the request comes from a web page of another origin"),
            "404": json_of(
                "there is no such topic, or no such timer",
                {"oneOf": [ref("Error"), ref("NotCancelled")]},
            ),
            "409": json_of("too late: it was delivered", ref("NotCancelled")),
            "503": NOT_READY,
            "507": error("the disk is full"),
        },
    },
}

_LIST_PATH: Final[dict[str, Any]] = {
    "get": {
        "operationId": "listTimers",
        "parameters": [
            in_query("topic", "only this topic"),
            in_query("partition", "only this partition of the topic", COUNT),
            in_query("from", "due from this instant on", INSTANT),
            in_query("to", "due before this instant", INSTANT),
            in_query("limit", "timers at most", {"type": "integer", "minimum": 1, "maximum": 1000}),
            in_query("after", "`next` of the answer before"),
            in_query("values", "with values and headers", {"type": "boolean"}),
        ],
        "summary": "pending delayed records, those that are due first before the others",
        "description": "One request reads records for a second at most; `next` says where the next "
        "one goes on.",
        "responses": {
            "200": json_of("in order of due time, then of arrival", ref("Timers")),
            "400": error("the query is something else"),
            "404": error("there is no such topic or partition"),
            "503": NOT_READY,
        },
    },
}

_COUNTS_PATH: Final[dict[str, Any]] = {
    "get": {
        "operationId": "countTimers",
        "parameters": [
            in_query("topic", "only this topic"),
            in_query("partition", "only this partition of the topic", COUNT),
            in_query("from", "where the first interval begins; this second if left out", INSTANT),
            in_query("step_ms", "length of an interval, 60,000 if left out", COUNT),
            in_query("count", "intervals, 60 if left out, 10,000 at most", COUNT),
        ],
        "summary": "how many delayed records are due when",
        "description": "Intervals of all topics cost nothing: by whole seconds for the next 48 "
        "hours, and by whole minutes. For others each timer is counted, a millisecond of work at a "
        "time.",
        "responses": {
            "200": json_of("exact but for what changes meanwhile", ref("TimerCounts")),
            "400": error("the query is something else"),
            "404": error("there is no such topic or partition"),
            "503": NOT_READY,
        },
    },
}

_MOVE_PATH: Final[dict[str, Any]] = {
    "post": {
        "operationId": "rescheduleAtPlace",
        "summary": "give the pending delayed record at a place another due time",
        "description": "Also one without an id. One frame of the log completes the record and "
        "holds it again, so it comes once, at the new time.",
        "requestBody": body(
            place={**TEXT, "description": "of a list of timers"},
            due_at={**MAYBE_INSTANT, "description": "the new due time; null to deliver it now"},
        ),
        "responses": {
            "200": json_of("it is durably rescheduled", ref("MovedTimer")),
            "400": error("the body or the due time is something else, or the record recurs"),
            "403": error("the request comes from a web page of another origin"),
            "404": error("no pending record is there any more, or it cannot be read"),
            "413": error("the body is too large"),
            "415": error("the body is not of the type application/json"),
            "503": NOT_READY,
            "507": error("the disk is full"),
        },
    },
}

_STAGES: Final = json_of("both stages", ref("Stages"))

_STAGES_PATH: Final[dict[str, Any]] = {
    "get": {
        "operationId": "getStages",
        "summary": "the stages that accept and deliver delayed records, and how far behind",
        "responses": {"200": _STAGES, "503": NOT_READY},
    },
    "post": {
        "operationId": "changeStage",
        "summary": "stop or start a stage, until the broker starts again",
        "requestBody": body(
            stage={"type": "string", "enum": ["enqueue", "dequeue"]},
            stopped={"type": "boolean"},
        ),
        "responses": {
            "200": _STAGES,
            "400": error("the body is something else"),
            "403": error("the request comes from a web page of another origin"),
            "413": error("the body is too large"),
            "415": error("the body is not of the type application/json"),
            "503": NOT_READY,
        },
    },
}

_LEVELS_PATH: Final[dict[str, Any]] = {
    "get": {
        "operationId": "getLevels",
        "summary": "the delay levels, as the queues that RocketMQ has for them",
        "responses": {
            "200": json_of("in order; also levels that are no longer configured", ref("Levels")),
            "503": NOT_READY,
        },
    },
}

_PURGE_PATH: Final[dict[str, Any]] = {
    "post": {
        "operationId": "purgeTimers",
        "summary": "cancel all pending delayed records of a topic, or those due in a range",
        "description": "As a cancel does: none of them is ever delivered.",
        "requestBody": body(
            topic=TEXT,
            partition={**MAYBE_COUNT, "description": "only this partition"},
            from_at={**MAYBE_INSTANT, "description": "only those due from this instant on"},
            to_at={**MAYBE_INSTANT, "description": "only those due before this instant"},
        ),
        "responses": {
            "200": json_of("they are durably cancelled", ref("PurgedTimers")),
            "400": error("the body is something else"),
            "403": error("the request comes from a web page of another origin"),
            "404": error("there is no such topic or partition"),
            "413": error("the body is too large"),
            "415": error("the body is not of the type application/json"),
            "503": NOT_READY,
            "507": error("the disk is full"),
        },
    },
}

_RESCHEDULE_PATH: Final[dict[str, Any]] = {
    "parameters": [TOPIC_NAME, _ID_PARAMETER],
    "post": {
        "operationId": "rescheduleTimer",
        "summary": "give a pending delayed record another due time, or deliver it now",
        "description": "As if its producer had sent the record again with the id and another time: "
        "it is delivered once, by the new time or, if that came first, by the old one.",
        "requestBody": body(
            due_at={**MAYBE_INSTANT, "description": "the new due time; null to deliver it now"},
        ),
        "responses": {
            "200": json_of("it is durably rescheduled, or delivered", ref("Timer")),
            "400": error("the id, body or due time is something else, or the record recurs"),
            "403": error("the request comes from a web page of another origin"),
            "404": json_of(
                "there is no such topic or timer, or its record cannot be read",
                {"oneOf": [ref("Error"), ref("NotCancelled")]},
            ),
            "409": json_of("too late: it was delivered or cancelled", ref("NotCancelled")),
            "413": error("the body is too large"),
            "415": error("the body is not of the type application/json"),
            "503": NOT_READY,
            "507": error("the disk is full"),
        },
    },
}

TIMER_SCHEMAS: Final[dict[str, Any]] = {
    "Timer": object_of(**_TIMER),
    "NotCancelled": object_of(error=TEXT, **_TIMER),
    "Timers": object_of(
        timers=list_of(ref("FoundItem")),
        next={**MAYBE_TEXT, "description": "the next `after`; null if nothing is left"},
    ),
    "MovedTimer": object_of(
        place={**TEXT, "description": "names it from now on"},
        due_at=INSTANT,
        topic=TEXT,
        partition=COUNT,
    ),
    "Levels": object_of(
        levels=list_of(
            object_of(
                level={**COUNT, "description": "1 for the first"},
                delay_ms={**MAYBE_COUNT, "description": "null: `delay.levels` does not have it"},
                topic=TEXT,
                queue_id=COUNT,
                max_offset={**COUNT, "description": "records that it ever had"},
                offset={**MAYBE_COUNT, "description": "those delivered or cancelled"},
                lag={**MAYBE_COUNT, "description": "those pending; null if that is not known"},
            )
        ),
    ),
    "Stages": object_of(
        stages=list_of(
            object_of(
                stage={"type": "string", "enum": ["enqueue", "dequeue"]},
                stopped={"type": "boolean"},
                backlog={**COUNT, "description": "records that it has to do"},
                behind_ms={**COUNT, "description": "how long the first of them has waited"},
            )
        ),
    ),
    "PurgedTimers": object_of(
        cancelled=COUNT,
        left={**COUNT, "description": "delivered meanwhile, being delivered, or not readable"},
    ),
    "TimerCounts": object_of(
        from_at=INSTANT,
        step_ms=COUNT,
        counts=list_of(COUNT),
        before={**COUNT, "description": "due before the first interval"},
        after={**COUNT, "description": "due after the last interval"},
    ),
}

TIMER_PATHS: Final[dict[str, Any]] = {
    "/api/v1/timers": _LIST_PATH,
    "/api/v1/timers/counts": _COUNTS_PATH,
    "/api/v1/timers/levels": _LEVELS_PATH,
    "/api/v1/timers/stages": _STAGES_PATH,
    "/api/v1/timers/purge": _PURGE_PATH,
    "/api/v1/timers/reschedule": _MOVE_PATH,
    "/api/v1/topics/{topic}/timers/{id}": _TIMER_PATH,
    "/api/v1/topics/{topic}/timers/{id}/reschedule": _RESCHEDULE_PATH,
}
