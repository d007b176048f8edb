"""The machine that a benchmark runs on: its description, its processor time, its disk, its memory.

A reader of figures must know where they were measured, and what else ran on the machine.
"""

import fcntl
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psutil

REPOSITORY: Final = Path(__file__).resolve().parent.parent
BUILD_DIR: Final = REPOSITORY / "build" / "perf"

# A producer at full speed for some seconds writes 6 GB; room for twice that, and for the filler.
DISK_FREE_MIN_BYTES: Final = 20_000_000_000

IDLE_WINDOW_S: Final = 0.3  # latermq checks ten times a second whether to prepare a segment
IDLE_SHARE_MAX: Final = 0.05  # of a core: a JVM without work takes 0.01 to 0.03
IDLE_WRITE_MAX_BYTES: Final = 262_144

_CPUCLOCK_SCHED: Final = 2  # which of a process's clocks, see clock_getcpuclockid(3)


class MissingToolError(Exception):
    """Something must be installed, or disk space freed; the message is one line that says what."""


class BenchError(Exception):
    """A measured process did not start, or failed; the message holds its output."""


def machine_line(more: Sequence[str] = ()) -> str:
    """Processor, cores, memory, kernel, file system, versions and date on one line."""
    cores = sum(line.startswith("processor") for line in _lines("/proc/cpuinfo"))
    memory_gb = int(_fact("/proc/meminfo", "MemTotal").split()[0]) / 1e6
    facts = [
        _fact("/proc/cpuinfo", "model name"),
        f"{cores} cores",
        f"{memory_gb:.0f} GB",
        f"Linux {platform.release()}",
        _output(["findmnt", "-n", "-o", "FSTYPE", "-T", str(BUILD_DIR)]),
        f"Python {platform.python_version()}",
        f"librdkafka {_output(['pkg-config', '--modversion', 'rdkafka'])}",
        f"confluent-kafka {version('confluent-kafka')}",
        f"uvloop {version('uvloop')}",
        *more,
        f"latermq {version_of(REPOSITORY)}",
        f"{datetime.now(UTC):%Y-%m-%d}",
    ]
    return ", ".join(facts)


def version_of(checkout: Path) -> str:
    """The commit of a checkout; `-dirty` follows if it was changed since."""
    return _output(["git", "-C", str(checkout), "describe", "--always", "--dirty"])


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _fact(path: str, name: str) -> str:
    for line in _lines(path):
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "?"


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "?"


@contextmanager
def build_directory() -> Iterator[Path]:
    """Lock BUILD_DIR, remove what a killed run left there, and check its free space.

    SIGTERM ends the program by an exception, so that no broker and no data are left.

    Raises:
        MissingToolError: another benchmark runs, or the disk is too full.
    """
    BUILD_DIR.mkdir(parents=True, exist_ok=True)
    with (BUILD_DIR / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MissingToolError("another benchmark is running") from None
        for left in BUILD_DIR.glob("data-*"):
            shutil.rmtree(left, ignore_errors=True)
        free_bytes = shutil.disk_usage(BUILD_DIR).free
        if free_bytes < DISK_FREE_MIN_BYTES:
            raise MissingToolError(
                f"build/perf has {free_bytes / 1e9:.0f} GB free, the benchmark needs "
                f"{DISK_FREE_MIN_BYTES / 1e9:.0f} GB for a while"
            )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        yield BUILD_DIR


def cpu_s(pid: int) -> float:
    """CPU seconds of a process since its start, user and system, all threads.

    From its clock rather than /proc/PID/stat, which counts in hundredths of a second: the cost of
    100,000 messages.
    """
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def ended_children_cpu_s() -> float:
    """CPU seconds of the children of this process that have ended."""
    times = psutil.Process().cpu_times()
    return float(times.children_user + times.children_system)


def machine_cpu_s() -> float:
    """Busy CPU seconds of the whole machine, including time stolen by the hypervisor."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def stolen_cpu_s() -> float:
    """CPU seconds that the machine wanted and its host gave to others, all processors together."""
    return float(psutil.cpu_times().steal)


def anonymous_mb(pid: int) -> float:
    """Anonymous memory of a process: its own data, without the mapped log."""
    for line in _lines(f"/proc/{pid}/smaps_rollup"):
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def await_idle(pid: int, limit_s: float = 20.0) -> None:
    """Wait until a process neither computes nor writes, when its preparations are done."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        begin_cpu_s, begin_bytes = cpu_s(pid), _written_bytes(pid)
        time.sleep(IDLE_WINDOW_S)
        is_calm = cpu_s(pid) - begin_cpu_s <= IDLE_SHARE_MAX * IDLE_WINDOW_S
        if is_calm and _written_bytes(pid) - begin_bytes <= IDLE_WRITE_MAX_BYTES:
            return


def _written_bytes(pid: int) -> int:
    """Bytes that a process has dirtied in the page cache so far."""
    return int(_fact(f"/proc/{pid}/io", "write_bytes"))
