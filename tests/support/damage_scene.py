"""A killed broker's disk to be damaged: what is where on it, and what must still be served then."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.frames import check, read_header
from _core.layout import (
    FRAME_HEADER_SIZE,
    KIND_ACCEPT,
    KIND_BLANK,
    KIND_DELIVER,
    KIND_TOPIC,
    UNIT_SIZE,
)
from appliance.offline.findings import Fault
from appliance.store import control_file
from appliance.store.paths import DataPaths
from appliance.store.recovery import Damage
from tests.support import offline_scene
from tests.support.broker_rig import BrokerRig, Digest
from tests.support.checkpoints import newest_of, read_every_unit, told_on
from tests.support.configs import DATA_DIR
from tests.support.crash_check import LOG, Spectator
from tests.support.crash_run import USER_IDS, CrashRun
from tests.support.sim_fs import SimFileSystem
from tests.support.small_files import repeatable_ids
from tests.support.virtual_clock import VirtualClock

SEED: Final = 3
UNITS: Final = DATA_DIR / "consumequeue"

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of the log: where it is, and how its bytes are divided."""

    pos: int
    size: int
    kind: int
    flushed: int
    tables: int
    batches: tuple[int, ...]
    topic_id: int
    partition: int
    offsets: range
    """Of its visible records."""

    @property
    def end(self) -> int:
        return self.pos + self.size

    @property
    def is_control(self) -> bool:
        return self.kind not in (KIND_ACCEPT, KIND_DELIVER)

    def parts(self) -> dict[str, range]:
        """Byte ranges within the frame, by what they hold; none is empty."""
        at = FRAME_HEADER_SIZE
        found = {"header": range(at), "tables": range(at, at + self.tables)}
        at += self.tables
        for number, size in enumerate(self.batches):
            # Kafka's CRC does not cover the beginning of a batch, ours does.
            found[f"beginning of batch {number}"] = range(at, at + min(size, 21))
            found[f"batch {number}"] = range(at + min(size, 21), at + size)
            at += size
        if self.kind != KIND_BLANK:  # of which nobody reads the rest
            found["padding"] = range(at, self.size)
        return {name: part for name, part in found.items() if part}


def walk(disk: SimFileSystem, end: int) -> list[Frame]:
    """All frames of a log that is whole and ends at `end`, in order."""
    files = disk.files()
    log = b"".join(files[path] for path in sorted(files) if path.parent == LOG)
    frames = []
    pos = 0
    while pos < end:
        header = read_header(log[pos : pos + FRAME_HEADER_SIZE])
        assert check(log[pos : pos + header["size"]], pos) == "whole"
        base = header["base_offset"]
        frames.append(
            Frame(
                pos=pos,
                size=header["size"],
                kind=header["kind"],
                flushed=header["flushed"],
                tables=header["tables_size"],
                batches=(header["visible_size"], header["held_size"]),
                topic_id=header["topic_id"],
                partition=header["partition"],
                offsets=range(base, base + header["record_count"]),
            )
        )
        pos += header["size"]
    return frames


def place_of(pos: int, segment_size: int) -> tuple[Path, int]:
    """File and offset of a log position."""
    offset = pos % segment_size
    return LOG / f"{pos - offset:020d}", offset


def intact_frames(
    whole: SimFileSystem, damaged: SimFileSystem, frames: Sequence[Frame], segment_size: int
) -> list[Frame]:
    """The frames of which damage has touched no byte, and which a start can take up.

    Not among them: those of a topic that no frame tells of any more that is left before them, and
    those behind a fault of which no mark that is left says that the log was durable there: it
    counts as a torn tail.
    """
    before, after = whole.files(), damaged.files()

    def is_touched(frame: Frame) -> bool:
        path, offset = place_of(frame.pos, segment_size)
        part = slice(offset, offset + frame.size)
        return before[path][part] != after.get(path, b"")[part]

    left = [frame for frame in frames if not is_touched(frame)]
    told = told_on(damaged).last
    mark = max([0 if told is None else told.flushed, *(frame.flushed for frame in left)])
    faults = sorted({frame.pos for frame in frames} - {frame.pos for frame in left})
    cut = next((pos for pos in faults if pos >= mark), None)
    found: list[Frame] = []
    topics: set[int] = set()
    for frame in left:
        if cut is not None and frame.pos >= cut:
            break
        if frame.kind == KIND_TOPIC:
            topics.add(frame.topic_id)
        if not frame.offsets or frame.topic_id in topics:
            found.append(frame)
    return found


class Scene:
    """A broker was killed after two checkpoints and some more, all of it flushed.

    Attributes:
        disk: what it left; damage a copy of it.
        frames: all of the log, in order.
        end: log position behind the last one.
        segment_size: bytes.
        served: what a broker on it serves: values by place and offset.
        values: of all records that were ever sent.
        digest: of that broker.
    """

    def __init__(self) -> None:
        with repeatable_ids(SEED):
            self._run = run = CrashRun(random.Random(SEED))
            run.start()
            for _ in range(2):
                run.play_rounds(1)
                run.flush()
                assert run.checkpoint()
            run.play_rounds(1)
            run.flush()
        self.disk = run.disk.crashed("kept", random.Random(0))
        self._spectator = Spectator()
        newest = newest_of(self.disk)
        self._told_flushed = newest.flushed
        self._applied = newest.states[0].applied
        whole = self.start(self.copy())
        self.served = self.served_by(whole)
        self._topics = whole.broker.topics()
        self._positions = {
            (topic.name, partition.index): [
                whole.position_of(partition, offset) for offset in range(partition.next_offset)
            ]
            for topic in whole.broker.topics()
            for partition in topic.partitions
        }
        self.values = {
            value
            for model in run.models
            for value in (
                *(record[0] for records in model.visible().values() for record in records),
                *(timer.value for timer in model.pending),
            )
        }
        self.digest: Digest = whole.digest(USER_IDS)
        self.end = run.rig.broker.wrote_pos
        self.frames = walk(self.disk, self.end)
        self.segment_size = run.config.segment_size_bytes

    # Disks and brokers

    def copy(self, change: Callable[[SimFileSystem], None] = lambda _: None) -> SimFileSystem:
        """A disk that was damaged; nothing of it is in memory, as after a reboot."""
        disk = self.disk.crashed("kept", random.Random(0))
        change(disk)
        for path in disk.files():
            disk.evict(path)
        return disk

    def start(self, disk: SimFileSystem, *, accepts_loss: bool = False) -> BrokerRig:
        """A broker on it, at the time at which the one before it was killed."""
        clock = VirtualClock(wall_ms=self._run.clock.wall_ms())
        return BrokerRig(disk, clock, self._run.config, accepts_loss=accepts_loss)

    def place(self, pos: int) -> tuple[Path, int]:
        """File and offset of a log position."""
        return place_of(pos, self.segment_size)

    def served_by(self, rig: BrokerRig) -> dict[Place, dict[int, bytes]]:
        """Every record that a broker serves."""
        read = self._spectator.records
        return {
            (topic.name, partition.index): {
                offset: record[0]
                for offset, record in read(rig, topic.name, partition.index, partition.start_offset)
            }
            for topic in rig.broker.topics()
            for partition in topic.partitions
        }

    def told_by(self, rig: BrokerRig) -> list[Damage]:
        """What it found damaged, at its start and since."""
        return rig.broker._store.damage

    def check(self, disk: SimFileSystem) -> list[Fault]:
        """What is wrong with a disk, says `latermq check`."""
        return offline_scene.check(disk).faults

    def noted(self, disk: SimFileSystem) -> list[Path]:
        """Of which files `latermq check` tells anything, faults or not."""
        checked = offline_scene.check(disk)
        return [fault.path for fault in checked.faults] + [note.path for note in checked.notes]

    def is_whole(self, rig: BrokerRig) -> bool:
        """Whether nothing is missing of a broker; it is of no use after this."""
        if self.served_by(rig) != self.served:
            return False
        read_every_unit(rig)
        return rig.digest(USER_IDS) == self.digest

    # What must be

    def flushed_without(self, lost: range) -> int:
        """The highest flushed mark that is left when no frame of a range can be read."""
        marks = [
            frame.flushed
            for frame in self.frames
            if frame.end <= lost.start or frame.pos >= lost.stop
        ]
        return max([self._told_flushed, *marks])

    def expected(self, lost: range) -> dict[Place, dict[int, bytes]]:
        """What is served when the frames that begin in a range of the log are lost."""
        return {
            place: {
                offset: value
                for offset, value in records.items()
                if self._positions[place][offset] not in lost
            }
            for place, records in self.served.items()
        }

    def intact(self, disk: SimFileSystem) -> list[Frame]:
        """The frames that are left on a copy that was damaged; see `intact_frames`."""
        return intact_frames(self.disk, disk, self.frames, self.segment_size)

    def must_serve(self, disk: SimFileSystem) -> dict[Place, dict[int, bytes]]:
        """What a broker on a copy that was damaged has to serve: all that is intact."""
        names = {topic.topic_id: topic.name for topic in self._topics}
        left: dict[Place, set[int]] = {place: set() for place in self.served}
        for frame in self.intact(disk):
            if frame.offsets and frame.topic_id in names:
                left[names[frame.topic_id], frame.partition].update(frame.offsets)
        return {
            place: {offset: value for offset, value in records.items() if offset in left[place]}
            for place, records in self.served.items()
        }

    def derived_files(self) -> dict[Path, int]:
        """All files that a start can do without, and how many of their bytes were saved."""
        found = {}
        for path, content in self.disk.files().items():
            if path.parent in (LOG, DATA_DIR):
                continue
            found[path] = len(content)
            if UNITS in path.parents:
                place = path.parent.parent.name, int(path.parent.name)
                saved = [pos for pos in self._positions[place] if pos < self._applied]
                # A start writes the units behind these again.
                found[path] = UNIT_SIZE * len(saved)
        return found

    def newest_files(self) -> set[Path]:
        """Files without which a start does not use the newest checkpoint."""
        paths = DataPaths(DATA_DIR)
        saved = newest_of(self.disk).states[0]
        control_path = paths.control_file(saved.number)
        control = control_file.read(self.disk, control_path, saved)
        return {control_path, *(entry.path(paths) for entry in control.runs)}
