"""What the parts of the OpenAPI description are made of. Layer 5; only data."""

from typing import Any, Final

COUNT: Final = {"type": "integer", "minimum": 0}
POSITION: Final = {"type": "integer", "minimum": 0, "description": "byte position in the log"}
INSTANT: Final = {"type": "integer", "description": "epoch ms"}
MAYBE_INSTANT: Final = {"type": ["integer", "null"], "description": "epoch ms"}
MAYBE_COUNT: Final = {"type": ["integer", "null"], "minimum": 0}
TEXT: Final = {"type": "string"}
MAYBE_TEXT: Final = {"type": ["string", "null"]}
ADDRESS: Final = {"type": "string", "description": "HOST:PORT, with an IPv6 host in brackets"}
UUID: Final = {"type": "string", "format": "uuid"}
STATES: Final = ["pending", "cancelled", "delivered", "unknown"]


def object_of(**properties: Any) -> dict[str, Any]:
    """A closed object whose properties are all required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def ref(name: str) -> dict[str, str]:
    """A reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(item: dict[str, Any]) -> dict[str, Any]:
    """An array."""
    return {"type": "array", "items": item}


def json_of(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """An answer in JSON."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def body(**properties: Any) -> dict[str, Any]:
    """A request body: a closed object whose properties are all optional."""
    schema = {**object_of(**properties), "required": []}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def error(description: str) -> dict[str, Any]:
    """An answer that is an error."""
    return json_of(description, ref("Error"))


NOT_READY: Final = json_of(
    "the broker is starting or stopping, or too much is asked of it at a time",
    {"oneOf": [ref("NotReady"), ref("Error")]},
)


def in_path(name: str, description: str) -> dict[str, Any]:
    """A part of the path."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": TEXT,
        "description": description,
    }


def in_query(name: str, description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """A field of the query."""
    return {
        "name": name,
        "in": "query",
        "required": False,
        "schema": schema or TEXT,
        "description": description,
    }


TOPIC_NAME: Final = in_path("topic", "name of a topic, percent-encoded UTF-8")


def get(
    operation: str, summary: str, responses: dict[str, Any], *parameters: dict[str, Any]
) -> dict[str, Any]:
    """A path that answers GET."""
    path: dict[str, Any] = {"parameters": list(parameters)} if parameters else {}
    return path | {"get": {"operationId": operation, "summary": summary, "responses": responses}}
