"""A segment is freed and its file written again while others have it open: they notice.

Readers of the log with files of their own: tables, the commands on a live directory, the search for
keys. What they have read before is right, and nothing of the later segment is taken for the
earlier one.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from _core.tables.key_scan import KeyRows
from appliance.errors import SegmentFreedError
from appliance.offline.check import Check
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings
from compat.tables import batches
from compat.tables.log_reader import SegmentGoneError
from compat.tables.table import Query, tasks
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.tables import planned, table_of
from tests.unit.retention.test_freeing import SEGMENT
from tests.unit.retention.test_recycling import Writer, broker, expire, free

TIMES: Final = 8
"""A segment of so many usual ones takes several reads."""


class Scene:
    """A broker whose first segment can be freed, and then written again."""

    def __init__(self, times: int = TIMES) -> None:
        self.times = times
        self.harness: BrokerHarness = broker(segment_size_bytes=times * SEGMENT)
        self._writer = Writer()
        self._writer.fill(self.harness, 1.3 * times)
        expire(self.harness)

    def recycle(self) -> None:
        """Free the segment, and write over its file."""
        free(self.harness)
        self.harness.housekeep()
        self._writer.fill(self.harness, 1.6 * self.times)
        assert self.harness.broker.log.recycled_count == 1


def rows_of(scene: Scene, query: Query) -> Iterator[dict[str, Any]]:
    """Rows of a table, in small batches; the segment is recycled after the first."""
    (first, *rest) = tasks(planned(scene.harness.disk), query)
    for number, batch in enumerate(first.batches(scene.harness.disk)):
        if number == 1:
            scene.recycle()
        yield from batch.to_pylist()
    for task in rest:
        for batch in task.batches(scene.harness.disk):
            yield from batch.to_pylist()


def test_a_table_says_that_the_segment_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 4)
    found: list[dict[str, Any]] = []
    scene = Scene()
    with pytest.raises(SegmentGoneError, match=f"{0:020d} is gone"):
        found.extend(rows_of(scene, Query(table="frames")))
    assert len(found) > 4
    assert [row["position"] for row in found] == sorted(row["position"] for row in found)
    assert found[-1]["position"] < TIMES * SEGMENT


def test_a_table_goes_on_after_the_segment_if_losses_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 4)
    scene = Scene()
    frames = Query(table="frames", columns=("position",), fails_on_loss=False)
    everything = [row["position"] for row in table_of(scene.harness.disk, frames).to_pylist()]
    found = [row["position"] for row in rows_of(scene, frames)]
    start = scene.harness.broker.log.start_pos
    read = [pos for pos in found if pos < start]
    assert len(read) > 4
    assert read == everything[: len(read)]
    assert [pos for pos in found if pos >= start] == [pos for pos in everything if pos >= start]


def test_a_check_of_a_live_directory_says_so_and_finds_no_fault() -> None:
    scene, faults = Scene(), list[Fault]()
    findings = Findings(faults.append)
    data = DataDir(scene.harness.disk, DATA_DIR, findings)
    data.open(may_be_live=True)
    steps = Check(data, findings, slice_bytes=20_000).run()
    next(steps)
    scene.recycle()
    with pytest.raises(SegmentFreedError, match=f"freed .*{0:020d} while it was read"):
        list(steps)
    assert faults == []


def test_a_search_passes_over_the_segment() -> None:
    scene = Scene(40)
    part = scene.harness.broker.begin_find()[1]
    calls = 0

    def goes_on() -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            scene.recycle()
        return True

    rows = KeyRows(lambda codec, section: bytes(section), 0, b"0123456789abcdef")
    end = part.scan(rows, part.start, until=part.end, stop=part.end, goes_on=goes_on)
    assert calls > 1
    assert end == part.end
    assert part.faults == []
