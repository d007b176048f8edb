"""Searches in frames for a request: threads read cold frames and unpack batches.

Layer 4; no I/O.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.errors import ColdFrameError, RequestError, WorkError
from appliance.offset_search import OffsetSearch
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields
from compat.kafka.protocol.slices import VALUE_WORK, Items, Steps, Wait, free_in_steps

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


def search_partitions(
    node: Node,
    topics: list[Fields],
    name_field: str,
    index_field: str,
    answer: Callable[[str, Fields, OffsetSearch], Fields],
    *,
    nothing: Fields,
) -> Items:
    """Yield the topics of a response that has an answer to a search in each partition.

    A partition that is named more than once is refused each time: INVALID_REQUEST.

    Args:
        node: the broker.
        topics: of the request, each with its `partitions`.
        name_field: the field with the name of a topic, the same in the response.
        index_field: the field with the index of a partition, the same in the response.
        answer: (topic's name, what is asked of the partition, search) -> the fields that differ
            from `nothing`; see `ColdSearch.find`.
        nothing: the answer of a partition in which nothing is found.
    """
    named: Counter[tuple[str, int]] = Counter()
    for topic in topics:
        for partition in topic["partitions"]:
            named[topic[name_field], partition[index_field]] += 1
            yield VALUE_WORK
    search = ColdSearch(node)

    def answer_partitions(name: str, partitions: list[Fields]) -> Items:
        for asked in partitions:
            index = asked[index_field]
            if named[name, index] > 1:
                found: Fields = {"error_code": ErrorCode.invalid_request}
            else:
                found = yield from search.find(partial(answer, name, asked))
            yield {index_field: index, **nothing, **found}

    for topic in topics:
        name = topic[name_field]
        yield {name_field: name, "partitions": answer_partitions(name, topic["partitions"])}
    yield from free_in_steps(named)


def _do_nothing() -> None:
    """There is no work any more."""
