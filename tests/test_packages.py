"""What is installed, and what it is installed from, is complete."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.support.docs.source_files import PACKAGES, ROOT, package_files
from tests.test_layers import find_imports

BESIDE = (
    *("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "requirements.in", "setup.py"),
    *("_core/bytes/crc32c_kernel.h", "_core/py.typed", "systemd/latermq.service", "docs/FORMAT.md"),
    "examples/demo.py",
)
BUILD = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"


def test_the_source_distribution_has_all_that_it_is_built_from(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns(".*", "build", "tests", "perf", "*.so", "__pycache__")
    top = tmp_path / "latermq"
    shutil.copytree(ROOT, top, ignore=left_out)
    for made in ("cython", "stamps"):  # else Cython translates everything again
        shutil.copytree(ROOT / "build" / made, top / "build" / made)
    done = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=top, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (top / "dist").iterdir()
    with tarfile.open(archive) as packed:
        found = {name.partition("/")[2] for name in packed.getnames()}
    wanted = {str(file.path) for file in package_files((".py", ".pyx", ".pxd", ".pyi"))}
    assert any(name.endswith(".pyx") for name in wanted)
    assert (wanted | set(BESIDE)) - found == set()
    assert not [name for name in found if name.endswith((".c", ".so"))]


def requirements(name: str) -> dict[str, str]:
    """What a file requires: the rest of the line by the name of the distribution."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = (re.match(r"([A-Za-z][A-Za-z0-9._-]*)(.*)", line) for line in lines)
    return {match[1].lower(): match[2] for match in found if match}


def test_each_library_that_is_imported_is_required_and_no_other_is() -> None:
    python = package_files((".py",))
    tops = {each.top for each in find_imports(python)} - {*PACKAGES, *sys.stdlib_module_names}
    owners = importlib.metadata.packages_distributions()
    imported = {owners[top][0].lower().replace("_", "-") for top in tops}
    assert imported == set(requirements("requirements.in"))


def test_the_demo_has_the_versions_that_are_tested() -> None:
    demo, tested = requirements("requirements-demo.txt"), requirements("requirements-dev.txt")
    assert {name: tested.get(name) for name in demo} == demo
    assert set(requirements("requirements.in")) <= set(demo)
