"""A broker on a simulated disk with keys and ids in its log, and an index of them with small runs.

The oracle is the list of what was sent: it shares no code with the index or with the scan.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from appliance.find import FindAnswer, Finder, FindRequest
from appliance.store.keys.key_index import IndexLimits, KeyIndex
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Headers, Record, cancel, delay

LIMITS: Final = IndexLimits(
    slice_bytes=4_096, run_rows=48, run_span_bytes=1 << 15, memory_pieces_max=3, merged_runs=3
)
ALL: Final = 10_000

Place = tuple[str, int, int]
"""Topic, partition and offset."""


class Sent:
    """A broker whose log has records and timers, and what was sent to it.

    Attributes:
        harness: the broker.
        visible: by key, where its visible records are.
        held: by key, how many timers were accepted with it.
    """

    def __init__(self, seed: int = 1, disk: SimFileSystem | None = None) -> None:
        self.harness = BrokerHarness(disk)
        self._rng = random.Random(seed)
        self.visible: dict[bytes, list[Place]] = defaultdict(list)
        self.held: dict[bytes, int] = defaultdict(int)
        for name, settings in (("a", {}), ("b", {}), ("off", {"index.keys": "off"})):
            self.harness.create_topic(name, 2, settings)

    def send(self, batch_count: int, topics: tuple[str, ...] = ("a", "b", "off")) -> None:
        """Send batches of records with keys of a small range, some of them compressed."""
        rng = self._rng
        for _ in range(batch_count):
            topic, partition = rng.choice(topics), rng.randrange(2)
            keys = [self._key() for _ in range(rng.randrange(1, 6))]
            records = [Record(rng.randbytes(rng.randrange(40)), key) for key in keys]
            codec = rng.choice((0, 0, 0, 1, 4))
            answer = self.harness.produce(topic, partition, records, codec=codec)
            assert answer.error == 0
            for at, key in enumerate(keys):
                if key is not None:
                    self.visible[key].append((topic, partition, answer.base_offset + at))

    def _key(self) -> bytes | None:
        number = self._rng.randrange(60)
        return None if number == 0 else b"" if number == 1 else b"key-%d" % number

    def hold(self, key: bytes, delay_ms: int, user_id: bytes | None = None) -> None:
        """Send a delayed record to topic a."""
        self._send_one(Record(b"later", key, delay(delay_ms, user_id)))
        self.held[key] += 1

    def cancel(self, user_id: bytes) -> None:
        """Cancel a timer by a record."""
        self._send_one(Record(b"", None, cancel(user_id)))

    def _send_one(self, record: Record) -> None:
        assert self.harness.produce("a", 0, [record]).error == 0

    def send_headers(self, key: bytes, headers: Headers) -> None:
        """Send one record to topic a."""
        self._send_one(Record(b"", key, headers))

    def new_index(self, limits: IndexLimits = LIMITS) -> KeyIndex:
        """An index of the broker's log that has done nothing yet."""
        return index_of(self.harness, limits)


def index_of(harness: BrokerHarness, limits: IndexLimits = LIMITS) -> KeyIndex:
    """An index of a broker's log that has done nothing yet."""
    store, broker = harness.broker._store, harness.broker
    return KeyIndex(
        store._files,
        cluster=store.state.cluster,
        salt=store.state.salt,
        decompress=broker._decompress,
        left_out=broker._left_out,
        limits=limits,
    )


def build(index: KeyIndex, job_max: int = ALL) -> int:
    """Do up to so many jobs; return how many there were."""
    for done in range(job_max):
        job = index.step()
        if job is None:
            return done
        job.run()
        index.end(job)
    return job_max


def ask(
    harness: BrokerHarness,
    index: KeyIndex,
    request: FindRequest,
    goes_on: Callable[[], bool] = lambda: True,
) -> FindAnswer:
    """Answer one request as a running broker does."""
    store = harness.broker._store
    search, part = index.begin_search(store.log.pointers.visible)
    finder = Finder(
        part,
        search,
        dict(store.state.projections.topics_by_id),
        store.state.projections.moved.place,
        harness.broker._facade.decompress,
        unpacked_max=1 << 20,
    )
    answer = FindAnswer()
    try:
        answer = finder.find(request, goes_on=goes_on)
    finally:
        part.close()
        index.end_search(answer.damaged)
    return answer


def places(answer: FindAnswer) -> list[Place]:
    """The topic, partition and offset of each visible record that was found."""
    found = [item for item in answer.found if "offset" in item]
    return [(item["topic"], item["partition"], item["offset"]) for item in found]


def check_all_keys(sent: Sent, harness: BrokerHarness, index: KeyIndex) -> int:
    """Look every key up; return how many bytes of the log were scanned for them."""
    scanned = 0
    for key in [*sent.visible, b"absent"]:
        answer = ask(harness, index, FindRequest(key=key, limit=1_000))
        assert sorted(places(answer)) == sorted(sent.visible.get(key, [])), key
        assert answer.next is None
        assert not answer.unreadable
        scanned += answer.scanned_bytes
    return scanned
