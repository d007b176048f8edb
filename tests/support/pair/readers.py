"""Readers of a simulated pair: each reads both partitions from the start, and commits in its group.

The last reader of a run is one more, which begins when everything is delivered.
"""

import random
from functools import cache
from typing import Final

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import Commit, commit_request, fetch_request
from tests.support.harness.harness_connection import FETCH_VERSION, fetched_section
from tests.support.oracles import commit_history
from tests.support.oracles.commit_history import Committed, Read, Resumed
from tests.support.oracles.history_events import Consumed, Place
from tests.support.oracles.kafka_oracle import (
    OffsetCommitResponse,
    OffsetFetchResponse,
    encode_request,
)
from tests.support.pair.client import Gone, PairClient
from tests.support.pair.producers import PARTITIONS, TOPIC
from tests.support.pair.record import PairRecord
from tests.support.values import record_requests
from tests.support.values.kafka_records import end_of_batches, read_batches

COMMIT_VERSION: Final = 7
OFFSETS_VERSION: Final = 7
SIZE_MAX: Final = 1 << 16
ANY_OFFSET: Final = 0x1122334455667788
"""Stands for the offset in a request that is encoded once."""


@cache
def _fetch_frame(partition: int, wait_ms: int) -> bytes:
    """A Fetch with ANY_OFFSET in it, as kafka-python encodes it; that takes long."""
    part = record_requests.fetch_part(partition, ANY_OFFSET, limit=SIZE_MAX)
    request = record_requests.fetch_request([(TOPIC, [part])], wait_ms=wait_ms, max_bytes=SIZE_MAX)
    return encode_request(request, FETCH_VERSION)


class PairReader:
    """Reads, and commits what it has read.

    Attributes:
        name: of the reader, and of its group.
        offsets: the next ones of each partition.
        is_stopping: it ends soon.
    """

    def __init__(
        self,
        client: PairClient,
        record: PairRecord,
        rng: random.Random,
        name: str,
        *,
        wait_ms: int,
        may_lose: bool,
    ) -> None:
        """Read nothing yet.

        Args:
            client: its connection.
            record: where it writes down what it sees.
            rng: decides when it commits.
            name: of the reader.
            wait_ms: how long an empty fetch waits.
            may_lose: records that it saw may be gone after a promotion.
        """
        self._client, self._record, self._rng = client, record, rng
        self.name, self._wait_ms, self._may_lose = name, wait_ms, may_lose
        self._acknowledged = dict.fromkeys(range(PARTITIONS), -1)
        self._group_events = record.group_events.setdefault(name, [])
        self.offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.is_stopping = False

    async def run(self) -> None:
        """Read until `is_stopping`."""
        for partition in range(PARTITIONS):
            self._group_events.append(Resumed(self.name, (TOPIC, partition), -1, "", -1))
        while not self.is_stopping:
            for partition in range(PARTITIONS):
                try:
                    await self._read(partition)
                    if self._rng.random() < 0.15:
                        await self._commit(partition)
                    if self._rng.random() < 0.03:
                        await self._look_at_offset(partition)
                except Gone:
                    await self._client.pause()
            await self._client.sleep_ms(self._rng.expovariate(1 / 50))

    async def _read(self, partition: int) -> None:
        offset = self.offsets[partition]
        frame = _fetch_frame(partition, self._wait_ms).replace(
            ANY_OFFSET.to_bytes(8, "big"), offset.to_bytes(8, "big")
        )
        payload, node = await self._client.ask_encoded(frame)
        error, _, section = fetched_section(TOPIC, payload)
        if error == ErrorCode.offset_out_of_range and self._record.is_master(node):
            if not self._may_lose:
                self._record.faults.append(f"{self.name}: {partition}@{offset} is out of range")
            self.is_stopping = True
            return
        if error:
            self._client.leave()
            await self._client.pause()
            return
        if not section:
            return
        self._record.note_seen(node)
        at_ms = self._record.seen_ms()
        for each in read_batches(section, offset):
            place = Place(TOPIC, partition, each.offset)
            self._record.events.append(
                Consumed(self.name, place, at_ms, each.key, each.value, each.headers)
            )
            self._group_events.append(Read(self.name, place, each.value))
        self.offsets[partition] = end_of_batches(section)

    async def _commit(self, partition: int) -> None:
        offset = self.offsets[partition]
        place = TOPIC, partition
        commit = Commit(offset, commit_history.note(place, offset))
        request = commit_request(self.name, {place: commit})
        answer = await self._client.ask(request, COMMIT_VERSION, OffsetCommitResponse)
        if answer.value.topics[0].partitions[0].error_code == 0:
            self._record.note_seen(answer.node)
            self._acknowledged[partition] = offset
            self._group_events.append(Committed(self.name, place, offset))

    async def _look_at_offset(self, partition: int) -> None:
        """Fetch the committed offset, as a member that starts does, and go on from there."""
        place, acknowledged = (TOPIC, partition), self._acknowledged[partition]
        request = fetch_request(OFFSETS_VERSION, {self.name: [place]})
        answer = await self._client.ask(request, OFFSETS_VERSION, OffsetFetchResponse)
        if answer.value.error_code:
            return
        found = answer.value.topics[0].partitions[0]
        if found.error_code:
            return
        resumed = Resumed(
            self.name, place, found.committed_offset, found.metadata or "", acknowledged
        )
        # It reads on where it was, as a member does that was assigned more.
        offset = self.offsets[partition]
        note = commit_history.note(place, offset)
        again = Resumed(self.name, place, offset, note, acknowledged)
        self._group_events += (resumed, again)
