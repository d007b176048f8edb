"""Logs of model frames, built and damaged by hand, and the outcome of scanning them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from _core.queue.partition import Topic
from _core.state.projections import Projections
from _core.state.scan import LogScan
from appliance.store.state import control_frames as control
from tests.support.docs.golden_frames import JOBS
from tests.support.oracles import frames_model as model
from tests.support.simulator.virtual_clock import START_MS

NO_MAGIC = "no frame magic"
BAD_CRC = "CRC of header and tables differs"
BAD_BATCH = "length, CRC or offsets of a batch differ"
UNREADABLE = "cannot be read: Input/output error"
PAGE_SIZE_BYTES: Final = 4096

Segments = Sequence[tuple[int, bytes]]
Lost = tuple[int, int, str]


def sizes(segments: Segments) -> list[tuple[int, int]]:
    """Base position and size of segments, as a scan takes them."""
    return [(base, len(content)) for base, content in segments]


def reader(
    segments: Segments, bad: Sequence[int] = (), asked: list[tuple[int, int]] | None = None
) -> Callable[[int, memoryview], list[Lost]]:
    """The function by which a scan reads segments.

    Args:
        segments: base and content of each.
        bad: log positions whose page, counted from the segment's base, cannot be read.
        asked: gets position and size of each call.
    """

    def read(pos: int, memory: memoryview) -> list[Lost]:
        base, content = max(each for each in segments if each[0] <= pos)
        assert pos + len(memory) <= base + len(content), "read over the end of a segment"
        if asked is not None:
            asked.append((pos, len(memory)))
        memory[:] = content[pos - base : pos - base + len(memory)]
        lost: list[Lost] = []
        for page in sorted({base + (at - base) // PAGE_SIZE_BYTES * PAGE_SIZE_BYTES for at in bad}):
            begin, end = max(page, pos), min(page + PAGE_SIZE_BYTES, pos + len(memory))
            if begin < end:
                memory[begin - pos : end - pos] = bytes(end - begin)
                lost.append((begin, end, "Input/output error"))
        return lost

    return read


@dataclass
class Log:
    """A log of frames of about 200 bytes, built frame by frame."""

    segment_size: int = 4096
    data: bytearray = field(default_factory=bytearray)
    positions: list[int] = field(default_factory=list)
    flushed: list[int] = field(default_factory=list)
    epoch: int = 0
    next_offset: int = 0
    salt: int = 0

    def add(self, frame: model.Frame, *, flushed: int | None = None) -> int:
        """Append a frame; it names `flushed`, or all that is before it, as flushed."""
        left = -len(self.data) % self.segment_size or self.segment_size
        if left != frame.size and left < frame.size + model.HEADER_SIZE:
            blank = model.Frame(
                kind=model.BLANK,
                position=len(self.data),
                epoch=self.epoch,
                flushed=self.flushed[-1],
                blank_size=left,
                salt=self.salt,
            )
            self.data += blank.encode().ljust(left, b"\x00")
        pos = len(self.data)
        mark = pos if flushed is None else flushed
        changes: dict[str, Any] = {"position": pos, "epoch": self.epoch, "flushed": mark}
        changes["salt"] = self.salt
        self.data += replace(frame, **changes).encode()
        self.positions.append(pos)
        self.flushed.append(mark)
        return pos

    def topic(self, topic_id: int = 1, *, flushed: int | None = None) -> int:
        frame = control.TopicFrame(
            control.TOPIC_DECLARED, f"jobs{topic_id}", JOBS, ((0, self.next_offset, -1),), {}
        )
        payload = control.encode_topic(frame)
        return self.add(
            model.control_frame(model.TOPIC, payload, topic_id=topic_id, store_time=START_MS),
            flushed=flushed,
        )

    def accept(
        self,
        topic_id: int = 1,
        partition: int = 0,
        *,
        value: bytes | None = None,
        flushed: int | None = None,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> int:
        """Append a record; `producer` has id, epoch and sequence."""
        producer_id, producer_epoch, sequence = producer
        record = model.Record(timestamp=START_MS, key=b"k", value=value)
        batch = model.Batch(records=(record,), base_offset=self.next_offset)
        frame = model.Frame(
            kind=model.ACCEPT,
            topic_id=topic_id,
            store_time=START_MS,
            base_offset=self.next_offset,
            partition=partition,
            record_count=1,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            first_sequence=sequence,
            last_sequence=sequence,
            visible=batch.encode(),
        )
        self.next_offset += 1
        return self.add(frame, flushed=flushed)

    @property
    def end(self) -> int:
        return len(self.data)

    def segments(self) -> list[tuple[int, bytes]]:
        """The segments as on disk: the last one is padded with zeros."""
        whole = bytes(self.data) + bytes(-len(self.data) % self.segment_size)
        return [
            (base, whole[base : base + self.segment_size])
            for base in range(0, len(whole), self.segment_size)
        ]

    def spoil(self, pos: int, how: str) -> str:
        """Make the frame at `pos` invalid; return the fault that a scan must report."""
        at, size = pos, int.from_bytes(self.data[pos + 4 : pos + 8], "big")
        if how == "zeros":
            self.data[at : at + size] = bytes(size)
            return NO_MAGIC
        if how == "header":
            self.data[at + 33] ^= 0x10
            return BAD_CRC
        if how == "version":
            self.data[at + 2] ^= 0x40
            return BAD_CRC
        assert how == "tail"
        self.data[at + size // 512 * 512 : at + size] = bytes(size - size // 512 * 512)
        return NO_MAGIC if size < 512 else BAD_BATCH


@dataclass
class Outcome:
    """What a scan found."""

    pos: int
    epoch: int
    frames: int
    damage: list[tuple[int, int, str]]
    tail_fault: str | None
    newer_version: bool
    next_offset: int | None
    controls: list[tuple[int, int, int]]
    unreadable: list[Lost]


def scan(
    segments: Segments,
    *,
    known_flushed: int = -1,
    budget: int = 2**40,
    read: Callable[[int, memoryview], list[Lost]] | None = None,
    into: Projections | None = None,
) -> Outcome:
    projections = Projections(id_key=bytes(16)) if into is None else into
    controls: list[tuple[int, int, int]] = []

    def apply_control(kind: int, topic_id: int, payload: bytes, epoch: int) -> None:
        controls.append((kind, topic_id, epoch))
        if kind == model.TOPIC:
            frame = control.decode_topic(payload)
            known = projections.topics_by_id.get(topic_id)
            topic = known or Topic(frame.name, frame.uuid, topic_id, {})
            projections.add_topic(topic, list(frame.partitions))

    log_scan = LogScan(
        projections,
        sizes(segments),
        read or reader(segments),
        apply_control,
        known_flushed=known_flushed,
    )
    before = -1
    while not log_scan.step(budget):
        assert log_scan.pos > before, "a slice made no progress"
        before = log_scan.pos
    topic = projections.topics_by_id.get(1)
    return Outcome(
        pos=log_scan.pos,
        epoch=log_scan.epoch,
        frames=log_scan.frames,
        damage=list(log_scan.damage),
        tail_fault=log_scan.tail_fault,
        newer_version=log_scan.newer_version,
        next_offset=None if topic is None else topic.partitions[0].next_offset,
        controls=controls,
        unreadable=log_scan.unreadable,
    )


def small_log(
    accepts: int = 5, *, segment_size: int = 4096, flushed: int | None = None, salt: int = 0
) -> Log:
    log = Log(segment_size, salt=salt)
    log.topic(flushed=flushed)
    for _ in range(accepts):
        log.accept(flushed=flushed)
    return log
