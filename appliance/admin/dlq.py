"""Dead letters of a running broker: lists them, gives them back, deletes them. Layer 5.

Records are read on the thread of searches, a bounded part of them at a time. On the loop they are
looked up and appended in slices, and the loop serves others between two of these.
"""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from _core.queue.partition import Partition, Topic
from appliance.admin.dlq_reading import DeadReading, check_running, let_others
from appliance.broker import Broker
from appliance.dead_letters import (
    DeadListRequest,
    DeletedRecords,
    Place,
    ReplayedRecords,
    ReplayRequest,
    dead_item,
    dlq_topic,
    replay_group,
)
from appliance.errors import FindError, RequestError
from appliance.find import FOUND_MAX_BYTES, for_json, until
from appliance.offline.frame_items import Item
from appliance.pump import Pump
from appliance.units import KIB, MS_PER_SECOND, NS_PER_MS

LIST_NS: Final = MS_PER_SECOND * NS_PER_MS
"""How long one list reads; its answer says where the next one goes on."""

REPLAY_NS: Final = 5 * MS_PER_SECOND * NS_PER_MS
"""How long one replay of all goes on; its answer says how much is left."""

OFFSETS_TOGETHER: Final = 500
"""Offsets that are read in one go, and committed together by a replay of all."""

APPENDED_TOGETHER: Final = 32
APPENDED_TOGETHER_BYTES: Final = 256 * KIB
"""Records that are appended in one turn of the loop, and bytes of them: a millisecond at most. One
record may exceed it."""


class Commits(Protocol):
    """What decides whether an offset of a group may be set."""

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        *,
        address: str = "",
    ) -> int:
        """Return 0 if it may, else Kafka's error code; see `GroupCoordinator.check_commit`."""


class DeadLetters:
    """The dead letters of all groups of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reading = DeadReading(broker)
        self._turn = asyncio.Lock()
        """Of the one replay that runs."""

    # Lists

    async def list_dead(self, pump: Pump, request: DeadListRequest) -> str:
        """Answer a request as JSON.

        Raises:
            FindError: what it names does not exist.
            NotReadyError: the broker is stopping.
        """
        topic = self._topic(request.group)
        in_time = self._in_time(LIST_NS)
        found: list[Item] = []
        size_bytes = 0
        following: Place | None = None
        for partition in self._chosen(topic, request):
            after = request.after
            offset = partition.start_offset
            if after is not None and after.partition == partition.index:
                offset = max(offset, after.offset + 1)
            while offset < partition.visible_offset:
                is_full = len(found) >= request.limit or size_bytes >= FOUND_MAX_BYTES
                if following is not None and (is_full or not in_time()):
                    listed = {"records": found, "next": str(following)}
                    return await pump.find(partial(_encode, listed))
                count = min(OFFSETS_TOGETHER, request.limit - len(found))
                part = await self._reading.read(
                    pump,
                    partition,
                    offset,
                    offset + count,
                    in_time,
                    shape=partial(_described, partition.index),
                )
                found += part.items
                size_bytes += sum(map(_size_of, part.items))
                offset = part.next_offset
                following = Place(partition.index, offset - 1)
        return await pump.find(partial(_encode, {"records": found, "next": None}))

    async def show(self, pump: Pump, group: str, place: Place) -> str:
        """Return all of a record, as JSON.

        Raises:
            FindError, NotReadyError: as `list_dead`.
        """
        partition = self._partition_of(self._topic(group), place)
        item = await self._reading.record(pump, partition, place.offset)
        whole = _described(partition.index, item) | {
            "headers": item.get("headers", []),
            "value": item["value"],
        }
        return await pump.find(partial(_encode, whole))

    def _topic(self, group: str) -> Topic:
        name = dlq_topic(group)
        topic = self._broker.topics.find(name)
        if topic is None:
            raise FindError("unknown", f"{group!r} has no dead letters: there is no topic {name!r}")
        return topic

    def _chosen(self, topic: Topic, request: DeadListRequest) -> list[Partition]:
        """Return the partitions that a list is about, those that it is through left out."""
        after = request.after
        for index in (request.partition, None if after is None else after.partition):
            if index is not None:
                self._partition(topic, index)
        if request.partition is not None:
            return [topic.partitions[request.partition]]
        return topic.partitions[0 if after is None else after.partition :]

    def _partition(self, topic: Topic, index: int) -> Partition:
        if index >= len(topic.partitions):
            last = len(topic.partitions) - 1
            raise FindError("unknown", f"{topic.name} has no partition {index}: use 0 to {last}")
        return topic.partitions[index]

    def _partition_of(self, topic: Topic, place: Place) -> Partition:
        """Return the partition of a place that can hold a record."""
        partition = self._partition(topic, place.partition)
        if place.offset < partition.start_offset:
            raise FindError(
                "unknown",
                f"record {place} of {topic.name} is gone: partition {place.partition} begins at "
                f"{partition.start_offset}",
            )
        if place.offset >= partition.visible_offset:
            raise FindError(
                "unknown",
                f"record {place} of {topic.name} does not exist: partition {place.partition} ends "
                f"at {partition.visible_offset}",
            )
        return partition

    def _in_time(self, budget_ns: int) -> Callable[[], bool]:
        return until(budget_ns, self._broker.clock.monotonic_ns)

    # Replay

    async def replay(self, pump: Pump, commits: Commits, request: ReplayRequest) -> ReplayedRecords:
        """Give records back to their group, and return once that is durable.

        Args:
            pump: of the broker.
            commits: decides whether the position of a replay of all may be set.
            request: which records.

        Raises:
            DiskFullError, RequestError: a record is refused, and those before it are replayed; or
                none can be.
            FindError, NotReadyError: as `list_dead`.
        """
        async with self._turn:
            pump.release.check()
            topic = self._topic(request.group)
            wanted = [(self._partition_of(topic, place), place) for place in request.places]
            chosen = topic.partitions
            if request.partition is not None:
                chosen = [self._partition(topic, request.partition)]
            if not wanted:
                self._check_commit(commits, request.group)
            retry = self._broker.dead_replay.ensure_topic(request.group, len(topic.partitions))
            run = _Replay(self._broker, pump, retry)
            try:
                if not wanted:
                    left = await self._replay_all(run, request.group, chosen)
                    return ReplayedRecords(run.count, left)
                for partition, place in wanted:
                    await run.append(
                        [await self._reading.record(pump, partition, place.offset)], place.partition
                    )
                    await pump.durable(self._broker.wrote_pos)
                return ReplayedRecords(run.count, 0)
            except (FindError, RequestError) as error:
                if run.count:
                    error.message += f"; {run.count} before it were replayed"
                raise
            finally:
                await pump.durable(self._broker.wrote_pos)

    async def _replay_all(self, run: "_Replay", group: str, chosen: list[Partition]) -> int:
        """Replay all records of some partitions, in the time of one request; return what is left.

        The offset is committed after the records, in one log.
        """
        replay, pump = self._broker.dead_replay, run.pump
        in_time = self._in_time(REPLAY_NS)
        ends = [partition.visible_offset for partition in chosen]
        left = 0
        for partition, end in zip(chosen, ends, strict=True):
            offset = replay.begin_of(group, partition)
            while offset < end and in_time():
                stop = min(end, offset + OFFSETS_TOGETHER)
                part = await self._reading.read(pump, partition, offset, stop, in_time)
                count_before = run.count
                try:
                    await run.append(part.items, partition.index)
                except RequestError:
                    refused = part.items[run.count - count_before]
                    self._commit(group, partition, refused["offset"])
                    raise
                self._commit(group, partition, part.next_offset)
                await pump.durable(self._broker.wrote_pos)
                offset = part.next_offset
            left += max(0, end - offset)
        return left

    def _commit(self, group: str, partition: Partition, offset: int) -> None:
        if partition.topic.deleted:
            raise RequestError(f"topic {partition.topic.name} was deleted meanwhile")
        self._broker.dead_replay.commit(group, partition, offset)

    def _check_commit(self, commits: Commits, group: str) -> None:
        now_ms = self._broker.clock.monotonic_ns() // NS_PER_MS
        name = replay_group(group)
        if commits.check_commit(name, "", None, -1, now_ms):
            raise RequestError(
                f"the offsets of group {name}, which say how far a replay has come, cannot be set: "
                "stop its members"
            )

    # Purge

    async def purge(self, pump: Pump, group: str, before: Place | None) -> DeletedRecords:
        """Delete all dead records of a group, and return once that is durable.

        Args:
            pump: of the broker.
            group: whose they are.
            before: only those of its partition with lower offsets; None for all.

        Raises:
            FindError, NotReadyError: as `list_dead`.
            RequestError: the disk is full.
        """
        pump.release.check()
        topic = self._topic(group)
        ends = {part.index: part.visible_offset for part in topic.partitions}
        if before is not None:
            partition = self._partition(topic, before.partition)
            if before.offset > partition.visible_offset:
                self._partition_of(topic, before)
            ends = {before.partition: before.offset}
        begins = {index: topic.partitions[index].start_offset for index in ends}
        self._broker.topics.delete_records(topic, ends)
        counts = (topic.partitions[index].start_offset - begin for index, begin in begins.items())
        deleted = DeletedRecords(sum(counts))
        await pump.durable(self._broker.wrote_pos)
        return deleted


class _Replay:
    """Appends records to the retry topic, in slices.

    Attributes:
        pump: of the broker.
        count: how many were appended.
    """

    def __init__(self, broker: Broker, pump: Pump, retry: Topic) -> None:
        self.pump = pump
        self.count = 0
        self._replay = broker.dead_replay
        self._retry = retry

    async def append(self, items: list[Item], partition: int) -> None:
        """Append records of a partition.

        Raises:
            DiskFullError, RequestError: one is refused, those before it are appended.
            NotReadyError: the broker is stopping.
        """
        count = size_bytes = 0
        check_running(self.pump)
        self.pump.release.check()
        for item in items:
            if count >= APPENDED_TOGETHER or size_bytes >= APPENDED_TOGETHER_BYTES:
                await let_others(self.pump)
                self.pump.release.check()
                count = size_bytes = 0
            if self._retry.deleted:
                raise RequestError(f"topic {self._retry.name} was deleted meanwhile")
            try:
                size_bytes += self._replay.replay(self._retry, partition, item)
            except RequestError as error:
                place = Place(partition, item["offset"])
                error.message = f"record {place} was refused: {error.message}"
                raise
            count += 1
            self.count += 1


def _described(partition: int, item: Item) -> Item:
    place = Place(partition, item["offset"])
    return dead_item(place, item["timestamp"], item["key"], item.get("headers", ()))


def _size_of(item: Item) -> int:
    return sum(len(item[name] or b"") for name in ("key", "origin", "reason"))


def _encode(value: Any) -> str:
    return json.dumps(for_json(value))
