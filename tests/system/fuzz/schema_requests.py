"""Requests of every API and version, made from kio's schemas, as parts that can be changed singly.

A part is one thing on the wire: a number, a size, a count, a text. So a mutation hits a field and
not just a byte. Shares no code with compat.kafka.protocol.messages.
"""

import dataclasses
import functools
import random
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kio.index import load_request_schema

from tests.system.fuzz.cases import CLIENT_ID, MEMBER_IDS, TOPIC_IDS

WIDTHS: Final = {
    **dict.fromkeys(("bool", "int8"), 1),
    **dict.fromkeys(("int16", "uint16", "error_code"), 2),
    **dict.fromkeys(("int32", "timedelta_i32"), 4),
    **dict.fromkeys(("int64", "float64", "timedelta_i64", "datetime_i64"), 8),
}

TEXTS: Final[dict[str, tuple[str, ...]]] = {
    "topic": (*"t" * 30, *"uuuvvv", "new", "gone", "", "a/b", "x" * 249, "x" * 250, "ä"),
    "group": (*"gggggggghh", "", "x" * 300),
    "member": ("", "", "", *MEMBER_IDS, *MEMBER_IDS, "m"),
    "instance": ("static-1", "static-2", ""),
    "protocol": ("consumer", "consumer", "consumer", "range", ""),
    "config": (
        *("delay.headers", "delay.max.ms", "max.message.bytes", "cleanup.policy", "nothing.known"),
        *("message.timestamp.type", "delay.timestamp", "delay.invalid", "retention.ms", ""),
    ),
    "value": ("on", "off", "due", "LogAppendTime", "0", "-1", "1000000", "99999999999999999999"),
    "resource": ("t", "u", "1", "", "gone"),
    "other": ("", "a", "GSSAPI", "PLAIN", "rack", "ä€😀", "x" * 1000, "1.0-2"),
}
"""Texts to choose from, by the last of these words in the name of the field or its structure."""

SMALL: Final = (0, 0, 0, 1, 1, 2, -1)

NUMBERS: Final[dict[str, tuple[int, ...]]] = {
    "partition": (*[0] * 10, *[1] * 8, 2, 7, -1),
    "num_partitions": (1, 2, -1, 0, 64, 65),
    "count": (1, 2, 3, 64, 65, 0, -1),
    "factor": (1, -1, 0, 2),
    "offset": (0, 0, 1, 2, 3, 7, -1, -2),
    "timestamp": (-1, -2, -3, -4, 0, 1_767_225_600_000, 1 << 62),
    "timeout": (*[10_000] * 6, 6_000, 300_000, 0, 1, -1),
    "index": (*[0] * 10, *[1] * 8, 2, -1),
    "max_wait": (0, 0, 500, 30_000, -1),
    "bytes": (0, 1, 100, 100_000, 1 << 20, -1, (1 << 31) - 1),
    "session_id": (0, 0, 0, 0, 1, -1),
    "session_epoch": (-1, -1, -1, 0, 1),
    "generation": (1, 1, 0, 2, 3, -1),
    "leader_epoch": (-1, -1, 0, 1, 2),
    "acks": (*[-1] * 20, 1, 0, 0, 2),
    "retention": (-1, 0, 1000),
    "resource_type": (2, 2, 2, 4, 0, 8, 32),
    "operation": (0, 1, 2, 3, 9),
    "producer_id": (-1, 0, 1, 5),
}
"""Numbers to choose from, by a word that is in the name of the field; the longest word counts."""


NULLS: Final = {"transactional_id": 0.98, "group_instance_id": 0.6}
"""How often what may be null is null, by the name of the field."""

NULL_ELSE: Final = 0.3


Fixed: TypeAlias = str | int | None


@dataclass(frozen=True, slots=True)
class Part:
    """One thing on the wire.

    Args:
        kind: number, size, count, tags, octets or records.
        data: its bytes.
        is_compact: of a size or count: it is a varint, of one more than is meant.
    """

    kind: str
    data: bytes
    is_compact: bool = False


def uvarint(number: int) -> bytes:
    """A varint without sign."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def measure(kind: str, number: int, width: int, *, is_compact: bool) -> Part:
    """A size or count, -1 for null."""
    data = uvarint(number + 1) if is_compact else number.to_bytes(width, "big", signed=True)
    return Part(kind, data, is_compact)


class RequestMaker:
    """Makes valid requests.

    Args:
        rng: chooses all values.
        make_records: gives the content of a field of records.
        counts: how many items an array has, to choose from.
    """

    def __init__(
        self,
        rng: random.Random,
        make_records: Callable[[], bytes | None],
        counts: Sequence[int] = (0, *[1] * 16, 2, 3),
    ) -> None:
        self._rng = rng
        self._make_records = make_records
        self._counts = counts
        self._fixed: Mapping[str, Fixed] = {}

    def make(
        self, key: int, version: int, correlation_id: int, fixed: Mapping[str, Fixed] | None = None
    ) -> list[Part]:
        """A request with its header, without the size in front of it.

        Args:
            key, version, correlation_id: of the request.
            fixed: values of fields by their names, which are not left to chance.
        """
        self._fixed = fixed or {}
        schema = load_request_schema(key, version)
        client_id = self._rng.choice((*[CLIENT_ID.encode()] * 4, b"", None))
        parts = [
            Part("key", key.to_bytes(2, "big")),
            Part("version", version.to_bytes(2, "big")),
            Part("correlation", correlation_id.to_bytes(4, "big")),
            measure("size", -1 if client_id is None else len(client_id), 2, is_compact=False),
            Part("octets", client_id or b""),
        ]
        if schema.__flexible__:
            parts += self._tags({})
        return parts + self._structure(schema)

    def _structure(self, schema: Any) -> list[Part]:
        is_flexible = schema.__flexible__
        parts: list[Part] = []
        tagged: dict[int, bytes] = {}
        for field in dataclasses.fields(schema):
            tag = field.metadata.get("tag")
            if tag is None:
                parts += self._field(field, schema.__name__, is_flexible)
            elif self._rng.random() < 0.2:
                content = self._field(field, schema.__name__, is_flexible)
                tagged[tag] = b"".join(part.data for part in content)
        return parts + (self._tags(tagged) if is_flexible else [])

    def _tags(self, known: dict[int, bytes]) -> list[Part]:
        tagged = dict(known)
        if self._rng.random() < 0.1:
            tagged[self._rng.choice((40, 1000, 0x7FFFFFFF))] = self._rng.randbytes(
                self._rng.choice((0, 1, 200))
            )
        data = uvarint(len(tagged))
        for tag, content in sorted(tagged.items()):
            data += uvarint(tag) + uvarint(len(content)) + content
        return [Part("tags", data)]

    def _field(self, field: Any, owner: str, is_flexible: bool) -> list[Part]:
        inner, is_nullable = split_type(field.type)
        if typing.get_origin(inner) is not tuple:
            if dataclasses.is_dataclass(inner):
                return self._nested(inner, is_nullable)
            return self._value(field, owner, is_flexible, is_nullable)
        item, _ = split_type(typing.get_args(inner)[0])
        count = self._rng.choice(self._counts)
        if is_nullable and len(self._counts) > 1 and self._rng.random() < 0.2:
            count = -1
        parts = [measure("count", count, 4, is_compact=is_flexible)]
        for _ in range(count):
            if dataclasses.is_dataclass(item):
                parts += self._structure(item)
            else:
                parts += self._value(field, owner, is_flexible, is_nullable=False)
        return parts

    def _nested(self, schema: Any, is_nullable: bool) -> list[Part]:
        if not is_nullable:
            return self._structure(schema)
        if self._rng.random() < 0.5:
            return [Part("number", b"\xff")]
        return [Part("number", b"\x01"), *self._structure(schema)]

    def _value(self, field: Any, owner: str, is_flexible: bool, is_nullable: bool) -> list[Part]:
        kind = field.metadata["kafka_type"]
        if kind in WIDTHS:
            return [Part("number", self._number(field.name, owner, WIDTHS[kind]))]
        if kind == "uuid":
            return [Part("octets", self._rng.choice((*TOPIC_IDS, bytes(16), b"\xff" * 16)))]
        content: bytes | None
        if field.name in self._fixed:
            fixed = self._fixed[field.name]
            assert not isinstance(fixed, int)
            content = None if fixed is None else fixed.encode()
        elif kind == "records":
            content = self._make_records()
        elif is_nullable and self._rng.random() < NULLS.get(field.name, NULL_ELSE):
            content = None
        elif kind == "string":
            content = self._rng.choice(_texts(field.name, owner)).encode()
        else:
            content = self._rng.randbytes(self._rng.choice((0, 0, 5, 60)))
        size = -1 if content is None else len(content)
        width = 2 if kind == "string" else 4
        what = Part("records" if kind == "records" else "octets", content or b"")
        return [measure("size", size, width, is_compact=is_flexible), what]

    def _number(self, name: str, owner: str, width: int) -> bytes:
        choices = _numbers(name, owner)
        bits = 8 * width
        value = self._rng.choice(choices)
        if name in self._fixed:
            fixed = self._fixed[name]
            assert isinstance(fixed, int)
            value = fixed
        elif self._rng.random() < 0.02:
            value = self._rng.choice(
                (-(1 << bits - 1), (1 << bits - 1) - 1, self._rng.getrandbits(8))
            )
        return (value & (1 << bits) - 1).to_bytes(width, "big")


def split_type(annotation: Any) -> tuple[Any, bool]:
    """Split `T | None` into T and whether None was there."""
    if not isinstance(annotation, types.UnionType):
        return annotation, False
    (inner,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
    return inner, True


@functools.cache
def _texts(name: str, owner: str) -> tuple[str, ...]:
    for where in (name.lower(), owner.lower()):
        word = max(TEXTS, key=where.rfind)
        if word in where:
            return TEXTS[word]
    return TEXTS["topic" if name == "name" else "other"]


@functools.cache
def _numbers(name: str, owner: str) -> tuple[int, ...]:
    words = sorted((word for word in NUMBERS if word in name.lower()), key=len)
    return NUMBERS[words[-1]] if words else SMALL
