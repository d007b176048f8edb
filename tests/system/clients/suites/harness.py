"""What the programs of the Python clients share: features by name, tried side by side, reported.

A program is `python -m tests.system.clients.suites.NAME ADDRESS [FEATURE ...]`. For each feature it
writes one line of JSON to standard output: `feature`, `ok`, `detail` (what went wrong) and
`seconds`.
"""

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

Header = tuple[str, bytes]

WORKER_COUNT: Final = 4
"""Features at a time: most of them wait most of the time."""

LIMIT_S: Final = 60.0
"""For anything that should happen at once."""

DELAY_MS: Final = 300
HEADERS: Final[tuple[Header, ...]] = (("a", b"1"), ("b", b"\x00\xff"), ("a", b""))
METADATA: Final = "sp\u00e4ter \u2713"
TIME_MS: Final = 1_700_000_000_000

GAP_RECORDS: Final = [(0, b"a"), (1, b"b"), (7, b"c"), (8, b"d")]
"""Of a topic that exists: tests/support/harness/gap_scenario.py. Empty batches close the gaps."""
GAP_END: Final = 1_009
GAP_STARTS: Final = (9, 500)
"""Offsets that are gone, at which a consumer may stand."""


class Suite:
    """The features of one client.

    Args:
        client: name of the client; every topic and group begins with it.
    """

    def __init__(self, client: str) -> None:
        self.address = sys.argv[1] if len(sys.argv) > 1 else ""
        self._client = client
        self._features: dict[str, Callable[[str], None]] = {}
        self._lock = threading.Lock()

    def feature(self, function: Callable[[str], None]) -> Callable[[str], None]:
        """Take the function as the feature that it is named after.

        It is called with a name for topic and group that nobody else uses.
        """
        self._features[function.__name__] = function
        return function

    def run(self) -> None:
        """Try the features that the command line names, or all."""
        names = sys.argv[2:] or list(self._features)
        with ThreadPoolExecutor(WORKER_COUNT) as pool:
            list(pool.map(self._try, names))

    def _try(self, name: str) -> None:
        begin_s = time.monotonic()
        detail = ""
        try:
            self._features[name](f"{self._client}-{name}".replace("_", "-"))
        except BaseException:  # noqa: BLE001 - whatever it is, it is the result of this feature
            detail = traceback.format_exc()
        self.report(name, detail, time.monotonic() - begin_s)

    def report(self, name: str, detail: str, seconds: float) -> None:
        """Write the line of one feature; it worked if there is no detail."""
        line = {"feature": name, "ok": not detail, "detail": detail, "seconds": round(seconds, 2)}
        with self._lock:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_until(is_true: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Ask again and again.

    Raises:
        AssertionError: it did not become true in time.
    """
    deadline_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline_s, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


def check_delayed(headers: list[Header], sent_ms: int, due_ms: int | None = None) -> None:
    """Check a delivered record: marked with its due time, which is over.

    Args:
        sent_ms: wall time before it was sent.
        due_ms: the time asked for; none if it was DELAY_MS after the broker got it.
    """
    added = dict(headers)
    accepted_ms, due_header_ms = int(added["x-accepted-at"]), int(added["x-due-at"])
    assert accepted_ms >= sent_ms, (accepted_ms, sent_ms)
    assert due_header_ms == (accepted_ms + DELAY_MS if due_ms is None else due_ms), headers
    assert now_ms() >= due_header_ms, "delivered too early"


def cancelled_records() -> list[tuple[bytes, list[Header]]]:
    """A record that is cancelled, and one that comes after it."""
    return [
        (b"cancelled", [("x-delay", b"500ms"), ("x-deliver-id", b"one")]),
        (b"", [("x-deliver-cancel", b"one")]),
        (b"end", [("x-delay", b"700ms")]),
    ]


def replaced_records() -> list[tuple[bytes, list[Header]]]:
    """A record that is replaced by one due later, and one that comes after it."""
    return [
        (b"old", [("x-delay", b"400ms"), ("x-deliver-id", b"one")]),
        (b"new", [("x-delay", b"500ms"), ("x-deliver-id", b"one")]),
        (b"end", [("x-delay", b"700ms")]),
    ]


def codec_values() -> list[bytes]:
    """Records that are worth compressing."""
    return [b"value %d " % index * 50 for index in range(100)]
