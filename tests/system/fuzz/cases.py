"""What the fuzzer does to a broker: a list of steps that can be saved in a file and replayed.

One step a line: its name and its arguments, bytes in hexadecimal. A finding is a small text file
that a test replays from then on. The corpus is a directory: a file NAME.case for each finding, and
all seeds, which are kept for the branches they reach, in SEEDS_NAME, separated by empty lines.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONNECTION_COUNT: Final = 3

SEEDS_NAME: Final = "seeds.txt"

TOPIC_IDS: Final = tuple(b"id of a topic: %d" % number for number in range(3))
"""16 bytes each, which the harness replaces with the broker's topic ids."""

CLIENT_ID: Final = "fuzz"
MEMBER_IDS: Final = tuple(f"{CLIENT_ID}-id of a member of a consumer group {n}" for n in (1, 2))
"""One for each of the first connections, replaced likewise: as long as the member ids that the
broker makes for this client id."""


class Verb(enum.Enum):
    """What a step does. Those with a connection have its number as their first argument."""

    SEND = "send"  # connection, size of a read (0: all at once), bytes
    TAKE = "take"  # connection: receive the answers that may leave
    CLOSE = "close"  # connection
    TRIM = "trim"  # connection: release its memory
    FLUSH = "flush"
    EXPIRE = "expire"  # the waits of all fetches time out
    TIME = "time"  # ms that pass
    STEP = "step"  # ms by which the wall clock is set forwards or back
    HOUSEKEEP = "housekeep"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Args:
        verb: the action.
        numbers: its arguments, see `Verb`.
        data: what is sent.
    """

    verb: Verb
    numbers: tuple[int, ...] = ()
    data: bytes = b""

    def line(self) -> str:
        """The step as a line of a file."""
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
        """The smaller of two cases that reach the same branches is kept."""
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
    """Return the cases of a directory by name: its seeds, then its files in order."""
    cases = {}
    seeds = directory / SEEDS_NAME
    if seeds.exists():
        for number, text in enumerate(seeds.read_text().split("\n\n"), start=1):
            cases[f"{SEEDS_NAME} {number}"] = parse_case(text)
    for path in sorted(directory.glob("*.case")):
        cases[path.name] = parse_case(path.read_text())
    return cases


def save_seeds(directory: Path, cases: Iterable[Case]) -> None:
    """Write the seeds of a corpus, in place of those it has."""
    (directory / SEEDS_NAME).write_text("\n".join(case.text() for case in cases))
