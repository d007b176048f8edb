"""Makes cases: requests of every API and version, sound and damaged, and what happens in between.

`CaseMaker.make` begins from nothing, `CaseMaker.mutate` from cases that reached something new. All
choices come from one random generator, so a seed repeats everything.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Final

from compat.kafka import dispatch
from tests.support.values.raw_batch import CRC_START, HEADER_SIZE, calc_crc32c
from tests.system.fuzz.batches import BatchMaker
from tests.system.fuzz.cases import CONNECTION_COUNT, MEMBER_IDS, Case, Step, Verb
from tests.system.fuzz.schema_requests import Fixed, Part, RequestMaker, uvarint

FLOOD_MAX_BYTES: Final = 150_000
COUNTS: Final = (0, 1, -1, 2, -2, 127, 128, 0x7FFF, 0x10000, (1 << 31) - 1, -(1 << 31))
BROKEN_VARINTS: Final = (b"\x80", b"\xff" * 5, b"\xff" * 9 + b"\x01", b"\x81\x80\x00", b"\xff" * 11)
BYTES: Final = (0, 1, 0x7F, 0x80, 0xFF)
TIMES_MS: Final = (0, 1, 999, 1500, 5_000, 30_000, 300_000, 8_000_000)
HOT_KEYS: Final = (0, 0, 0, 1)
"""Produce and Fetch come as often as all others together: they are the compiled code."""


JOIN_GROUP: Final = 11
MEMBER_KEYS: Final = (8, 9, 11, 12, 13, 14, 14, 14, 15, 42, 47)
"""What members send, and what is done to groups."""

MEMBER: Final[dict[str, Fixed]] = {
    "group_id": "g",
    "group_instance_id": None,
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "protocol_type": "consumer",
    "protocol_name": "range",
}


class CaseMaker:
    """Makes cases from a random generator.

    Args:
        rng: makes all choices.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._requests = RequestMaker(rng, BatchMaker(rng).make)
        self._correlation_id = 0

    def make(self) -> Case:
        """A case from nothing."""
        rng = self._rng
        steps = [self._step() for _ in range(rng.choice((1, 2, 4, 8, 12)))]
        if rng.random() < 0.2:
            at = rng.randrange(len(steps))
            steps[at:at] = self._membership()
        return Case(tuple(steps), is_sync=rng.random() < 0.8)

    def mutate(self, case: Case, others: Sequence[Case]) -> Case:
        """A case that is much like another one."""
        rng = self._rng
        steps = list(case.steps)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(steps)) if steps else 0
            match rng.randrange(8):
                case 0:
                    steps.insert(at, self._step())
                case 1 if len(steps) > 1:
                    del steps[at]
                case 2 if steps:
                    steps.insert(rng.randrange(len(steps)), steps[at])
                case 3:
                    other = rng.choice(others).steps
                    first = rng.randrange(len(other)) if other else 0
                    steps[at:at] = other[first : first + rng.choice((1, 2, 4))]
                case _ if steps and steps[at].verb is Verb.SEND:
                    steps[at] = self._damage_step(steps[at])
        return Case(tuple(steps[:40]), is_sync=case.is_sync ^ (rng.random() < 0.05))

    def _step(self) -> Step:
        rng = self._rng
        connection = rng.choice((0, 0, 0, *range(CONNECTION_COUNT)))
        match rng.randrange(24):
            case 0 | 1:
                return Step(Verb.FLUSH)
            case 2:
                return Step(Verb.TIME, (rng.choice(TIMES_MS),))
            case 3:
                return Step(Verb.EXPIRE)
            case 4:
                return Step(Verb.TAKE, (connection,))
            case 5:
                others = (Verb.CLOSE, Verb.TRIM)
                return Step(rng.choice(others), (connection,))
            case 6:
                if rng.random() < 0.3:
                    return Step(Verb.RESTART)
                if rng.random() < 0.3:
                    return Step(Verb.STEP, (rng.choice((-5000, -1, 1, 1000)),))
                return Step(Verb.HOUSEKEEP)
            case _:
                return self._send(connection)

    def _send(self, connection: int) -> Step:
        rng = self._rng
        data = b"".join(self._framed() for _ in range(rng.choice((1, 1, 1, 2, 4))))
        if rng.random() < 0.04:
            data = data[: rng.randrange(len(data))]
        if rng.random() < 0.02:
            # More than may wait for an answer, or than is done in a turn.
            data *= min(rng.choice((20, 300)), 1 + FLOOD_MAX_BYTES // max(len(data), 1))
        return Step(Verb.SEND, (connection, self._read_size(len(data))), data)

    def _read_size(self, size: int) -> int:
        # In single bytes only what is short: each read is a turn of the broker.
        choices = (0, 0, 0, 0, 0, max(size - 1, 1), size // 2 + 1, 1 if size < 300 else 97)
        return self._rng.choice(choices)

    def _membership(self) -> list[Step]:
        """Members of a consumer group, which seldom come about by chance."""
        rng = self._rng
        steps = []
        members = range(rng.choice((1, 1, 2)))
        for turn in range(rng.choice((1, 2, 3, 4))):
            for member in members:
                # First without a name, then by the one that the broker gave.
                name = MEMBER_IDS[member] if turn else ""
                fixed = MEMBER | {"member_id": name, "generation_id": max(turn, 1)}
                keys = (JOIN_GROUP,) if turn < 2 or rng.random() < 0.3 else ()
                for key in (*keys, *rng.sample(MEMBER_KEYS, rng.randrange(4) if turn else 0)):
                    data = self._framed(key, fixed)
                    steps.append(Step(Verb.SEND, (member, 0), data))
                steps.append(Step(Verb.FLUSH))
            steps.append(Step(Verb.TIME, (rng.choice((1, 600, 600, 11_000)),)))
        return steps

    def _framed(self, key: int | None = None, fixed: Mapping[str, Fixed] | None = None) -> bytes:
        """A request with its size, damaged in one of three cases."""
        rng = self._rng
        apis = {api.key: api for api in dispatch.REGISTRY.apis}
        if key is None:
            key = rng.choice(HOT_KEYS) if rng.random() < 0.5 else rng.choice(list(apis))
        api = apis[key]
        version = rng.randint(api.served_from, api.versions[1])
        self._correlation_id += 1
        parts = self._requests.make(key, version, self._correlation_id, fixed)
        for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
            self._damage_parts(parts)
        body = b"".join(part.data for part in parts)
        if rng.random() < 0.05:
            body = self._damage_bytes(body)
        size = len(body)
        if rng.random() < 0.02:
            size += rng.choice((1, -1, 4, -4, 1 << 20, (1 << 31) - 1 - size, -1 - size))
        return (size & 0xFFFFFFFF).to_bytes(4, "big") + body

    def _damage_parts(self, parts: list[Part]) -> None:
        """Change one field, or the order of some."""
        rng = self._rng
        at = rng.randrange(len(parts))
        end = min(at + rng.choice((1, 1, 2, 5)), len(parts))
        match rng.randrange(8):
            case 0:
                parts[at:at] = parts[at:end] * rng.choice((1, 1, 3, 50))
            case 1 if len(parts) > end:
                del parts[at:end]
            case 2:
                del parts[max(at, 1) :]
            case 3:
                parts.insert(at, Part("octets", rng.randbytes(rng.choice((1, 2, 8, 100)))))
            case _:
                parts[at] = self._damage_part(parts[at])

    def _damage_part(self, part: Part) -> Part:
        rng = self._rng
        if part.kind in {"size", "count"}:
            number = rng.choice(COUNTS)
            if not part.is_compact:
                width = len(part.data)
                masked = number & (1 << 8 * width) - 1
                return Part(part.kind, masked.to_bytes(width, "big"))
            varint = uvarint(max(number, 0)) if rng.random() < 0.7 else rng.choice(BROKEN_VARINTS)
            return Part(part.kind, varint, is_compact=True)
        if part.kind == "tags":
            tags = uvarint(rng.choice((0, 1, 2, 1 << 31))) + rng.randbytes(rng.randrange(6))
            return Part("tags", rng.choice((tags, *BROKEN_VARINTS)))
        if part.kind in {"octets", "records"}:
            return Part(part.kind, self._damage_bytes(part.data))
        number = rng.choice(COUNTS) & (1 << 8 * len(part.data)) - 1
        return Part(part.kind, number.to_bytes(len(part.data), "big"))

    def _damage_bytes(self, data: bytes) -> bytes:
        rng = self._rng
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            if not damaged:
                return rng.randbytes(3)
            pos = rng.randrange(len(damaged))
            end = min(pos + rng.choice((1, 2, 4, 8, 30)), len(damaged))
            match rng.randrange(6):
                case 0:
                    damaged[pos] = rng.choice(BYTES)
                case 1:
                    damaged[pos] ^= 1 << rng.randrange(8)
                case 2:
                    damaged[pos:pos] = rng.randbytes(rng.randrange(1, 6))
                case 3:
                    del damaged[pos:end]
                case 4:
                    damaged[pos:pos] = damaged[pos:end]
                case _:
                    number = rng.choice(COUNTS) & 0xFFFFFFFF
                    damaged[pos : pos + 4] = number.to_bytes(4, "big")
        return bytes(damaged)

    def _damage_step(self, step: Step) -> Step:
        """Damage bytes; then mostly put sizes and CRCs right, so that the rest is looked at."""
        rng = self._rng
        connection, read_size = step.numbers
        if rng.random() < 0.1:
            read_size = self._read_size(len(step.data))
        frames = split_frames(step.data)
        if not frames or rng.random() < 0.05:
            return Step(step.verb, (connection, read_size), self._damage_bytes(step.data))
        at = rng.randrange(len(frames))
        frames[at] = self._damage_bytes(frames[at])
        if rng.random() < 0.8:
            frames[at] = with_right_crcs(frames[at])
        data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        return Step(step.verb, (connection, read_size), data)


def split_frames(data: bytes) -> list[bytes]:
    """The requests in what is sent, without their sizes; what follows a wrong size is one."""
    frames = []
    start = 0
    while start + 4 <= len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big", signed=True)
        if not start + 4 <= end <= len(data):
            end = len(data)
        frames.append(data[start + 4 : end])
        start = end
    return frames


def with_right_crcs(data: bytes) -> bytes:
    """The same with the right CRC in whatever looks like a batch."""
    out = bytearray(data)
    pos = 0
    while (pos := data.find(b"\x02", pos + 1)) != -1:
        start = pos - 16
        if start < 0 or start + HEADER_SIZE > len(data):
            continue
        end = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big", signed=True)
        if start + HEADER_SIZE <= end <= len(data):
            crc = calc_crc32c(bytes(out[start + CRC_START : end]))
            out[start + 17 : start + 21] = crc.to_bytes(4, "big")
    return bytes(out)
