"""`latermq rebuild`: throw away all that follows from the log, and make it anew. Layer 4.

The log itself is treated as by any start: a torn tail is cut, damage is reported, and after an
unclean stop a new epoch begins. A kill at any moment leaves a directory that a start can use: files
are removed only when nothing names them any more.
"""

from collections.abc import Iterator

from appliance.broker import Broker
from appliance.clock import Clock
from appliance.config import Config
from appliance.facade import Facade
from appliance.fs import FileSystem
from appliance.offline.data_dir import not_a_data_dir
from appliance.store.checkpoint import CheckpointFile
from appliance.store.commit_log import CommitLog
from appliance.store.log_presence import LogPresence, read_heads
from appliance.store.paths import DataPaths
from appliance.store.recovery import Progress, RecoveryReport


class Rebuild:
    """One rebuild; `run` it to its end, then `report` says what was found."""

    report: RecoveryReport

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        config: Config,
        facade: Facade,
        *,
        accepts_loss: bool = False,
    ) -> None:
        """Touches no file yet.

        Args:
            fs: all files.
            clock: of a frame that begins an epoch.
            config: that of the broker; what follows from the log depends on a few settings.
            facade: what topic settings mean.
            accepts_loss: go on without what is missing of the log.
        """
        self._accepts_loss = accepts_loss
        self._fs = fs
        self._clock = clock
        self._config = config
        self._facade = facade
        self._paths = DataPaths(config.data_dir)

    def run(self) -> Iterator[Progress]:
        """Do it; yields between slices.

        Raises:
            ConfigError: it is no data directory.
            LogRefusedError: the log is not the one that the checkpoint knows, or lacks much.
            LatermqError: what `Broker.recover` raises.
        """
        if not self._fs.exists(self._paths.commit_log):
            raise not_a_data_dir(self._paths)
        lock = self._fs.lock(self._paths.root)
        try:
            if not self._accepts_loss:
                self._check_log()
            self._forget()
        finally:
            lock.release()
        # Should a broker take the lock now, it does the rest.
        broker = Broker(
            self._clock, self._fs, self._config, self._facade, accepts_loss=self._accepts_loss
        )
        try:
            yield from broker.recover()
        except BaseException:
            broker.abandon()
            raise
        self.report = broker.report
        broker.close()

    def _check_log(self) -> None:
        """Refuse as a start does, while nothing is removed yet.

        Raises:
            LogRefusedError: the log is not the one that the checkpoint knows.
        """
        checkpoint = CheckpointFile(self._fs, self._paths.checkpoint)
        log = CommitLog(
            self._clock,
            self._fs,
            self._paths.commit_log,
            segment_size_bytes=self._config.segment_size_bytes,
            is_sync_flush=True,
            is_prewritten=False,
            cache_size_bytes=self._config.cache_size_bytes,
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
        """Remove what follows from the log, once nothing names it any more."""
        paths = self._paths
        if self._fs.exists(paths.checkpoint):
            checkpoint = CheckpointFile(self._fs, paths.checkpoint)
            try:
                checkpoint.open()
                checkpoint.forget_states()
            finally:
                checkpoint.close()
        for directory in (paths.consume_queue, paths.timer, paths.index, paths.control):
            self._fs.remove_tree(directory)
        self._fs.sync_dir(paths.root)
