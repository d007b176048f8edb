"""The sanitized build of _core, and Python processes that run with it.

gcc alone is needed: its runtime of the sanitizers is loaded into an ordinary Python before all
else. `python -m tests.system.fuzz.sanitized MODULE ARGUMENTS` runs a module so; without arguments
it only builds, if gcc has what that takes.
"""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
BUILD: Final = ROOT / "build" / "sanitized"
TRACE_SOURCE: Final = Path(__file__).with_name("branch_trace.c")
TRACE: Final = BUILD / "branch_trace.so"
CORE: Final = BUILD / "lib" / "_core"
SANITIZERS: Final = "address,undefined"

RUNTIMES: Final = ("libasan.so", "libubsan.so", "libstdc++.so")
"""The last one because the first must find it where compiled wheels throw exceptions."""

OPTIONS: Final = {
    "ASAN_OPTIONS": ":".join(
        (
            "detect_leaks=0",  # Python itself frees little at its end
            "max_allocation_size_mb=512",
            "allocator_may_return_null=1",  # so that it is a MemoryError, and a finding as such
            "hard_rss_limit_mb=1500",
            "quarantine_size_mb=32",
            "handle_abort=1",
        )
    ),
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # Python's own allocator would hide what is read after the end of an object.
    "PYTHONMALLOC": "malloc",
}

BOOT: Final = """
import importlib, os, pkgutil, runpy, sys
import _core
compiled = sys.argv.pop(1)
for package in pkgutil.iter_modules(_core.__path__):
    path = importlib.import_module(f"_core.{package.name}").__path__
    path.insert(0, os.path.join(compiled, package.name))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
"""Python code that takes the modules of _core from the directory in its first argument."""


@functools.cache
def find_runtimes() -> list[str]:
    """Paths of the runtimes to be preloaded; empty if gcc or one of them is missing."""
    found = []
    for name in RUNTIMES:
        try:
            printed = subprocess.run(
                ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return []
        path = printed.stdout.strip()
        if not os.path.isabs(path):  # gcc says the bare name of what it does not have
            return []
        found.append(path)
    return found


def build() -> None:
    """Compile what changed; from nothing it takes about a minute."""
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext"],
        cwd=ROOT,
        env=os.environ | {"LATERMQ_SANITIZE": SANITIZERS},
        check=True,
        capture_output=True,
    )
    if not TRACE.exists() or TRACE.stat().st_mtime < TRACE_SOURCE.stat().st_mtime:
        flags = ["-shared", "-fPIC", "-O1", "-g1", "-fsanitize=address", "-o", str(TRACE)]
        subprocess.run(["gcc", *flags, str(TRACE_SOURCE)], check=True)


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with the sanitized core; its environment is `environment`."""
    return [sys.executable, "-c", BOOT, str(CORE), module, *arguments]


def environment() -> dict[str, str]:
    """The environment of such a process."""
    preloaded = ":".join([*find_runtimes(), str(TRACE)])
    return os.environ | OPTIONS | {"LD_PRELOAD": preloaded, "PYTHONPATH": str(ROOT)}


def main() -> int:
    """Build, and run the module that the arguments name, if any."""
    if not sys.argv[1:] and not find_runtimes():
        return 0  # the tests that need it say so
    build()
    if not sys.argv[1:]:
        return 0
    return subprocess.run(command(*sys.argv[1:]), env=environment(), cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
