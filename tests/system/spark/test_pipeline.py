"""The pipeline keeps exactly the tables that follow from the log, however it is run or killed."""

import itertools
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("pyarrow", reason="PyArrow is not installed")

from appliance.errors import ConfigError, LatermqError  # noqa: E402 (after the skip)
from appliance.system.files import OsFileSystem  # noqa: E402
from appliance.units import MS_PER_DAY, MS_PER_HOUR  # noqa: E402
from compat.pipeline.job import DEFAULT_LIMITS, Job, Limits, PipelineError  # noqa: E402
from compat.pipeline.layout import AGGREGATES, FACTS, NULL_NAME, STATE_DIR  # noqa: E402
from compat.pipeline.reading import load  # noqa: E402
from compat.pipeline.target import STAGES, read_manifest  # noqa: E402
from compat.spark.needs import JAVA_PACKAGE  # noqa: E402
from tests.support.docs.source_files import ROOT  # noqa: E402
from tests.support.harness import pipeline_scenario as scenario  # noqa: E402
from tests.support.harness.appliance_process import latermq_command  # noqa: E402
from tests.support.harness.broker_harness import BrokerHarness  # noqa: E402
from tests.support.harness.offline_scenario import export  # noqa: E402
from tests.support.values.kafka_records import Record, delay  # noqa: E402
from tests.system.spark.killed_run import SMALL_LIMITS, run_until_killed  # noqa: E402
from tests.system.spark.machine import QUICK_JAVA, Machine  # noqa: E402

KILLS: Final = (
    # (the day it runs on, what it is about to do, on which path, which time)
    (0, "create", "/messages-", 1),  # a task, its first file
    (0, "create", "/progress.json.new", 1),
    (0, "rename", "/progress.json", 1),  # nothing is committed
    (0, "rename", "/messages/", 2),  # one file of the commit is at its place
    (1, "unlink", "/known-", 1),  # what the commit supersedes is still there
    (1, "create", "/hourly-", 2),
    (1, "rename", "/hourly/", 2),  # one corrected partition is at its place
    (1, "rename", "/due/", 1),
    (1, "rename", "/completed/", 1),  # within a compaction
    (1, "unlink", "/messages/", 1),
)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A data directory after each of three days."""
    return scenario.days(tmp_path_factory.mktemp("data"), 3)


def run(spark: Any, data_dir: Path, out: Path, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """Run the pipeline once; return its lines of progress."""
    lines: list[str] = []
    job = Job(spark, OsFileSystem(), data_dir=data_dir, out=out, report=lines.append, limits=limits)
    try:
        job.open()
        job.run()
    finally:
        job.close()
    return lines


# First what other processes do: a Java machine has one session at a time.


def test_a_run_that_is_killed_anywhere_and_restarted_gives_the_tables_of_one_run(
    machine: Machine, days: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for day, kills in itertools.groupby(KILLS, lambda kill: kill[0]):
        for _, *point in kills:
            assert drive(machine, days[day], out, point) == -signal.SIGKILL, point
            machine.cancel()
        assert drive(machine, days[day], out, ["never", "", 1]) == 0
        scenario.assert_tables(out, scenario.expected(days[day]))


def drive(machine: Machine, data_dir: Path, out: Path, point: list[Any]) -> int | None:
    """Run the pipeline in a process of its own; return how it ended."""
    # It is forked off a process that has imported PySpark, which saves half of the time.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([run_until_killed.__module__])
    arguments = machine.address, data_dir, out, tuple(point)
    process = processes.Process(target=run_until_killed, args=arguments)
    process.start()
    process.join(60)
    return process.exitcode


def test_the_commands_do_it_and_say_what_is_wrong(
    machine: Machine, days: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["--data-dir", str(days[0]), "--out", str(out)]
    ended = machine.run([latermq_command(), "pipeline", "run", *arguments])
    assert ended.returncode == 0, ended.stderr
    assert "latermq: up to date: log position " in ended.stderr
    scenario.assert_tables(out, scenario.expected(days[0]))
    arguments[1] = str(tmp_path)
    ended = machine.run([sys.executable, "-m", "compat.pipeline", *arguments])
    assert ended.returncode == 2
    assert f"latermq: {tmp_path} is not a latermq data directory" in ended.stderr


def test_arguments_are_checked_before_spark_is_started(tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path), "--out", str(tmp_path)]
    for every, problem in (("5", "is not a duration"), ("10ms", "use 1s or more")):
        command = [latermq_command(), "pipeline", "run", *arguments, "--every", every]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        assert problem in ended.stderr
    command = [latermq_command(), "pipeline", "run", *arguments[:2]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "Missing option '--out'" in ended.stderr


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("", f"Spark needs Java 17 or newer: apt-get install {JAVA_PACKAGE}"),
        ("exit 1", "Java could not start Spark; what it wrote above says why. Spark needs Java 17"),
    ],
    ids=["no Java", "Java that fails"],
)
def test_a_machine_without_java_is_told_what_to_install(
    tmp_path: Path, program: str, said: str
) -> None:
    if program:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "java").chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
    else:
        path = str(tmp_path)
    names = [latermq_command(), "pipeline", "run", "--data-dir", str(tmp_path), "--out"]
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = path
    ended = subprocess.run(
        [*names, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(f"latermq: {said}")
    assert ended.stderr.endswith(f"apt-get install {JAVA_PACKAGE}\n")


def test_java_that_the_command_starts_logs_nothing_below_an_error(tmp_path: Path) -> None:
    command = [latermq_command(), "pipeline", "run", "--data-dir", str(tmp_path), "--out"]
    ended = subprocess.run(
        [*command, str(tmp_path / "out")],
        env=os.environ | QUICK_JAVA,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "Spark needs Java" in ended.stderr:
        pytest.skip("Java is not installed")
    lines = [line for line in ended.stderr.splitlines() if "jdk.incubator.vector" not in line]
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith(f"latermq: {tmp_path} is not a latermq data directory")


@pytest.fixture(scope="module")
def tables(spark: Any, days: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one run makes of the last day; not to be changed."""
    out = tmp_path_factory.mktemp("tables")
    run(spark, days[-1], out)
    return out


def test_tables_are_those_that_follow_from_the_log(
    spark: Any, days: list[Path], tables: Path
) -> None:
    rows = scenario.expected(days[-1])
    assert all(rows.values()), "the scenario has something of everything"
    scenario.assert_tables(tables, rows)
    (line,) = run(spark, days[-1], tables)
    assert line.startswith("up to date: log position "), "there was something left to do"


def test_runs_in_small_steps_give_the_tables_of_one_run_and_correct_earlier_hours(
    spark: Any, days: list[Path], tmp_path: Path
) -> None:
    before: scenario.Tables = {}
    corrected = dict.fromkeys(("lateness", "outcomes"), 0)
    for data_dir in days:
        run(spark, data_dir, tmp_path, SMALL_LIMITS)
        tables = scenario.expected(data_dir)
        scenario.assert_tables(tmp_path, tables)
        for table in corrected if before else ():
            last_hour = max(row[2] for row in before["hourly"])
            rows = set(tables[table]) - set(before[table])
            corrected[table] += sum(row[2] < last_hour for row in rows)
        before = tables
    assert all(corrected.values()), f"no earlier hour was corrected: {corrected}"


def test_small_files_are_merged_and_rows_stay(spark: Any, days: list[Path], tmp_path: Path) -> None:
    run(spark, days[-1], tmp_path, Limits(slice_bytes=1 << 12, small_files=1000))
    many = scenario.written(tmp_path)
    count = len(scenario.visible_files(tmp_path))
    lines = run(spark, days[-1], tmp_path, Limits(small_files=2))
    assert scenario.written(tmp_path) == many
    assert any(line.startswith("compaction: ") for line in lines)
    manifest = read_manifest(OsFileSystem(), tmp_path)
    for table in FACTS:
        for partition in manifest.files[table]:
            tiers = [file.size.bit_length() // 3 for file in manifest.files_of(table, [partition])]
            assert len(set(tiers)) == len(tiers)
    assert len(scenario.visible_files(tmp_path)) < count


def test_tables_are_read_by_spark_from_the_commit_and_from_the_directories(
    spark: Any, tables: Path, tmp_path: Path
) -> None:
    for table, rows in scenario.written(tables).items():
        names = [*(FACTS[table].names if table in FACTS else columns_of(table)), "topic", "date"]
        loaded = load(spark, tables, table)
        assert loaded.columns == names
        topics = [row.topic for row in loaded.select("topic").collect()]
        assert sorted(topics) == sorted(row[0] for row in rows)
        directory = spark.read.parquet(str(tables / table))
        assert directory.columns == names
        assert directory.count() == len(rows)
    copy = shutil.copytree(tables, tmp_path / "copy")
    stage = copy / STATE_DIR / STAGES / read_manifest(OsFileSystem(), copy).stage
    stage.mkdir(parents=True)
    with pytest.raises(ConfigError, match="moving files"):
        load(spark, copy, "hourly")


def columns_of(table: str) -> list[str]:
    return [column.name for column in AGGREGATES[table]]


def test_tables_of_another_log_are_refused_and_stay(
    spark: Any, days: list[Path], tables: Path, tmp_path: Path
) -> None:
    before = scenario.written(tables)
    (other,) = scenario.days(tmp_path / "other", 1, seed=2)
    with pytest.raises(ConfigError, match=r"of cluster .* give another --out"):
        run(spark, other, tables)
    with pytest.raises(ConfigError, match="may be an older copy"):
        run(spark, days[0], tables)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="holds other files"):
        run(spark, days[0], tmp_path / "full")
    assert scenario.written(tables) == before


def test_a_copy_that_went_another_way_is_refused(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(3)
    harness = scenario.live_a_day(scenario.begin(), rng)
    copy = BrokerHarness(harness.disk.crashed("kept", rng), harness.clock, harness.config)
    one = export(scenario.live_a_day(harness, rng).disk, tmp_path / "one")
    copy.clock.advance_ms(MS_PER_DAY)
    for _ in range(3):
        copy = scenario.live_a_day(copy.restart(), rng)
    two = export(copy.disk, tmp_path / "two")
    run(spark, one, tmp_path / "out")
    with pytest.raises(ConfigError, match="is another one"):
        run(spark, two, tmp_path / "out")


def test_rows_of_deleted_topics_and_records_stay(spark: Any, tmp_path: Path) -> None:
    harness = BrokerHarness()
    for topic in ("kept", "gone"):
        harness.create_topic(topic)
        harness.produce(topic, 0, [Record(b"now"), Record(b"later", headers=delay(MS_PER_DAY))])
    harness = harness.restart()
    first = export(harness.disk, tmp_path / "first")
    run(spark, first, tmp_path / "out")
    before = scenario.written(tmp_path / "out")
    harness.delete_topic("gone")
    harness.produce("kept", 0, [Record(b"more")])
    harness.tick(MS_PER_HOUR)
    harness.restart()
    second = export(harness.disk, tmp_path / "second")
    run(spark, second, tmp_path / "out")
    after = scenario.written(tmp_path / "out")
    for table in FACTS:
        assert set(before[table]) <= set(after[table])
    assert {row[0] for row in after["due"]} == {"kept"}
    assert len(after["messages"]) == 3


def test_a_topic_with_the_name_of_null_is_a_topic(spark: Any, tmp_path: Path) -> None:
    harness = BrokerHarness()
    harness.create_topic(NULL_NAME)
    harness.produce(NULL_NAME, 0, [Record(b"now"), Record(b"later", headers=delay(MS_PER_DAY))])
    data_dir = export(harness.restart().disk, tmp_path / "data")
    out = tmp_path / "out"
    run(spark, data_dir, out)
    scenario.assert_tables(out, scenario.expected(data_dir))
    for table in ("messages", "outcomes", "due"):
        (row,) = load(spark, out, table).select("topic").collect()
        assert row.topic == NULL_NAME
        assert spark.read.parquet(str(out / table)).where(f"topic = '{NULL_NAME}'").count() == 1


def test_damage_ends_a_run_unless_it_is_accepted(spark: Any, tmp_path: Path) -> None:
    harness = scenario.live_a_day(scenario.begin(), random.Random(4))
    data_dir = export(harness.disk, tmp_path / "data")
    out = tmp_path / "out"
    rows = scenario.expected(data_dir)["messages"]
    position = rows[len(rows) // 2][-2]
    segment = next((data_dir / "commitlog").glob("0*"))
    with segment.open("r+b") as file:
        file.seek(position + 20)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(PipelineError, match=f"position {position}: .* --accept-data-loss"):
        run(spark, data_dir, out)
    lines: list[str] = []
    job = Job(
        spark, OsFileSystem(), data_dir=data_dir, out=out, report=lines.append, accepts_loss=True
    )
    job.open()
    job.run()
    job.close()
    assert "1 damaged part of the log left out" in lines
    left = scenario.written(out)["messages"]
    assert left == [row for row in rows if row[-2] != position]


def test_a_job_that_runs_again_adds_what_the_log_has_gained(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(5)
    harness = scenario.begin()
    data_dir, out = tmp_path / "data", tmp_path / "out"
    job = Job(spark, OsFileSystem(), data_dir=data_dir, out=out, report=lambda _: None)
    job.open()
    for _ in range(2):
        harness = scenario.live_a_day(harness, rng)
        export(harness.disk, data_dir)
        job.run()
        scenario.assert_tables(out, scenario.expected(data_dir))
    job.close()


def test_two_runs_at_once_are_refused(spark: Any, days: list[Path], tmp_path: Path) -> None:
    job = Job(spark, OsFileSystem(), data_dir=days[0], out=tmp_path, report=lambda _: None)
    job.open()
    try:
        with pytest.raises(ConfigError, match=r"another pipeline \(pid \d+\) is running"):
            run(spark, days[0], tmp_path)
    finally:
        job.close()


def test_an_empty_log_gives_no_tables_yet(spark: Any, tmp_path: Path) -> None:
    harness = BrokerHarness().restart()
    data_dir = export(harness.disk, tmp_path / "data")
    run(spark, data_dir, tmp_path / "out")
    assert not any(scenario.written(tmp_path / "out").values())
    with pytest.raises(LatermqError, match="is not a latermq data directory"):
        run(spark, tmp_path, tmp_path / "other")


def test_the_picture_of_the_document_shows_the_tables(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    text = (ROOT / "docs" / "PIPELINE.md").read_text()
    program = text.partition("## A picture\n")[2].partition("```python\n")[2].partition("```\n")[0]
    names: dict[str, Any] = {}
    exec(program.replace("/srv/tables", str(tables)).replace("/srv/", f"{tmp_path}/"), names)
    written = scenario.written(tables)
    wanted = {
        name: sorted(row[2:] for row in written[name] if row[0] == "orders")
        for name in ("lateness", "due")
    }
    assert [bar.get_height() for bar in names["bottom"].patches] == [
        pending for _, pending in wanted["due"]
    ]
    median, worst = (list(line.get_ydata()) for line in names["top"].lines)
    assert [(row[2], row[4]) for row in wanted["lateness"]] == list(zip(median, worst, strict=True))
    assert len(median) > 1
    assert (tmp_path / "orders.svg").read_text().rstrip().endswith("</svg>")


def test_the_document_has_every_column() -> None:
    text = (ROOT / "docs" / "PIPELINE.md").read_text()
    for table, columns in AGGREGATES.items():
        rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section(text, table), flags=re.MULTILINE)
        assert rows == [(column.name, column.meaning) for column in columns]
    for table in FACTS:
        assert f"`{table}`" in text


def section(text: str, table: str) -> str:
    return text.partition(f"### {table}\n")[2].partition("\n### ")[0].partition("\n## ")[0]


def test_timers_of_a_deleted_topic_are_not_pending(spark: Any, tmp_path: Path) -> None:
    harness = BrokerHarness()
    out = tmp_path / "out"
    harness.create_topic("t", 1)
    harness.create_topic("other", 1)
    lives = [("first", 3), ("second", 2), ("third", 4)]
    for life, count in lives:
        for number in range(count):
            name = b"%s-%d" % (life.encode(), number)
            harness.produce("t", 0, [Record(b"", headers=delay(MS_PER_DAY, name))])
        harness.produce("other", 0, [Record(b"", headers=delay(MS_PER_DAY))])
        harness.cancel_timer("t", b"%s-0" % life.encode())
        harness = harness.restart()
        if life != "second":
            run(spark, export(harness.disk, tmp_path / life), out)
        harness.tick(MS_PER_HOUR)
        harness.delete_topic("t")
        harness.tick(MS_PER_HOUR)
        harness.create_topic("t", 1)
    # No run saw the second topic: the tables have nothing of it, neither timers nor their end.
    hourly = [row for row in scenario.written(out)["hourly"] if row[0] == "t"]
    names = ["topic", "date", *(column.name for column in AGGREGATES["hourly"])]
    rows = [dict(zip(names, row, strict=True)) for row in hourly]
    seen = [
        tuple(row[name] for name in ("accepted", "cancelled", "deleted", "backlog")) for row in rows
    ]
    assert seen == [(3, 1, 0, 2), (0, 0, 2, 0), (4, 1, 0, 3)]
    outcomes = [row for row in scenario.written(out)["outcomes"] if row[0] == "t"]
    names = ["topic", "date", *(column.name for column in AGGREGATES["outcomes"])]
    rows = [dict(zip(names, row, strict=True)) for row in outcomes]
    assert [row["pending"] for row in rows] == [0, 3]
    due = [row[-1] for row in scenario.written(out)["due"] if row[0] == "t"]
    assert due == [3]
    before = scenario.written(out)
    run(spark, tmp_path / "third", out)
    assert scenario.written(out) == before
    harness = harness.restart()
    run(spark, export(harness.disk, tmp_path / "end"), out)
    hourly = [row for row in scenario.written(out)["hourly"] if row[0] == "t"]
    assert hourly[-1][-2:] == (3, 0)
    assert [row for row in scenario.written(out)["due"] if row[0] == "t"] == []
    scenario_rows = [row for row in scenario.written(out)["hourly"] if row[0] == "other"]
    assert scenario_rows[-1][-1] == 3
