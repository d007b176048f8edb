"""Searches in frames for a request: threads read cold frames and unpack batches.

Layer 4; no I/O.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.errors import ColdFrameError, WorkError
from appliance.offset_search import OffsetSearch
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields
from compat.kafka.protocol.slices import Steps, Wait

COLD_READS_MAX: Final = 1_000
"""Reads per request; a binary search in a partition takes about forty."""


class ColdSearch:
    """The searches of one request: they pause while a thread reads or unpacks, then continue."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._search = node.broker.search.for_request()
        self._cold_read_count = 0

    def find(self, answer: Callable[[OffsetSearch], Fields]) -> Steps[Fields]:
        """Answer an item of the request.

        Args:
            answer: answers it; if it raises ColdFrameError or WorkError, it is called again after
                the read or the work.

        Returns:
            What `answer` returns; KAFKA_STORAGE_ERROR if the request exceeds COLD_READS_MAX.
        """
        while True:
            try:
                found = answer(self._search)
                break
            except ColdFrameError as error:
                if self._cold_read_count >= COLD_READS_MAX:
                    # The cache is too small for the frames, or the disk is too slow.
                    found = {"error_code": ErrorCode.kafka_storage_error}
                    break
                self._cold_read_count += 1
                yield Wait(partial(self._node.read_cold, [error.place]))
            except WorkError as error:
                yield from self._do_aside(error.run)
        self._search.forget_results()
        return found

    def _do_aside(self, run: Callable[[], None]) -> Steps[None]:
        """Work on a thread; an error there is one of this request."""
        failures: list[Exception] = []

        def work() -> None:
            try:
                run()
            except Exception as error:  # noqa: BLE001 (it is raised again on the loop)
                failures.append(error)

        yield Wait(partial(self._node.aside, work))
        if failures:
            raise failures[0]
