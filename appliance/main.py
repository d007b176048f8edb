"""Assembles the parts and runs them until a signal or a failure; only this module knows them all.

Layer 6.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from socket import socket
from typing import Any, Final

from appliance import codec_preparation
from appliance.admin import AdminServer, LiveStatus
from appliance.admin.live import version
from appliance.broker import Broker
from appliance.config.config import Address, Config
from appliance.config.shown import log_settings
from appliance.errors import AddressError, ConfigError
from appliance.kafka_facade import KAFKA_FACADE
from appliance.model import Endpoint
from appliance.pair.comparing_role import Compared, ComparingRole
from appliance.pair.coordination import Coordination
from appliance.pair.link_settings import read_secret
from appliance.pair.master_role import MasterRole
from appliance.pair.repairing_role import Repaired, RepairingRole
from appliance.pair.slave_front import SlaveFront
from appliance.pair.slave_role import Outcome, SlaveRole
from appliance.pump import Pump
from appliance.routes import Member, Routes
from appliance.system import collector, listening
from appliance.system.allocator import (
    FreeMemoryPolicy,
    give_back_free_memory,
    give_back_large_blocks,
)
from appliance.system.clock import MovableClock, SystemClock
from appliance.system.files import OsFileSystem
from appliance.system.log_output import to_standard_error
from appliance.system.process import (
    LOCK_LIMIT_MIN_BYTES,
    anonymous_bytes,
    has_terminal,
    lock_code,
    process_id,
    raise_file_limit,
    set_priority,
    share_interpreter,
    wake_sooner,
)
from appliance.system.realtime import INTERVAL_S, RealtimeClaim
from appliance.system.sd_notify import Notifier
from appliance.units import MIB, NS_PER_MS, counted
from compat.kafka import dispatch
from compat.kafka.groups.status import GroupsStatus
from compat.kafka.network.server import KafkaServer, advertised_endpoint

MEMORY_INTERVAL_S: Final = 0.5
"""Between two looks at the size of the process, of 20 us each."""

START_STEP_MS: Final = 10_000
"""So much longer a start may take, each time that systemd is told so."""

WAIT_STEP_MS: Final = 2_000
"""Between two such reports of a node that waits for the other one."""

_log = logging.getLogger("latermq")


class Service:
    """One broker with its servers."""

    def __init__(
        self,
        config: Config,
        file_limit: int,
        *,
        accepts_loss: bool = False,
        is_alone: bool = False,
        is_continued: bool = False,
    ) -> None:
        self._config = config
        self._file_limit = file_limit
        self._clock = SystemClock() if config.clock == "system" else MovableClock()
        self._fs = OsFileSystem()
        self._broker = Broker(
            self._clock,
            self._fs,
            config,
            KAFKA_FACADE,
            accepts_loss=accepts_loss,
            compares=not (is_alone or is_continued),
        )
        self._is_alone, self._was_master = is_alone, is_continued
        self._accepts_loss = accepts_loss
        self._coordination = Coordination(config, self._clock) if config.etcd else None
        self._replication_sockets: list[socket] = []
        self._status = LiveStatus(self._broker)
        if self._coordination is not None:
            self._status.coordinated(self._coordination.status)
        self._notifier = Notifier()
        self._realtime = RealtimeClaim()
        self._stop = asyncio.Event()
        self._moved_bytes = 0
        self._slave: SlaveRole | None = None
        self._master: MasterRole | None = None
        self.sockets: Sequence[socket] = ()
        """For Kafka clients; those of an earlier service go on to listen."""
        self._front: SlaveFront | None = None
        self._endpoint: Endpoint
        self._replication = ""
        """What the ready line says of the address for a slave."""
        self.was_ready = False
        """The service manager knows this process as ready; a service that starts again is, too."""
        self.is_second = False
        """Objects of an earlier service of this process may be frozen."""
        self.must_start_again = False
        """A new service goes on in this process: the log was cut, or the role changed."""
        self.tried: frozenset[tuple[int, int]] = frozenset()
        """Damaged parts of the log that were repaired from the slave, once each."""
        self.is_continued = False
        """This node was the master until now, so the new service need not compare logs."""

    def successor(self) -> "Service":
        """Return the service that goes on in this process, once this one has ended.

        What the operator said of the other node does not count any more.
        """
        service = Service(
            self._config,
            self._file_limit,
            accepts_loss=self._accepts_loss,
            is_continued=self.is_continued,
        )
        service.was_ready = service.is_second = self.was_ready
        service.tried, service.sockets = self.tried, self.sockets
        return service

    async def run(self) -> None:
        """Serve until a signal ends it; see `_handle_signals`.

        Raises:
            LatermqError: the start failed, or the broker had to end; acknowledged data is safe.
        """
        self._handle_signals()
        _log.info(
            "starting: pid %d, data directory %s", process_id(), self._config.data_dir.absolute()
        )
        if self._config.clock == "virtual":
            _log.warning("the wall clock is virtual: it can be advanced, and is for tests only")
        # Before any file is touched: a start without its addresses leaves nothing behind.
        sockets = self.sockets = self.sockets or await listening.bind(
            self._config.listen, "--listen"
        )
        self._endpoint = advertised_endpoint(self._config, sockets)
        try:
            await self._run(sockets)
        finally:
            self.must_start_again &= not self._stop.is_set()
            if not self.must_start_again:
                listening.close_all(sockets)
            listening.close_all(self._replication_sockets)

    async def _run(self, sockets: Sequence[socket]) -> None:
        """Serve on these sockets, which are bound."""
        advertised = self._config.advertise
        names = self._config.admin_names.split()
        if advertised is not None:
            names.append(advertised.host)
        admin = AdminServer(
            self._status,
            self._config.admin,
            names,
            lines=self._broker.client_log,
            metrics=self._broker.metrics,
        )
        admin_address = self._admin_address = await admin.start()
        _log.info("listening for admin requests on http://%s", admin_address)
        waiting = asyncio.ensure_future(self._report_waiting())
        try:
            if not await self._recover():
                return
            routes = Routes(Member(self._broker.node_id, self._endpoint))
            pump = Pump(self._broker)
            kafka = KafkaServer(self._broker, pump, self._file_limit, routes=routes)
            admin.share(kafka.turns)
            try:
                if not await self._join(pump, routes):
                    await kafka.stop()
                    self._close()
                    return
                await kafka.start([each.dup() for each in sockets])
                if self._front is not None:
                    self._front.hand_on(kafka)
            except (AddressError, ConfigError):
                await kafka.stop()
                self._close()
                raise
            self._status.serves(kafka, GroupsStatus(kafka.groups), admin_address)
            if self._slave is not None:
                self._slave.serves()
            # Objects alive now stay alive. Those of an earlier role of this process are freed.
            collector.freeze(searches_all=self.is_second)
            collector.collect_rarely()
            self._claim_processors()
            kafka.turns.worked = self._realtime.look
            _log.info(
                "latermq %s serves Kafka clients on %s, advertised as %s",
                version(),  # not later on: it looks through the installed packages
                kafka.bound,
                kafka.advertised,
            )
            addresses = f"kafka={kafka.bound} admin={admin_address}{self._replication}"
            sys.stdout.write(f"latermq ready {addresses}\n")
            sys.stdout.flush()
            self._notifier.ready(addresses)
            self.was_ready = True
            await self._lock_code()
            waiting.cancel()
            await self._serve(kafka)
        finally:
            waiting.cancel()
            if self._coordination is not None:
                await self._coordination.stop()
            if self._slave is not None:
                self._slave.ends()
            if self._front is not None:
                self._front.close()
            if self._master is not None:
                await self._master.stop()
            await admin.stop()

    async def _join(self, pump: Pump, routes: Routes) -> bool:
        """Take the part of a master in the pair; return False if a signal came first.

        Raises:
            AddressError: the address for the slave cannot be used.
            ConfigError: there is no usable secret.
        """
        config = self._config
        secret = read_secret(self._fs, config.replication_secret_file)
        is_solo = self._is_alone or self._slave is not None
        self._master = MasterRole(self._broker, pump, secret, is_solo=is_solo, routes=routes)
        if config.replication != "none":
            await self._bind_replication()
            await self._master.start(self._replication_sockets)
        pump.committed = self._master.notify
        pump.shown = self._master.note_shown
        self._status.joins(self._master)
        await self._await_license()
        await self._master.admitted(self._stop)
        self.must_start_again = self._master.fenced.is_set() and not self._stop.is_set()
        return not (self._master.fenced.is_set() or self._stop.is_set())

    async def _await_license(self) -> None:
        """Wait until the coordinator, if there is one, lets this master serve."""
        coordination, master = self._coordination, self._master
        if coordination is None:
            return
        assert master is not None
        source = self._broker.source_log()
        self._coordinate(source.cluster, source.node)
        coordination.bind(master)
        if self._is_alone and coordination.decides is not None:
            coordination.decides.appoint()
        await coordination.licensed(master.fenced, self._stop)

    def _coordinate(self, cluster: bytes, node: int) -> None:
        """Let the coordination begin, once the log has a cluster."""
        if self._coordination is not None and any(cluster):
            role, is_continued = self._broker.role, self._was_master
            self._coordination.begin(
                cluster=cluster, node=node, role=role, is_continued=is_continued
            )

    async def _bind_replication(self) -> None:
        """Bind the address for the slave, if it is not bound yet.

        Raises:
            AddressError, ConfigError: it cannot be used.
        """
        if not self._replication_sockets:
            self._replication_sockets = await listening.bind(
                self._config.replication_listen, "--replication-listen"
            )
        host, port = self._replication_sockets[0].getsockname()[:2]
        self._replication = f" replication={Address(host, port)}"

    def _handle_signals(self) -> None:
        """Stop at SIGTERM and SIGINT. At SIGHUP stop if it says that the terminal is gone."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop, number)
        # It is ignored already in a process that `nohup` started.
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            on_hangup = self._ask_to_stop if has_terminal() else _ignore
            loop.add_signal_handler(signal.SIGHUP, on_hangup, signal.SIGHUP)

    def _ask_to_stop(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            _log.info("stopping: received %s", number.name)
        self._stop.set()

    async def _recover(self) -> bool:
        """Open the store, a slice at a time; return False if a signal came first."""
        for progress in self._broker.recover():
            self._notifier.extend_start(START_STEP_MS)
            self._notifier.status(f"{progress.phase} {progress.recovered_bytes} bytes")
            await asyncio.sleep(0)
            if self._stop.is_set():
                self._broker.abandon()
                return False
            for step in (self._compare, self._repair, self._follow):
                if not await step():
                    return False
        for rejected in self._broker.report.rejected:
            _log.warning("%s", rejected)
        for damage in self._broker.report.damage:
            _log.error("%s", damage)
        for skip in self._broker.report.skips:
            _log.warning("%s", skip)
        _log.info("%s", self._broker.report)
        if self._config.flush == "async":
            _log.warning(
                "flush.mode = async: a power cut loses up to %d ms of acknowledged messages",
                self._config.flush_bound_ms,
            )
        return True

    async def _compare(self) -> bool:
        """Compare logs if this is a pair's master before its first write; return whether to go on.

        Raises:
            AddressError, ConfigError: the address for the slave cannot be used.
        """
        comparison = self._broker.comparison
        if comparison is None or comparison.is_over:
            return True
        secret = read_secret(self._fs, self._config.replication_secret_file)
        if self._config.replication != "none":
            await self._bind_replication()
        comparison.damage.tried = self.tried
        damaged = comparison.damaged()
        role = ComparingRole(self._broker, comparison, secret)
        self._status.joins(role)
        self._notifier.status("compares its log with the other node's, which is awaited")
        sys.stdout.write(f"latermq comparing admin={self._admin_address}{self._replication}\n")
        sys.stdout.flush()
        if self._coordination is not None:
            self._coordination.bind(role)
            self._coordinate(comparison.cluster, comparison.node)
        outcome = await role.compare(self._replication_sockets, self._stop)
        self._is_alone = role.is_alone
        self.must_start_again = outcome in (Compared.FOLLOWS, Compared.REPAIRED)
        if outcome is Compared.REPAIRED:
            self.tried |= frozenset(damaged)
            what = counted(len(damaged), "damaged part")
            _log.warning("repaired %s of the log from the slave", what)
        if outcome is not Compared.GOES_ON:
            self._broker.close()
            _log.info("ends the comparison")
        return outcome is Compared.GOES_ON

    async def _repair(self) -> bool:
        """Let a slave whose log is damaged get these parts from its master; return if to go on."""
        log = self._broker.repair
        if log is None or log.is_over:
            return True
        log.damage.tried = self.tried
        damaged = log.damaged()
        outcome = Repaired.IMPOSSIBLE
        if damaged:
            role = RepairingRole(
                self._broker, log, read_secret(self._fs, self._config.replication_secret_file)
            )
            self._status.joins(role)
            self._notifier.status("gets damaged parts of its log from the master")
            sys.stdout.write(f"latermq repairing admin={self._admin_address}\n")
            sys.stdout.flush()
            if self._coordination is not None:
                self._coordination.bind(role)
            outcome = await role.repair(self._stop)
        if outcome is Repaired.IMPOSSIBLE:
            log.give_up()
            return True
        self.must_start_again = outcome is Repaired.STARTS_AGAIN
        if self.must_start_again:
            self.tried |= frozenset(damaged)
            what = counted(len(damaged), "damaged part")
            _log.warning("repaired %s of the log from the master", what)
        self._broker.close()
        return False

    async def _follow(self) -> bool:
        """Follow a master if this is a slave, until the promotion; return whether to go on."""
        follower = self._broker.follower
        if follower is None or follower.is_promoted:
            return True
        if self._is_alone:
            _log.warning("--alone is for a master: this node is the slave")
        secret = read_secret(self._fs, self._config.replication_secret_file)
        self._front = front = SlaveFront(
            self._broker, follower, self.sockets, self._endpoint, self._file_limit
        )
        self._slave = SlaveRole(
            self._broker,
            follower,
            secret,
            self._note_caught_up,
            front,
            coordination=self._coordination,
        )
        self._status.joins(self._slave, front)
        if self._coordination is not None:
            self._coordination.bind(self._slave)
            self._coordinate(follower.cluster, follower.node)
        outcome = await self._slave.follow(self._stop)
        self.must_start_again = outcome is Outcome.STARTS_AGAIN
        if self.must_start_again:
            self._broker.abandon()
        elif outcome is Outcome.STOPPED:
            self._close()
        else:
            _log.warning("promoted: this node is the master from %d on", follower.end_pos)
        return outcome is Outcome.PROMOTED

    def _note_caught_up(self) -> None:
        follower = self._broker.follower
        assert follower is not None
        self._coordinate(follower.cluster, follower.node)
        master = self._broker.role_file.peer
        kafka = Address(*self.sockets[0].getsockname()[:2])
        text = f"role=slave master={master} kafka={kafka} admin={self._admin_address}"
        sys.stdout.write(f"latermq ready {text}\n")
        sys.stdout.flush()
        self._notifier.ready(text)
        self.was_ready = True
        _log.info("caught up with the master %s", master)

    def _claim_processors(self) -> None:
        """On a busy machine, lateness is time spent waiting for a processor."""
        if not set_priority(self._config.process_priority):
            _log.info("process.priority = %d is not permitted here", self._config.process_priority)
        wake_sooner()
        now_ns = self._clock.monotonic_ns()
        if self._config.process_realtime and not self._realtime.begin(now_ns):
            _log.info("process.realtime needs two processors, and a limit (ulimit -r) of 1")

    async def _lock_code(self) -> None:
        """Keep the code in memory; a thread reads what is not there."""
        if not await asyncio.to_thread(lock_code):
            _log.info(
                "the code of the broker is not locked in memory: that needs a limit (ulimit -l) of "
                "%d MiB; while a disk is busy, all clients may wait for code to be read again",
                LOCK_LIMIT_MIN_BYTES // MIB,
            )

    async def _serve(self, kafka: KafkaServer[Pump]) -> None:
        stop = asyncio.ensure_future(self._stop.wait())
        memory = asyncio.ensure_future(self._tend_memory())
        processors = asyncio.ensure_future(self._tend_processors())
        watchdog = asyncio.ensure_future(self._watch())
        preparing = codec_preparation.prepare_codecs(dispatch.prepare(), self._is_busy)
        preparation = asyncio.ensure_future(preparing)
        assert self._master is not None
        events = (self._master.fenced, self._master.stops_serving)
        ends = [asyncio.ensure_future(each.wait()) for each in events]
        tasks: list[asyncio.Future[Any]] = [stop, *ends, kafka.pump.failure]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        # A new start compares, or follows.
        self.must_start_again = any(each.is_set() for each in events) and not self._stop.is_set()
        watchdog.cancel()
        memory.cancel()
        processors.cancel()
        self._realtime.end()
        preparation.cancel()
        stop.cancel()
        self._notifier.stopping("stopping")
        self._status.stops()
        await kafka.stop()
        if kafka.pump.failure.done():
            # Not a clean stop: memory and disk may differ, and the next start must check.
            self._broker.abandon()
            failure = kafka.pump.failure.result()
            _log.error("stopped, not cleanly: %s", failure)
            raise failure
        if self.must_start_again and self._master.stops_serving.is_set():
            self.is_continued = await self._master.yield_mastery()
        self._close()

    def _close(self) -> None:
        error = self._broker.close()
        if error is not None:
            _log.warning("checkpoint failed, the next start replays more of the log: %s", error)
        else:
            _log.info("stopped cleanly; the log ends at %d", self._broker.wrote_pos)

    def _is_busy(self) -> bool:
        """Whether a timer is due soon, or clients sent or read much since this was asked last."""
        metrics = self._broker.metrics
        moved_bytes = metrics.received_bytes + metrics.sent_bytes - self._moved_bytes
        self._moved_bytes += moved_bytes
        wake_ms = self._broker.next_wake_ms()
        takes_ms = codec_preparation.TAKES_MS
        is_due_soon = wake_ms is not None and wake_ms - self._clock.wall_ms() <= takes_ms
        return is_due_soon or moved_bytes >= codec_preparation.QUIET_BYTES

    async def _report_waiting(self) -> None:
        """Report to systemd that the loop runs while this node waits for the other one, for ever.

        A slave that has caught up is ready, and needs the watchdog from then on, also when it
        starts again in the same process; before that, time.
        """
        interval_ms = min(self._notifier.watchdog_interval_ms or WAIT_STEP_MS, WAIT_STEP_MS)
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if self.was_ready:
                self._notifier.watchdog()
            else:
                self._notifier.extend_start(START_STEP_MS)

    async def _watch(self) -> None:
        """Report to systemd that the loop runs."""
        interval_ms = self._notifier.watchdog_interval_ms
        while interval_ms is not None:
            self._notifier.watchdog()
            await asyncio.sleep(interval_ms / 1000)

    async def _tend_processors(self) -> None:
        while self._realtime.is_granted:
            await asyncio.sleep(INTERVAL_S)
            self._realtime.step(self._clock.monotonic_ns())

    async def _tend_memory(self) -> None:
        """Give memory that was freed back to the system, once the broker is calm again."""
        policy = FreeMemoryPolicy(self._clock.monotonic_ns() // NS_PER_MS, anonymous_bytes())
        freezer = collector.PartitionFreezer()
        while True:
            await asyncio.sleep(MEMORY_INTERVAL_S)
            action = freezer.step(*self._broker.topics.partition_totals())
            if action is not None:
                collector.freeze(searches_all=action == "search")
            if policy.step(self._clock.monotonic_ns() // NS_PER_MS, anonymous_bytes()):
                await asyncio.to_thread(give_back_free_memory)


def _ignore(number: signal.Signals) -> None:
    _log.info("ignored %s: settings are read once; restart the broker to change them", number.name)


def run(config: Config, *, accepts_loss: bool = False, is_alone: bool = False) -> int:
    """Run the broker in the foreground.

    Args:
        config: valid settings.
        accepts_loss: continue without the missing part of the log.
        is_alone: a pair's master does not wait for the other node at this start.

    Returns:
        The exit status 0 after a clean stop.

    Raises:
        LatermqError: see `Service.run`.
    """
    output = to_standard_error()
    logging.basicConfig(
        level=config.log_level.upper(),
        handlers=[output],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    log_settings(config)
    file_limit = raise_file_limit()
    give_back_large_blocks()
    share_interpreter()
    try:
        with asyncio.Runner(loop_factory=_loop_factory(config.loop)) as runner:
            service = Service(config, file_limit, accepts_loss=accepts_loss, is_alone=is_alone)
            runner.run(service.run())
            while service.must_start_again:
                service = service.successor()
                runner.run(service.run())
    finally:
        output.flush()  # what follows explains the last lines
    return 0


def _loop_factory(name: str) -> type[asyncio.AbstractEventLoop] | None:
    """Return the loop's class; "auto" takes uvloop, which halves the cost of Fetch."""
    if name == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if name == "uvloop":
            raise
        return None
    return uvloop.Loop
