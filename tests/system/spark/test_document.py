"""Every program of docs/SPARK.md runs as it stands there."""

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.docs.source_files import ROOT
from tests.support.harness.offline_scenario import export
from tests.support.oracles.tables_model import UsedBroker
from tests.system.spark.reading import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def programs(*, of_kafka: bool = False) -> list[str]:
    """The programs of the page, in order; the first makes the session that others use.

    Args:
        of_kafka: those that use Spark's Kafka source and sink instead of all others.
    """
    text = (ROOT / "docs" / "SPARK.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return [each for each in found if ('format("kafka")' in each) is of_kafka]


def test_each_program_of_the_page_runs(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = UsedBroker(random.Random(41))
    used.use(150)
    used.commit()
    used.harness.broker.close()
    root = export(used.harness.disk, tmp_path / "data")
    places = {"/var/lib/latermq": str(root), "/srv/copy": str(tmp_path / "copy")}
    names: dict[str, object] = {}
    found = programs()
    assert len(found) > 8
    try:
        for program in found:
            text = program
            for written, real in places.items():
                text = text.replace(written, real)
            exec(compile(text, "docs/SPARK.md", "exec"), names)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    copied = spark.read.parquet(str(tmp_path / "copy"))
    assert copied.count() == load(spark, root, columns="offset").count() > 0
    shown = capsys.readouterr().out
    for column in ("hour", "median_and_p99", "pending", "lag", "sum(size)", "min(due_at)"):
        assert column in shown
