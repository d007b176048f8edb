"""Requests that search in frames: cold frames are read asynchronously. Layer 4; no I/O."""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from appliance.errors import ColdFrameError
from appliance.model import ColdPlace
from compat.kafka.node import Node
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields

COLD_READS_MAX: Final = 1_000
"""Reads per request; a binary search in a partition takes about forty."""

Item = TypeVar("Item")


class ColdSearch(Generic[Item]):
    """One request in progress: it pauses while a cold frame is read, then continues.

    Attributes:
        deferred: the response.
    """

    def __init__(
        self,
        node: Node,
        items: Sequence[Item],
        answer: Callable[[Item], Fields],
        respond: Callable[[list[Fields]], Fields],
    ) -> None:
        """Start the search; it may have finished when this returns.

        Args:
            node: the broker.
            items: the requested items.
            answer: answers an item; if it raises ColdFrameError, it is called again after the read.
            respond: makes the response from the answers, one per item. An item that exceeds
                COLD_READS_MAX has the answer KAFKA_STORAGE_ERROR.
        """
        self.deferred: DeferredResponse[Fields] = DeferredResponse()
        self._node = node
        self._items = items
        self._answer = answer
        self._respond = respond
        self._answers: list[Fields] = []
        self._cold_read_count = 0
        self._go_on()

    def _go_on(self) -> None:
        for item in self._items[len(self._answers) :]:
            try:
                found = self._answer(item)
            except ColdFrameError as error:
                if self._cold_read_count < COLD_READS_MAX:
                    self._read(error.place)
                    return
                # The cache is too small for the frames, or the disk is too slow.
                found = {"error_code": ErrorCode.kafka_storage_error}
            self._answers.append(found)
        self.deferred.complete(self._respond(self._answers))

    def _read(self, place: ColdPlace) -> None:
        self._cold_read_count += 1
        if not self.deferred.is_abandoned:
            self._node.read_cold([place], self._go_on)
