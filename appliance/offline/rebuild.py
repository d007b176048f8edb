"""`latermq rebuild`: removes all files derived from the log and rebuilds them. Layer 4.

The log itself is treated as by any start: a torn tail is cut, damage is reported, and after an
unclean stop a new epoch begins. A kill at any moment leaves a directory that a start can use: files
are removed only after nothing names them any more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from appliance.broker import Broker
from appliance.config.config import Config
from appliance.facade import Facade
from appliance.offline.data_dir import not_a_data_dir
from appliance.store.checkpoint import CheckpointFile
from appliance.store.log.commit_log import CommitLog
from appliance.store.paths import DataPaths
from appliance.store.recovery.admission import check_may_serve
from appliance.store.recovery.log_presence import LogPresence, read_heads
from appliance.store.recovery.report import Progress, RecoveryReport
from appliance.system.clock import Clock
from appliance.system.files import FileSystem


@dataclass(slots=True)
class Rebuild:
    """One rebuild; exhaust `run`, then `report` has the result.

    Attributes:
        clock: gives the time of the frame that begins an epoch.
        config: the broker's; the derived files depend on a few settings.
        facade: interprets topic settings.
        accepts_loss: continue although parts of the log are missing.
    """

    fs: FileSystem
    clock: Clock
    config: Config
    facade: Facade
    accepts_loss: bool = False
    report: RecoveryReport = field(init=False)

    @property
    def _paths(self) -> DataPaths:
        return DataPaths(self.config.data_dir)

    def run(self) -> Iterator[Progress]:
        """Rebuild; yields between slices.

        Raises:
            ConfigError: it is not a data directory.
            LogRefusedError: the log does not match the checkpoint, or large parts are missing.
            LatermqError: as `Broker.recover`.
        """
        if not self.fs.exists(self._paths.commit_log):
            raise not_a_data_dir(self._paths)
        check_may_serve(self.fs, self._paths)
        lock = self.fs.lock(self._paths.root)
        try:
            if not self.accepts_loss:
                self._check_log()
            self._forget()
        finally:
            lock.release()
        # If a broker takes the lock now, its start does the rest.
        broker = Broker(
            self.clock, self.fs, self.config, self.facade, accepts_loss=self.accepts_loss
        )
        try:
            yield from broker.recover()
        except BaseException:
            broker.abandon()
            raise
        self.report = broker.report
        broker.close()

    def _check_log(self) -> None:
        """Make the checks of a start before anything is removed.

        Raises:
            LogRefusedError: the log does not match the checkpoint.
        """
        checkpoint = CheckpointFile(self.fs, self._paths.checkpoint)
        log = CommitLog(
            self.clock,
            self.fs,
            self._paths.commit_log,
            segment_size_bytes=self.config.segment_size_bytes,
            is_sync_flush=True,
            is_prewritten=False,
            is_recycling=False,
            cache_size_bytes=self.config.cache_size_bytes,
            checkpoint=checkpoint,
        )
        try:
            checkpoint.open()
            log.open_segments()
            LogPresence(self._paths, checkpoint.last, log, read_heads(log)).check()
        finally:
            checkpoint.close()
            log.close()

    def _forget(self) -> None:
        """Remove the derived files, after the checkpoint no longer names them."""
        paths = self._paths
        if self.fs.exists(paths.checkpoint):
            checkpoint = CheckpointFile(self.fs, paths.checkpoint)
            try:
                checkpoint.open()
                checkpoint.forget_states()
            finally:
                checkpoint.close()
        for directory in (
            paths.consume_queue,
            paths.timer,
            paths.timer_log,
            paths.index,
            paths.control,
        ):
            self.fs.remove_tree(directory)
        self.fs.sync_dir(paths.root)
