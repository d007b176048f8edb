"""Requests that search in frames, a slice at a time: threads read cold frames and unpack batches.

Layer 4; no I/O.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from appliance.errors import ColdFrameError, RequestError, WorkError
from appliance.model import ColdPlace
from appliance.offset_search import OffsetSearch
from appliance.units import NS_PER_MS
from compat.kafka.node import Node
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields

COLD_READS_MAX: Final = 1_000
"""Reads per request; a binary search in a partition takes about forty."""

SLICE_NS: Final = 2 * NS_PER_MS
"""After this time other requests come first."""

Item = TypeVar("Item")


class ColdSearch(Generic[Item]):
    """One request in progress: it pauses while a thread reads or unpacks, then continues.

    It also lets others come first after SLICE_NS.

    Attributes:
        deferred: the response.
    """

    def __init__(
        self,
        node: Node,
        items: Sequence[Item],
        answer: Callable[[OffsetSearch, Item], Fields],
        respond: Callable[[list[Fields]], Fields],
    ) -> None:
        """Start the search; it may have finished when this returns.

        Args:
            node: the broker.
            items: the requested items.
            answer: answers an item; if it raises ColdFrameError or WorkError, it is called again
                after the read or the work.
            respond: makes the response from the answers, one per item. An item that exceeds
                COLD_READS_MAX, or whose batch cannot be unpacked, has KAFKA_STORAGE_ERROR.
        """
        self.deferred: DeferredResponse[Fields] = DeferredResponse()
        self._node = node
        self._items = items
        self._answer = answer
        self._respond = respond
        self._search = node.broker.search.for_request()
        self._answers: list[Fields] = []
        self._cold_read_count = 0
        self._go_on()

    def _go_on(self) -> None:
        if self.deferred.is_abandoned:
            return
        clock = self._node.broker.clock
        end_ns = clock.monotonic_ns() + SLICE_NS
        while len(self._answers) < len(self._items):
            try:
                found = self._answer(self._search, self._items[len(self._answers)])
            except ColdFrameError as error:
                if self._cold_read_count < COLD_READS_MAX:
                    self._read(error.place)
                    return
                # The cache is too small for the frames, or the disk is too slow.
                found = {"error_code": ErrorCode.kafka_storage_error}
            except (ValueError, RequestError):
                # The batch cannot be read: it is damaged inside, or the limit of what a batch
                # unpacks to was lowered since it was accepted.
                found = {"error_code": ErrorCode.kafka_storage_error}
            except WorkError:
                self._ask_for_thread()
                return
            self._search.forget_results()
            self._answers.append(found)
            if clock.monotonic_ns() >= end_ns and len(self._answers) < len(self._items):
                self._node.aside(lambda: _do_nothing, self._go_on)
                return
        self.deferred.complete(self._respond(self._answers))

    def _read(self, place: ColdPlace) -> None:
        self._cold_read_count += 1
        self._node.read_cold([place], self._go_on)

    def _ask_for_thread(self) -> None:
        self._node.aside(self._begin_work, self._go_on)

    def _begin_work(self) -> Callable[[], None] | None:
        """Return the work of the current item, now that a thread is there for it."""
        if self.deferred.is_abandoned:
            return None
        try:
            # Only now, so that whoever waits holds no copy of a batch.
            self._answer(self._search, self._items[len(self._answers)])
        except WorkError as error:
            return error.run
        except (ColdFrameError, ValueError, RequestError):
            pass  # it comes again, and is answered then
        return _do_nothing


def _do_nothing() -> None:
    """There is no work any more: go on in a later turn."""
