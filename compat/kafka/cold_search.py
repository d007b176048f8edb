"""Requests that look into frames: what is not in memory is read meanwhile. Layer 4; no I/O."""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from appliance.errors import ColdFrameError
from appliance.model import ColdPlace
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Fields, Later

COLD_READS_MAX: Final = 1_000
"""Of one request; halving a partition takes some forty."""

Item = TypeVar("Item")


class ColdSearch(Generic[Item]):
    """One request under way: what is cold is read, and then it goes on where it was.

    Attributes:
        later: the answer.
    """

    def __init__(
        self,
        node: Node,
        items: Sequence[Item],
        answer: Callable[[Item], Fields],
        respond: Callable[[list[Fields]], Fields],
    ) -> None:
        """Begin; it may be over when this returns.

        Args:
            node: the broker.
            items: what is asked for.
            answer: answers an item; may raise ColdFrameError, and is then called again.
            respond: makes the response of the answers, one for each item. An item that does not
                come to an end has the answer KAFKA_STORAGE_ERROR.
        """
        self.later = Later()
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
                # The memory is too small for what is read, or the disk too slow.
                found = {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
            self._answers.append(found)
        self.later.complete(self._respond(self._answers))

    def _read(self, place: ColdPlace) -> None:
        self._cold_read_count += 1
        if not self.later.is_abandoned:
            self._node.read_cold([place], self._go_on)
