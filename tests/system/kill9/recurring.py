"""Records that recur through the crashes: each instant comes, and no instant twice."""

import time
from typing import Final

from confluent_kafka import Producer

from tests.support.oracles.history import ACCEPTED_AT, DUE_AT, DUE_ID
from tests.support.oracles.history_events import Consumed, Event
from tests.system.kill9.workload import CLIENT, IDEMPOTENT, RECURS, now_ms

PERIOD_MS: Final = 1_000
KINDS: Final = ("all", "once", "none")
"""What becomes of missed instants; each is the id of a record, too."""

LEAST_MS: Final = 4 * PERIOD_MS
"""From the start to the cancels, so that some instants come in a short run as well."""

LEAST_COUNTS: Final = {"all": 2, "once": 1, "none": 0}

FLUSH_LIMIT_S: Final = 150.0


class RecurringLoad:
    """Sends a record of each kind, and cancels them.

    Args:
        address: HOST:PORT of the broker.
    """

    def __init__(self, address: str) -> None:
        self._producer = Producer({"bootstrap.servers": address, **CLIENT, **IDEMPOTENT})
        self._sent_ms = self._cancelled_ms = 0

    def start(self) -> None:
        """Send the records; the broker has accepted them when this returns."""
        self._sent_ms = now_ms()
        for kind in KINDS:
            self._send(
                (
                    ("x-cron", b"* * * * * *"),
                    ("x-cron-missed", kind.encode()),
                    ("x-deliver-id", kind.encode()),
                    ("own", b"1"),
                )
            )
        self._flush()

    def finish(self) -> None:
        """Cancel them; the broker has done so when this returns."""
        time.sleep(max(self._sent_ms + LEAST_MS - now_ms(), 0) / 1_000)
        for kind in KINDS:
            self._send((("x-deliver-cancel", kind.encode()),))
        self._flush()
        self._cancelled_ms = now_ms()

    def _send(self, headers: tuple[tuple[str, bytes], ...]) -> None:
        self._producer.produce(RECURS, b"v", b"k", 0, headers=list(headers))

    def _flush(self) -> None:
        assert self._producer.flush(FLUSH_LIMIT_S) == 0, "recurring records without an answer"

    def problems(self, events: list[Event]) -> list[str]:
        """Return what is wrong with what the last reader found."""
        readings = [
            each
            for each in events
            if isinstance(each, Consumed) and (each.reader, each.place.topic) == ("final", RECURS)
        ]
        readings.sort(key=lambda each: each.place.offset)
        found = [problem for kind in KINDS for problem in self._of_kind(kind, readings)]
        named = {each for each in readings if dict(each.headers).get(DUE_ID, b"") in _IDS}
        return found + [f"nobody sent {each}" for each in readings if each not in named]

    def _of_kind(self, kind: str, readings: list[Consumed]) -> list[str]:
        mine = [each for each in readings if dict(each.headers).get(DUE_ID) == kind.encode()]
        due = [int(dict(each.headers)[DUE_AT]) for each in mine]
        problems = [
            f"{kind}: {each}" for each in mine if not _is_whole(each) or each.at_ms < _due(each)
        ]
        if due != sorted(set(due)) or any(each % PERIOD_MS for each in due):
            problems.append(f"{kind}: instants that come twice, or in another order: {due}")
        if due and due[-1] > self._cancelled_ms:
            problems.append(f"{kind}: due at {due[-1]}, cancelled at {self._cancelled_ms}")
        if kind == "all" and mine:
            accepted_ms = int(dict(mine[0].headers)[ACCEPTED_AT])
            first = accepted_ms - accepted_ms % PERIOD_MS + PERIOD_MS
            if due != list(range(first, due[-1] + 1, PERIOD_MS)):
                problems.append(f"{kind}: accepted at {accepted_ms}, instants are missing: {due}")
        if len(due) < LEAST_COUNTS[kind]:
            problems.append(f"{kind}: it came {len(due)} times")
        return problems


_IDS: Final = {kind.encode() for kind in KINDS}


def _due(reading: Consumed) -> int:
    return int(dict(reading.headers)[DUE_AT])


def _is_whole(reading: Consumed) -> bool:
    own, *added = reading.headers
    names = [name for name, _ in added]
    return (reading.key, reading.value, own) == (b"k", b"v", ("own", b"1")) and names == [
        ACCEPTED_AT,
        DUE_AT,
        DUE_ID,
    ]
