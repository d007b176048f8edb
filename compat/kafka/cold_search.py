"""Searches in frames for a request: threads read cold frames and unpack batches.

Layer 4; no I/O.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.errors import ColdFrameError, RequestError, WorkError
from appliance.offset_search import OffsetSearch
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields
from compat.kafka.protocol.slices import Steps, Wait

FRAME_WORK: Final = 256
"""The price of a look at a frame."""

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
            What `answer` returns; KAFKA_STORAGE_ERROR if the request exceeds COLD_READS_MAX, or the
            batch cannot be unpacked.
        """
        while True:
            before = self._search.looked_count
            try:
                found = answer(self._search)
                if looked_count := self._search.looked_count - before:
                    yield FRAME_WORK * looked_count
                break
            except ColdFrameError as error:
                if self._cold_read_count >= COLD_READS_MAX:
                    # The cache is too small for the frames, or the disk is too slow.
                    found = {"error_code": ErrorCode.kafka_storage_error}
                    break
                self._cold_read_count += 1
                wait = Wait(partial(self._node.read_cold, [error.place]))
            except (ValueError, RequestError):
                # The batch cannot be read: it is damaged inside, or the limit of what a batch
                # unpacks to was lowered since it was accepted.
                found = {"error_code": ErrorCode.kafka_storage_error}
                break
            except WorkError:
                wait = self._wait_for_thread(answer)
            yield wait
        self._search.forget_results()
        return found

    def _wait_for_thread(self, answer: Callable[[OffsetSearch], Fields]) -> Wait:
        is_wanted = True

        def begin() -> Callable[[], None] | None:
            if not is_wanted:
                return None
            try:
                # Only now, so that whoever waits holds no copy of a batch.
                answer(self._search)
            except WorkError as error:
                return error.run
            except (ColdFrameError, ValueError, RequestError):
                pass  # it comes again, and is answered then
            return _do_nothing

        def cancel() -> None:
            nonlocal is_wanted
            is_wanted = False

        return Wait(partial(self._node.aside, begin), cancel)


def _do_nothing() -> None:
    """There is no work any more."""
