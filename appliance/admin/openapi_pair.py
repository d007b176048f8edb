"""The pair of master and slave in the OpenAPI description. Layer 5; only data."""

from typing import Any, Final

from appliance.admin.openapi_parts import (
    COUNT,
    MAYBE_COUNT,
    MAYBE_TEXT,
    NOT_READY,
    POSITION,
    body,
    error,
    get,
    json_of,
    object_of,
    ref,
)

PAIR_SCHEMA: Final = object_of(
    role={"enum": ["master", "slave"]},
    mode={"enum": ["none", "async", "sync"]},
    solo={"type": "boolean", "description": "a sync master waits for no slave for now"},
    node={"type": "integer", "minimum": 0, "maximum": 2, "description": "0: of no pair"},
    term={**COUNT, "description": "grows with each change of the master; 0: none is known"},
    state={
        "enum": [
            "off",
            "comparing",
            "repairing",
            "waiting",
            "handshake",
            "catch-up",
            "streaming",
            "handing over",
            "yielded",
        ]
    },
    peer=MAYBE_TEXT,
    end={**POSITION, "description": "end of this node's log"},
    received={**MAYBE_COUNT, "description": "up to here the slave has the log"},
    durable={**MAYBE_COUNT, "description": "up to here it is on the slave's disk"},
    lag_bytes={**MAYBE_COUNT, "description": "what the slave lacks"},
    catch_up_max_bytes_per_s={
        **COUNT,
        "description": "what a slave that catches up gets at most; 0: no bound, or it does not",
    },
    heard_ms_ago={**MAYBE_COUNT, "description": "time since the peer's last message, ms"},
    promise={"type": "string", "description": "what an acknowledgement means now"},
    caught_up={
        "type": ["boolean", "null"],
        "description": "this slave once had the whole log, and may be promoted; null: a master",
    },
    held_bytes={
        **COUNT,
        "description": "of the log, kept for the slave alone",
    },
    given_up={
        "type": "boolean",
        "description": "a master freed what its connected slave lacks: it was too much to keep",
    },
    read_bytes={
        **COUNT,
        "description": "of records, which consumers read from this slave since its start",
    },
    lease_left_ms={
        **MAYBE_COUNT,
        "description": "how long a master may acknowledge without another sign of its slave",
    },
    promotion_wait_ms={
        **COUNT,
        "description": "how long a promotion of this slave would wait for its master's lease",
    },
    coordinator={"type": ["object", "null"], "description": "what etcd says; null: no etcd"},
)


def _of_pair(name: str, summary: str, conflict: str, **flags: str) -> dict[str, Any]:
    """What an operator orders of a node of a pair, with the flags that the body may have."""
    answers = {
        "200": json_of("the pair after it", ref("Replication")),
        "403": error("the request comes from a web page of another origin"),
        "409": error(conflict),
        "503": NOT_READY,
    }
    asked: dict[str, Any] = {"operationId": name, "summary": summary}
    if flags:
        fields = {key: {"type": "boolean", "description": text} for key, text in flags.items()}
        asked["requestBody"] = body(**fields)
        answers |= {"400": error("the body is wrong"), "415": error("the body is not JSON")}
    return {"post": {**asked, "responses": dict(sorted(answers.items()))}}


PAIR_PATHS: Final[dict[str, Any]] = {
    "/api/v1/replication": get(
        "getReplication",
        "the pair of master and slave, also of a slave that serves no clients",
        {"200": json_of("its state", ref("Replication")), "503": NOT_READY},
    ),
    "/api/v1/promote": _of_pair(
        "promote",
        "make this slave the master; answers once it serves clients",
        "this node is no slave, or has never caught up",
        force="also if it has never caught up: what it lacks is lost",
    ),
    "/api/v1/handover": _of_pair(
        "handOver",
        "let the slave of this master be the master; answers once it is",
        "no slave could take over, or it did not; or replication.etcd is set",
    ),
    "/api/v1/alone": _of_pair(
        "goAlone",
        "let a master go on that compares its log first; the other node is off",
        "this node compares no logs",
    ),
    "/api/v1/solo": _of_pair(
        "goSolo",
        "let the master of a sync pair go on without its slave, which is stopped",
        "no master of a sync pair, or nobody says that the slave is off",
        slave_is_off="the operator states that the slave is off, and stays so",
    ),
}
