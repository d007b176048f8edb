"""What a start and a command load: each library on the way is time until something happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import offline_scenario

OURS = {"_core", "appliance", "compat"}
# Hooks of setuptools and of editable installations, and what compiled modules bring along.
BY_PYTHON = re.compile(
    r"_distutils_hack|distutils-precedence|__editable__.*|sitecustomize|cython_runtime"
)

FOR_COMMANDS = {"click"}
FOR_HTTP = {
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "backports", "brotli", "brotlicffi"),
    *("frozenlist", "idna", "multidict", "propcache", "typing_extensions", "yarl"),
}
FOR_SERVE = {
    *FOR_COMMANDS,
    *FOR_HTTP,
    *("cramjam", "isal", "lz4", "zstandard"),
    *("kio", "prometheus_client", "uvloop"),
    "cronsim",
    "snappy",  # by prometheus_client, where it is installed
}

WHOLE_SSL = """
import appliance.main, asyncio.sslproto, http.client, ssl, sys, urllib.request
assert sys.modules["ssl"] is ssl is asyncio.sslproto.ssl
assert "hypothesis" not in sys.modules
http.client.HTTPSConnection, urllib.request.HTTPSHandler
"""


TELLING = """
import atexit, sys
atexit.register(lambda: print("loaded", *sys.modules, file=sys.stderr))
from appliance.cli import main
main()
"""


def loaded_by(*arguments: str, status: int = 0) -> set[str]:
    """Run `latermq` to its end, a broker to its ready line; return the libraries it imported."""
    command = [sys.executable, "-c", TELLING, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if "--listen" in arguments:
            assert process.stdout.readline().startswith("latermq ready ")
            process.terminate()
        _, told = process.communicate(timeout=120)
    assert process.returncode == status, told
    first, *modules = told.splitlines()[-1].split()
    assert first == "loaded"
    tops = {module.partition(".")[0] for module in modules}
    others = {top for top in tops - OURS - sys.stdlib_module_names if not BY_PYTHON.fullmatch(top)}
    # Names that a library gives its compiled parts, such as `_cython_3_3_0`.
    return {top for top in others if not top.startswith("_")}


def test_serve_loads_what_it_serves_with_and_nothing_else(tmp_path: Path) -> None:
    free = "127.0.0.1:0"
    loaded = loaded_by(
        "serve", "--data-dir", str(tmp_path / "d"), "--listen", free, "--admin", free
    )
    assert loaded - FOR_SERVE == set()
    assert {"click", "aiohttp", "kio"} <= loaded


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("--help", 0),
        ("serve --help", 0),
        ("send --help", 0),
        ("serve --flash", 2),
        ("topics list --bootstrap 127.0.0.1:1", 69),
    ],
)
def test_help_and_mistakes_are_answered_without_a_library(command: str, status: int) -> None:
    assert loaded_by(*command.split(), status=status) == FOR_COMMANDS


def test_export_to_parquet_does_without_numpy(tmp_path: Path) -> None:
    """Which takes as long to load as pyarrow itself."""
    (tmp_path / "log").mkdir()
    store = str(offline_scenario.export(offline_scenario.stopped(), tmp_path / "log"))
    for table in ("messages", "groups"):
        loaded = loaded_by("export", store, "--table", table, "--out", str(tmp_path / table))
        assert "pyarrow" in loaded
        assert not loaded & {"numpy", "typing_extensions"}


def test_what_is_kept_from_a_library_is_there_for_all_others() -> None:
    """Modules that were loaded while ssl was hidden would lack what needs it, for good."""
    subprocess.run([sys.executable, "-c", WHOLE_SSL], check=True, timeout=120)
