"""How a table is divided into tasks."""

import pytest

from appliance.units import MIB
from compat.tables.plan import ZONE_BYTES, Zone
from compat.tables.table import SHARED_MIN_BYTES, SPLIT_BYTES, divided

NEVER = (1, 0)


def zones(count: int, size: int = ZONE_BYTES) -> list[Zone]:
    return [
        Zone(
            start=number * size,
            end=(number + 1) * size,
            topics=frozenset({1}),
            stored=NEVER,
            timestamps=NEVER,
            due=NEVER,
            records=1,
            timers=0,
            delivered=0,
            frames=1,
        )
        for number in range(count)
    ]


def sizes(parts: list[list[Zone]]) -> list[int]:
    return [sum(zone.end - zone.start for zone in part) for part in parts]


@pytest.mark.parametrize("processors", [2, 3, 8])
@pytest.mark.parametrize("count", [5, 33, 75, 96, 300, 1000])
@pytest.mark.parametrize("size", [ZONE_BYTES, ZONE_BYTES + 12_345])
def test_tasks_are_equal_and_occupy_all_processors(processors: int, count: int, size: int) -> None:
    found = zones(count, size)
    parts = list(divided(found, SPLIT_BYTES, processors))
    assert [zone for part in parts for zone in part] == found
    assert len(parts) == min(count, -(-len(parts) // processors) * processors)
    assert max(sizes(parts)) <= SPLIT_BYTES + size
    assert max(sizes(parts)) - min(sizes(parts)) <= 2 * size


def test_a_small_table_is_one_task() -> None:
    found = zones(SHARED_MIN_BYTES // ZONE_BYTES)
    assert list(divided(found, SPLIT_BYTES, 8)) == [found]


def test_a_size_that_is_asked_for_is_the_least_of_each_task_but_the_last() -> None:
    parts = list(divided(zones(7), 9 * MIB, 1))
    assert sizes(parts) == [12 * MIB, 12 * MIB, 4 * MIB]
