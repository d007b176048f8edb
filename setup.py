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
import sysconfig
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
COMPILE_ARGS = ["-O1", "-g", "-UNDEBUG", "-DLATERMQ_DEBUG"] if IS_DEBUG else ["-O3", "-g1"]
if SANITIZERS:
    # Python's own flags make a signed overflow wrap around; here it is to be seen. Copying nothing
    # from nowhere is defined since C2y. Who takes the trace: tests/system/fuzz/branch_trace.c.
    COMPILE_ARGS = [
        *("-O1", "-g1", "-DLATERMQ_DEBUG", "-fno-wrapv", "-fno-omit-frame-pointer"),
        "-fsanitize-coverage=trace-pc",
        *(*SANITIZE_ARGS, "-fno-sanitize=nonnull-attribute", "-fno-sanitize-recover=all"),
    ]

TRANSLATION = hashlib.sha256(
    repr((cython_version, sorted(CYTHON_DIRECTIVES.items()))).encode()
).hexdigest()
BUILD_DIR = Path("build") / "sanitized" if SANITIZERS else Path("build")
# The generated C stays out of the source tree. The sanitized build compiles the same C.
C_DIR = Path("build") / "cython" / TRANSLATION[:12]
FOR_TESTS = "tests/support/compiled"
LIB_DIR = BUILD_DIR / "lib"
STAMP_DIR = BUILD_DIR / "stamps"


def find_extensions() -> list[Extension]:
    """Return one extension for each .pyx file, sorted by name."""
    return [
        Extension(
            path.removesuffix(".pyx").replace(os.sep, "."),
            [path],
            include_dirs=["."],
            extra_compile_args=COMPILE_ARGS,
            extra_link_args=SANITIZE_ARGS,
        )
        for tree in ("_core", FOR_TESTS)
        for path in sorted(glob.glob(f"{tree}/**/*.pyx", recursive=True))
    ]


def build_fingerprint() -> str:
    """Return a text that differs whenever the same source would be compiled differently."""
    return hashlib.sha256(repr((TRANSLATION, COMPILE_ARGS)).encode()).hexdigest()


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
            self.parallel = len(os.sched_getaffinity(0))
        super().finalize_options()
        if self.inplace or self.editable_mode or SANITIZERS:
            # pip offers temporary directories here and would compile everything anew each time.
            self.build_temp = str(BUILD_DIR / "temp")
            self.build_lib = str(LIB_DIR)

    def run(self) -> None:
        check_tools()
        for extension in self.extensions:
            self.discard_if_built_differently(extension.name)
        translated = cythonize(
            self.extensions,
            nthreads=min(len(os.sched_getaffinity(0)), len(self.extensions)),
            build_dir=str(C_DIR),
            include_path=["."],
            compiler_directives=CYTHON_DIRECTIVES,
            show_all_warnings=IS_DEBUG,
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
        super().build_extensions()

    def discard_if_built_differently(self, name: str) -> None:
        """Remove a module's outputs if other options made them: time stamps alone cannot tell."""
        stamp = STAMP_DIR / name
        if stamp.exists() and stamp.read_text() == build_fingerprint():
            return
        stem = name.replace(".", os.sep)
        outputs = [*LIB_DIR.glob(f"{stem}.*.so")]
        if not SANITIZERS:
            outputs += Path().glob(f"{stem}.*.so")
        for path in outputs:
            path.unlink(missing_ok=True)
        STAMP_DIR.mkdir(parents=True, exist_ok=True)
        stamp.write_text(build_fingerprint())


setup(ext_modules=find_extensions(), cmdclass={"build": Build, "build_ext": BuildCore})
