"""Every field of every request of every version, at its bounds: cases that need no luck.

`python -m tests.system.fuzz.sanitized tests.system.fuzz.sweep` runs them. The batches are swept
likewise, each length and count of the last record, at the very end of a request.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from compat.kafka import dispatch
from tests.support.values.raw_batch import make_batch
from tests.system.fuzz.batches import SOUND, BatchMaker, encode_pieces
from tests.system.fuzz.cases import Case, Step, Verb
from tests.system.fuzz.harness import run_case
from tests.system.fuzz.schema_requests import Part, RequestMaker, uvarint

BOUNDS: Final = (0, 1, -1, -2, 0x7F, 0x80, 0x7FFF, 0x7FFFFFFF, -0x80000000)
VARINTS: Final = (b"\x80", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 10)
LENGTHS: Final = (*range(-3, 4), 10, 1 << 31, 1 << 62)
"""By how much a length in a record is wrong."""

SENDS_PER_CASE: Final = 500
"""One broker serves so many; to start one takes as long as some hundred requests."""

PRODUCE: Final = 0

RECORDS: Final = (*SOUND, (b"x-deliver-id", b"id"), (b"x-deliver-cancel", b"id"))
"""The last header of a record."""


def sweep() -> Iterator[Case]:
    """All cases, always the same."""
    for api in dispatch.REGISTRY.apis:
        for version in range(api.served_from, api.versions[1] + 1):
            yield from in_cases(list(swept_requests(api.key, version)))
    api = next(api for api in dispatch.REGISTRY.apis if api.key == PRODUCE)
    for version in (api.served_from, api.versions[1]):
        yield from in_cases(list(swept_batches(version)))


def in_cases(frames: Sequence[bytes]) -> Iterator[Case]:
    """Requests, each in a read of its own, some in each case."""
    for start in range(0, len(frames), SENDS_PER_CASE):
        steps = []
        for index, frame in enumerate(frames[start : start + SENDS_PER_CASE]):
            data = len(frame).to_bytes(4, "big") + frame
            steps.append(Step(Verb.SEND, (index % 2, 0), data))
            steps.append(Step(Verb.TAKE, (index % 2,)))
        yield Case(tuple(steps))


def swept_requests(key: int, version: int) -> Iterator[bytes]:
    """A request with one item in each array, then with each of its parts at each bound."""
    rng = random.Random(f"{key} {version}")
    maker = RequestMaker(rng, BatchMaker(rng).make, counts=(1,))
    parts = maker.make(key, version, 1, {"transactional_id": None, "acks": -1})
    yield b"".join(part.data for part in parts)
    for at, part in enumerate(parts):
        before = b"".join(other.data for other in parts[:at])
        after = b"".join(other.data for other in parts[at + 1 :])
        yield before
        for data in changes(part):
            yield before + data + after


def changes(part: Part) -> Iterator[bytes]:
    """What may stand in the place of a part."""
    if part.is_compact or part.kind == "tags":
        yield from (uvarint(bound) for bound in BOUNDS if bound >= 0)
        yield from VARINTS
    elif part.kind in {"octets", "records"}:
        yield part.data + b"\x00"
        if part.data:
            yield part.data[:-1]
            yield b"\xff" * len(part.data)
    else:
        width = len(part.data)
        yield from {
            (bound & (1 << 8 * width) - 1).to_bytes(width, "big") for bound in sorted(BOUNDS)
        }


def swept_batches(version: int) -> Iterator[bytes]:
    """Produce requests that end with a record of which one length is wrong."""
    rng = random.Random(version)
    for header in RECORDS:
        pieces = record_of(header)
        numbers = [at for at, piece in enumerate(pieces) if isinstance(piece, int)]
        for at in numbers:
            for more in LENGTHS:
                changed = list(pieces)
                was = changed[at]
                assert isinstance(was, int)
                changed[at] = was + more
                batch = make_batch(encode_pieces(changed), count=1)
                maker = RequestMaker(rng, lambda batch=batch: batch, counts=(1,))
                fixed = {"transactional_id": None, "acks": -1, "name": "t", "index": 0}
                yield b"".join(part.data for part in maker.make(PRODUCE, version, 1, fixed))


def record_of(header: tuple[bytes, bytes]) -> list[int | bytes]:
    """A record in pieces, see `encode_pieces`."""
    name, value = header
    head: list[int | bytes] = [0, b"\0", 0, 0, -1, 1, b"v"]
    return [*head, 2, 5, b"trace", 1, b"1", len(name), name, len(value), value]


def main() -> int:
    """Run them all; an error ends it."""
    count = 0
    for case in sweep():
        try:
            run_case(case)
        except Exception:
            sys.stderr.write(case.text())
            raise
        count += 1
    sys.stderr.write(f"sweep: {count} cases, nothing found\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
