"""A cluster whose executor, a process of its own, gets the wheel of latermq as an archive."""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.packages import built_wheel, contents
from tests.system.spark.machine import Machine

PROGRAM = """\
import sys
from pyspark.sql import SparkSession

archive, root = sys.argv[1:]
sys.path.insert(0, archive.removesuffix(".tar.gz"))
from compat.spark import register

builder = SparkSession.builder.master("local-cluster[1,2,1024]")
for name, value in {
    "spark.archives": archive + "#environment",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": "environment",
    "spark.log.level": "ERROR",
    "spark.python.daemon.module": "pyspark.daemon",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
register(spark)

def counted(rows):
    import compat.tables
    return [(len(list(rows)), compat.tables.__file__)]

df = spark.read.format("latermq").option("splitBytes", "1").load(root)
found = df.rdd.mapPartitions(counted).collect()
print(len(found), sum(count for count, _ in found))
print(all("/environment/" in place for _, place in found))
spark.stop()
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """What the wheel installs, as an archive; the libraries are those of this environment."""
    tree = tmp_path / "environment"
    wheel = built_wheel.build(tmp_path)
    with zipfile.ZipFile(wheel) as packed:
        assert contents.wheel_name_faults(packed.namelist()) == []
        packed.extractall(tree)
    packed_tree = tmp_path / "environment.tar.gz"
    with tarfile.open(packed_tree, "w:gz", compresslevel=1) as file:
        for path in tree.iterdir():
            file.add(path, path.name)
    return packed_tree


def test_executors_read_with_what_the_archive_has(
    machine: Machine, archive: Path, store: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = machine.run(
        [sys.executable, str(program), str(archive), str(store)],
        cwd=tmp_path,
        env={"PYSPARK_PYTHON": sys.executable},
        timeout=200,
    )
    assert done.returncode == 0, re.findall(".*Error.*", done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.split()]
    assert lines == ["3 24", "True"], "one task for each segment"
