"""The disk of a killed broker, to be damaged: its layout, and what must still be served."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.bytes.layout import (
    FRAME_HEADER_SIZE,
    KIND_ACCEPT,
    KIND_BLANK,
    KIND_DELIVER,
    KIND_TOPIC,
    UNIT_SIZE,
)
from _core.log.frames import check, read_header
from appliance.offline.findings import Fault
from appliance.store.damage import Damage
from appliance.store.paths import DataPaths
from appliance.store.state import snapshot
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, Digest
from tests.support.harness.checkpoints import checkpoint_file_on, newest_of, read_every_unit
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.crash_check import LOG, Spectator
from tests.support.harness.crash_run import USER_IDS, CrashRun
from tests.support.harness.small_files import repeatable_ids
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.simulator.virtual_clock import VirtualClock

SEED: Final = 3
UNITS: Final = DATA_DIR / "consumequeue"

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of the log: its position and the layout of its bytes."""

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
        """Byte ranges within the frame, by content; none is empty."""
        at = FRAME_HEADER_SIZE
        found = {"header": range(at), "tables": range(at, at + self.tables)}
        at += self.tables
        for number, size in enumerate(self.batches):
            # Kafka's CRC does not cover the beginning of a batch, ours does.
            found[f"beginning of batch {number}"] = range(at, at + min(size, 21))
            found[f"batch {number}"] = range(at + min(size, 21), at + size)
            at += size
        if self.kind != KIND_BLANK:  # only its header is read
            found["padding"] = range(at, self.size)
        return {name: part for name, part in found.items() if part}


def walk(disk: SimFileSystem, end: int) -> list[Frame]:
    """All frames of an intact log that ends at `end`, in order."""
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
    """The frames without a damaged byte that a start can apply.

    It cannot apply frames of a topic whose declaration before them is lost, nor frames after a
    fault if no remaining flushed mark says that the log was durable there: such a fault counts as a
    torn tail.
    """
    before, after = whole.files(), damaged.files()

    def is_touched(frame: Frame) -> bool:
        path, offset = place_of(frame.pos, segment_size)
        part = slice(offset, offset + frame.size)
        return before[path][part] != after.get(path, b"")[part]

    left = [frame for frame in frames if not is_touched(frame)]
    newest = checkpoint_file_on(damaged).last
    mark = max([0 if newest is None else newest.flushed, *(frame.flushed for frame in left)])
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


class DamageScenario:
    """A broker that was killed after two checkpoints and more frames, all flushed.

    Attributes:
        disk: the disk that it left; damage a copy.
        frames: all of the log, in order.
        end: log position after the last one.
        segment_size: bytes.
        served: what a broker on the intact disk serves: values by place and offset.
        values: of all records ever sent.
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
        self._saved_flushed = newest.flushed
        self._applied = newest.states[0].applied
        whole = self.start(self.copy())
        self._names = {topic.topic_id: topic.name for topic in whole.broker.topics.all()}
        self.served = self.served_by(whole)
        self._topics = whole.broker.topics.all()
        self._positions = {
            (topic.name, partition.index): [
                whole.position_of(partition, offset) for offset in range(partition.next_offset)
            ]
            for topic in whole.broker.topics.all()
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
        self.end = run.harness.broker.wrote_pos
        self.frames = walk(self.disk, self.end)
        self.segment_size = run.config.segment_size_bytes

    # Disks and brokers

    def copy(self, change: Callable[[SimFileSystem], None] = lambda _: None) -> SimFileSystem:
        """A damaged copy of the disk with a cold page cache, as after a reboot."""
        disk = self.disk.crashed("kept", random.Random(0))
        change(disk)
        for path in disk.files():
            disk.evict(path)
        return disk

    def start(self, disk: SimFileSystem, *, accepts_loss: bool = False) -> BrokerHarness:
        """Start a broker on it, at the time at which the previous one was killed."""
        clock = VirtualClock(wall_ms=self._run.clock.wall_ms())
        return BrokerHarness(disk, clock, self._run.config, accepts_loss=accepts_loss)

    def place(self, pos: int) -> tuple[Path, int]:
        """File and offset of a log position."""
        return place_of(pos, self.segment_size)

    def served_by(self, harness: BrokerHarness) -> dict[Place, dict[int, bytes]]:
        """Every record that a broker serves.

        A topic whose name was lost is recovered with another one: here it has its own.
        """
        read = self._spectator.records
        return {
            (self._names.get(topic.topic_id, topic.name), partition.index): {
                offset: record[0]
                for offset, record in read(
                    harness, topic.name, partition.index, partition.start_offset
                )
            }
            for topic in harness.broker.topics.all()
            for partition in topic.partitions
        }

    def damage_found_by(self, harness: BrokerHarness) -> list[Damage]:
        """The damage that it found, at its start and since."""
        return harness.broker._store.damage

    def check(self, disk: SimFileSystem) -> list[Fault]:
        """The faults that `latermq check` finds on a disk."""
        return offline_scenario.check(disk).faults

    def noted(self, disk: SimFileSystem) -> list[Path]:
        """The files that `latermq check` reports on, with faults or notes."""
        checked = offline_scenario.check(disk)
        return [fault.path for fault in checked.faults] + [note.path for note in checked.notes]

    def is_whole(self, harness: BrokerHarness) -> bool:
        """Whether a broker lost nothing; do not use it afterwards."""
        if self.served_by(harness) != self.served:
            return False
        read_every_unit(harness)
        return harness.digest(USER_IDS) == self.digest

    # What must hold

    def flushed_without(self, lost: range) -> int:
        """The highest flushed mark that remains when no frame of a range can be read."""
        marks = [
            frame.flushed
            for frame in self.frames
            if frame.end <= lost.start or frame.pos >= lost.stop
        ]
        return max([self._saved_flushed, *marks])

    def expected(self, lost: range) -> dict[Place, dict[int, bytes]]:
        """The records served when the frames that begin in a range of the log are lost."""
        return {
            place: {
                offset: value
                for offset, value in records.items()
                if self._positions[place][offset] not in lost
            }
            for place, records in self.served.items()
        }

    def intact(self, disk: SimFileSystem) -> list[Frame]:
        """The intact frames of a damaged copy; see `intact_frames`."""
        return intact_frames(self.disk, disk, self.frames, self.segment_size)

    def must_serve(self, disk: SimFileSystem) -> dict[Place, dict[int, bytes]]:
        """What a broker on a damaged copy must serve: everything intact."""
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
        """All files that a start can rebuild, and how many of their bytes were saved."""
        found = {}
        for path, content in self.disk.files().items():
            if path.parent in (LOG, DATA_DIR):
                continue
            found[path] = len(content)
            if UNITS in path.parents:
                place = path.parent.parent.name, int(path.parent.name)
                saved = [pos for pos in self._positions[place] if pos < self._applied]
                # A start rewrites the units after these.
                found[path] = UNIT_SIZE * len(saved)
        return found

    def newest_files(self) -> set[Path]:
        """Files that a start needs to use the newest checkpoint."""
        paths = DataPaths(DATA_DIR)
        saved = newest_of(self.disk).states[0]
        control_path = paths.snapshot(saved.number)
        control = snapshot.read(self.disk, control_path, saved)
        return {control_path, *(entry.path(paths) for entry in control.runs)}
