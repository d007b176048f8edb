"""Two real processes as a pair: how they are started, promoted and compared."""

import asyncio
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import pytest

from appliance.config.setting import Address
from tests.support.harness.appliance_process import READY_LIMIT_S, ApplianceProcess
from tests.support.harness.command_line import CommandLine
from tests.support.harness.ports import free_address
from tests.support.harness.replica_pair import Proxy
from tests.system.kill9.rounds import CONFIG

SILENCE_MS: Final = 600
LEASE_MS: Final = 800
PAIR: Final = f"""
[disk]
refuse_percent = 100
[retention]
check_interval_ms = 200
[replication]
timeout_ms = {SILENCE_MS}
lease_ms = {LEASE_MS}
"""
"""So that tests are short."""

MASTER_LINE: Final = re.compile(
    r"latermq ready kafka=(\S+:\d+) admin=(\S+:\d+) replication=(\S+:\d+)\n"
)
COMPARING_LINE: Final = re.compile(r"latermq comparing admin=(\S+:\d+) replication=(\S+:\d+)\n")
SLAVE_LINE: Final = re.compile(
    r"latermq ready role=slave master=\S+:\d+ kafka=(\S+:\d+) admin=(\S+:\d+)\n"
)

ADDRESSES: Final = re.compile(
    r"latermq (?:ready|comparing|repairing) (?:kafka=(\S+) )?(?:.* )?admin=(\S+:\d+)"
)

LIMIT_S: Final = 60.0
SEGMENT_BYTES: Final = 2_097_152
"""As in CONFIG."""


class Node(ApplianceProcess):
    """One node of a pair: a master, unless it is told to follow one before it starts.

    Attributes:
        mode: of replication, while it is a master.
        is_alone: a start as an async master does not wait for its slave.
        replication: where it waits for a slave, while it is a master.
    """

    def __init__(self, root: Path, name: str, data_dir: Path | None = None) -> None:
        self._config = root / f"{name}.toml"
        self._config.write_text(CONFIG + PAIR)
        self._base = ["--config", str(self._config)]
        super().__init__(data_dir or root / name, self._base, root / f"{name}.stderr")
        self.mode = "async"
        self.is_alone = True
        self.replication = free_address()
        self._is_slave = False
        self._slave_arguments: tuple[str, ...] = ()

    def sets(self, line: str) -> None:
        """Add a line of `[replication]` to its configuration."""
        self._config.write_text(f"{self._config.read_text()}{line}\n")

    def stands_in(self, rack: str) -> None:
        """Say where it is."""
        text = f'{self._config.read_text()}\n[network]\nrack = "{rack}"\n'
        self._config.write_text(text)

    def adds(self, *arguments: str) -> None:
        """Add arguments of `latermq serve`."""
        self._base += arguments

    def advertises(self, address: str) -> None:
        """Give clients this address instead of its own.

        Args:
            address: HOST:PORT.
        """
        self._base += ["--advertise", address]

    def follows(self, master: str) -> Self:
        """Start as a slave from now on.

        Args:
            master: HOST:PORT where it connects.
        """
        self._is_slave = True
        self._slave_arguments = ("--role", "slave", "--master", master)
        return self

    def spawn(self) -> None:
        """Start the process; do not wait."""
        pair = ["--replication", self.mode, "--replication-listen", self.replication]
        is_alone = self.is_alone and self.mode == "async" and not self._is_slave
        alone = ["--alone"] if is_alone else []
        self._arguments = [*self._base, *pair, *self._slave_arguments, *alone]
        super().spawn()

    def start(self, *, limit_s: float = READY_LIMIT_S) -> None:
        """Start it, and wait until it serves, or has caught up for the first time."""
        begin_s = time.monotonic()
        self.spawn()
        if self._is_slave:
            self.await_caught_up(limit_s=limit_s)
        else:
            self.await_serving(limit_s=limit_s)
        self.start_times_s.append(time.monotonic() - begin_s)

    def await_caught_up(self, *, limit_s: float = READY_LIMIT_S) -> None:
        """Wait for its ready line as a slave."""
        self.kafka, self.admin = self.await_line(SLAVE_LINE, limit_s=limit_s).groups()

    def await_serving(self, *, limit_s: float = READY_LIMIT_S) -> None:
        """Wait for its ready line as a master."""
        match = self.await_line(MASTER_LINE, limit_s=limit_s)
        self.kafka, self.admin, self.replication = match.groups()

    def find_admin(self) -> None:
        """Note the addresses that it printed last."""
        printed = ADDRESSES.findall(self.printed())
        if printed:
            self.admin = printed[-1][1]
            self.kafka = next((each[0] for each in reversed(printed) if each[0]), self.kafka)

    def promote(self, shell: CommandLine) -> None:
        """Promote it as an operator does, and wait until it serves."""
        done = shell.run(f"promote --admin {self.admin}")
        assert done.status == 0, done.stderr
        self.await_serving()
        self._is_slave = False

    def pair(self) -> dict[str, Any]:
        """What it says of the pair."""
        status, found = self.get_json("/api/v1/replication")
        assert status == 200
        result: dict[str, Any] = found
        return result

    def end(self) -> int:
        """Where its log ends."""
        return int(self.pair()["end"])

    def log(self, start: int, end: int) -> bytes:
        """The bytes of its log between two positions, as they are in the files."""
        pieces = []
        for path in sorted((self.data_dir / "commitlog").glob("[0-9]" * 20)):
            base = int(path.name)
            begin, stop = max(start, base), min(end, base + SEGMENT_BYTES)
            if begin < stop:
                with path.open("rb") as file:
                    file.seek(begin - base)
                    pieces.append(file.read(stop - begin))
        data = b"".join(pieces)
        assert len(data) == end - start, "the files do not have that"
        return data

    def first(self) -> int:
        """The base position of its first segment."""
        return min(int(each.name) for each in (self.data_dir / "commitlog").glob("[0-9]" * 20))

    def end_of_files(self) -> int:
        """After the last byte of its log that is not zero."""
        ends = [0]
        for path in (self.data_dir / "commitlog").glob("[0-9]" * 20):
            size = len(path.read_bytes().rstrip(b"\0"))
            ends.append(int(path.name) + size if size else 0)
        return max(ends)

    def damage(self, pos: int) -> None:
        """Change the byte of its log at a position; it must not run."""
        path = max(
            each
            for each in (self.data_dir / "commitlog").glob("[0-9]" * 20)
            if int(each.name) <= pos
        )
        with path.open("r+b") as file:
            file.seek(pos - int(path.name))
            (byte,) = file.read(1)
            file.seek(pos - int(path.name))
            file.write(bytes([byte ^ 0x40]))

    def lose(self, pos: int) -> None:
        """Replace its log from a position on with zeros; it must not run."""
        for path in (self.data_dir / "commitlog").glob("[0-9]" * 20):
            at, size = max(0, pos - int(path.name)), path.stat().st_size
            with path.open("r+b") as file:
                file.seek(min(at, size))
                file.write(bytes(max(0, size - at)))

    def check(self, shell: CommandLine) -> None:
        """Fail if `latermq check` finds a fault; it must not run."""
        found = shell.run(f"check {self.data_dir}")
        assert found.status == 0, f"{found.stdout}\n{found.stderr}"

    def forget(self) -> None:
        """Remove its directory; it must not run."""
        shutil.rmtree(self.data_dir)


def until(is_so: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait for a condition, and fail if it takes too long."""
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"{what} took longer than {limit_s} s"
        time.sleep(0.02)


def await_equal(master: Node, slave: Node) -> int:
    """Wait until a slave has on its disk what its master has now, and compare the files.

    Returns:
        The end of what was compared.
    """
    target = master.end()

    def has_it() -> bool:
        with suppress(OSError):  # it is just starting
            return int(slave.pair()["durable"] or 0) >= target
        return False

    try:
        until(has_it, f"the slave's way to {target}")
    except AssertionError as error:
        raise AssertionError(f"{error}; {master.pair()}; {slave.said()}") from None
    return compare(master, slave, target)


def compare(one: Node, other: Node, end: int) -> int:
    """Fail if the files of two logs differ below a position; return it."""
    start = max(one.first(), other.first())
    first, second = one.log(start, end), other.log(start, end)
    if first != second:
        pairs = enumerate(zip(first, second, strict=True))
        at = next(at for at, (a, b) in pairs if a != b)
        pytest.fail(f"the logs from {start} to {end} differ at {start + at}")
    return end


class ProxyThread:
    """A `Proxy` between two processes, on a thread of its own.

    Attributes:
        address: HOST:PORT where the slave connects.
    """

    def __init__(self, target: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._proxy = Proxy(_address(target))
        self._is_started = threading.Event()
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        self._is_started.wait()
        self.address = str(self._proxy.address)

    async def _run(self) -> None:
        self._end = asyncio.Event()
        async with self._proxy:
            self._is_started.set()
            await self._end.wait()

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def lead_to(self, target: str, cut_after: tuple[int | None, ...] = ()) -> None:
        """Serve what connects from now on so."""
        self._call(self._proxy.lead_to, _address(target), cut_after)

    def cut(self) -> None:
        """End the connections."""
        self._call(self._proxy.cut)

    def pause(self, *, to_slave: bool = True, to_master: bool = True) -> None:
        """Let nothing pass in these directions, without closing anything."""
        if to_slave:
            self._call(self._proxy.to_slave.clear)
        if to_master:
            self._call(self._proxy.to_master.clear)

    def resume(self) -> None:
        """Let all pass."""
        self._call(self._proxy.to_slave.set)
        self._call(self._proxy.to_master.set)

    def delay(self, seconds: float) -> None:
        """Hold each piece back for so long."""
        self._proxy.delay_s = seconds

    @property
    def connection_count(self) -> int:
        return self._proxy.connection_count

    def close(self) -> None:
        assert self._end is not None
        self._call(self._end.set)
        self._thread.join()
        self._loop.close()


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, int(port))
