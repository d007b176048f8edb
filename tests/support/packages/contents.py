"""What the source distribution and the wheel hold, and what they must not.

The functions `..._faults` return one line for each fault, and an empty list for a good package.
They need readelf and objdump, which come with the compiler.
"""

import re
import shutil
import subprocess
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from tests.support.docs.source_files import PACKAGES, ROOT, package_files

NAME: Final = "latermq"
WHEEL_SIZE_MAX_BYTES: Final = 4_200_000

LOG_SETTINGS: Final = "compat/pipeline/log4j2.properties"

BESIDE: Final = frozenset(
    [
        *("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "PKG-INFO"),
        *("pyproject.toml", "requirements.in", "requirements-spark.in", "setup.py"),
        ".ci/preflight.py",
        *("_core/bytes/crc32c_kernel.h", "_core/py.typed", "appliance/py.typed"),
        LOG_SETTINGS,
        *("compat/py.typed", "systemd/latermq.service", "docs/FORMAT.md", "examples/demo.py"),
    ]
)
"""What the source distribution has beside the modules."""

VECTOR_MODULE: Final = "_core/bytes/crc32c"
"""It asks the processor before it uses wide vectors; other modules run on any processor."""

# The C library's parts, which every Python needs as well.
_LIBRARIES: Final = re.compile(
    r"(?:libc|libm|libpthread|ld-linux[\w-]*|ld-musl[\w-]*)\.so(?:\.\d)?"
)
# Instructions of AVX and later, as objdump writes them.
_WIDE: Final = re.compile(r"\tv\w+ .*%[xyz]mm")


def copy_source(top: Path) -> None:
    """Copy the project to the directory `top`, without what building and running made."""
    made = ("build", "dist", "*.egg-info", "*.so", "__pycache__", "latermq-data")
    tools = (".git", ".venv", ".hypothesis", ".*_cache")
    shutil.copytree(ROOT, top, ignore=shutil.ignore_patterns(*made, *tools))


def sdist_names(archive: Path) -> set[str]:
    """Return the paths of the files, from the top of the project."""
    with tarfile.open(archive) as packed:
        return {each.name.partition("/")[2] for each in packed.getmembers() if each.isfile()}


def sdist_faults(names: Iterable[str]) -> list[str]:
    """Compare the files of a source distribution with those of the project."""
    found = set(names)
    wanted = {file.path for file in package_files((".py", ".pyx", ".pxd", ".pyi", ".h"))} | BESIDE
    faults = [f"the source distribution lacks {name}" for name in sorted(wanted - found)]
    surplus = (name for name in sorted(found) if is_surplus_in_sdist(name))
    return faults + [f"the source distribution has {name}" for name in surplus]


def is_surplus_in_sdist(name: str) -> bool:
    """Return whether a file is a product of the build, or serves development alone."""
    path = PurePosixPath(name)
    return path.parts[0] in {"tests", "perf", "build", "dist", ".git", ".venv"} or (
        path.suffix in {".c", ".so", ".pyc", ".o"}
    )


def wheel_faults(wheel: Path) -> list[str]:
    """Check the names in a wheel, its size and its compiled modules."""
    size_bytes = wheel.stat().st_size
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        binaries = {name: packed.read(name) for name in names if name.endswith(".so")}
    faults = wheel_name_faults(names)
    if size_bytes > WHEEL_SIZE_MAX_BYTES:
        faults.append(f"the wheel has {size_bytes:,} bytes; at most {WHEEL_SIZE_MAX_BYTES:,}")
    scratch = wheel.with_suffix(".so")
    for name, content in binaries.items():
        scratch.write_bytes(content)
        faults += [f"{name} {fault}" for fault in binary_faults(scratch, name)]
        scratch.unlink()
    return faults


def wheel_name_faults(names: Iterable[str]) -> list[str]:
    """Compare the files of a wheel with what the project's modules must become."""
    found = {name for name in names if not name.endswith("/")}
    ending = sysconfig.get_config_var("EXT_SUFFIX")
    wanted = {file.path for file in package_files((".py", ".pyi"))}
    wanted |= {file.path.removesuffix(".pyx") + ending for file in package_files((".pyx",))}
    wanted |= {f"{package}/py.typed" for package in PACKAGES} | {LOG_SETTINGS}
    modules = {name for name in found if not name.startswith(f"{NAME}-")}
    faults = [f"the wheel lacks {name}" for name in sorted(wanted - modules)]
    faults += [f"the wheel has {name}" for name in sorted(modules - wanted)]
    beside = {name.partition("/")[2] for name in found - modules}
    needed = {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    needed |= {f"data/share/doc/{NAME}/CLI.md", f"data/share/doc/{NAME}/CONFIGURATION.md"}
    return faults + [f"the wheel lacks {name}" for name in sorted(needed - beside)]


def binary_faults(path: Path, name: str) -> Iterator[str]:
    """Check that a compiled module of the name depends on nothing of the machine that built it."""
    dynamic = _output("readelf", "--dynamic", "--wide", path)
    for kind, value in re.findall(r"\((NEEDED|RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
        if kind != "NEEDED":
            yield f"searches {value} for libraries"
        elif not _LIBRARIES.fullmatch(value):
            yield f"needs the library {value}"
    if ".debug_" in _output("readelf", "--sections", "--wide", path):
        yield "has what only a debugger needs"
    # `-march=native` gives nearly every module such an instruction.
    if not name.startswith(VECTOR_MODULE + ".") and _WIDE.search(
        _output("objdump", "--disassemble", "--no-show-raw-insn", path)
    ):
        yield "has instructions that not every processor knows"


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
