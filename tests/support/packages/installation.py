"""Builds the distributions, installs them and serves messages from there: `make packages`.

The source distribution is made from a copy of the project. pip unpacks it and builds the wheel from
it, as it does when a user installs the source distribution. The wheel goes into an empty virtual
environment, so one compilation proves both. requirements-dev.txt decides versions
and checksums of all else that is installed; what the extra `spark` needs is not, and the modules
that import it say so. A Kafka client of this environment then sends a plain
and a delayed record to the `latermq` of the other. All of it happens in a temporary directory, and
with `--keep DIR` the two distributions are left in DIR.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.docs.source_files import PACKAGES, ROOT
from tests.support.harness.appliance_process import ApplianceError, ApplianceProcess
from tests.support.packages import contents

PINNED: Final = ROOT / "requirements-dev.txt"
TOPIC: Final = "orders"
DELAY_MS: Final = 1_500
ARRIVAL_LIMIT_S: Final = 60.0
_LIMIT_S: Final = 900
_LINES_OF_OUTPUT: Final = 40

_BUILD_SDIST: Final = """\
import sys
from setuptools import build_meta
build_meta.build_sdist(sys.argv[1])
"""
_IMPORT_ALL: Final = """\
import importlib, pkgutil, sys
of_extra = ("pyarrow", "pyspark")
users = ("appliance.commands.table_files", "compat.pipeline.", "compat.spark.", "compat.tables.")
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    assert package.__file__.startswith(sys.prefix), package.__file__
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if not module.name.startswith(users) or error.name.partition(".")[0] not in of_extra:
                raise
"""


class PackagesError(Exception):
    """A step failed; the message is one line."""


def run(what: str, *command: str | Path, cwd: Path) -> str:
    """Run a command; return its output.

    Raises:
        PackagesError: it failed, or took too long. The end of its output is on standard error.
    """
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PackagesError(f"{what} takes more than {_LIMIT_S} s") from None
    if done.returncode != 0:
        lines = done.stdout.splitlines() or [f"status {done.returncode}"]
        sys.stderr.write("".join(f"    {line}\n" for line in lines[-_LINES_OF_OUTPUT:]))
        raise PackagesError(f"{what} failed: {lines[-1].strip()}")
    return done.stdout


def build_sdist(scratch: Path) -> Path:
    """Make the source distribution from a copy of the project; return its path in `scratch`."""
    source = scratch / "source"
    contents.copy_source(source)
    build = (sys.executable, "-c", _BUILD_SDIST, scratch)
    run("building the source distribution", *build, cwd=source)
    (sdist,) = scratch.glob("*.tar.gz")
    return sdist


def build_wheel(sdist: Path) -> Path:
    """Build the wheel from the source distribution, beside it; return its path."""
    directory = sdist.parent
    options = ("--quiet", "--no-deps", "--build-constraint", PINNED, "--wheel-dir", directory)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run("building the wheel", *pip, "wheel", *options, sdist, cwd=directory)
    (wheel,) = directory.glob("*.whl")
    return wheel


def install(wheel: Path) -> Path:
    """Install the wheel and what it requires in an empty environment; return its directory."""
    directory, environment = wheel.parent, wheel.parent / "environment"
    make = (sys.executable, "-m", "venv", "--without-pip", environment)
    run("making an environment", *make, cwd=directory)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wanted = directory / "wanted.txt"
    wanted.write_text(f"{contents.NAME} @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    options = ("--quiet", "--require-hashes", "--constraint", PINNED, "--requirement", wanted)
    run("installing the wheel", *pip, "install", *options, cwd=directory)
    run("pip check of what is installed", *pip, "check", cwd=directory)
    every = (python, "-I", "-c", _IMPORT_ALL, *PACKAGES)
    run("importing each installed module", *every, cwd=directory)
    return environment


def serve(environment: Path) -> int:
    """Run the installed `latermq`, and a Kafka client against it.

    Returns:
        how late the delayed record came, in ms.

    Raises:
        PackagesError: a command or the client failed.
        ApplianceError: the broker did not start, or did not stop with status 0.
    """
    directory, latermq = environment.parent, environment / "bin" / "latermq"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if run("latermq --version", latermq, "--version", cwd=directory) != f"latermq {version}\n":
        raise PackagesError(f"latermq --version does not print version {version}")
    if "serve " not in run("latermq --help", latermq, "--help", cwd=directory):
        raise PackagesError("latermq --help does not show the command serve")
    appliance = ApplianceProcess(directory / "data", latermq=latermq)
    try:
        appliance.start()
        create = ("topics", "create", TOPIC, "--bootstrap", appliance.kafka)
        run("latermq topics create", latermq, *create, cwd=directory)
        lateness_ms = exchange(appliance.kafka)
        appliance.stop()
    finally:
        appliance.close()
    return lateness_ms


def exchange(address: str) -> int:
    """Send a delayed and a plain record; receive the plain one, and the delayed one when due.

    Returns:
        how late the delayed record came, in ms.

    Raises:
        PackagesError: a record was refused, did not come in time, or came too early.
    """
    due_ms = time.time_ns() // 1_000_000 + DELAY_MS
    errors: list[KafkaError] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": address})
    delay: list[tuple[str, str | bytes | None]] = [("x-delay", str(DELAY_MS))]
    producer.produce(TOPIC, b"delayed", partition=0, headers=delay, on_delivery=note)
    producer.produce(TOPIC, b"plain", partition=0, on_delivery=note)
    if producer.flush(ARRIVAL_LIMIT_S) or errors:
        raise PackagesError(f"records were not acknowledged: {errors or 'no answer'}")
    consumer = Consumer({"bootstrap.servers": address, "group.id": "packages"})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values = []
        for expected in (b"plain", b"delayed"):
            message = consumer.poll(ARRIVAL_LIMIT_S)
            if message is None or message.error() is not None:
                said = "nothing" if message is None else message.error()
                raise PackagesError(f"the consumer waits for {expected!r} and gets {said}")
            values.append(message.value())
        lateness_ms = time.time_ns() // 1_000_000 - due_ms
    finally:
        consumer.close()
    if values != [b"plain", b"delayed"] or lateness_ms < 0:
        raise PackagesError(f"got {values}, the last {-lateness_ms} ms before it was due")
    return lateness_ms


def prove(scratch: Path, say: Callable[[str], None]) -> tuple[Path, Path]:
    """Build, check, install and serve; return the paths of the two distributions.

    Raises:
        PackagesError: something is wrong with them.
        ApplianceError: the installed broker did not do what its command line promises.
    """
    sdist = build_sdist(scratch)
    names = contents.sdist_names(sdist)
    refuse(contents.sdist_faults(names))
    say(f"{sdist.name} has {sdist.stat().st_size:,} bytes in {len(names)} files")
    wheel = build_wheel(sdist)
    refuse(contents.wheel_faults(wheel))
    say(f"{wheel.name}, built from it, has {wheel.stat().st_size:,} bytes")
    environment = install(wheel)
    say("installed in an empty environment, where each module can be imported")
    lateness_ms = serve(environment)
    say(f"served a plain and a delayed record from there, the latter {lateness_ms} ms late")
    return sdist, wheel


def refuse(faults: Sequence[str]) -> None:
    """Raise a PackagesError if there are faults, which go to standard error."""
    if faults:
        sys.stderr.write("".join(f"    {fault}\n" for fault in faults))
        raise PackagesError(f"{faults[0]}" + (f" and {len(faults) - 1} more" * (len(faults) > 1)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", metavar="DIR", type=Path, help="leave the distributions there")
    keep: Path | None = parser.parse_args().keep
    # What is proven needs nothing of the caller's environment, and is no debug build.
    for name in ("PYTHONPATH", "PYTHONHOME", "LATERMQ_DEBUG", "LATERMQ_SANITIZE"):
        os.environ.pop(name, None)
    begin_s = time.monotonic()

    def say(sentence: str) -> None:
        sys.stdout.write(f"packages: {sentence} ({time.monotonic() - begin_s:.0f} s)\n")
        sys.stdout.flush()

    try:
        with tempfile.TemporaryDirectory(prefix="latermq-packages-") as scratch:
            for path in prove(Path(scratch).resolve(), say):
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, keep)
    except (PackagesError, ApplianceError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"packages: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
