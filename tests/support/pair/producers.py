"""Producers of a simulated pair: plain, keyed, idempotent and delayed records, and cancels.

And batches of records that consumers want again: they go to ORIGIN, and come in TOPIC.
"""

import random
import struct
from typing import Any, Final

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.oracles.history_events import (
    Acknowledged,
    Attempted,
    MessageId,
    Refused,
    Unknown,
    encode_value,
)
from tests.support.oracles.kafka_oracle import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.support.pair.client import Gone, PairClient
from tests.support.pair.record import PairRecord
from tests.support.values import kafka_records
from tests.support.values.kafka_records import Record, build_batch

GROUP: Final = "g"
TOPIC: Final = f"{GROUP}.retry"
ORIGIN: Final = "t"
PARTITIONS: Final = 2
PRODUCE_VERSION: Final = 8
INIT_VERSION: Final = 2

DELAY_MAX_MS: Final = 900
AGAIN_SHARE: Final = 0.2
ACKS_ALL: Final = -1

Where = tuple[str, int]
"""A topic and a partition."""

UNDECIDED: Final = (ErrorCode.not_enough_replicas_after_append, ErrorCode.request_timed_out)
"""Answers that do not say whether the batch is stored."""

_ANSWER: Final = struct.Struct(">hq")
"""Error code and base offset of a partition in a Produce response."""

LOST_PLACE: Final = (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id)
"""Answers to an idempotent producer some of whose batches are gone."""


class PairProducer:
    """Sends batches one after the other, until it is asked to stop.

    Attributes:
        name: of lower-case letters and digits.
        is_stopping: it sends nothing new.
        is_done: and what it has sent is decided.
    """

    def __init__(
        self,
        client: PairClient,
        record: PairRecord,
        rng: random.Random,
        name: str,
        *,
        acks: int,
        is_idempotent: bool,
        may_lose: bool,
        pause_ms: float,
    ) -> None:
        """Send nothing yet.

        Args:
            client: its connection.
            record: where it writes down what happened.
            rng: decides what it sends.
            name: of the producer.
            acks: 1 or ACKS_ALL.
            is_idempotent: it sends a batch again until it is acknowledged.
            may_lose: its batches may be gone after a promotion.
            pause_ms: between two batches, on average.
        """
        self._client, self._record, self._rng = client, record, rng
        self.name, self._acks = name, acks
        self._is_idempotent, self._may_lose = is_idempotent, may_lose
        self._pause_ms = pause_ms
        self._counter = 0
        self._producer_id = -1
        self._sequences: dict[tuple[str, int], int] = {}
        self.is_stopping = self.is_done = False

    async def run(self) -> None:
        """Send until `is_stopping`."""
        while not self.is_stopping:
            await self._pause()
            partition = self._rng.randrange(PARTITIONS)
            is_again = self._rng.random() < AGAIN_SHARE
            draw = self._draw_again if is_again else self._draw
            attempts = [draw(partition) for _ in range(self._rng.choice((1, 1, 2, 4)))]
            place = ORIGIN if is_again else TOPIC, partition
            if self._is_idempotent:
                await self._send_until_decided(place, attempts)
            else:
                await self._send_once(place, attempts)
        self.is_done = True

    async def _pause(self) -> None:
        await self._client.sleep_ms(self._rng.expovariate(1 / self._pause_ms))

    def _draw_again(self, partition: int) -> Attempted:
        delay_ms = self._rng.choice((1, 20, self._rng.randrange(1, DELAY_MAX_MS)))
        return self._attempt(partition, delay_ms=delay_ms, retry_attempt=1)

    def _draw(self, partition: int) -> Attempted:
        rng = self._rng
        what = rng.random()
        wishes: dict[str, Any] = {}
        name = b"%s-%d" % (self.name.encode(), rng.randrange(6))
        if what < 0.35:
            wishes["delay_ms"] = rng.choice((1, 20, rng.randrange(DELAY_MAX_MS)))
            if rng.random() < 0.4:
                wishes["timer_id"] = name
        elif what < 0.42:
            wishes["cancels"] = name
        return self._attempt(partition, **wishes)

    def _attempt(self, partition: int, **wishes: Any) -> Attempted:
        rng = self._rng
        message = MessageId(self.name, self._counter)
        self._counter += 1
        value = encode_value(message, rng.randbytes(rng.choice((0, 20, 20, 1_500))))
        return Attempted(
            message,
            TOPIC,
            partition,
            0,
            value,
            key=rng.choice((None, b"k%d" % rng.randrange(5))),
            **wishes,
        )

    def _begin(self, attempts: list[Attempted]) -> None:
        at_ms = self._record.sent_ms()
        for each in attempts:
            object.__setattr__(each, "at_ms", at_ms)
        self._record.events += attempts

    async def _send(self, place: Where, attempts: list[Attempted]) -> tuple[int, int]:
        """Send a batch; return the error code and the base offset."""
        by = None
        if self._is_idempotent:
            by = kafka_records.Producer(self._producer_id, 0, self._sequences.get(place, 0))
        batch = build_batch([_record_of(each) for each in attempts], by)
        payload, node = await self._client.ask_encoded(_encode(place, batch, self._acks))
        error, base_offset = _ANSWER.unpack_from(payload, 4 + 4 + 2 + len(place[0]) + 4 + 4)
        if not error:
            messages = [each.message for each in attempts]
            self._record.note_acknowledged(node, messages, at_ns=self._client.answered_ns)
        return error, base_offset

    async def _send_once(self, place: Where, attempts: list[Attempted]) -> None:
        self._begin(attempts)
        try:
            error, base_offset = await self._send(place, attempts)
        except Gone as gone:
            self._end(attempts, Unknown, str(gone))
            await self._client.pause()
            return
        if error == 0:
            self._acknowledge(attempts, base_offset)
        elif error in UNDECIDED:
            self._end(attempts, Unknown, str(error))
        else:
            self._end(attempts, Refused)
            self._client.leave()
            await self._client.pause()

    async def _send_until_decided(self, place: Where, attempts: list[Attempted]) -> None:
        while self._producer_id < 0:
            await self._begin_anew()
        self._begin(attempts)
        while True:
            try:
                error, base_offset = await self._send(place, attempts)
            except Gone:
                await self._client.pause()
                continue
            if error in (0, ErrorCode.duplicate_sequence_number):
                self._sequences[place] = self._sequences.get(place, 0) + len(attempts)
                self._acknowledge(attempts, -1 if error else base_offset)
                return
            if error in LOST_PLACE:
                if not self._may_lose:
                    self._record.faults.append(f"{self.name}: error {error} to {attempts[0]}")
                self._end(attempts, Unknown, str(error))
                self._producer_id = -1
                return
            if error not in UNDECIDED:
                self._client.leave()
            await self._client.pause()

    async def _begin_anew(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        try:
            answer = await self._client.ask(request, INIT_VERSION, InitProducerIdResponse)
        except Gone:
            await self._client.pause()
            return
        if answer.value.error_code == 0:
            self._producer_id, self._sequences = answer.value.producer_id, {}
        else:
            self._client.leave()
            await self._client.pause()

    def _acknowledge(self, attempts: list[Attempted], base_offset: int) -> None:
        at_ms = self._record.seen_ms()
        # Delayed records and cancels get no offset in the batch.
        is_plain = all(not each.asks_for_delivery_headers and not each.cancels for each in attempts)
        for place, each in enumerate(attempts):
            offset = base_offset + place if is_plain and base_offset >= 0 else None
            self._record.events.append(Acknowledged(each.message, at_ms, offset))

    def _end(
        self, attempts: list[Attempted], kind: type[Refused] | type[Unknown], error: str = ""
    ) -> None:
        at_ms = self._record.seen_ms()
        for each in attempts:
            facts = (error,) if kind is Unknown else ()
            self._record.events.append(kind(each.message, at_ms, *facts))


def _encode(place: Where, batch: bytes, acks: int) -> bytes:
    """Return a Produce request without its size; kafka-python takes 20 times as long."""
    name = place[0].encode()
    parts = (
        struct.pack(">hhihhhi", 0, PRODUCE_VERSION, 0, -1, -1, acks, 1_000),
        struct.pack(">ih", 1, len(name)),
        name,
        struct.pack(">iii", 1, place[1], len(batch)),
        batch,
    )
    return b"".join(parts)


def _record_of(attempt: Attempted) -> Record:
    headers: kafka_records.Headers = ()
    if attempt.delay_ms is not None:
        headers = kafka_records.delay(attempt.delay_ms, attempt.timer_id)
        if attempt.retry_attempt is not None:
            headers += (("x-retry-group", GROUP.encode()),)
    elif attempt.cancels is not None:
        headers = kafka_records.cancel(attempt.cancels)
    return Record(attempt.value, attempt.key, headers)
