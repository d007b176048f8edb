"""The names of all files and directories below the data directory.

    commitlog/00000000000000000000          one segment, named by its base position
    commitlog/spare                         a file to be reused as a segment; no frame in it is at
                                            or after the end of the log
    consumequeue/TOPIC/QUEUE/000...         units of one partition, named by its first byte
    timer/ index/                           pending timers and users' ids as of a checkpoint
    timerlog/                               the same timers in the order of their due times
    keyindex/FROM-TO                        where keys and ids are, in that range of the log
    control/                                all other state as of a checkpoint
    checkpoint                              which of these belong together; the end of the log
    lost/POSITION-EPOCH                     bytes that a start cut off the log at that position, or
                                            that bytes of the other node replaced
    diverged/POSITION-EPOCH                 bytes that a slave had and its master lacked
    role                                    which node of the pair is the master, since which term
    role.new                                a role file that is being written
    caught_up                               says that this slave has had its master's whole log
    node                                    which node of a pair this is
    snapshots/NAME/                         a snapshot: `snapshot`, commitlog/ and checkpoint
    snapshot                                says that no broker may start on the directory, and why
    manifest                                what a backup has
    restored                                says that the log was restored and not yet served
    abort                                   exists while a broker runs
    lock                                    held while a broker runs

Layer 2.
"""

from pathlib import Path
from typing import Final

NAME_DIGITS: Final = 20
"""Enough for every i64, so that names sort as their numbers do."""


SPARE_NAME: Final = "spare"
"""Name of a file next to the segments; its content has no meaning to a reader."""


def segment_name(base: int) -> str:
    """Return the file name of the segment that begins at log position `base` (>= 0)."""
    return f"{base:0{NAME_DIGITS}d}"


def parse_segment_name(name: str) -> int | None:
    """Return the base position in a file name; None if it is not the name of a segment."""
    if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
        return None
    return int(name)


def parse_lost_name(name: str) -> tuple[int, int] | None:
    """Return the log position and the epoch in a name below `lost/`; None if it is not valid."""
    pos, dash, epoch = name.partition("-")
    base = parse_segment_name(pos)
    if base is None or not dash or not (epoch.isascii() and epoch.isdigit()):
        return None
    return base, int(epoch)


def range_name(from_pos: int, to_pos: int) -> str:
    """Return the file name of what is about a range of the log, positions >= 0."""
    return f"{segment_name(from_pos)}-{segment_name(to_pos)}"


def parse_range_name(name: str) -> tuple[int, int] | None:
    """Return the range in a name of `range_name`; None if it is not valid."""
    first, dash, last = name.partition("-")
    from_pos, to_pos = parse_segment_name(first), parse_segment_name(last)
    if from_pos is None or to_pos is None or not dash:
        return None
    return from_pos, to_pos


class DataPaths:
    """The paths of one data directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commit_log = root / "commitlog"
        self.consume_queue = root / "consumequeue"
        self.timer = root / "timer"
        self.index = root / "index"
        self.timer_log = root / "timerlog"
        self.key_index = root / "keyindex"
        self.control = root / "control"
        self.abort = root / "abort"
        self.checkpoint = root / "checkpoint"
        self.lost = root / "lost"
        self.diverged = root / "diverged"
        self.snapshots = root / "snapshots"
        self.snapshot_mark = root / "snapshot"
        self.manifest = root / "manifest"
        self.restored_mark = root / "restored"
        self.node = root / "node"
        self.role = root / "role"
        self.new_role = root / "role.new"
        self.caught_up = root / "caught_up"

    def directories(self) -> tuple[Path, ...]:
        """All directories of a store, parents first."""
        return (
            self.root,
            self.commit_log,
            self.consume_queue,
            self.timer,
            self.index,
            self.timer_log,
            self.control,
        )

    def snapshot(self, number: int) -> Path:
        """The state snapshot with that number."""
        return self.control / segment_name(number)

    def lost_file(self, pos: int, epoch: int) -> Path:
        """The file of the bytes that the start of an epoch cut off the log at a position."""
        return self.lost / f"{segment_name(pos)}-{epoch}"

    def diverged_file(self, pos: int, epoch: int) -> Path:
        """The file of the bytes from a log position on that a slave had and its master lacked."""
        return self.diverged / f"{segment_name(pos)}-{epoch}"

    def diverged_log(self, pos: int, epoch: int) -> Path:
        """The directory of a log from a position on that shared nothing with the master's."""
        return self.diverged / f"{segment_name(pos)}-{epoch}-log"

    def log_snapshot(self, name: str) -> Path:
        """The directory of the snapshot of the log with that name."""
        return self.snapshots / name

    def queue(self, topic: str, partition: int) -> Path:
        """The directory of one partition's ConsumeQueue."""
        return self.consume_queue / topic / str(partition)
