"""What Spark lacks on this machine is said in one line that names what to install."""

import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from appliance.errors import ConfigError
from compat import spark
from compat.spark import needs


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment that lacks nothing; its directory of programs has a Java."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(metadata, "version", lambda name: "4.2.0")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "java").touch(mode=0o755)
    return tmp_path


def test_nothing_is_missing_from_a_whole_environment(whole: Path) -> None:
    assert needs.find_missing() is None
    needs.check_all()


def test_without_java_the_package_is_named(whole: Path) -> None:
    (whole / "java").unlink()
    line = "Spark needs Java 17 or newer: apt-get install default-jre-headless"
    assert needs.find_missing() == line
    with pytest.raises(ConfigError) as error:
        spark.session()
    assert str(error.value) == line


def test_a_program_of_spark_submit_needs_no_java_of_its_own(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole / "java").unlink()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4040")
    assert needs.find_missing() is None


def test_a_wrong_java_home_is_named(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(whole / "jdk"))
    assert needs.find_missing() == (
        f"JAVA_HOME is {whole}/jdk, which has no bin/java: unset it, or correct it"
    )


@pytest.mark.parametrize("name", ["pyarrow", "pyspark"])
def test_without_a_library_the_extra_is_named(
    whole: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda wanted: None if wanted == name else wanted
    )
    assert needs.find_missing() == (f'Spark needs the library {name}: pip install "latermq[spark]"')
    with pytest.raises(ConfigError, match=f"Spark needs the library {name}"):
        needs.check_libraries()


def test_an_old_pyspark_is_named(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "4.1.3")
    assert str(needs.find_missing()).startswith("pyspark 4.1.3 is too old, use 4.2 or newer")


def test_spark_runs_this_python_unless_another_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    needs.choose_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.13")
    needs.choose_python()
    assert os.environ["PYSPARK_PYTHON"] == "python3.13"


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment that chooses nothing of Spark; an installed PySpark with Spark."""
    for name in ("PYSPARK_PYTHON", *needs._CHOSEN_HOME):
        monkeypatch.delenv(name, raising=False)
    installed = tmp_path / "pyspark"
    for part in ("bin", "jars", needs.ARCHIVES):
        (installed / part).mkdir(parents=True)
    monkeypatch.setattr(needs, "find_installed", lambda: installed)
    return installed


def test_spark_has_a_home_without_the_archive_of_pyspark(free: Path) -> None:
    needs.choose_home()
    home = Path(os.environ["SPARK_HOME"])
    assert {each.name: each.resolve() for each in home.iterdir()} == {
        name: free / name for name in ("bin", "jars")
    }
    needs.choose_home()
    assert os.environ["SPARK_HOME"] == str(home), "one that is set stays"
    os.environ.pop("SPARK_HOME")


@pytest.mark.parametrize(
    ("name", "value"),
    [("SPARK_HOME", "/opt/spark"), ("YARN_CONF_DIR", "/etc/yarn"), ("PYSPARK_PYTHON", "python3")],
)
def test_a_home_that_the_environment_needs_stays(
    free: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    before = os.environ.get("SPARK_HOME")
    monkeypatch.setenv(name, value)
    needs.choose_home()
    assert os.environ.get("SPARK_HOME") == (value if name == "SPARK_HOME" else before)


def test_a_pyspark_without_spark_has_its_home_elsewhere(free: Path) -> None:
    (free / "jars").rmdir()
    needs.choose_home()
    assert "SPARK_HOME" not in os.environ
