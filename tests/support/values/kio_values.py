"""Values of any message of the protocol, as ours and as kio's, drawn by hypothesis.

Ours are those of compat.kafka.protocol.registry.Fields: plain dicts, times in ms, error codes as
integers. kio's schemas say which fields there are; its reader and writer share no code with ours.
"""

import dataclasses
import io
import typing
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from compat.kafka.protocol.registry import Fields

_MS: Final = timedelta(milliseconds=1)
_ARRAY_SIZE_MAX: Final = 2

_TIMEDELTA_MS_MAX: Final = 10**13
"""What fits into Python's timedelta, and some centuries."""


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


_TEXTS: Final = st.text(st.characters(codec="utf-8"), max_size=12)
_LONG_TEXTS: Final = st.sampled_from(("x" * 127, "x" * 128, "ä" * 200))

_PRIMITIVES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "int32": _integers(32),
    "int64": _integers(64),
    "uint16": st.integers(0, 0xFFFF),
    "float64": st.floats(allow_nan=False),
    "uuid": st.none() | st.uuids(allow_nil=False),
    "string": _TEXTS | _LONG_TEXTS,
    "bytes": st.binary(max_size=20) | st.just(bytes(300)),
    "records": st.binary(max_size=20),
    "error_code": st.sampled_from([code.value for code in ErrorCode]),
    "timedelta_i32": _integers(32),
    "timedelta_i64": st.integers(-_TIMEDELTA_MS_MAX, _TIMEDELTA_MS_MAX),
}


def strip_none(annotation: Any) -> tuple[Any, bool]:
    """Split `T | None` into T and whether None was there."""
    inner = [part for part in typing.get_args(annotation) if part is not type(None)]
    if len(inner) == 1 and typing.get_origin(annotation) is not tuple:
        return inner[0], True
    return annotation, False


def plain_fields(schema: Any) -> list[Any]:
    """Its fields without the tagged ones, which we neither read nor write."""
    return [field for field in dataclasses.fields(schema) if "tag" not in field.metadata]


def values_of(schema: Any) -> st.SearchStrategy[Fields]:
    """A strategy for all values of a message or structure."""
    return st.fixed_dictionaries({field.name: _field(field) for field in plain_fields(schema)})


def _field(field: Any) -> st.SearchStrategy[Any]:
    inner, is_nullable = strip_none(field.type)
    if typing.get_origin(inner) is tuple:
        item, _ = strip_none(typing.get_args(inner)[0])
        kind = (
            values_of(item)
            if dataclasses.is_dataclass(item)
            else _PRIMITIVES[field.metadata["kafka_type"]]
        )
        values: st.SearchStrategy[Any] = st.lists(kind, max_size=_ARRAY_SIZE_MAX)
    elif dataclasses.is_dataclass(inner):
        values = values_of(inner)
    else:
        values = _PRIMITIVES[field.metadata["kafka_type"]]
    return st.none() | values if is_nullable else values


def to_kio(schema: Any, values: Fields) -> Any:
    """kio's object of the same values; fields that ours leaves out have their defaults."""
    return schema(
        **{field.name: _convert(field, values[field.name]) for field in plain_fields(schema)}
    )


def _convert(field: Any, value: Any) -> Any:
    inner, _ = strip_none(field.type)
    if value is None:
        return None
    if typing.get_origin(inner) is tuple:
        item, _ = strip_none(typing.get_args(inner)[0])
        if dataclasses.is_dataclass(item):
            return tuple(to_kio(item, one) for one in value)
        return tuple(_primitive(field.metadata["kafka_type"], one) for one in value)
    if dataclasses.is_dataclass(inner):
        return to_kio(inner, value)
    return _primitive(field.metadata["kafka_type"], value)


def _primitive(kind: str, value: Any) -> Any:
    if kind.startswith("timedelta"):
        return value * _MS
    return ErrorCode(value) if kind == "error_code" else value


def from_kio(entity: Any) -> Fields:
    """Our values of kio's object."""
    return {field.name: _plain(getattr(entity, field.name)) for field in plain_fields(type(entity))}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return from_kio(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, timedelta):
        return value // _MS
    if isinstance(value, ErrorCode):
        return value.value
    return None if value == UUID(int=0) else value


def kio_encode(schema: Any, values: Fields) -> bytes:
    """The body of a message, as kio writes it."""
    out = io.BytesIO()
    entity_writer(schema)(out, to_kio(schema, values))
    return out.getvalue()


def kio_decode(schema: Any, body: bytes) -> Fields:
    """The values of a body as kio reads it, to its end.

    For sound bytes only: kio ends the process at a hostile count.
    """
    entity, size = entity_reader(schema)(body, 0)
    assert size == len(body), f"{len(body) - size} bytes are left"
    return from_kio(entity)
