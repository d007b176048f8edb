"""This node's part in a pair: replication as the service and the admin API see it. Layer 6."""

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from socket import socket
from typing import Final

from appliance.admin.status import ReplicationStatus
from appliance.broker import Broker
from appliance.config.config import Config
from appliance.errors import ConfigError, NotReadyError, RoleError, StorageError
from appliance.pump import Pump
from appliance.replication.link_limits import LinkLimits
from appliance.replication.master import Replicated, ReplicationServer
from appliance.replication.slave import Following, ReplicationClient
from appliance.replication.states import State
from appliance.replication.wire import SECRET_SIZE_MIN_BYTES
from appliance.store.follower import Follower
from appliance.store.source_log import SourceLog
from appliance.store.state.checkpointer import CheckpointJob
from appliance.system.clock import Clock
from appliance.system.files import FileSystem
from appliance.units import NS_PER_MS

ONE_MACHINE: Final = b"latermq: both nodes are on one machine"
"""The secret of two nodes that have none, which is allowed on one machine only."""

SECRET_SIZE_MAX_BYTES: Final = 4_096

BEATS_IN_SILENCE: Final = 4
"""A peer is lost after so many beats that do not come."""

NO_SLAVE: Final = (
    "no slave has caught up, and replication.mode is sync: start it, or if it is off for long, let "
    "the master go on alone with `latermq solo`"
)

_KEPT: Final = {
    "sync": "acknowledged records survive a power cut of this machine",
    "async": "acknowledged records survive a crash; a power cut may lose the newest",
}


TEND_S: Final = 0.1
"""Between two looks at whether a slave's checkpoint is due."""

SLICE_PAUSE_S: Final = 0.002
"""Between two slices of one."""

_log = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """How the following of a slave ended."""

    PROMOTED = enum.auto()
    STOPPED = enum.auto()
    STARTS_AGAIN = enum.auto()
    """The log was cut below what was applied."""


def read_secret(fs: FileSystem, path: Path | None) -> bytes:
    """Return what both nodes know.

    Raises:
        ConfigError: the file cannot be read, or is too short.
    """
    if path is None:
        return ONE_MACHINE
    try:
        with contextlib.closing(fs.open(path, writable=False)) as file:
            secret = file.pread(SECRET_SIZE_MAX_BYTES, 0).strip()
    except StorageError as error:
        raise ConfigError(f"replication.secret_file: {error.message}") from error
    if len(secret) < SECRET_SIZE_MIN_BYTES:
        raise ConfigError(
            f"replication.secret_file = {path} has {len(secret)} bytes: write at least "
            f"{SECRET_SIZE_MIN_BYTES}, such as those of `openssl rand -hex 32`, to it"
        )
    return secret


def _limits(config: Config) -> LinkLimits:
    silence_ms = config.replication_timeout_ms
    return LinkLimits(silence_ms=silence_ms, beat_ms=silence_ms // BEATS_IN_SILENCE)


def _since_ms(clock: Clock, at_ms: int | None) -> int | None:
    return None if at_ms is None else max(0, clock.monotonic_ns() // NS_PER_MS - at_ms)


class SlaveRole:
    """A slave, until it is promoted or stops."""

    def __init__(
        self,
        broker: Broker,
        follower: Follower,
        secret: bytes,
        caught_up: Callable[[], None],
    ) -> None:
        """Prepare to follow.

        Args:
            broker: its start has come to the follower.
            follower: what follows.
            secret: what both nodes know.
            caught_up: called once, when the slave has caught up for the first time.
        """
        config = broker.config
        assert config.master is not None
        self._config, self._clock, self._follower = config, broker.clock, follower
        self._master = config.master
        self._ended = asyncio.Event()
        self._over = asyncio.Event()
        self._is_wanted = False
        self._on_caught_up = caught_up
        self._served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client = ReplicationClient(
            follower,
            config.master,
            secret,
            clock=broker.clock,
            lines=broker.client_log,
            changed=self._changed,
            caught_up=self._note_caught_up,
            limits=_limits(config),
        )

    def _note_caught_up(self) -> None:
        self._follower.note_caught_up()
        self._on_caught_up()

    async def follow(self, stop: asyncio.Event) -> Outcome:
        """Follow until the promotion, or until `stop` is set.

        Raises:
            StorageError: the disk failed; the process must end.
        """
        self._client.start()
        tending = asyncio.ensure_future(self._tend_log())
        waits = [
            asyncio.ensure_future(each)
            for each in (stop.wait(), self._ended.wait(), asyncio.shield(self._client.failure))
        ]
        await asyncio.wait([*waits, tending], return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        await self._client.stop()
        self._over.set()
        await tending  # no thread uses the files after it
        if self._client.failure.done():
            raise self._client.failure.result()
        if self._follower.wants_start:
            return Outcome.STARTS_AGAIN
        if not self._is_wanted:
            return Outcome.STOPPED
        self._follower.promote()
        return Outcome.PROMOTED

    async def _tend_log(self) -> None:
        """Take checkpoints and free segments until the following ends; a thread does the I/O.

        Raises:
            StorageError: the disk failed.
        """
        follower = self._follower
        while not self._over.is_set():
            job = follower.step_job()
            if job is not None:
                await asyncio.to_thread(job.run)
                follower.end_job(job)
                if isinstance(job, CheckpointJob) and job.error is not None:
                    _log.warning("checkpoint failed, will be retried: %s", job.error)
            pause_s = SLICE_PAUSE_S if follower.checkpoints.is_capturing else TEND_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pause_s)

    def _changed(self, following: Following) -> None:
        self._follower.head.note_master(following.start_pos, following.committed_pos)
        if self._follower.wants_start:
            self._ended.set()

    async def promote(self, *, is_forced: bool = False) -> None:
        """See `Pair`."""
        if not self._follower.has_log:
            raise RoleError(
                f"this slave has nothing of the log of {self._master} yet: a promotion would begin "
                "a new cluster. Wait until it is connected, or start a broker without --role slave"
            )
        if not self._follower.has_caught_up:
            if not is_forced:
                raise RoleError(
                    f"this slave has never caught up with {self._master}: {self._missing()}. Let "
                    "it catch up, or promote it with --force to go on without what is missing"
                )
            _log.warning("promoted by force, without ever having caught up: %s", self._missing())
        self._is_wanted = True
        self._ended.set()
        await asyncio.shield(self._served)

    def _missing(self) -> str:
        """What the promotion of a slave that has never caught up would lose, as far as known."""
        known, end = self._client.following, self._follower.end_pos
        if known.heard_ms is None or not known.committed_pos:
            return f"it has the log to {end}; how much is missing is not known"
        missing_bytes = max(0, known.committed_pos - end)
        return (
            f"it has the log to {end}, and the master had it to {known.committed_pos}, so at least "
            f"{missing_bytes} bytes are missing"
        )

    def go_solo(self) -> None:
        """See `Pair`."""
        raise RoleError("this node is a slave: promote it to let it serve")

    def serves(self) -> None:
        """Note that this node serves clients as a master now."""
        if not self._served.done():
            self._served.set_result(None)

    def ends(self) -> None:
        """Note that it never will."""
        if not self._served.done():
            self._served.set_exception(NotReadyError("the broker is stopping"))
            self._served.exception()  # nobody may wait for it

    def status(self) -> ReplicationStatus:
        """See `Pair`."""
        known = self._client.following
        is_lost = known.state is State.LOST
        return ReplicationStatus(
            role="slave",
            mode=self._config.replication,
            solo=False,
            node=self._follower.node,
            state="waiting" if is_lost else known.state.value,
            peer=None if is_lost else str(self._master),
            end=self._follower.end_pos,
            received=self._follower.received_pos,
            durable=self._follower.durable_pos,
            lag_bytes=None if known.heard_ms is None else known.lag_bytes,
            heard_ms_ago=_since_ms(self._clock, known.heard_ms),
            promise="this node serves no client",
            caught_up=self._follower.has_caught_up,
        )


class MasterRole:
    """A master that serves clients; it has a slave if `replication.mode` says so.

    With sync replication nothing is acknowledged, and nothing readable, before the slave has it;
    without a slave new batches are refused. Solo, which an operator orders, the master waits for
    nobody until the slave has caught up.
    """

    def __init__(self, broker: Broker, pump: Pump, secret: bytes, *, is_solo: bool) -> None:
        """Prepare to serve a slave.

        Args:
            broker, pump: serve clients.
            secret: what both nodes know.
            is_solo: nobody else is a master, and the slave is not expected at once.
        """
        self._config, self._clock = broker.config, broker.clock
        self._broker, self._pump = broker, pump
        self._source: SourceLog = broker.source_log()
        self._is_sync = broker.config.replication == "sync"
        self._is_solo = self._is_sync and is_solo
        self._admitted = asyncio.Event()
        if not self._is_sync or self._is_solo:
            self._admitted.set()
        self._server: ReplicationServer | None = None
        if broker.config.replication != "none":
            self._server = ReplicationServer(
                self._source,
                secret,
                clock=broker.clock,
                lines=broker.client_log,
                changed=self._changed,
                limits=_limits(broker.config),
            )
            # A bug there ends the process: else nobody would notice that the slave gets nothing.
            self._server.failure.add_done_callback(lambda done: pump.fail(done.result()))

    async def start(self, sockets: Sequence[socket]) -> None:
        """Listen for the slave."""
        if self._server is not None:
            await self._server.start(sockets)
        if not self._admitted.is_set():
            self._broker.need_replica(NO_SLAVE)

    async def admitted(self, stop: asyncio.Event) -> None:
        """Wait until the log is that of the pair, or until `stop` is set.

        The end of the log of a sync master may lack on the slave after a crash. What a consumer saw
        of it would be gone if the slave was promoted next.
        """
        if self._admitted.is_set():
            return
        _log.warning("serves nobody yet: %s", NO_SLAVE)
        waits = [asyncio.ensure_future(each.wait()) for each in (self._admitted, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    def notify(self) -> None:
        """Note that the log may be longer."""
        if self._server is not None:
            self._server.notify()

    async def stop(self) -> None:
        """Close the connection to the slave."""
        if self._server is not None:
            await self._server.stop()

    def _changed(self, known: Replicated) -> None:
        is_connected = known.state in (State.CATCH_UP, State.STREAMING)
        self._broker.head_freer.hold.note_slave(known.durable_pos if is_connected else None)
        if not self._is_sync:
            return
        is_there = known.state is State.STREAMING
        if self._is_solo and is_there:
            self._is_solo = False
            _log.warning("the slave has caught up: acknowledgements wait for it again")
        if not self._is_solo:
            self._broker.need_replica(None if is_there else NO_SLAVE)
            if is_there:
                self._admitted.set()
        if known.acked_ms is not None and not self._is_solo:
            is_sync_flush = self._config.flush == "sync"
            pos = known.durable_pos if is_sync_flush else known.received_pos
            self._pump.show(self._broker.replicated(pos))

    async def promote(self, *, is_forced: bool = False) -> None:
        """See `Pair`."""
        raise RoleError("this node is the master already")

    def go_solo(self) -> None:
        """See `Pair`."""
        if not self._is_sync:
            raise RoleError("this node waits for no slave: replication.mode is not sync")
        assert self._server is not None
        if self._server.replicated.state is State.STREAMING:
            raise RoleError("the slave is connected: stop it first")
        self._is_solo = True
        self._pump.show(self._broker.release_replica())
        self._admitted.set()
        _log.warning("goes on alone: the operator says that the slave is off")

    def status(self) -> ReplicationStatus:
        """See `Pair`."""
        known = None if self._server is None else self._server.replicated
        state = "off"
        if known is not None:
            state = "waiting" if known.state is State.LOST else known.state.value
        acked = known if known is not None and known.acked_ms is not None else None
        lag_bytes = None
        if acked is not None:
            lag_bytes = max(0, self._source.committed_pos - acked.durable_pos)
        return ReplicationStatus(
            role="master",
            mode=self._config.replication,
            solo=self._is_solo,
            node=self._source.node,
            state=state,
            peer=known.address if known is not None and state != "waiting" else None,
            end=self._source.committed_pos,
            received=None if acked is None else acked.received_pos,
            durable=None if acked is None else acked.durable_pos,
            lag_bytes=lag_bytes,
            heard_ms_ago=None if acked is None else _since_ms(self._clock, acked.acked_ms),
            promise=self._promise(state),
            held_bytes=self._broker.head_freer.hold.held_bytes,
            given_up=self._broker.head_freer.hold.has_given_up,
        )

    def _promise(self, state: str) -> str:
        kept = _KEPT[self._config.flush]
        if self._server is None:
            return kept
        if not self._is_sync or self._is_solo:
            return f"{kept}; the slave may lack the newest"
        if state != State.STREAMING.value:
            return f"nothing is accepted: {NO_SLAVE}"
        return f"{kept}, and the loss of this machine"
