"""What cannot be read is an error that says what to do, or is passed over on request."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.harness.offline_scenario import export
from tests.support.oracles.tables_model import UsedBroker
from tests.system.spark.reading import error_of, load, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT = 64 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log of several segments."""
    used = UsedBroker(random.Random(31))
    used.use(450)
    used.harness.broker.close()
    return export(used.harness.disk, tmp_path / "data")


def segment(root: Path, position: int) -> Path:
    return root / "commitlog" / f"{position - position % SEGMENT:020d}"


def spoil(root: Path, position: int) -> None:
    """Change a byte of the log."""
    with segment(root, position).open("r+b") as file:
        file.seek(position % SEGMENT)
        (before,) = file.read(1)
        file.seek(position % SEGMENT)
        file.write(bytes([before ^ 1]))


@pytest.mark.parametrize("part", ["header", "records"])
def test_a_damaged_frame_is_an_error_or_passed_over(
    spark: "SparkSession", root: Path, part: str
) -> None:
    messages = rows(load(spark, root))
    position = messages[len(messages) // 2]["position"]
    (size,) = load(spark, root, "frames").where(f"position = {position}").select("size").first()
    spoil(root, position + (40 if part == "header" else size - 20))
    message = error_of(load(spark, root).collect)
    assert f"has a part that cannot be read, at log position {position}" in message
    assert "Set failOnDataLoss to false to go on without it" in message
    left = rows(load(spark, root, failOnDataLoss="false"))
    assert left == [row for row in messages if row["position"] != position] != messages


def test_a_torn_tail_ends_a_log_without_a_checkpoint(spark: "SparkSession", root: Path) -> None:
    frames = rows(load(spark, root, "frames"))
    (root / "checkpoint").unlink()
    spoil(root, frames[-1]["position"] + 40)
    assert rows(load(spark, root, "frames")) == frames[:-1]


def test_a_head_that_goes_away_is_an_error_of_what_was_loaded_before(
    spark: "SparkSession", root: Path
) -> None:
    df = load(spark, root)
    kept = load(spark, root, failOnDataLoss="false")
    expected = [row for row in rows(df) if row["position"] >= SEGMENT]
    segment(root, 0).unlink()
    message = error_of(df.collect)
    assert "is gone: the broker freed it" in message
    assert "set failOnDataLoss to false" in message
    assert rows(kept) == expected
    message = error_of(load(spark, root).collect)
    assert "at log position 0: the first segments are missing" in message
