"""What the workers in Python have in common: they show each record, and fail as it asks.

    WORKER ADDRESS TOPIC GROUP COUNT work|crash

A worker handles COUNT records of TOPIC and GROUP.retry with the function of docs/CLIENTS.md. It
prints a line of JSON for each, with keys and values in hexadecimal. A record whose header `fails`
is n fails until its attempt n. `crash` ends the worker with status 3 where the function commits.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Final, NoReturn

LIMIT_S: Final = 60.0
CRASHED: Final = 3


class HandlerError(Exception):
    """The work could not be done; its text is not all valid UTF-8."""

    def __repr__(self) -> str:
        return f"HandlerError: {self}"


class Work:
    """The command line, and what is left to do."""

    def __init__(self) -> None:
        self.address, self.topic, self.group, count, mode = sys.argv[1:]
        self.topics = [self.topic, f"{self.group}.retry"]
        self.crashes = mode == "crash"
        self._left = int(count)
        self._deadline_s = time.monotonic() + LIMIT_S

    @property
    def is_left(self) -> bool:
        """Whether there is a record to handle, and time for it."""
        return self._left > 0 and time.monotonic() < self._deadline_s

    def handle(
        self,
        place: tuple[str, int, int],
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Show a record with its topic, partition and offset; fail if it asks for that."""
        self._left -= 1
        shown = {
            "place": place,
            "key": _hex(key),
            "value": _hex(value),
            "headers": [[name, _hex(one)] for name, one in headers],
        }
        sys.stdout.write(json.dumps(shown) + "\n")
        sys.stdout.flush()
        last = dict(headers)
        attempt = int(last.get("x-retry-attempt") or 0)
        if attempt < int(last.get("fails") or 0):
            raise HandlerError(f"attempt {attempt} \u2713 \udc80 " + "." * 2_000)


def _hex(octets: bytes | None) -> str | None:
    return None if octets is None else octets.hex()


class CrashingConsumer:
    """A consumer whose process ends when it commits."""

    def commit(self, *_: object, **__: object) -> NoReturn:
        sys.exit(CRASHED)
