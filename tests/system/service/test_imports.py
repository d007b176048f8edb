"""What a start and a command load: each library on the way is time until something happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

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

# Codecs are modules too; a client's first request may come before the thread that loads them.
LOADED_LATE = """
import sys, threading
loaded = []
def note(event, arguments):
    is_loop = threading.current_thread() is threading.main_thread()
    if event == "import" and is_loop and not arguments[0].startswith("kio."):
        loaded.append(arguments[0])
sys.addaudithook(note)
def listen():
    for line in sys.stdin:
        print(*loaded, flush=True)
        loaded.clear()
threading.Thread(target=listen, daemon=True).start()
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


def test_a_loop_that_serves_loads_nothing_more(tmp_path: Path) -> None:
    """It would wait for the disk, and with it everybody: 50 ms while producers write."""
    free = "127.0.0.1:0"
    arguments = ("serve", "--data-dir", str(tmp_path), "--listen", free, "--admin", free)
    with subprocess.Popen(
        [sys.executable, "-c", LOADED_LATE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None

        def loaded() -> list[str]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("now\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, "the broker ended"
            return line.split()

        try:
            words = process.stdout.readline().split()
            kafka = next(word for word in words if word.startswith("kafka="))
            assert "appliance.broker" in loaded()
            send_and_read(kafka.removeprefix("kafka="), count=400)
            found = loaded()
        finally:
            process.terminate()
            process.communicate(timeout=120)
    assert found == []
    assert process.returncode == 0


def send_and_read(address: str, count: int) -> None:
    """Send records of 1 KiB, every other one with a delay of 50 ms, and read them all."""
    producer = Producer({"bootstrap.servers": address})
    for number in range(count):
        headers = {"x-delay": "50"} if number % 2 else {}
        producer.produce("t", bytes(1024), headers=headers)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    for _ in range(count):
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
    consumer.close()


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
