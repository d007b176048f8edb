"""A stream has each row once while the first segments are carried and freed."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("pyarrow", reason="PyArrow is not installed")

from tests.support.harness.carried_log import CarriedLog, lived
from tests.support.harness.offline_scenario import export
from tests.support.harness.tables import rows_of
from tests.system.spark.test_streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def free(log: CarriedLog) -> None:
    """Carry what lives in the first two segments, and free them."""
    cut = log.bases[2]
    log.carry(cut)
    log.free(cut)


def test_a_stream_has_what_is_carried_once(spark: "SparkSession", tmp_path: Path) -> None:
    log = lived(5)
    free(log)
    expected = Counter(
        (row["topic"], row["partition"], row["offset"]) for row in rows_of(log.disk, "messages")
    )
    stream = Stream(
        spark,
        tmp_path / "data",
        tmp_path,
        columns="topic,partition,offset",
        maxBytesPerTrigger="150k",
    )
    for _ in range(2):
        for path in stream.root.glob("commitlog/*"):
            path.unlink()
        export(log.disk, stream.root)
        stream.run()
        free(log)
    found = Counter((row["topic"], row["partition"], row["offset"]) for row in stream.rows())
    assert found == expected
