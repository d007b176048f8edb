"""Builds the compiled modules of `_core`. All else about the distribution is in pyproject.toml.

    python setup.py build_ext --inplace                      build what changed
    python setup.py build_ext --inplace --only _core.NAME    build one module

Every `_core/**/*.pyx` becomes the module of its path. So does `tests/support/compiled/*.pyx`, which
tests and benchmarks alone call, but only in place. `LATERMQ_DEBUG=1` adds bounds checks, C
assertions, self-checks and debugger symbols; switching to and fro rebuilds what was built the other
way.
`LATERMQ_SANITIZE=address,undefined` adds gcc's sanitizers and a trace of the branches taken, and
builds into build/sanitized/lib, where only the fuzzing looks (tests/system/fuzz/sanitized.py).
"""

import glob
import hashlib
import os
import runpy
import sys
import sysconfig
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import ClassVar

from Cython import __version__ as cython_version
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import OptionError, PlatformError

IS_DEBUG = os.environ.get("LATERMQ_DEBUG", "0") not in {"", "0"}
SANITIZERS = os.environ.get("LATERMQ_SANITIZE", "")

CYTHON_DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "embedsignature": True,
    # Without these two, mypy's stubtest reports members that Cython adds by itself.
    "auto_pickle": False,
    "autotestdict": False,
    "boundscheck": IS_DEBUG,
    "initializedcheck": IS_DEBUG,
    # The same in both builds: these change what an expression means, not only what is checked.
    "wraparound": False,
    "cdivision": True,
}
SANITIZE_ARGS = [f"-fsanitize={SANITIZERS}"] if SANITIZERS else []
# -O3 compiles for a quarter longer. Where each record is walked, it saves a few percent of a
# produce; elsewhere it is no faster (docs/decisions/0010-rooms.md).
FASTEST = ("_core.bytes.", "_core.paths.", "_core.tables.")
COMPILE_ARGS = ["-O1", "-g", "-UNDEBUG", "-DLATERMQ_DEBUG"] if IS_DEBUG else ["-O2", "-g1"]
if SANITIZERS:
    # Python's own flags make a signed overflow wrap around; here it is to be seen. Copying nothing
    # from nowhere is defined since C2y. Who takes the trace: tests/system/fuzz/branch_trace.c.
    COMPILE_ARGS = [
        *("-O1", "-g1", "-DLATERMQ_DEBUG", "-fno-wrapv", "-fno-omit-frame-pointer"),
        "-fsanitize-coverage=trace-pc",
        *(*SANITIZE_ARGS, "-fno-sanitize=nonnull-attribute", "-fno-sanitize-recover=all"),
    ]

CORE_COUNT = len(os.sched_getaffinity(0))
TRANSLATION = hashlib.sha256(
    repr((cython_version, sorted(CYTHON_DIRECTIVES.items()))).encode()
).hexdigest()
BUILD_DIR = Path("build") / "sanitized" if SANITIZERS else Path("build")
# The generated C stays out of the source tree. The sanitized build compiles the same C.
C_DIR = Path("build") / "cython" / TRANSLATION[:12]
CYTHON_OPTIONS = {
    "build_dir": str(C_DIR),
    "include_path": ["."],
    "compiler_directives": CYTHON_DIRECTIVES,
    "show_all_warnings": IS_DEBUG,
}
FOR_TESTS = "tests/support/compiled"
LIB_DIR = BUILD_DIR / "lib"
STAMP_DIR = BUILD_DIR / "stamps"


def compile_args(name: str) -> list[str]:
    """Return gcc's options for a module."""
    is_release = not IS_DEBUG and not SANITIZERS
    return [*COMPILE_ARGS, "-O3"] if is_release and name.startswith(FASTEST) else COMPILE_ARGS


def find_extensions() -> list[Extension]:
    """Return one extension for each .pyx file, sorted by name."""
    return [
        Extension(
            path.removesuffix(".pyx").replace(os.sep, "."),
            [path],
            include_dirs=["."],
            extra_compile_args=compile_args(path.replace(os.sep, ".")),
            extra_link_args=SANITIZE_ARGS,
        )
        for tree in ("_core", FOR_TESTS)
        for path in sorted(glob.glob(f"{tree}/**/*.pyx", recursive=True))
    ]


def build_fingerprint(name: str) -> str:
    """Return a text that differs whenever the same source would be compiled differently."""
    return hashlib.sha256(repr((TRANSLATION, compile_args(name))).encode()).hexdigest()


def show_progress(what: str, done: int, total: int) -> None:
    """Say how far a first build is: in place on a terminal, else at the end alone."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{what} {done}/{total}" + ("\n" if done == total else ""))
    elif done == total:
        sys.stderr.write(f"{what} {done}\n")
    sys.stderr.flush()


def translate_new(extensions: list[Extension]) -> None:
    """Write those C files that do not exist, side by side: it takes a third of a first build."""
    sources = [path for e in extensions for path in e.sources if path.endswith(".pyx")]
    new = [path for path in sources if not (C_DIR / path).with_suffix(".c").exists()]
    if len(new) > 1:
        with ProcessPoolExecutor(CORE_COUNT) as pool:
            work = [pool.submit(cythonize, [p], quiet=True, **CYTHON_OPTIONS) for p in new]
            for done, each in enumerate(as_completed(work), 1):
                each.result()
                show_progress("translating to C: module", done, len(new))


def check_tools() -> None:
    """Raise a PlatformError if there is no compiler, or Python's headers are missing."""
    preflight = runpy.run_path(str(Path(".ci") / "preflight.py"))
    if missing := preflight["find_missing_for_compiling"]():
        raise PlatformError(preflight["describe"](missing))


class Build(build):
    """build that reports what is missing before hundreds of lines about copied files."""

    def run(self) -> None:
        check_tools()
        super().run()


class BuildCore(build_ext):
    """build_ext with `--only`, all by-products under build/, and a memory of the last options."""

    user_options: ClassVar = [*build_ext.user_options, ("only=", None, "build this module alone")]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.only = None

    def finalize_options(self) -> None:
        # Also runs for a source distribution and for metadata, so nothing is translated here.
        shipped = not self.inplace and not self.editable_mode
        chosen = [
            e
            for e in self.distribution.ext_modules
            if self.only in {None, e.name} and not (shipped and e.name.startswith("tests."))
        ]
        if SANITIZERS and self.inplace:
            raise OptionError("a sanitized build runs in no ordinary Python: leave out --inplace")
        if not chosen:
            names = ", ".join(e.name for e in self.distribution.ext_modules)
            raise OptionError(f"--only {self.only}: no such module; there are: {names}")
        self.distribution.ext_modules = chosen
        if self.parallel is None:
            self.parallel = CORE_COUNT
        super().finalize_options()
        if self.inplace or self.editable_mode or SANITIZERS:
            # pip offers temporary directories here and would compile everything anew each time.
            self.build_temp = str(BUILD_DIR / "temp")
            self.build_lib = str(LIB_DIR)

    def run(self) -> None:
        check_tools()
        for extension in self.extensions:
            self.discard_if_built_differently(extension.name)
        translate_new(self.extensions)
        translated = cythonize(
            self.extensions, nthreads=min(CORE_COUNT, len(self.extensions)), **CYTHON_OPTIONS
        )
        by_name = {each.name: each for each in translated}
        for extension in self.extensions:
            extension.sources = by_name[extension.name].sources
            extension.depends = by_name[extension.name].depends
            if not (self.inplace or SANITIZERS or IS_DEBUG):
                # For a wheel. Line numbers are of use where the source is.
                extension.extra_link_args = [*extension.extra_link_args, "-Wl,--strip-debug"]
        super().run()

    def build_extensions(self) -> None:
        # A Python that was built outside of /usr passes on where its own libraries are. No module
        # needs them, and a wheel would name a directory of the machine that built it.
        of_python = (sysconfig.get_config_var("LDSHARED") or "").split()
        paths = {option for option in of_python if option.startswith("-Wl,-rpath")}
        self.compiler.linker_so = [o for o in self.compiler.linker_so if o not in paths]
        self.built_count = 0
        self.new_count = sum(
            not Path(self.get_ext_fullpath(each.name)).exists() for each in self.extensions
        )
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        is_new = not Path(self.get_ext_fullpath(ext.name)).exists()
        super().build_extension(ext)
        if is_new:
            self.built_count += 1
            show_progress("compiling: module", self.built_count, self.new_count)

    def discard_if_built_differently(self, name: str) -> None:
        """Remove a module's outputs if other options made them: time stamps alone cannot tell."""
        stamp = STAMP_DIR / name
        if stamp.exists() and stamp.read_text() == build_fingerprint(name):
            return
        stem = name.replace(".", os.sep)
        outputs = [*LIB_DIR.glob(f"{stem}.*.so")]
        if not SANITIZERS:
            outputs += Path().glob(f"{stem}.*.so")
        for path in outputs:
            path.unlink(missing_ok=True)
        STAMP_DIR.mkdir(parents=True, exist_ok=True)
        stamp.write_text(build_fingerprint(name))


setup(ext_modules=find_extensions(), cmdclass={"build": Build, "build_ext": BuildCore})
