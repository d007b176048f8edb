"""Record batches for the fuzzer: sound ones with delay headers of every form, and damaged ones.

The damage is done before the CRC is computed, so that it gets past it, or behind it.
"""

import random
from typing import Any, Final

from tests.support.values.raw_batch import CREATED_MS, compress, make_batch, varint

DELAYS: Final = (
    *(b"0", b"1", b"1500", b"250ms", b"30s", b"2h", b"7d", b"PT15M", b"P1DT2H", b"PT1.5S", b"P2W"),
    *(b"0001", b"99999999999999999999", b"1 s", b"-1", b"", b"s", b"PT", b"P1Y", b"x" * 64),
    *((1500).to_bytes(8, "big"), b"\x01" + bytes(7), b"9" * 65),
    *(b"-30s", b"-PT1S", b'"30s"', b'"', (1500).to_bytes(4, "big"), b"\xff" * 4, b"\xff" * 8),
)
TIMES: Final = (
    *(b"1767225600000", b"1767225603000", b"2026-01-01T00:00:01Z", b"2026-01-01 00:00:02+01:00"),
    *(b"1767225", b"2026-02-30T00:00:00Z", b"2026-01-01T24:00:00Z", b"9999-12-31T23:59:59Z"),
    *((1_767_225_601_000).to_bytes(8, "big"), b"99999999999999"),
    *(b"2026-01-01T00:01Z", b'"2026-01-01T00:00:01Z"', b"1767225600000000", b"\xff" * 8, bytes(4)),
)
LEVELS: Final = (
    *(b"0", b"1", b"3", b"18", b"19", b"4294967297", b"x", bytes(7) + b"\x02", bytes(3) + b"\x02"),
    *(b"-1", b'"3"'),
)
IDS: Final = (b"a", b"b", b"c", b"", b"\x00\xff", b"i" * 255, b"i" * 256)

HEADERS: Final[dict[bytes, tuple[bytes, ...]]] = {
    b"x-delay": DELAYS,
    b"x-deliver-at": TIMES,
    b"x-delay-level": LEVELS,
    b"x-deliver-id": IDS,
    b"x-deliver-cancel": IDS,
    b"x-accepted-at": (b"1",),
    b"x-due-at": (b"1",),
    b"x-due-id": (b"a",),
    b"X-Delay": (b"5",),
    b"X-DELIVER-ID": IDS,
    b"x-Due-At": (b"1",),
    b"x-delay-ms": (b"5",),
    b"x_delay": (b"5",),
    b"x-retry-group": (b"g",),
    b"x-deliver-reply": (b"r", b"t", b"a b"),
    b"X-Cron": (b"* * * * *",),
    b"x-delay2": (b"5",),
    b"": (b"", b"v"),
    b"trace": (b"", b"v" * 200),
}

SOUND: Final = (
    (b"x-delay", b"1500"),
    (b"x-delay", b"30s"),
    (b"x-deliver-at", b"2026-01-01T00:00:01Z"),
    (b"x-delay-level", b"3"),
    (b"trace", b"a"),
)
"""What is never refused by itself, so that timers come about."""

FIELDS: Final[dict[str, tuple[int, ...]]] = {
    "base_offset": (1, -1, (1 << 63) - 1),
    "length": (0, 48, 49, 50, -1, (1 << 31) - 1),
    "leader_epoch": (0, 5, -(1 << 31)),
    "magic": (0, 1, 3, -1),
    "crc": (0,),
    "attributes": (1, 2, 3, 4, 5, 7, 8, 16, 32, 64, -1),
    "last_delta": (-1, 0, 1, 5, (1 << 31) - 1),
    "base_timestamp": (-1, 0, -(1 << 63), (1 << 63) - 1, 1 << 62),
    "max_timestamp": (-1, 0, -(1 << 63), (1 << 63) - 1),
    "producer_id": (0, 1, 5, (1 << 63) - 1, -2),
    "producer_epoch": (0, 1, -1, (1 << 15) - 1),
    "base_sequence": (0, 1, 2, (1 << 31) - 1, -1),
}

VARINTS: Final = (0, 1, -1, -2, 63, 64, 1 << 31, -(1 << 31), 1 << 62, (1 << 63) - 1, -(1 << 63))


def encode_pieces(pieces: list[int | bytes]) -> bytes:
    """A record of varints and bytes; the first is by how much the size of the record is wrong."""
    body = b"".join(varint(piece) if isinstance(piece, int) else piece for piece in pieces[1:])
    wrong_by = pieces[0]
    assert isinstance(wrong_by, int)
    return varint(len(body) + wrong_by) + body


class BatchMaker:
    """Makes the content of fields of records; `rng` chooses."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def make(self) -> bytes | None:
        """One batch mostly; sometimes none, or more than one."""
        rng = self._rng
        chance = rng.random()
        if chance < 0.02:
            return rng.choice((None, b""))
        if chance < 0.04:
            return self._batch() + self._batch()
        if chance < 0.06:
            data = self._batch()
            return data[: rng.randrange(len(data))]
        if chance < 0.1:
            data = bytearray(self._batch())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(data)
        return self._batch()

    def _batch(self) -> bytes:
        rng = self._rng
        codec = rng.choice((0, 0, 0, 0, 1, 2, 3, 4))
        fields: dict[str, Any] = {"max_timestamp": CREATED_MS}
        if rng.random() < 0.15:
            for name in rng.sample(sorted(FIELDS), rng.choice((1, 1, 2))):
                fields[name] = rng.choice(FIELDS[name])
        if rng.random() < 0.2:
            # An idempotent producer, often with the sequence that comes next.
            fields |= {"producer_id": rng.randrange(3), "producer_epoch": 0}
            fields["base_sequence"] = rng.randrange(4)
        count = rng.choice((1, 1, 2, 3, 5))
        section = b"".join(self._records(count))
        if rng.random() < 0.1:
            section = self._damage(section)
            count = rng.choice((count, count, 0, 1, 100))
        if codec:
            section = compress(codec, section)
            if rng.random() < 0.05:
                section = self._damage(section)
        return make_batch(section, codec=codec, count=count, **fields)

    def _records(self, count: int) -> list[bytes]:
        """The records in pieces, one of which is often no longer true."""
        rng = self._rng
        records = [self._record(index) for index in range(count)]
        if rng.random() < 0.2:
            pieces = rng.choice((records[-1], rng.choice(records)))
            numbers = [index for index, piece in enumerate(pieces) if isinstance(piece, int)]
            # The last one is the size of what ends the record, and often the request.
            at = rng.choice((numbers[-1], numbers[-1], *numbers))
            was = pieces[at]
            assert isinstance(was, int)
            pieces[at] = rng.choice((was + 1, was + 1, was - 1, was + 10, -1, 0, *VARINTS))
        return [encode_pieces(pieces) for pieces in records]

    def _record(self, index: int) -> list[int | bytes]:
        """A record in pieces, see `encode_pieces`."""
        rng = self._rng
        pieces: list[int | bytes] = [0, b"\0"]
        pieces.append(rng.choice(VARINTS) if rng.random() < 0.02 else rng.randrange(-5, 50))
        pieces.append(index)
        pieces += self._sized(rng.choice((None, b"", b"k")))
        pieces += self._sized(rng.choice((None, b"", b"v", rng.randbytes(40), b"v" * 300)))
        headers = self._headers()
        pieces.append(len(headers))
        for name, value in headers:
            pieces += self._sized(name)
            pieces += self._sized(value)
        return pieces

    def _headers(self) -> list[tuple[bytes, bytes | None]]:
        rng = self._rng
        if rng.random() < 0.4:
            named = [(b"x-deliver-id", rng.choice(IDS[:3]))] if rng.random() < 0.4 else []
            return [rng.choice(SOUND), *named]
        names = [rng.choice(tuple(HEADERS)) for _ in range(rng.choice((0, 0, 1, 1, 2, 4)))]
        return [(name, rng.choice((*HEADERS[name], None))) for name in names]

    @staticmethod
    def _sized(value: bytes | None) -> list[int | bytes]:
        return [-1, b""] if value is None else [len(value), value]

    def _damage(self, section: bytes) -> bytes:
        rng = self._rng
        if not section or rng.random() < 0.3:
            return section
        pos = rng.randrange(len(section))
        end = rng.randrange(pos, len(section)) + 1
        match rng.randrange(5):
            case 0:
                return section[:pos]
            case 1:
                return section[:pos] + varint(rng.choice(VARINTS)) + section[pos + 1 :]
            case 2:
                return section[:pos] + section[end:]
            case 3:
                return section[:end] + section[pos:]
            case _:
                return section + rng.randbytes(rng.randrange(1, 20))
