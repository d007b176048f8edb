"""What the fuzzer does to a broker, as a list of steps that can be kept in a file and run again.

One step a line: its name and its arguments, bytes in hexadecimal. So a finding is a small text file
that a test runs for good.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONNECTION_COUNT: Final = 3

TOPIC_IDS: Final = tuple(b"id of a topic: %d" % number for number in range(3))
"""16 bytes each, which the harness replaces by the ids that the broker gave its topics."""

CLIENT_ID: Final = "fuzz"
MEMBER_IDS: Final = tuple(f"{CLIENT_ID}-id of a member of a consumer group {n}" for n in (1, 2))
"""One for each of the first connections, replaced likewise: as long as those that the broker makes
for this client id."""


class Verb(enum.Enum):
    """What a step does. Those with a connection have its number as their first argument."""

    SEND = "send"  # connection, size of a read (0: all at once), bytes
    TAKE = "take"  # connection: send what may leave
    CLOSE = "close"  # connection
    TRIM = "trim"  # connection: give back its memory
    FLUSH = "flush"
    EXPIRE = "expire"  # the waits of all fetches are over
    TIME = "time"  # ms that pass
    STEP = "step"  # ms by which the wall clock is set forwards or back
    HOUSEKEEP = "housekeep"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Args:
        verb: what is done.
        numbers: its arguments, see `Verb`.
        data: what is sent.
    """

    verb: Verb
    numbers: tuple[int, ...] = ()
    data: bytes = b""

    def line(self) -> str:
        """The step in a file."""
        words = [self.verb.value, *map(str, self.numbers)]
        if self.verb is Verb.SEND:
            words.append(self.data.hex())
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Case:
    """Steps of one run of a broker; `is_sync` is its flush mode."""

    steps: tuple[Step, ...]
    is_sync: bool = True

    @property
    def size(self) -> int:
        """What counts when one case is preferred to another that reaches as much."""
        return sum(4 + len(step.data) for step in self.steps)

    def text(self, comments: Iterable[str] = ()) -> str:
        """The case as a file."""
        lines = [f"# {comment}" for comment in comments]
        lines.append("sync" if self.is_sync else "async")
        return "\n".join([*lines, *(step.line() for step in self.steps)]) + "\n"


def parse_case(text: str) -> Case:
    """Read what `Case.text` wrote."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0] in {"sync", "async"}
    return Case(tuple(_parse_step(line) for line in lines[1:]), lines[0] == "sync")


def _parse_step(line: str) -> Step:
    verb, *words = line.split(" ")
    if verb == Verb.SEND.value:
        return Step(Verb.SEND, tuple(map(int, words[:2])), bytes.fromhex(words[2]))
    return Step(Verb(verb), tuple(map(int, words)))


def load_corpus(directory: Path) -> dict[str, Case]:
    """The cases of a directory by file name, in the order of their names."""
    return {path.name: parse_case(path.read_text()) for path in sorted(directory.glob("*.case"))}
