"""Carries what lives in the first segments of a stopped log to its end, and frees the segments.

It writes the frames that docs/FORMAT.md describes by the model of frames, so that what reads them
is tested against the page and not against the broker that writes them.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final

from _core.bytes import layout
from _core.log.frames import read_header
from appliance.offline.frame_items import Frame, Item
from appliance.store import checkpoint
from appliance.store.checkpoint import COPY_SIZE
from appliance.store.paths import DataPaths, segment_name
from appliance.store.state import control_frames as control
from compat.tables.plan import Plan
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.tables import planned, rows_of
from tests.support.oracles import frames_model as model
from tests.support.oracles.tables_model import TOPICS, UsedBroker
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.carry_payloads import CarriedValue, encode_carry
from tests.support.values.kafka_records import Record, delay

PATHS: Final = DataPaths(DATA_DIR)
TIMERS_PER_FRAME: Final = 3
DAY_MS: Final = 86_400_000


def lived(seed: int) -> "CarriedLog":
    """The log of a broker that was used at random and stopped; some timers wait for days."""
    rng = random.Random(seed)
    used = UsedBroker(rng)
    for serial in range(60):
        used.use(5)
        records = [
            Record(b"far", b"key-far-%d" % serial, delay(rng.randrange(DAY_MS, 9 * DAY_MS), name))
            for name in (b"far-%d" % serial, None)
        ]
        records.insert(rng.randrange(3), Record(b"near", b"key-near-%d" % serial))
        topic = rng.choice(["orders", "mails"])
        assert used.harness.produce(topic, rng.randrange(TOPICS[topic]), records).error == 0
    used.harness.broker.close()
    return CarriedLog(used.harness.disk)


class CarriedLog:
    """A log that grows by frames made by hand.

    Attributes:
        disk: holds the log; no broker is running.
    """

    def __init__(self, disk: SimFileSystem) -> None:
        self.disk = disk
        self.plan = planned(disk)
        self.end = self.plan.end
        self.segment_size = self.plan.reader.segments[0][1]
        self._declared: set[tuple[int, int]] = set()
        last = rows_of(disk, "frames", self.plan)[-1]
        self.epoch, self.now_ms = last["epoch"], last["store_timestamp"] + DAY_MS

    @property
    def bases(self) -> list[int]:
        """Base positions of the segments."""
        names = self.disk.list_dir(PATHS.commit_log)
        return sorted(int(name) for name in names if name.isdigit() and int(name) < self.end)

    def advance(self) -> Plan:
        """Plan the log as it is now."""
        self.plan = planned(self.disk)
        assert self.plan.end == self.end, self.plan.damage
        return self.plan

    # What is in the log

    def frames(self, start: int = 0, end: int = 1 << 62) -> Iterator[Frame]:
        for row in rows_of(self.disk, "frames", self.advance()):
            if start <= row["position"] < end:
                yield Frame(row["position"], memoryview(self._bytes_at(row["position"])))

    def _bytes_at(self, pos: int) -> bytes:
        base = pos - pos % self.segment_size
        file = self.disk.open(PATHS.commit_log / segment_name(base), writable=False)
        header = file.pread(layout.FRAME_HEADER_SIZE, pos - base)
        return file.pread(read_header(header)["size"], pos - base)

    # What is written

    def append(self, frame: model.Frame) -> int:
        """Append a frame after the frame of its topic, and call it flushed; return its position."""
        self._make_room(frame)
        place = self.end - self.end % self.segment_size, frame.topic_id
        if frame.topic_id and frame.kind != model.TOPIC and place not in self._declared:
            self._declared.add(place)
            self._declare(frame.topic_id)
            return self.append(frame)
        pos = self.end
        self.end = self._write(pos, frame)
        return pos

    def _make_room(self, frame: model.Frame) -> None:
        """Begin the next segment if a frame does not fit into this one."""
        left = self.segment_size - self.end % self.segment_size
        if left != frame.size and left < frame.size + model.HEADER_SIZE:
            blank = model.Frame(kind=model.BLANK, blank_size=left)
            self.end = self._write(self.end, blank, left)
        if self.end % self.segment_size == 0:
            head = control.HeadFrame(
                cluster=self.plan.state.cluster,
                salt=self.plan.salt,
                node=0,
                floors=control.Floors(producer_id=1000, topic_id=100, generation=0),
                lost=(),
            )
            payload = control.encode_head(head)
            self.end = self._write(self.end, model.control_frame(model.HEAD, payload))

    def _write(self, pos: int, frame: model.Frame, size: int | None = None) -> int:
        base = pos - pos % self.segment_size
        path = PATHS.commit_log / segment_name(base)
        if not self.disk.exists(path):
            self.disk.open(path, create=True).allocate(self.segment_size)
        whole = replace(frame, position=pos, flushed=pos, epoch=self.epoch, salt=self.plan.salt)
        self.disk.open(path).pwritev([whole.encode()], pos - base)
        end = pos + (frame.size if size is None else size)
        self._publish(flushed=end)
        return end

    def _publish(self, *, flushed: int | None = None, start: int | None = None) -> None:
        """Write both copies of the checkpoint; no state is named."""
        raw = self.disk.files()[PATHS.checkpoint]
        for at in (0, COPY_SIZE):
            copy = checkpoint.decode(raw[at : at + COPY_SIZE])
            assert copy is not None
            end = copy.flushed if flushed is None else flushed
            log = copy.log if start is None else replace(copy.log, start=start)
            changed = checkpoint.Checkpoint(copy.sequence, end, max(end, copy.watermark), (), log)
            self.disk.open(PATHS.checkpoint).pwritev([checkpoint.encode(changed)], at)

    def _declare(self, topic_id: int) -> None:
        topic = self.plan.state.projections.topics_by_id[topic_id]
        frame = control.TopicFrame(
            control.TOPIC_DECLARED,
            topic.name,
            topic.uuid,
            tuple((each.start_offset, each.next_offset, -1) for each in topic.partitions),
            {},
        )
        payload = control.encode_topic(frame)
        self.append(
            model.control_frame(model.TOPIC, payload, topic_id=topic_id, store_time=self.now_ms)
        )

    def carry(self, cut: int) -> None:
        """Append again what lives below a position: topics, pending timers, visible records."""
        self.advance()
        for topic_id in list(self.plan.state.projections.topics_by_id):
            self._declare(topic_id)
        self._carry_epochs()
        self._carry_timers(cut)
        for frame in list(self.frames(end=cut)):
            if frame.header["record_count"]:
                self.carry_records(frame)

    def _carry_epochs(self) -> None:
        values = [
            CarriedValue(
                model.EPOCH,
                0,
                control.encode_epoch(control.EpochFrame(epoch, pos, self.plan.state.cluster)),
            )
            for epoch, pos in self.plan.state.epochs.all()
        ]
        self.append(
            model.control_frame(
                model.CARRY, encode_carry(values), store_time=self.now_ms, flags=model.CONTROL
            )
        )

    def _carry_timers(self, cut: int) -> None:
        pending: dict[tuple[int, int], dict[tuple[int, int], Item]] = {}
        outcomes = self.plan.state.projections.outcomes  # type: ignore[attr-defined]
        for frame in self.frames(end=cut):
            if not frame.timers_held:
                continue
            place = frame.topic_id, frame.header["partition"]
            for timer in frame.timers():
                name = timer["accept_position"], timer["index"]
                if outcomes.outcome(*name)[0] == "pending":
                    pending.setdefault(place, {})[name] = timer
        for (topic_id, partition), timers in pending.items():
            ordered = [timers[name] for name in sorted(timers)]
            groups = [list(each) for _, each in groupby(ordered, lambda t: t["accept_position"])]
            while groups:
                held = groups.pop(0)
                while groups and len(held) + len(groups[0]) <= TIMERS_PER_FRAME:
                    held += groups.pop(0)
                self.carry_timers(topic_id, partition, held)

    def carry_timers(self, topic_id: int, partition: int, timers: list[Item]) -> int:
        """Append a carry frame of timers, as `Frame.timers` returns them."""
        frame = model.Frame(
            kind=model.CARRY, topic_id=topic_id, partition=partition, store_time=self.now_ms
        )
        held = [
            model.Held(
                accept_pos=timer["accept_position"],
                index=timer["index"],
                due=timer["due"],
                level=timer.get("level", 0),
                level_offset=timer.get("level_offset", -1),
                user_id=timer.get("id", b""),
                record=model.Record(
                    timestamp=timer["timestamp"],
                    key=timer["key"],
                    value=timer["value"],
                    headers=tuple(map(tuple, timer.get("headers", ()))),
                ),
            )
            for timer in timers
        ]
        return self.append(model.with_timers(frame, held, model.Batch(records=())))

    def carry_records(self, frame: Frame) -> int:
        """Append a frame of carried records with the visible batch of a frame."""
        header = frame.header
        origin = frame.carried_origin().get("original_position", frame.pos)
        start = layout.FRAME_HEADER_SIZE + header["tables_size"]
        return self.append(
            model.Frame(
                kind=model.CARRIED_RECORDS,
                topic_id=frame.topic_id,
                store_time=header["store_time_ms"],
                base_offset=header["base_offset"],
                partition=header["partition"],
                record_count=header["record_count"],
                last_delta=header["last_delta"],
                min_timestamp=header["min_timestamp"],
                max_timestamp=header["max_timestamp"],
                running_max=header["running_max"],
                tags=header["tags"],
                flags=header["flags"],
                tables=struct.pack(">qq", origin, self.now_ms),
                visible=bytes(frame.data[start : start + header["visible_size"]]),
            )
        )

    def deliver(self, accept_pos: int, index: int) -> int:
        """Deliver a timer, wherever it is."""
        for frame in self.frames():
            for timer in frame.timers():
                if (timer["accept_position"], timer["index"]) == (accept_pos, index):
                    return self._deliver(frame, timer)
        raise AssertionError("no such timer")

    def _deliver(self, held: Frame, timer: Item) -> int:
        self.advance()
        topic = self.plan.state.projections.topics_by_id[held.topic_id]
        partition = held.header["partition"]
        offset = topic.partitions[partition].next_offset
        record = model.Record(
            timestamp=timer["timestamp"],
            key=timer["key"],
            value=timer["value"],
            headers=tuple(map(tuple, timer.get("headers", ()))),
        )
        batch = model.Batch(records=(record,), base_offset=offset, leader_epoch=self.epoch)
        name = timer.get("id", b"")
        completed = model.Completed(
            accept_pos=timer["accept_position"], index=timer["index"], user_id=name
        )
        return self.append(
            model.Frame(
                kind=model.DELIVER,
                topic_id=held.topic_id,
                partition=partition,
                store_time=self.now_ms,
                base_offset=offset,
                record_count=1,
                timer_count=1,
                min_timestamp=record.timestamp,
                max_timestamp=record.timestamp,
                running_max=record.timestamp,
                tables=model.completed_table([completed]),
                visible=batch.encode(),
            )
        )

    def cancel(self, topic_id: int, partition: int, user_id: bytes) -> int:
        """Append an accept frame that cancels a timer by its id."""
        frame = model.Frame(
            kind=model.ACCEPT, topic_id=topic_id, partition=partition, store_time=self.now_ms
        )
        entry = model.Cancel(index=0, kind=model.CANCEL_BY_HEADER, user_id=user_id)
        return self.append(model.with_timers(frame, [], model.Batch(records=()), [entry]))

    def free(self, cut: int) -> None:
        """Free the segments below a position."""
        self._publish(start=cut)
        for base in self.bases:
            if base < cut:
                self.disk.unlink(PATHS.commit_log / segment_name(base))

    def delete(self, name: str) -> None:
        """Append the frame by which a topic is deleted."""
        topics = self.plan.state.projections.topics_by_id
        topic = next(each for each in topics.values() if each.name == name)
        frame = control.TopicFrame(control.TOPIC_DELETED, name, topic.uuid, (), {})
        self.append(
            model.control_frame(
                model.TOPIC,
                control.encode_topic(frame),
                topic_id=topic.topic_id,
                store_time=self.now_ms,
            )
        )
