"""What the source refuses, by the error that Spark shows: options, schemas, paths, streams."""

import multiprocessing
import shutil
from pathlib import Path

import pytest

from compat.spark import needs

if (missing := needs.find_missing_library()) is not None:
    pytest.skip(missing, allow_module_level=True)

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from appliance.errors import ConfigError
from appliance.store.paths import DataPaths
from compat.spark.options import Options
from compat.spark.source import LatermqDataSource
from tests.support.harness import offline_scenario


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return offline_scenario.export(offline_scenario.stopped(), tmp_path_factory.mktemp("store"))


def source(**options: str) -> LatermqDataSource:
    """What Spark makes of the options of a `load`."""
    return LatermqDataSource(CaseInsensitiveDict(options))


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"table": "message"}, "there is no table 'message': use one of messages, timers,"),
        ({"topic": "orders"}, "there is no option 'topic': the options are path, table, topics"),
        ({"columns": "x"}, "table messages has no column 'x'"),
        ({"splitBytes": "many"}, "splitBytes is 'many': give bytes, such as 67108864 or 64m"),
        ({"startTimestamp": "noon"}, "startTimestamp has 'noon': give epoch ms, or RFC 3339"),
        ({"dueBetween": "0,1"}, "table messages is not selected by due times"),
        ({"dueBetween": "0", "table": "timers"}, "dueBetween is FROM,TO, not '0'"),
        ({"verifyCrc": "false"}, "verifyCrc is false: that is allowed for a snapshot alone"),
        ({"snapshot": "none"}, "snapshots/none is not a snapshot: `latermq snapshot list` shows"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is 'no': use true or false"),
        ({"includeExpired": "1"}, "includeExpired is '1': use true or false"),
        ({"endTimestamp": "1", "table": "groups"}, "table groups has no startTimestamp"),
    ],
)
def test_a_wrong_option_is_named(store: Path, options: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        source(path=str(store), **options)
    assert fault in str(raised.value)


def test_crcs_are_left_out_for_a_snapshot_alone(store: Path, tmp_path: Path) -> None:
    """A directory that a broker may start on is none, whatever the option says."""
    options = {"snapshot": str(store), "verifyCrc": "false"}
    with pytest.raises(ConfigError, match="is not a snapshot"):
        source(**options)
    copy = shutil.copytree(store, tmp_path / "copy")
    DataPaths(copy).snapshot_mark.touch()
    source(**options | {"snapshot": str(copy)})


def test_tasks_are_shared_by_the_processors_unless_their_size_is_named(store: Path) -> None:
    options = {"path": str(store)}
    assert Options.parse(options).query.processors == multiprocessing.cpu_count()
    named = Options.parse(options | {"splitBytes": "1m"}).query
    assert (named.processors, named.split_bytes) == (1, 1 << 20)


def test_expired_records_are_read_on_request(store: Path) -> None:
    options = {"path": str(store)}
    assert not Options.parse(options).query.with_expired
    assert Options.parse(options | {"includeExpired": "true"}).query.with_expired


@pytest.mark.parametrize(
    ("field", "fault"),
    [
        (
            StructField("offset", IntegerType()),
            "column offset of table messages is bigint, not int",
        ),
        (StructField("nothing", LongType()), "table messages has no column 'nothing'"),
        (
            StructField("key", BinaryType(), nullable=False),
            "column key of table messages may be null",
        ),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(store: Path, field: StructField, fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        source(path=str(store)).reader(StructType([field]))
    assert fault in str(raised.value)


@pytest.mark.parametrize("table", ["timers", "queues", "groups"])
def test_a_table_whose_rows_change_is_no_stream(store: Path, table: str) -> None:
    asked = source(path=str(store), table=table)
    with pytest.raises(ConfigError) as raised:
        asked.streamReader(asked.schema())
    assert f"rows of table {table} change, so it is no stream: use spark.read" in str(raised.value)
