"""Which partitions the garbage collector searches: none that stays, and each that may go."""

import gc
from uuid import UUID

from _core.queue.partition import Topic
from _core.state.projections import Projections


def with_topic(name: str) -> tuple[Projections, Topic]:
    projections = Projections(id_key=bytes(16))
    topic = Topic(name, UUID(int=1), 1, {})
    projections.add_topic(topic, [(0, 0, -1)] * 3)
    return projections, topic


def exists(name: str) -> bool:
    gc.collect()
    return any(isinstance(each, Topic) and each.name == name for each in gc.get_objects())


def test_partitions_of_topics_that_exist_are_not_searched() -> None:
    projections, topic = with_topic("stays")
    projections.add_topic(topic, [(0, 0, -1)] * 5)
    assert [gc.is_tracked(each) for each in topic.partitions] == [False] * 5
    assert exists("stays")


def test_a_deleted_topic_leaves_no_garbage() -> None:
    """It refers to its partitions, and each of them to it."""
    projections, topic = with_topic("deleted")
    projections.remove_topic(topic)
    assert all(gc.is_tracked(each) for each in topic.partitions)
    del topic
    assert not exists("deleted")
    assert projections.partitions == [None] * 3


def test_a_state_that_nobody_needs_leaves_no_garbage() -> None:
    projections, topic = with_topic("dropped")
    del projections, topic
    assert not exists("dropped")
