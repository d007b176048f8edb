"""What is installed, and what it is installed from, is complete and is no more than needed.

`make packages` builds all of it and serves a message from there; here is what takes seconds.
"""

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.support.docs.source_files import PACKAGES, ROOT, SourceFile, package_files
from tests.support.packages import contents, installation
from tests.test_layers import find_imports

SMALL = "_core/bytes/layout"
OF_CYTHON = ("cpython", "cython", "libc", "posix")
ENDING = sysconfig.get_config_var("EXT_SUFFIX")


def test_the_source_distribution_has_all_that_it_is_built_from(tmp_path: Path) -> None:
    archive = installation.build_sdist(tmp_path)
    names = contents.sdist_names(archive)
    assert contents.sdist_faults(names) == []
    assert any(name.endswith(".pyx") for name in names)
    assert not (tmp_path / "source" / "build").exists(), "it was translated in vain"


@pytest.mark.parametrize("name", ["_core/log/frames.pyx", "LICENSE", ".ci/preflight.py"])
def test_what_a_source_distribution_lacks_is_found(name: str) -> None:
    project = {file.path for file in package_files((".py", ".pyx", ".pxd", ".pyi", ".h"))}
    whole = project | contents.BESIDE
    assert contents.sdist_faults(whole) == []
    assert contents.sdist_faults(whole - {name}) == [f"the source distribution lacks {name}"]


@pytest.mark.parametrize("name", ["_core/log/frames.c", "tests/test_docs.py", "build/lib/a.so"])
def test_what_a_source_distribution_has_in_excess_is_found(name: str) -> None:
    assert f"the source distribution has {name}" in contents.sdist_faults([name])


def names_of_a_good_wheel() -> set[str]:
    data, info = "latermq-1.data/data/share/doc/latermq", "latermq-1.dist-info"
    beside = {f"{info}/{name}" for name in ("METADATA", "RECORD", "entry_points.txt")}
    beside |= {f"{info}/licenses/LICENSE", f"{data}/CLI.md", f"{data}/CONFIGURATION.md"}
    compiled = {file.path[: -len(".pyx")] + ENDING for file in package_files((".pyx",))}
    others = {f"{package}/py.typed" for package in PACKAGES} | {contents.LOG_SETTINGS}
    return beside | compiled | others | {file.path for file in package_files((".py", ".pyi"))}


@pytest.mark.parametrize("name", [SMALL + ENDING, SMALL + ".pyi", contents.LOG_SETTINGS])
def test_what_a_wheel_lacks_is_found(name: str) -> None:
    good = names_of_a_good_wheel()
    assert contents.wheel_name_faults(good) == []
    assert contents.wheel_name_faults(good - {name}) == [f"the wheel lacks {name}"]


@pytest.mark.parametrize("name", [SMALL + ".pyx", SMALL + ".pxd", SMALL + ".c", "tests/a.py"])
def test_what_a_wheel_has_in_excess_is_found(name: str) -> None:
    good = names_of_a_good_wheel()
    assert contents.wheel_name_faults(good | {name}) == [f"the wheel has {name}"]


VECTORS = '__attribute__((target("avx2"))) void f(long *p) { for (int i = 0; i < 64; i++) p[i]++; }'


@pytest.mark.parametrize(
    ("options", "source", "fault"),
    [
        ([], "", None),
        (["-Wl,-rpath,/opt/x"], "", "searches /opt/x for libraries"),
        (["-Wl,--no-as-needed", "-lgcc_s"], "", "needs the library libgcc_s.so.1"),
        (["-g"], "int x;", "has what only a debugger needs"),
        pytest.param(
            ["-O3"],
            VECTORS,
            "has instructions that not every processor knows",
            marks=pytest.mark.skipif(os.uname().machine != "x86_64", reason="is for x86-64"),
        ),
    ],
)
def test_what_ties_a_module_to_one_machine_is_found(
    options: list[str], source: str, fault: str | None, tmp_path: Path
) -> None:
    sample, module = tmp_path / "sample.c", tmp_path / "sample.so"
    sample.write_text(source + "\n")
    compiler = shlex.split(sysconfig.get_config_var("CC"))[0]
    subprocess.run([compiler, "-shared", "-fPIC", "-o", module, sample, *options], check=True)
    found = list(contents.binary_faults(module, "_core/sample.so"))
    assert found == ([] if fault is None else [fault])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with one compiled module."""
    top = tmp_path_factory.mktemp("small") / "source"
    contents.copy_source(top)
    for path in (top / "_core").rglob("*.pyx"):
        if path != top / (SMALL + ".pyx"):
            path.unlink()
    return top


def build(top: Path, form: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build what pip asks for: the form is `wheel` or `editable`; it is in `out` then."""
    (top / "out").mkdir(exist_ok=True)
    program = f"from setuptools import build_meta; build_meta.build_{form}('out')"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("LATERMQ_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=top,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_a_wheel_has_modules_that_run_anywhere(small: Path, tmp_path: Path) -> None:
    done = build(small, "wheel")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (small / "out").glob("*-cp*.whl")
    with zipfile.ZipFile(wheel) as packed:
        module = Path(packed.extract(SMALL + ENDING, tmp_path))
    assert list(contents.binary_faults(module, SMALL)) == []


def test_a_module_beside_its_source_keeps_its_line_numbers(small: Path) -> None:
    done = build(small, "editable")
    assert done.returncode == 0, done.stdout + done.stderr
    faults = list(contents.binary_faults(small / (SMALL + ENDING), SMALL))
    assert faults == ["has what only a debugger needs"]


def test_without_a_compiler_one_line_says_what_to_install(small: Path) -> None:
    done = build(small, "wheel", CC="no-such-compiler")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == "error: missing: a C compiler; apt-get install gcc"
    assert "Traceback" not in done.stderr
    assert "copying" not in done.stdout, "the line is hard to find"


def requirements(name: str) -> dict[str, str]:
    """What a file requires: the rest of the line by the name of the distribution."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = (re.match(r"([A-Za-z][A-Za-z0-9._-]*)(.*)", line) for line in lines)
    return {match[1].lower(): match[2] for match in found if match}


OF_SPARK = (
    "appliance/commands/export.py",
    "appliance/commands/import_rows.py",
    "appliance/commands/table_files.py",
    "appliance/commands/table_rows.py",
    "compat/pipeline/",
    "compat/spark/",
    "compat/tables/",
)
"""What only `latermq[spark]` can use; nothing else imports what it adds."""


DATA: Final = frozenset({"tzdata"})
"""What nothing imports: zoneinfo reads it where the system has no zones."""


def imported_by(files: Iterable[SourceFile]) -> set[str]:
    """The distributions that files import something of."""
    found = {each.top for each in find_imports(files)}
    tops = found - {*PACKAGES, *sys.stdlib_module_names, *OF_CYTHON}
    owners = importlib.metadata.packages_distributions()
    # PySpark is large, so it may not be installed: its package and its distribution agree.
    return {owners.get(top, [top])[0].lower().replace("_", "-") for top in tops}


def test_each_library_that_is_imported_is_required_and_no_other_is() -> None:
    files = package_files((".py", ".pyx"))
    of_extra = set(requirements("requirements-spark.in"))
    everywhere = imported_by(each for each in files if not each.path.startswith(OF_SPARK))
    assert everywhere == set(requirements("requirements.in")) - DATA
    assert imported_by(files) == everywhere | of_extra


def test_a_broker_starts_without_the_libraries_of_spark() -> None:
    program = "import sys, appliance.cli, appliance.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert not {b"pyarrow", b"pyspark"} & set(done.stdout.split())


def test_spark_has_the_versions_that_are_tested() -> None:
    spark, tested = requirements("requirements-spark.txt"), requirements("requirements-dev.txt")
    shared = set(spark) & set(tested)
    assert {name: tested[name] for name in shared} == {name: spark[name] for name in shared}
    assert set(requirements("requirements-spark.in")) <= set(spark)


def test_the_demo_has_the_versions_that_are_tested() -> None:
    demo, tested = requirements("requirements-demo.txt"), requirements("requirements-dev.txt")
    assert {name: tested.get(name) for name in demo} == demo
    assert set(requirements("requirements.in")) <= set(demo)
