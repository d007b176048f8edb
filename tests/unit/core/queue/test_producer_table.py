"""The producers of all partitions in the order of their last batches, compared with a dict."""

import struct
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core.queue.partition import Topic
from _core.state.projections import Projections

PARTITIONS = 3
EVERYWHERE = 1 << 60
NOBODY = (1 << 63) - 1


def sequences(index: int, producers: list[tuple[int, int, int]]) -> bytes:
    """Producers of a partition as in a carry frame: id, log position after the last batch, batches.

    See docs/FORMAT.md.
    """
    parts = [struct.pack(">II", index, len(producers))]
    for producer_id, pos, count in producers:
        parts.append(struct.pack(">qhBBq", producer_id, 0, count, 0, pos))
        parts += [struct.pack(">iiqq", 0, 0, 0, 0)] * count
    return b"".join(parts)


class Producers:
    """The compiled table, and what it must hold."""

    def __init__(self) -> None:
        self.projections = Projections(id_key=bytes(16))
        self.topic = Topic("t", UUID(int=1), 1, {})
        self.projections.add_topic(self.topic, [(0, 0, -1)] * PARTITIONS)
        self.table = self.projections.producers
        self.model: dict[tuple[int, int], int] = {}

    def restore(self, index: int, producers: list[tuple[int, int, int]]) -> None:
        self.topic.partitions[index].restore_producers(sequences(index, producers), EVERYWHERE)
        for producer_id, pos, count in producers:
            self.model.pop((index, producer_id), None)
            if count:
                self.model[index, producer_id] = pos

    def forget(self, pos: int, count_max: int) -> None:
        idle = sorted((each, key) for key, each in self.model.items() if each <= pos)
        assert self.table.forget_below(pos, count_max) == min(len(idle), count_max)
        left = {
            (index, producer_id): known.last_pos
            for index, partition in enumerate(self.topic.partitions)
            for producer_id, known in partition.producers.items()
        }
        # Which of those with the same position are forgotten is open.
        gone = sorted(each for key, each in self.model.items() if key not in left)
        assert gone == [each for each, _ in idle[:count_max]]
        self.model = left

    def delete(self, index: int) -> None:
        self.table.forget_partition(self.topic.partitions[index].handle)
        self.model = {key: pos for key, pos in self.model.items() if key[0] != index}

    def check(self) -> None:
        assert self.table.count == len(self.model)
        assert self.table.oldest_pos == min(self.model.values(), default=NOBODY)
        if self.model:
            oldest = [key[0] for key, pos in self.model.items() if pos == self.table.oldest_pos]
            handles = [self.topic.partitions[index].handle for index in oldest]
            assert self.table.oldest_handle in handles
        else:
            assert self.table.oldest_handle == -1
        for index, partition in enumerate(self.topic.partitions):
            known = {key[1]: pos for key, pos in self.model.items() if key[0] == index}
            found = {each: state.last_pos for each, state in partition.producers.items()}
            assert found == known


PARTITION = st.integers(0, PARTITIONS - 1)
POSITION = st.integers(1, 20)
STEPS = st.one_of(
    st.tuples(
        st.just("restore"),
        PARTITION,
        st.lists(
            st.tuples(st.integers(0, 9), POSITION, st.integers(0, 5)),
            max_size=8,
            unique_by=lambda each: each[0],
        ),
    ),
    st.tuples(st.just("forget"), POSITION, st.integers(0, 12)),
    st.tuples(st.just("delete"), PARTITION),
)


@settings(max_examples=100)
@given(st.lists(STEPS, max_size=12))
def test_the_table_is_as_a_dict_that_is_sorted(steps: list[tuple[object, ...]]) -> None:
    producers = Producers()
    for name, *arguments in steps:
        getattr(producers, str(name))(*arguments)
        producers.check()


@pytest.mark.parametrize("cut", [1, 7, 9, 20, 30, 60])
def test_truncated_producers_are_refused(cut: int) -> None:
    """Those before the cut stay and can be forgotten."""
    producers = Producers()
    payload = sequences(0, [(1, 5, 1), (2, 6, 0)])
    with pytest.raises(ValueError, match=r"producer state"):
        producers.topic.partitions[0].restore_producers(payload[:cut], EVERYWHERE)
    assert producers.table.count == len(producers.topic.partitions[0].producers)
    assert producers.table.forget_below(EVERYWHERE, 10) == (cut == 60)
