"""The wheel of what is compiled already, within seconds: for tests that install or ship it.

It is built as pip builds it, from a copy of the project, but with the modules that are compiled in
place. `make packages` compiles all of them for the wheel that users get, and proves that one.
"""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from tests.support.docs.source_files import ROOT
from tests.support.packages import contents

_BUILD_WHEEL: Final = """\
import sys
from setuptools import build_meta
build_meta.build_wheel(sys.argv[1])
"""
_LIMIT_S: Final = 120


def build(scratch: Path) -> Path:
    """Build the wheel; return its path.

    Args:
        scratch: an empty directory.
    """
    source, made = scratch / "source", scratch / "wheel"
    contents.copy_source(source)
    made.mkdir()
    # What setuptools finds there with the time of its source or a later one, it takes as it is.
    kind = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    compiled = source / "build" / f"lib.{kind}"
    for path in (ROOT / "_core").rglob("*.so"):
        target = compiled / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    (source / "build" / "cython").symlink_to(ROOT / "build" / "cython")
    subprocess.run(
        [sys.executable, "-c", _BUILD_WHEEL, made],
        cwd=source,
        capture_output=True,
        check=True,
        timeout=_LIMIT_S,
    )
    (wheel,) = made.glob("*.whl")
    return wheel
