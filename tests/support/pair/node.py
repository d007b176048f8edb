"""One machine of the pair: its disk, its clock, and the broker's process while there is one."""

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from appliance.broker import Broker
from appliance.config.setting import Address
from appliance.errors import LatermqError
from appliance.main import Service
from appliance.store.paths import DataPaths
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.simulator.node_clock import NodeClock
from tests.support.simulator.sim_fs import (
    DISK_SIZE_BYTES,
    CrashMode,
    SimCrash,
    SimFileSystem,
)
from tests.support.simulator.sim_loop import SimLoop
from tests.support.simulator.sim_network import Network
from tests.support.simulator.world import World

KAFKA_PORT: Final = 9092
PEER_PORT: Final = 9292
FILE_LIMIT: Final = 10_000

UNDAMAGED: Final = "a slave repairs a log that nobody damaged"


class PairNode:
    """A machine of the pair.

    Attributes:
        number: 1 or 2.
        host, clock, disk: of the machine.
        service: of the process; None while none runs.
        exit_error: with which its last process ended; None if it was stopped or killed.
        end_pos: where the log ended at its last clean stop.
        committed_pos, epoch: of its log, when it last was a master; see `note_log`.
        starts: how many processes there were.
        is_damaged, has_repaired: bytes of its log were changed, and it found that.
    """

    def __init__(
        self, world: World, network: Network, number: int, clock: NodeClock, **settings: Any
    ) -> None:
        """Make a machine on which nothing runs yet.

        Args:
            world, network: where it is.
            number: 1 or 2; the other node has the other one.
            clock: of the machine.
            settings: fields of `Config`.
        """
        self._world = world
        self._rng = world.fork()
        self._settings = settings
        self.number = number
        self.host = network.add_host(self.address_of(number))
        self.clock = clock
        self.disk = SimFileSystem()
        self.service: Service | None = None
        self.loop: SimLoop | None = None
        self.exit_error: BaseException | None = None
        self.end_pos: int | None = None
        self.committed_pos = self.epoch = 0
        self._epochs: list[tuple[int, int]] = []
        """When each process that is gone ended, by the world's time, and its last epoch."""
        self.starts = 0
        self.is_damaged = self.has_repaired = False
        self.thread_ms = 0.5

    @staticmethod
    def address_of(number: int) -> str:
        """The host of a node."""
        return f"127.0.0.{number}"

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def is_running(self) -> bool:
        """There is a process; it may be frozen."""
        return self.loop is not None

    def note_log(self) -> None:
        """Remember how far the log is, and in which epoch, for when the process is gone."""
        broker = self.broker
        if broker is not None and hasattr(broker, "topics"):
            self.committed_pos, self.epoch = broker.committed_pos, broker.epoch

    def epoch_at(self, at_ns: int) -> int:
        """Return the last epoch of the process that ran at a time, the world's."""
        return next((epoch for end_ns, epoch in self._epochs if at_ns <= end_ns), self.epoch)

    @property
    def broker(self) -> Broker | None:
        """The broker of the process, for those who look inside."""
        return None if self.service is None else self.service._broker

    def start(self) -> None:
        """Start a process, with the settings that the node always had."""
        assert self.loop is None
        self.exit_error = None
        self.starts += 1
        self.host.boot()
        rng = random.Random(self._rng.getrandbits(64))
        loop = self.loop = SimLoop(  # type: ignore[abstract]
            self._world, self.host, self.clock, self.disk, rng
        )
        loop.thread_ms = lambda: rng.expovariate(1 / self.thread_ms)
        loop.stepped = self._look_at_disk
        self._world.note(self.name, "starts")
        loop.post_ns(self._world.now_ns, self._begin, loop)

    def _config(self) -> Any:
        peer = Address(self.address_of(3 - self.number), PEER_PORT)
        return small_config(
            role="master" if self.number == 1 else "slave",
            master=peer if self.number == 2 else None,
            peer=peer if self.number == 1 else None,
            listen=Address(self.name, KAFKA_PORT),
            replication_listen=Address(self.name, PEER_PORT),
            node=self.number,
            **self._settings,
        )

    def _begin(self, loop: SimLoop, service: Service | None = None) -> None:
        self.service = service or Service(self._config(), FILE_LIMIT)
        task = loop.create_task(self.service.run())
        task.add_done_callback(lambda done: self._ended(loop, done))

    def _ended(self, loop: SimLoop, task: Any) -> None:
        if loop.is_dead:
            return
        error = task.exception()
        assert self.service is not None
        if error is None and self.service.must_start_again:
            self._world.note(self.name, "starts again in the same process")
            self._begin(loop, self.service.successor())
            return
        self._world.note(self.name, f"ends: {error!r}")
        if error is None:
            self.end_pos = self.service._broker.wrote_pos
        self.exit_error = error
        if error is not None and not isinstance(error, LatermqError):
            self._world.errors.append(error)
        self._world.at_ns(self._world.now_ns, self._leave, loop)

    def _leave(self, loop: SimLoop) -> None:
        if self.loop is loop:
            self._end("killed", is_silent=False)

    def _look_at_disk(self) -> None:
        """A crash in the middle of a call ends the process there."""
        broker = self.broker
        if broker is not None and broker.repair is not None:
            self.has_repaired = True
            if not self.is_damaged:
                self._world.errors.append(RuntimeError(UNDAMAGED))
        if self.disk.is_dead:
            self._world.note(self.name, "crashes in a call of its disk")
            self._end("killed", is_silent=False)

    def damage(self, rng: random.Random) -> None:
        """Change a byte of the log, and lose the checkpoints: the next start reads all of it."""
        assert self.loop is None
        paths = DataPaths(DATA_DIR)
        segments = sorted(self.disk.list_dir(paths.commit_log))
        written = {name: self.disk.files()[paths.commit_log / name] for name in segments}
        full = [name for name in segments if written[name].rstrip(b"\0")]
        name = rng.choice(full)
        offset = rng.randrange(len(written[name].rstrip(b"\0")))
        self.disk.flip(paths.commit_log / name, offset, 1 << rng.randrange(8))
        for each in self.disk.list_dir(paths.control):
            self.disk.unlink(paths.control / each)
        self.is_damaged = True
        self._world.note(self.name, f"is damaged in {name} at {offset}")

    def fill(self, free_bytes: int | None) -> None:
        """Let the disk have so many bytes left; None: as many as ever."""
        self.disk.free = DISK_SIZE_BYTES if free_bytes is None else free_bytes

    def replace_disk(self) -> None:
        """Have an empty disk; no process runs."""
        assert self.loop is None
        self.disk = SimFileSystem()

    # What happens to it

    def kill(self) -> None:
        """As with kill -9."""
        if self.loop is not None:
            self._world.note(self.name, "is killed")
            self._end("killed", is_silent=False)

    def cut_power(self, mode: CrashMode) -> None:
        """Lose what the disk had not synced, as `mode` says; the machine is silent."""
        self._world.note(self.name, f"loses its power: {mode}")
        self._end(mode, is_silent=True)

    def crash_after(self, calls: int) -> None:
        """Be killed in so many calls of the disk, whatever they are for."""
        self.disk.fail_at(self.disk.calls + calls, SimCrash())

    def freeze(self, duration_ms: float) -> None:
        """As with SIGSTOP and SIGCONT."""
        if self.loop is not None:
            self._world.note(self.name, f"is stopped for {duration_ms:.0f} ms")
            self.loop.freeze_ms(duration_ms)

    def terminate(self) -> None:
        """Ask the process to stop cleanly."""
        if self.service is not None and self.loop is not None:
            self._world.note(self.name, "is asked to stop")
            stop = self.service._stop
            self.loop.post_ns(self._world.now_ns, stop.set)

    def call(
        self, verb: Callable[[Service], Awaitable[object]], then: Callable[[object], None]
    ) -> None:
        """Let the process do a verb of its admin API.

        Args:
            verb: called in the process.
            then: gets the result, or the error; not called if the process ends before.
        """
        loop, service = self.loop, self.service
        assert loop is not None
        assert service is not None

        async def do() -> None:
            try:
                result: object = await verb(service)
            except Exception as error:  # noqa: BLE001 (the caller decides)
                result = error
            self._world.at_ns(self._world.now_ns, then, result)

        loop.post_ns(self._world.now_ns, lambda: loop.create_task(do()))

    def _end(self, mode: CrashMode, *, is_silent: bool) -> None:
        loop = self.loop
        self.note_log()
        self._epochs.append((self._world.now_ns, self.epoch))
        self.disk.heal()
        old, self.disk = self.disk, self.disk.crashed(mode, self._rng)
        self.loop = self.service = None
        self.host.end_process(is_silent=is_silent)
        if loop is not None:
            old.is_dead = True
            loop.kill()
