"""Makes files before they are needed, on threads: the next segment, and files of units. Layer 5.

Otherwise the event loop would make a file when it first writes to it. For a new name the file
system may have to read one of its own blocks, which takes 50 ms on a busy disk.
"""

from concurrent.futures import ThreadPoolExecutor

from appliance.broker import Broker
from appliance.store.log.segment import SpareJob
from appliance.thread_jobs import ThreadJobs


class FileMaker:
    """The threads."""

    def __init__(self, jobs: ThreadJobs, broker: Broker) -> None:
        """Start without work.

        Args:
            jobs: runs the threads' work.
            broker: whose files they are.
        """
        self._jobs = jobs
        self._broker = broker
        self._segments = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-spare")
        # It may take a minute to fill a segment with zeros; units do not wait for that.
        self._units = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-unit-files")

    def step(self) -> None:
        """Begin to make what is needed soon."""
        spare = self._broker.log.begin_spare()
        if spare is not None:
            self._jobs.begin(self._segments, lambda: _make_spare(spare), lambda _: None)
        units = self._broker.units
        job = units.begin_files()
        if job is not None:
            self._jobs.begin(self._units, job.run, lambda _: units.end_files(job))

    def shutdown(self) -> None:
        """Wait for the end of what is in progress."""
        self._segments.shutdown()
        self._units.shutdown()


def _make_spare(spare: SpareJob) -> None:
    """Make the next segment, then write its zeros as far as time permits."""
    spare.run()
    spare.prewrite()
