"""What is installed from is complete: the source distribution has every file that a build needs."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.support.source_files import ROOT, package_files

BESIDE = (
    *("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "requirements.in", "setup.py"),
    *("_core/crc32c_kernel.h", "_core/py.typed", "systemd/latermq.service", "docs/FORMAT.md"),
)
BUILD = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"


def test_the_source_distribution_has_all_that_it_is_built_from(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns(".*", "build", "tests", "perf", "*.so", "__pycache__")
    top = tmp_path / "latermq"
    shutil.copytree(ROOT, top, ignore=left_out)
    for made in ("cython", "stamps"):  # else Cython translates everything anew
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
