"""The state after replay of a log, as items. Layer 4; does no I/O."""

from collections.abc import Callable, Iterator

from appliance.offline.frame_items import Item, plain
from appliance.offline.log_state import LogState

TakesPlace = Callable[[str | None, int], bool]


def state_items(state: LogState, takes_place: TakesPlace) -> Iterator[Item]:
    """Yield topics, producers, groups, offsets, epochs and levels.

    Args:
        state: the state after the whole log.
        takes_place: returns whether a partition of a topic is selected.
    """
    yield {
        "type": "cluster",
        "cluster": str(state.cluster) if state.epoch_frames else None,
        "next_producer_id": state.next_producer_id,
        "pending_timers": state.projections.due.pending,
    }
    for epoch in state.epoch_frames:
        yield {"type": "epoch", "epoch": epoch.epoch, "start_position": epoch.start_pos}
    yield from _levels(state)
    for topic in state.projections.topics_by_id.values():
        partitions = [each for each in topic.partitions if takes_place(topic.name, each.index)]
        if not partitions:
            continue
        yield {
            "type": "topic",
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "uuid": str(topic.uuid),
            "partition_count": len(topic.partitions),
            "settings": dict(topic.settings),
        }
        for partition in partitions:
            yield {
                "type": "partition",
                "topic": topic.name,
                "partition": partition.index,
                "start_offset": partition.start_offset,
                "next_offset": partition.next_offset,
                "highest_timestamp": partition.running_max,
                "log_bytes": partition.log_bytes,
                "pending_timers": state.projections.due.pending_of(partition.handle),
            }
            for producer_id, producer in sorted(partition.producers.items()):
                yield {
                    "type": "producer",
                    "topic": topic.name,
                    "partition": partition.index,
                    "producer_id": producer_id,
                    "epoch": producer.epoch,
                    "last_sequence": producer.last_sequence,
                    "last_at": producer.last_ms,
                }
    yield from _groups(state, takes_place)


def _levels(state: LogState) -> Iterator[Item]:
    for level, offset in enumerate(state.projections.levels.all(), start=1):
        if offset:
            yield {"type": "level", "level": level, "next_offset": offset}


def _groups(state: LogState, takes_place: TakesPlace) -> Iterator[Item]:
    for name in state.groups.names:
        frame = state.groups.groups.get(name)
        if frame is not None:
            yield {"type": "group", **plain(frame)}
        for (topic_id, partition), entry in sorted(state.groups.offsets(name).items()):
            topic = state.topic_names.get(topic_id)
            if takes_place(topic, partition):
                yield {
                    "type": "offset",
                    "group": name,
                    "topic": topic,
                    "partition": partition,
                    "offset": entry.offset,
                    "leader_epoch": entry.leader_epoch,
                    "metadata": entry.metadata,
                    "committed_at": entry.commit_ms,
                }
