"""The names of all files and directories below the data directory.

    commitlog/00000000000000000000          one segment, named by its base position
    commitlog/spare                         a file that will be a segment again
    consumequeue/TOPIC/QUEUE/000...         units of one partition, named by its first byte
    timer/ index/                           pending timers and users' ids as of a checkpoint
    control/                                the rest of what is known at a checkpoint
    checkpoint                              which of these belong together; how far the log goes
    lost/POSITION-EPOCH                     what a start has cut off the log at that position
    abort                                   exists while a broker runs
    lock                                    held while a broker runs

Layer 2.
"""

from pathlib import Path
from typing import Final

NAME_DIGITS: Final = 20
"""Enough for every i64, so that names sort as their numbers do."""


SPARE_NAME: Final = "spare"
"""Of a file beside the segments; what is in it means nothing."""


def segment_name(base: int) -> str:
    """The file name of the segment that begins at log position `base`, bytes, >= 0."""
    return f"{base:0{NAME_DIGITS}d}"


def parse_segment_name(name: str) -> int | None:
    """The base position that a file name stands for; None if it is not a segment's name."""
    if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
        return None
    return int(name)


def parse_lost_name(name: str) -> tuple[int, int] | None:
    """The log position and the epoch that a name below `lost/` stands for; None if it is none."""
    pos, dash, epoch = name.partition("-")
    base = parse_segment_name(pos)
    if base is None or not dash or not (epoch.isascii() and epoch.isdigit()):
        return None
    return base, int(epoch)


class DataPaths:
    """Where things are in one data directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commit_log = root / "commitlog"
        self.consume_queue = root / "consumequeue"
        self.timer = root / "timer"
        self.index = root / "index"
        self.control = root / "control"
        self.abort = root / "abort"
        self.checkpoint = root / "checkpoint"
        self.lost = root / "lost"

    def directories(self) -> tuple[Path, ...]:
        """Every directory that a store has, parents first."""
        return (
            self.root,
            self.commit_log,
            self.consume_queue,
            self.timer,
            self.index,
            self.control,
        )

    def control_file(self, number: int) -> Path:
        """The control file of one saved state."""
        return self.control / segment_name(number)

    def lost_file(self, pos: int, epoch: int) -> Path:
        """What the start of an epoch has cut off the log at a position."""
        return self.lost / f"{segment_name(pos)}-{epoch}"

    def queue(self, topic: str, partition: int) -> Path:
        """The directory of one partition's ConsumeQueue."""
        return self.consume_queue / topic / str(partition)
