"""Answers that come later than their requests were handled: in order, after the flush, once."""

from _core.paths.answer import Reply, ResponseSlot
from compat.kafka.protocol.deferred import DeferredResponse
from tests.support.clients.wire_client import WireClient, framed, split_answers
from tests.support.harness.broker_harness import with_topic
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import produce_request

RARE_KEY = 999


class Connection:
    """A connection whose rare requests wait until the test answers them."""

    def __init__(self) -> None:
        self.client = WireClient(with_topic())
        self.harness = self.client.harness
        self.session = self.harness.broker.open_session(self._answer_control_plane)
        self.client.session = self.session
        self.waiting: list[ResponseSlot] = []

    def _answer_control_plane(self, request: memoryview) -> ResponseSlot:
        parked = ResponseSlot()
        sent = bytes(request)
        if sent.endswith(b"at once"):
            parked.complete(Reply(sent))
        else:
            self.waiting.append(parked)
        return parked

    def take(self) -> list[bytes]:
        """The answers that leave now."""
        return list(split_answers(self.client.take()))


def rare(number: int, body: bytes = b"") -> bytes:
    """A request that only the test knows how to answer."""
    frame = RARE_KEY.to_bytes(2, "big") + bytes(2) + number.to_bytes(4, "big") + body
    return len(frame).to_bytes(4, "big") + frame


def produce(number: int) -> bytes:
    return framed(produce_request([("t", [(0, make_batch([Raw(b"a")]))])], acks=-1), 8, number)


def test_requests_after_an_answer_that_is_waited_for_are_not_looked_at() -> None:
    connection = Connection()
    connection.client.send_bytes(rare(1) + produce(2) + rare(3, b"at once"))
    connection.harness.flush()
    assert connection.take() == []
    assert connection.session.paused
    assert connection.harness.broker.collect_metrics().accepted_records == 0

    connection.waiting[0].complete(Reply(b"answer"))
    assert connection.waiting[0].answered
    assert connection.take() == [b"answer"]
    connection.client.resume()
    connection.harness.flush()
    second, third = connection.take()
    assert int.from_bytes(second[:4], "big") == 2
    assert third.endswith(b"at once")


def test_an_answer_leaves_only_when_the_log_is_durable() -> None:
    connection = Connection()
    connection.client.send_bytes(rare(1))
    connection.harness.broker.topics.create("other", 1, {})
    connection.harness.broker.commit()
    connection.waiting[0].complete(Reply(b"answer", connection.harness.broker.wrote_pos))
    assert connection.take() == []
    assert connection.session.awaits_flush
    connection.harness.flush()
    assert connection.take() == [b"answer"]


def test_answer_that_is_there_at_once_needs_no_waiting() -> None:
    connection = Connection()
    connection.client.send_bytes(rare(1, b"at once") + rare(2, b"at once"))
    assert len(connection.take()) == 2
    assert not connection.session.paused


def test_answer_for_a_connection_that_is_gone_is_dropped() -> None:
    connection = Connection()
    connection.client.send_bytes(rare(1))
    connection.session.close()
    connection.waiting[0].complete(Reply(b"answer"))
    assert connection.session.held_bytes == 0
    assert connection.take() == []


def test_a_handler_may_answer_before_or_after_it_returns() -> None:
    reported: list[object] = []
    before: DeferredResponse[dict[str, int]] = DeferredResponse()
    before.complete({"a": 1})
    before.when_complete(reported.append)
    after: DeferredResponse[dict[str, int]] = DeferredResponse()
    after.when_complete(reported.append)
    assert not after.is_complete
    after.complete({"b": 2})
    assert reported == [{"a": 1}, {"b": 2}]
    assert after.is_complete
