"""Converts control-plane messages between bytes and plain values, by the schemas of kio.

kio has the fields of every API version, generated from Kafka's own definitions. Only its
dataclasses are used. Its reader allocates as many slots for a compact array as the request claims,
so that ten bytes can end the process; and it fails on unknown tagged fields, which the protocol
says to skip. This module compiles the field list of a dataclass once into a Schema, which uses the
checked Reader and Writer of compat.kafka.protocol.wire.

Values are simpler than on the wire: times are integers in ms, error codes are integers, a zero
topic id is None. Unknown tagged fields of requests are skipped, and no tagged field is ever written
(librdkafka before 2.2.0 cannot skip one). Bytes after the last field are ignored.
Layer 3; does no I/O.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias

from appliance.system.process import without_modules
from appliance.units import KIB
from compat.kafka.protocol.pieces import ITEM_WORK, PieceWriter
from compat.kafka.protocol.registry import Fields
from compat.kafka.protocol.slices import VALUE_WORK, EncodedItems, Hold, Items, Steps
from compat.kafka.protocol.wire import Reader, Writer

with without_modules("hypothesis"):
    # Where it is installed, kio tells it how to draw each type, which takes longer than all else.
    from kio.index import load_request_schema, load_response_schema

_ReadValue: TypeAlias = Callable[[Reader], Any]
_WriteValue: TypeAlias = Callable[[Writer, Any], None]
_Codec: TypeAlias = tuple[_ReadValue, _WriteValue]

_FIXED_SIZE: Final[dict[str, _Codec]] = {
    "bool": (Reader.boolean, Writer.boolean),
    "int8": (Reader.int8, Writer.int8),
    "int16": (Reader.int16, Writer.int16),
    "int32": (Reader.int32, Writer.int32),
    "int64": (Reader.int64, Writer.int64),
    "uuid": (Reader.uuid, Writer.uuid),
    "error_code": (Reader.int16, Writer.int16),
    "timedelta_i32": (Reader.int32, Writer.int32),
    "timedelta_i64": (Reader.int64, Writer.int64),
}
"""kio's names of the types whose size does not depend on the version, with their codecs."""


ITEM_HELD_BYTES: Final = 400
VALUE_HELD_BYTES: Final = 100
"""Memory of a decoded item, about: of a structure of a few fields, and of a number or a name."""

HELD_STEP_BYTES: Final = 4 * KIB
"""Memory of decoded items that is told at once."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a structure.

    Args:
        name: as in kio's dataclass.
        read: reads the value from a Reader.
        write: writes the value to a Writer.
        default: the value to write if none is given, or dataclasses.MISSING.
        items: the schema of the items if the field is an array of structures.
        array: the codec of the array in steps if the field is an array.
    """

    name: str
    read: _ReadValue
    write: _WriteValue
    default: Any
    items: "Schema | None"
    array: "_ArraySteps | None"


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """The fields of one structure in one version, in the order of the wire.

    Args:
        fields: its fields.
        is_flexible: it ends with tagged fields.
        has_arrays: a field is an array of structures.
    """

    fields: tuple[Field, ...]
    is_flexible: bool
    has_arrays: bool

    def read(self, reader: Reader) -> Fields:
        """Read one structure. Raises RemoteProtocolError."""
        values = {field.name: field.read(reader) for field in self.fields}
        if self.is_flexible:
            reader.skip_tags()
        return values

    def write(self, writer: Writer, values: Fields | bytes) -> None:
        """Write one structure, given as values or already encoded.

        Values without a field in this version are ignored. A missing value gets the default of
        Kafka's definition; a missing value without default is a programming error: KeyError.
        """
        if isinstance(values, bytes):
            writer.raw(values)
            return
        for field in self.fields:
            if field.default is dataclasses.MISSING:
                value = values[field.name]
            else:
                value = values.get(field.name, field.default)
            field.write(writer, value)
        if self.is_flexible:
            writer.no_tags()

    def read_in_steps(self, reader: Reader, values: Fields) -> Steps[None]:
        """Read one structure like `read`, an item of an array in each step.

        `values` gets all that is read, also if the steps are not done to their end.
        """
        for field in self.fields:
            if field.array is None:
                values[field.name] = field.read(reader)
                continue
            count = field.array.read_count(reader)
            found: list[Any] | None = None if count is None else []
            values[field.name] = found
            if count and found is not None:
                yield from field.array.read(reader, count, found)
        if self.is_flexible:
            reader.skip_tags()

    def write_in_steps(self, writer: PieceWriter, values: Fields) -> Steps[None]:
        """Write one structure like `write`; arrays may be generators (`InPieces`)."""
        for field in self.fields:
            if field.default is dataclasses.MISSING:
                value = values[field.name]
            else:
                value = values.get(field.name, field.default)
            if isinstance(value, types.GeneratorType):
                assert field.array is not None, f"{field.name} is not an array"
                yield from field.array.write(writer, value)
            else:
                field.write(writer, value)
        if self.is_flexible:
            writer.no_tags()


@dataclasses.dataclass(frozen=True, slots=True)
class _ArraySteps:
    """Reads and writes an array, an item in each step.

    Args:
        item: the codec of an item.
        items: its schema if it is a structure.
        is_compact, is_nullable: how the number of items is written.
    """

    item: _Codec
    items: Schema | None
    is_compact: bool
    is_nullable: bool

    def read_count(self, reader: Reader) -> int | None:
        """Read the number of items; None if there is no array."""
        return reader.array_count(is_compact=self.is_compact, is_nullable=self.is_nullable)

    def read(self, reader: Reader, count: int, found: list[Any]) -> Steps[None]:
        """Read so many items into a list."""
        for _ in range(count):
            if self.items is None:
                found.append(self.item[0](reader))
                yield VALUE_WORK
            else:
                item: Fields = {}
                found.append(item)
                yield from self.items.read_in_steps(reader, item)
                yield ITEM_WORK

    def write(self, writer: PieceWriter, values: Items) -> Steps[None]:
        """Write the array; `values` yields steps between the items."""
        assert self.items is not None, "an array of values is not produced in steps"
        count = 0
        writer.begin_array()
        for value in values:
            if isinstance(value, bytes):
                count += 1
                writer.raw(value)
                writer.work += ITEM_WORK
            elif isinstance(value, dict):
                count += 1
                writer.work += ITEM_WORK
                if self.items.has_arrays:
                    yield from self.items.write_in_steps(writer, value)
                else:
                    self.items.write(writer, value)
            elif isinstance(value, EncodedItems):
                count += value.count
                writer.raw(value.data)
                writer.work += value.count * VALUE_WORK
            elif isinstance(value, int):
                writer.work += value
            else:
                yield value
            if work := writer.take_work():
                yield work
        writer.end_array(count, is_compact=self.is_compact)


def decode_request(key: int, version: int, body: bytes | bytearray | memoryview) -> Fields:
    """Decode the body of a request.

    Args:
        key: API key.
        version: one that kio knows; the registry's served versions are.
        body: the bytes after the request header.

    Returns:
        The fields of this version and no others.

    Raises:
        RemoteProtocolError: the body is malformed.

    Time and memory are bounded by the size of the body and by
    compat.kafka.protocol.wire.ITEM_COUNT_MAX.
    """
    return request_schema(key, version).read(Reader(body))


def decode_counted(key: int, version: int, body: bytes) -> tuple[Fields, int]:
    """Decode the body of a request like `decode_request`; return its memory in bytes as well."""
    reader = Reader(body)
    fields = request_schema(key, version).read(reader)
    return fields, len(body) + ITEM_HELD_BYTES * reader.item_count


def decode_in_steps(
    key: int, version: int, body: bytes | bytearray | memoryview, fields: Fields
) -> Steps[None]:
    """Decode the body of a request like `decode_request` into `fields`, an item in each step.

    `Hold` reports its memory and, while it grows, about that of the fields.
    """
    yield Hold(len(body))
    held_bytes = 0
    for step in request_schema(key, version).read_in_steps(Reader(body), fields):
        held_bytes += ITEM_HELD_BYTES if step == ITEM_WORK else VALUE_HELD_BYTES
        if held_bytes >= HELD_STEP_BYTES:
            yield Hold(held_bytes)
            held_bytes = 0
        yield step


def encode_response(key: int, version: int, response: Fields) -> bytes:
    """Encode the body of a response; Schema.write says which values may be missing."""
    writer = Writer()
    response_schema(key, version).write(writer, response)
    return writer.finish()


def encode_response_item(key: int, version: int, path: str, item: Fields) -> bytes:
    """Encode one item of an array in a response; the bytes replace the item in the response.

    Args:
        key: API key.
        version: one that kio knows.
        path: names of the arrays from the outermost to the item's own, with dots:
            `topics.partitions`.
        item: the fields of the item.
    """
    writer = Writer()
    _item_schema(key, version, path).write(writer, item)
    return writer.finish()


@functools.cache
def _item_schema(key: int, version: int, path: str) -> Schema:
    schema = response_schema(key, version)
    for array in path.split("."):
        (items,) = (field.items for field in schema.fields if field.name == array)
        assert items is not None, f"{array} is not an array of structures"
        schema = items
    return schema


@functools.cache
def request_schema(key: int, version: int) -> Schema:
    """Return the schema of a request; the first call compiles it, which takes up to 10 ms."""
    # Loaded per version on demand: loading all modules of kio takes seconds.
    return _compile(load_request_schema(key, version))


@functools.cache
def response_schema(key: int, version: int) -> Schema:
    """Return the schema of a response, like `request_schema`."""
    return _compile(load_response_schema(key, version))


def _compile(structure: type[Any]) -> Schema:
    is_flexible: bool = structure.__flexible__
    fields = []
    for field in dataclasses.fields(structure):
        if "tag" in field.metadata:
            # Never written, and skipped in requests; control-plane requests define none.
            continue
        fields.append(_compile_field(field, is_flexible))
    has_arrays = any(field.items is not None for field in fields)
    return Schema(tuple(fields), is_flexible=is_flexible, has_arrays=has_arrays)


def _compile_field(field: "dataclasses.Field[Any]", is_flexible: bool) -> Field:
    inner, is_nullable = _strip_none(field.type)
    is_array = typing.get_origin(inner) is tuple
    items: Schema | None = None
    array: _ArraySteps | None = None
    if is_array:
        inner = typing.get_args(inner)[0]
        if dataclasses.is_dataclass(inner):
            assert isinstance(inner, type)
            items = _compile(inner)
            codec: _Codec = (items.read, items.write)
        else:
            codec = _primitive(field.metadata["kafka_type"], is_flexible, is_nullable=False)
        array = _ArraySteps(codec, items, is_flexible, is_nullable)
        codec = _array(codec, is_flexible, is_nullable)
    else:
        codec = _primitive(field.metadata["kafka_type"], is_flexible, is_nullable)
    read, write = codec
    return Field(
        name=field.name,
        read=read,
        write=write,
        default=_default(field),
        items=items,
        array=array,
    )


def _strip_none(annotation: Any) -> tuple[Any, bool]:
    """Split `T | None` into T and whether None was there."""
    if not isinstance(annotation, types.UnionType):
        return annotation, False
    (inner,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
    return inner, True


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.name == "throttle_time":
        return 0  # This broker never throttles a client.
    if isinstance(field.default, timedelta):
        return field.default // timedelta(milliseconds=1)
    return field.default


def _primitive(kafka_type: str, is_flexible: bool, is_nullable: bool) -> _Codec:
    kind = {"is_compact": is_flexible, "is_nullable": is_nullable}
    match kafka_type:
        case "string":
            return (
                lambda reader: reader.string(**kind),
                lambda writer, value: writer.string(value, **kind),
            )
        case "bytes":
            return (
                lambda reader: reader.octets(**kind),
                lambda writer, value: writer.octets(value, **kind),
            )
        case _:
            return _FIXED_SIZE[kafka_type]


def _array(item: _Codec, is_flexible: bool, is_nullable: bool) -> _Codec:
    read_item, write_item = item
    kind = {"is_compact": is_flexible, "is_nullable": is_nullable}

    def read(reader: Reader) -> list[Any] | None:
        count = reader.array_count(**kind)
        return None if count is None else [read_item(reader) for _ in range(count)]

    def write(writer: Writer, values: typing.Sequence[Any] | None) -> None:
        writer.array_count(None if values is None else len(values), **kind)
        for value in values or ():
            write_item(writer, value)

    return read, write
