"""`latermq dump`: yields the content of a data directory as items. Layer 4.

Items are dictionaries as `frame_items` describes them. They are produced while the log is read, so
that memory grows with the pending timers and not with the size of the log.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final, cast

from _core.bytes.layout import KIND_BLANK, KIND_CARRIED_RECORDS, KIND_CARRY, UNIT_SIZE
from _core.tables.plan_scan import HistoryProjections
from appliance.offline.control_facts import facts_of
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Findings
from appliance.offline.frame_items import (
    Decompress,
    Frame,
    Item,
    contents,
    plain,
)
from appliance.offline.log_state import DEFAULTS, ControlFault, LogState
from appliance.offline.log_walk import LogWalk
from appliance.offline.saved_states import SavedStates, WholeState
from appliance.offline.state_items import state_items
from appliance.store.checkpoint import COPY_SIZE
from appliance.store.log.frame_kinds import kind_name
from appliance.store.paths import parse_segment_name
from appliance.store.queue.unit_reader import UNIT
from appliance.units import KIB, MIB

SLICE_BYTES: Final = MIB
UNITS_AT_ONCE: Final = 64 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which items to yield; None does not filter.

    Attributes:
        topic, partition: only their records, timers, units and frames.
        kinds: only frames of these kinds, KIND_*.
        first_pos, end_pos: only frames that begin in this range of log positions.
        first_offset, end_offset: only records, units and frames with records in this range.
        user_id: only timers with this id.
        is_pending: only pending timers.
    """

    topic: str | None = None
    partition: int | None = None
    kinds: frozenset[int] | None = None
    first_pos: int = 0
    end_pos: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    user_id: bytes | None = None
    is_pending: bool = False

    def takes_place(self, topic: str | None, partition: int) -> bool:
        """Return whether this partition is selected."""
        return (self.topic is None or topic == self.topic) and (
            self.partition is None or partition == self.partition
        )

    def takes_offsets(self, first: int, count: int) -> bool:
        """Return whether any of these offsets is selected."""
        if self.first_offset is None and self.end_offset is None:
            return True
        return (self.first_offset is None or first + count > self.first_offset) and (
            self.end_offset is None or first < self.end_offset
        )

    def takes_frame(self, frame: Frame, topic: str | None) -> bool:
        """Return whether a frame is selected."""
        header = frame.header
        if frame.pos < self.first_pos:
            return False
        if self.kinds is not None and frame.kind not in self.kinds:
            return False
        has_offsets = self.first_offset is not None or self.end_offset is not None
        if has_offsets and header["last_delta"] < 0:
            return False
        return self.takes_place(topic, header["partition"]) and self.takes_offsets(
            header["base_offset"], header["last_delta"] + 1
        )


class Dump:
    """The content of an open data directory. Each method reads all of it once.

    Args:
        data: the directory.
        findings: receives the faults met while reading.
        filters: selects the items.
        decompress: unpacks batches.
    """

    def __init__(
        self, data: DataDir, findings: Findings, filters: Filters, decompress: Decompress
    ) -> None:
        self._data = data
        self._findings = findings
        self._filters = filters
        self._decompress = decompress

    def _walk(self, *, wants_positions: bool = False) -> LogWalk:
        return LogWalk(
            self._data,
            self._findings,
            _new_state,
            wants_positions=wants_positions,
            wants_contradictions=False,
        )

    def _state(self) -> LogWalk:
        """Apply the whole log."""
        walk = self._walk()
        for _ in walk.slices():
            walk.state.release_units()
        return walk

    def _frames(self) -> Iterator[tuple[Frame, str | None, LogState]]:
        """Yield the selected frames, the topic of each, and the state after it or a later one."""
        log, filters = self._data.log, self._filters
        log.begin_at(filters.first_pos)
        walk = self._walk(wants_positions=True)
        names = walk.state.topic_names
        for positions in walk.slices(SLICE_BYTES):
            for pos in positions:
                if filters.end_pos is not None and pos >= filters.end_pos:
                    return
                frame = Frame(pos, log.frame_at(pos))
                topic = names.get(frame.topic_id)
                if filters.takes_frame(frame, topic):
                    yield frame, topic, walk.state
            walk.state.release_units()
        walk.note_tail()

    def frames(self, *, with_contents: bool) -> Iterator[Item]:
        """Yield the frames of the log.

        Args:
            with_contents: also their content: records, timers, cancels, payloads.

        Raises:
            FormatVersionError: a newer latermq wrote to the log.
        """
        for frame, _, state in self._frames():
            item = frame.item(state.topic_names)
            path, offset = self._data.log.place_of(frame.pos)
            item |= {"file": path.name, "offset_in_file": offset}
            if with_contents and frame.kind != KIND_BLANK:
                item |= contents(frame, self._decompress, DEFAULTS.decompressed_size_max_bytes)
            yield item

    def records(self) -> Iterator[Item]:
        """Yield the visible records, also those that were deleted or whose topic was deleted.

        A carried record comes once: where it was first held or, if that is freed or damaged, in
        the first frame to which it was carried.

        Raises:
            FormatVersionError: a newer latermq wrote to the log.
        """
        for frame, topic, state in self._frames():
            if not frame.header["visible_size"]:
                continue
            if frame.kind == KIND_CARRIED_RECORDS and not _history(state).records.is_row(frame.pos):
                continue
            head = {"topic": topic, "partition": frame.header["partition"]}
            place = {"position": frame.pos, "kind": kind_name(frame.kind)}
            place |= frame.carried_origin()
            limit = DEFAULTS.decompressed_size_max_bytes
            for record in frame.records(self._decompress, limit):
                if "problem" in record or self._filters.takes_offsets(record["offset"], 1):
                    yield head | record | place

    def timers(self) -> Iterator[Item]:
        """Yield every timer in the order of the log, with its state.

        A carried timer comes once: where it was accepted or, if that is freed or damaged, in the
        first frame to which it was carried.

        Raises:
            FormatVersionError: a newer latermq wrote to the log.
        """
        walk = self._state()
        log, filters, state = self._data.log, self._filters, walk.state
        for pos in log.frame_positions(walk.pos, walk.damage):
            if filters.end_pos is not None and pos >= filters.end_pos:
                return
            frame = Frame(pos, log.frame_at(pos))
            if not frame.timers_held:
                continue
            topic = state.topic_names.get(frame.topic_id)
            partition = frame.header["partition"]
            if pos < filters.first_pos or not filters.takes_place(topic, partition):
                continue
            for timer in frame.timers():
                accept_pos, index = timer["accept_position"], timer["index"]
                if frame.kind == KIND_CARRY:
                    if not _history(state).outcomes.is_row_at(pos, accept_pos, index):
                        continue
                    timer["position"] = pos
                what = _outcome(state, frame.topic_id, timer)
                if filters.is_pending and what["state"] != "pending":
                    continue
                if filters.user_id is not None and timer.get("id") != filters.user_id:
                    continue
                yield {"topic": topic, "partition": partition} | what | timer

    def state(self) -> Iterator[Item]:
        """Yield topics with their partitions and producers, groups, offsets, epochs.

        Raises:
            FormatVersionError: a newer latermq wrote to the log.
        """
        yield from state_items(self._state().state, self._filters.takes_place)

    def queues(self) -> Iterator[Item]:
        """Yield the units in the ConsumeQueue files, unchecked."""
        fs, root, filters = self._data.fs, self._data.paths.consume_queue, self._filters
        for topic in fs.list_dir(root) if fs.exists(root) else []:
            for partition in sorted(fs.list_dir(root / topic), key=_as_number):
                if not filters.takes_place(topic, _as_number(partition)):
                    continue
                for name in fs.list_dir(root / topic / partition):
                    base = parse_segment_name(name)
                    if base is not None:
                        yield from self._units(topic, partition, name, base // UNIT_SIZE)

    def _units(self, topic: str, partition: str, name: str, first: int) -> Iterator[Item]:
        path = self._data.paths.consume_queue / topic / partition / name
        with closing(self._data.fs.open(path, writable=False)) as file:
            at: int | None = file.next_data(0)
            while at is not None:
                at -= at % UNIT_SIZE
                data = file.pread(UNITS_AT_ONCE * UNIT_SIZE, at)
                for start in range(0, len(data) - UNIT_SIZE + 1, UNIT_SIZE):
                    position, size, tags_code = UNIT.unpack_from(data, start)
                    offset = first + (at + start) // UNIT_SIZE
                    is_there = bool(position or size or tags_code)
                    if is_there and self._filters.takes_offsets(offset, 1):
                        yield {
                            "topic": topic,
                            "partition": _as_number(partition),
                            "offset": offset,
                            "position": position,
                            "size": size,
                            "tags_code": tags_code,
                        }
                at = file.next_data(at + len(data)) if len(data) >= UNIT_SIZE else None

    def checkpoint(self) -> Iterator[Item]:
        """Yield the copies of the checkpoint, and the state snapshots that they name."""
        copies = self._data.checkpoint
        for place, (raw, copy) in enumerate(zip(copies.raw, copies.copies, strict=True)):
            item: Item = {"type": "copy", "offset_in_file": place * COPY_SIZE}
            if copy is None:
                yield item | {"state": "not whole" if any(raw) else "never written"}
                continue
            yield item | {
                "state": "newest" if copy is copies.newest else "older",
                "sequence": copy.sequence,
                "flushed": copy.flushed,
                "watermark": copy.watermark,
                "cluster": str(copy.log.cluster),
                "states": [plain(state) for state in copy.states],
            }
        states = SavedStates(self._data, self._findings)
        states.read()
        for state in states.states:
            yield from _control_items(state)


def _control_items(state: WholeState) -> Iterator[Item]:
    control = state.control
    yield {
        "type": "control",
        "file": state.path.name,
        "size": state.saved.size,
        "applied": control.applied,
        "last_position": control.last_pos,
        "epoch": control.epoch,
        "settings": control.settings,
        "lost": [plain(each) for each in control.lost],
        "damage": [plain(each) for each in control.damage],
        "runs": [plain(each) for each in control.runs],
    }
    for key, fact in facts_of(state.data).items():
        if key[0] != "head":
            what = " ".join(map(str, key))
            yield {
                "type": "fact",
                "file": state.path.name,
                "what": what,
                "value": plain(fact.value),
            }


def _new_state(fault: ControlFault) -> LogState:
    return LogState(fault=fault, new_projections=HistoryProjections)


def _history(state: LogState) -> HistoryProjections:
    return cast(HistoryProjections, state.projections)


def _outcome(state: LogState, topic_id: int, timer: Item) -> Item:
    """Return the state of a timer and since when; a deleted topic has no pending timers."""
    found = _history(state).outcomes.outcome(timer["accept_position"], timer["index"])
    name, since_ms = found or ("unknown", 0)
    if name in ("pending", "deleted"):
        return {"state": name if name == "pending" else "topic deleted"}
    return {"state": name, "completed_at": since_ms}


def _as_number(name: str) -> int:
    return int(name) if name.isascii() and name.isdigit() else -1
