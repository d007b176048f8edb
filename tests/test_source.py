"""Linter, formatter, types and stubs: what tools say about the source, as tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs.source_files import ROOT, package_files

TYPED = ("appliance", "compat", "tests/support")


def run_tool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_linter_finds_nothing() -> None:
    result = run_tool("ruff", "check", "--quiet", "--output-format=concise", ".")
    assert result.returncode == 0, f"\n{result.stdout}{result.stderr}"


def test_formatter_changes_nothing() -> None:
    result = run_tool("ruff", "format", "--check", ".")
    assert result.returncode == 0, f"run: ruff format .\n{result.stdout}{result.stderr}"


@pytest.mark.timeout(600)
def test_types_hold() -> None:
    result = run_tool("mypy", "--strict", *TYPED)
    assert result.returncode == 0, f"\n{result.stdout}{result.stderr}"


def run_stubtest(*modules: str, top: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    # What Cython adds by itself to each module that others cimport functions from.
    allowed = scratch / "allowed"
    allowed.write_text(r".*\.__pyx_capi__" + "\n")
    command = [sys.executable, "-m", "mypy.stubtest", "--concise"]
    # No class of _core is meant to be a base, so stubs need not say which bases conflict.
    command += ["--ignore-disjoint-bases", "--allowlist", str(allowed), "--ignore-unused-allowlist"]
    return subprocess.run(
        [*command, *modules],
        cwd=top,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.timeout(600)
def test_stubs_say_what_the_compiled_modules_are(tmp_path: Path) -> None:
    """The constructor of a class with `__cinit__` is `__new__`, in the stub as well."""
    modules = [file.module for file in package_files((".pyx",))]
    modules.append("tests.support.compiled.timer_calls")
    assert modules
    result = run_stubtest(*modules, top=ROOT, scratch=tmp_path)
    assert result.returncode == 0, f"\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize(
    ("tool", "text", "fact"),
    [
        (("ruff", "check", "--output-format=concise"), "import os\n", "F401"),
        (("ruff", "check", "--output-format=concise"), 'print("x")\n', "T201"),
        (("ruff", "format", "--check"), "x = ( 1 )\n", "would be reformatted"),
        (("mypy", "--strict"), "def f(x): return x\n", "no-untyped-def"),
        (("mypy", "--strict"), 'x: int = "1"\n', "assignment"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_each_tool_can_fail_with_the_settings_of_the_project(
    tool: tuple[str, ...], text: str, fact: str, tmp_path: Path
) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(text)
    option = "--config-file" if tool[0] == "mypy" else "--config"
    result = run_tool(*tool, f"{option}={ROOT / 'pyproject.toml'}", sample)
    assert result.returncode == 1, result.stdout + result.stderr
    assert fact in result.stdout


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("def crc32c(", "def crc32c(planted: int, ", "planted"),
        ("def crc32c(", "def planted() -> None: ...\ndef crc32c(", "planted"),
        ("def crc32c(", "def _unknown(", "crc32c is not present in stub"),
    ],
)
def test_a_stub_that_differs_from_its_module_is_found(
    old: str, new: str, fact: str, tmp_path: Path
) -> None:
    source, package = ROOT / "_core" / "bytes", tmp_path / "_core" / "bytes"
    package.mkdir(parents=True)
    for place in (package.parent, package):
        (place / "__init__.py").touch()
    (package.parent / "py.typed").touch()
    for name in ("crc32c", "borrowed"):  # and what it imports
        compiled = next(source.glob(f"{name}.*.so"))
        (package / compiled.name).write_bytes(compiled.read_bytes())
    (package / "borrowed.pyi").write_text((source / "borrowed.pyi").read_text())
    stub = (source / "crc32c.pyi").read_text()
    assert old in stub
    (package / "crc32c.pyi").write_text(stub.replace(old, new))
    result = run_stubtest("_core.bytes.crc32c", top=tmp_path, scratch=tmp_path)
    assert result.returncode == 1
    assert fact in result.stdout, result.stdout + result.stderr
