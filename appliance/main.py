"""Puts the parts together and runs them until a signal or a failure; only it knows them all.

Layer 6.
"""

import asyncio
import gc
import logging
import resource
import signal
import sys

import psutil

from _core.partition import Topic
from appliance.admin import AdminServer, LiveStatus
from appliance.broker import Broker
from appliance.clock import SystemClock
from appliance.config import Config
from appliance.errors import ConfigError
from appliance.facade import Facade
from appliance.fs import OsFileSystem
from appliance.sd_notify import Notifier
from compat.kafka.codecs import decompress
from compat.kafka.group_status import GroupsStatus
from compat.kafka.server import KafkaServer
from compat.kafka.topic_settings import read_topic_policy

_log = logging.getLogger("latermq")


def configure_topic(topic: Topic, config: Config) -> None:
    """Set on a topic what its settings mean."""
    policy = read_topic_policy(topic.settings, config)
    topic.configure(
        reads_delay_headers=policy.reads_delay_headers,
        log_append_time=policy.uses_append_time,
        due_timestamp=policy.uses_due_time,
        batch_size_max=policy.batch_size_max_bytes,
        delay_max_ms=policy.delay_max_ms,
    )


KAFKA_FACADE = Facade(decompress=decompress, configure_topic=configure_topic)


class Service:
    """One broker with its servers."""

    def __init__(self, config: Config, *, accepts_loss: bool = False) -> None:
        self._config = config
        self._broker = Broker(
            SystemClock(), OsFileSystem(), config, KAFKA_FACADE, accepts_loss=accepts_loss
        )
        self._status = LiveStatus(self._broker)
        self._notifier = Notifier()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            LatermqError: the start failed, or the broker had to end; what was acknowledged is safe.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        advertised = self._config.advertise
        names = () if advertised is None else (advertised.host,)
        admin = AdminServer(self._status, self._config.admin, names)
        admin_address = await admin.start()
        try:
            if not await self._recover():
                return
            kafka = KafkaServer(self._broker)
            try:
                await kafka.start()
            except ConfigError:
                await kafka.stop()
                self._close()
                raise
            self._status.serves(kafka, GroupsStatus(kafka.groups), admin_address)
            # What is alive now stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            _set_priority(self._config.process_priority)
            told = f"kafka={kafka.bound} admin={admin_address}"
            sys.stdout.write(f"latermq ready {told}\n")
            sys.stdout.flush()
            self._notifier.ready(told)
            await self._serve(kafka)
        finally:
            await admin.stop()

    async def _recover(self) -> bool:
        """Open the store, a slice at a time; False if a signal came first."""
        for progress in self._broker.recover():
            self._notifier.extend_start(10_000)
            self._notifier.status(f"{progress.phase} {progress.recovered_bytes} bytes")
            await asyncio.sleep(0)
            if self._stop.is_set():
                self._broker.abandon()
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
                "flush = async: a power cut loses what was acknowledged in the last %d ms",
                self._config.flush_bound_ms,
            )
        return True

    async def _serve(self, kafka: KafkaServer) -> None:
        stop = asyncio.ensure_future(self._stop.wait())
        watchdog = asyncio.ensure_future(self._watch())
        await asyncio.wait((stop, kafka.pump.failure), return_when=asyncio.FIRST_COMPLETED)
        watchdog.cancel()
        stop.cancel()
        self._notifier.stopping("stopping")
        self._status.stops()
        await kafka.stop()
        if kafka.pump.failure.done():
            # No clean stop: memory and disk may differ, and the next start must look.
            self._broker.abandon()
            raise kafka.pump.failure.result()
        self._close()

    def _close(self) -> None:
        error = self._broker.close()
        if error is not None:
            _log.warning("no checkpoint, the next start replays more of the log: %s", error)

    async def _watch(self) -> None:
        """Tell systemd that the loop turns."""
        interval_ms = self._notifier.watchdog_interval_ms
        while interval_ms is not None:
            self._notifier.watchdog()
            await asyncio.sleep(interval_ms / 1000)


def _raise_file_limit() -> None:
    """Allow as many files as the system permits: each partition with records takes some."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _set_priority(nice: int) -> None:
    """Ask to wait less behind others on a busy machine: lateness is a matter of being scheduled."""
    process = psutil.Process()
    if process.nice() == nice:
        return  # systemd did it, and then forbids it
    try:
        process.nice(nice)
    except psutil.AccessDenied:
        _log.info("process.priority = %d is not permitted here", nice)


def run(config: Config, *, accepts_loss: bool = False) -> int:
    """Run the broker in the foreground.

    Args:
        config: valid settings.
        accepts_loss: go on without what is missing of the log.

    Returns:
        The exit status 0 after a clean stop.

    Raises:
        LatermqError: see `Service.run`.
    """
    logging.basicConfig(
        level=config.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    _raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory(config.loop)) as runner:
        runner.run(_serve(config, accepts_loss=accepts_loss))
    return 0


async def _serve(config: Config, *, accepts_loss: bool) -> None:
    await Service(config, accepts_loss=accepts_loss).run()


def _loop_factory(name: str) -> type[asyncio.AbstractEventLoop] | None:
    """The event loop by its setting; "auto" takes uvloop, which halves the cost of Fetch."""
    if name == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if name == "uvloop":
            raise
        return None
    return uvloop.Loop
