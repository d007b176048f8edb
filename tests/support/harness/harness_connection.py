"""A connection of `BrokerHarness`: real requests through a real `Session`, without a socket."""

import struct
from typing import Any, Final

from appliance.broker import Broker
from appliance.client_paths import ControlPlane
from tests.support.oracles.kafka_oracle import encode_request
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.record_requests import fetch_part, fetch_request

FETCH_VERSION: Final = 11

_RECORDS_HEAD: Final = struct.Struct(">iihqqq")
"""Of a Fetch response, after the topic's name: partitions, index, error, three offsets."""


class Connection:
    """One Kafka connection without its socket.

    Attributes:
        session: the broker's end of it.
    """

    def __init__(
        self,
        broker: Broker,
        clock: VirtualClock,
        answer_control_plane: ControlPlane,
    ) -> None:
        self.session = broker.open_session(answer_control_plane)
        self._broker = broker
        self._clock = clock
        self._last_correlation_id = 0
        self._asked: dict[int, tuple[Any, int]] = {}

    def send(self, request: Any, version: int, response_class: Any) -> int:
        """Send a request and let the broker write; return its correlation id."""
        frame = encode_request(request, version, self._last_correlation_id + 1)
        return self._send(frame, version, response_class)

    def send_encoded(self, frame: bytes) -> int:
        """Send an encoded request; its answer stays encoded.

        Args:
            frame: without its size prefix; it gets another correlation id.
        """
        number = self._last_correlation_id + 1
        return self._send(frame[:4] + number.to_bytes(4, "big") + frame[8:], 0, None)

    def _send(self, frame: bytes, version: int, response_class: Any) -> int:
        self._last_correlation_id += 1
        number = self._last_correlation_id
        self._asked[number] = (response_class, version)
        self._receive(len(frame).to_bytes(4, "big") + frame)
        return number

    def _receive(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            room = self.session.get_buffer()
            part = data[start : start + len(room)]
            room[: len(part)] = part
            self.session.received(len(part), now_ns=self._clock.wall_ns())
            start += len(part)
        self._broker.commit()
        self.session.compact()
        while self.session.work is not None:
            # Look-ups of ids; what else a thread does has tests of its own.
            if self.session.work.is_made:
                self.session.work.run()
            self.session.resume(now_ns=self._clock.wall_ns())
            self._broker.commit()
            self.session.compact()
        assert not self.session.yielded  # one request is one turn
        assert self.session.close_reason is None, self.session.close_reason

    def answers(self) -> dict[int, Any]:
        """The answers that may leave now, by correlation id."""
        broker = self._broker
        durable_pos = broker.flushed_pos if broker.is_sync_flush else broker.committed_pos
        data = b"".join(self.session.output(durable_pos))
        found = {}
        start = 0
        while start < len(data):
            end = start + 4 + int.from_bytes(data[start : start + 4], "big")
            number = int.from_bytes(data[start + 4 : start + 8], "big")
            response_class, version = self._asked.pop(number)
            found[number] = payload = data[start + 4 : end]
            if response_class is not None:
                found[number] = response_class.decode(payload, version=version, header=True)
            start = end
        return found


def encode_fetch(topic: str, partition: int, offset: int, size_max: int) -> bytes:
    """A Fetch of version `FETCH_VERSION` that does not wait, without its size prefix."""
    part = fetch_part(partition, offset, limit=size_max)
    request = fetch_request([(topic, [part])], max_bytes=size_max)
    return encode_request(request, FETCH_VERSION)


def fetched_section(topic: str, payload: bytes) -> tuple[int, int, bytes]:
    """Error code, high watermark and records of the one partition of a Fetch response.

    Decoded by hand: kafka-python is too slow for the responses of a crash test.
    """
    # Correlation id, throttle time, error, session id, count of topics, name.
    at = 4 + 4 + 2 + 4 + 4 + 2 + len(topic)
    _, _, error, high_watermark, _, _ = _RECORDS_HEAD.unpack_from(payload, at)
    at += _RECORDS_HEAD.size
    aborted_count = int.from_bytes(payload[at : at + 4], "big", signed=True)
    assert aborted_count <= 0
    at += 4 + 4  # and the preferred replica
    size = int.from_bytes(payload[at : at + 4], "big", signed=True)
    assert at + 4 + max(size, 0) == len(payload), "one partition, and nothing after it"
    return error, high_watermark, payload[at + 4 :]
