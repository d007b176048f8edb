"""The index of users' timer ids, against a dict, and its hash against a second implementation."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from _core.timers.id_index import CANCELLED, DELIVERED, PENDING, IdIndex
from tests.support.compiled import timer_calls as calls
from tests.support.compiled.timer_calls import siphash_128

KEY = bytes(range(16))
START_MS = 1_780_000_000_000
END_POS = 1 << 40
"""After the frame that completed a timer."""
SLOT_BYTES = 48
# 1024 parts of 16 bytes each, and the smallest tables.
FIXED_BYTES = 1024 * 16
OFFSET = 41

Entry = tuple[int, int, int, int, int, int]


def entry(
    position: int,
    *,
    record_index: int = 0,
    partition: int = 0,
    due_ms: int = START_MS,
    completed_pos: int = 0,
    state: int = PENDING,
) -> Entry:
    return position, record_index, partition, due_ms, completed_pos, state


def complete(index: IdIndex, topic_id: int, name: bytes, timer: Entry, completed_pos: int) -> bool:
    return calls.complete_id(
        index,
        topic_id,
        name,
        position=timer[0],
        record_index=timer[1],
        state=DELIVERED,
        completed_pos=completed_pos,
        offset=OFFSET,
    )


def delivered(timer: Entry, completed_pos: int) -> Entry:
    """What the index has of a timer once it is delivered: where, and a mark of its timer id."""
    mark = (timer[0] // 8 + timer[1] * 0x9E3779B1) % 2**31
    return OFFSET, mark, *timer[2:4], completed_pos, DELIVERED


def expire_all(index: IdIndex, pos: int) -> int:
    """Look at every slot: one call leaves out those before the place where it begins."""
    index.forget_below(pos)
    return index.expire_some(1 << 40) + index.expire_some(1 << 40)


# The hash


def sip_round(v: list[int]) -> None:
    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) % 2**64

    v[0] = (v[0] + v[1]) % 2**64
    v[1] = rotate(v[1], 13) ^ v[0]
    v[0] = rotate(v[0], 32)
    v[2] = (v[2] + v[3]) % 2**64
    v[3] = rotate(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) % 2**64
    v[3] = rotate(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) % 2**64
    v[1] = rotate(v[1], 17) ^ v[2]
    v[2] = rotate(v[2], 32)


def siphash_128_model(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 with 128 bits of output, written from the paper."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [a ^ b for a, b in zip(siphash_constants(), (k0, k1, k0, k1), strict=True)]
    v[1] ^= 0xEE
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    for begin in range(0, len(padded), 8):
        word = int.from_bytes(padded[begin : begin + 8], "little")
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
    out = b""
    for place, mark in ((2, 0xEE), (1, 0xDD)):
        v[place] ^= mark
        for _ in range(4):
            sip_round(v)
        out += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return out


def siphash_constants() -> list[int]:
    text = b"somepseudorandomlygeneratedbytes"
    return [int.from_bytes(text[begin : begin + 8], "big") for begin in range(0, 32, 8)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "a3817f04ba25a8e66df67214c7550293"), (1, "da87c1d86b99af44347659119b22fc45")],
)
def test_hash_equals_the_published_vectors(size: int, expected: str) -> None:
    """The first vectors of the authors' reference code: key and message count up from zero."""
    assert siphash_128(KEY, bytes(range(size))).hex() == expected
    assert siphash_128_model(KEY, bytes(range(size))).hex() == expected


@given(key=st.binary(min_size=16, max_size=16), message=st.binary(max_size=300))
def test_hash_equals_the_model(key: bytes, message: bytes) -> None:
    """Every key, every length."""
    assert siphash_128(key, message) == siphash_128_model(key, message)


def test_every_length_of_tail_is_hashed() -> None:
    """Each byte of the last, incomplete word counts, and so does the length."""
    hashes = {siphash_128(KEY, bytes(size)) for size in range(300)}
    assert len(hashes) == 300


@pytest.mark.parametrize("size", [0, 15, 17])
def test_key_of_another_size_is_refused(size: int) -> None:
    """The message states both sizes."""
    with pytest.raises(ValueError, match=f"{size} bytes, expected 16"):
        IdIndex(bytes(size))


# The index


def test_an_id_names_what_was_put_last() -> None:
    """All fields come back as they were given, up to their largest values."""
    index = IdIndex(KEY)
    assert calls.find_id(index, 1, b"a") is None
    first = entry(100, record_index=7, partition=3, due_ms=START_MS + 5)
    calls.put_id(index, 1, b"a", first)
    assert calls.find_id(index, 1, b"a") == first
    second = entry(
        2**63 - 1,
        record_index=2**31 - 1,
        partition=2**29 - 1,
        due_ms=2**55 - 1,
        completed_pos=2**63 - 1,
        state=DELIVERED,
    )
    calls.put_id(index, 1, b"a", second)
    assert calls.find_id(index, 1, b"a") == second
    assert index.count == 1


def test_ids_of_topics_are_apart() -> None:
    """The same bytes name different timers in different topics; prefixes are other ids."""
    index = IdIndex(KEY)
    names = [b"a", b"a\0", b"\0a", b"a" * 255, b"\0", b"\0\0"]
    for topic_id in (0, 1, 2**28):
        for i, name in enumerate(names):
            calls.put_id(index, topic_id, name, entry(topic_id + i))
    for topic_id in (0, 1, 2**28):
        for i, name in enumerate(names):
            assert calls.find_id(index, topic_id, name) == entry(topic_id + i)
    assert index.count == 18


@pytest.mark.parametrize("name", [b"", b"a" * 256])
def test_ids_of_impossible_length_are_a_mistake_of_the_program(name: bytes) -> None:
    index = IdIndex(KEY)
    with pytest.raises(AssertionError):
        calls.put_id(index, 1, name, entry(1))
    assert index.count == 0


def test_a_replaced_timer_of_the_same_batch_cannot_be_completed() -> None:
    index = IdIndex(KEY)
    old, new = entry(100, record_index=1), entry(100, record_index=2)
    calls.put_id(index, 1, b"a", old)
    calls.put_id(index, 1, b"a", new)
    assert not complete(index, 1, b"a", old, END_POS)
    assert calls.find_id(index, 1, b"a") == new
    assert complete(index, 1, b"a", new, END_POS)


@pytest.mark.parametrize("partition", [0, 1, 2**29 - 1])
def test_a_recurring_timer_has_its_partition_and_state(partition: int) -> None:
    index = IdIndex(KEY)
    timer = entry(100, record_index=1)
    timer = (*timer[:2], partition, *timer[3:])
    calls.put_id(index, 1, b"a", timer, recurs=True)
    assert calls.find_id(index, 1, b"a") == timer
    assert complete(index, 1, b"a", timer, END_POS)
    assert calls.find_id(index, 1, b"a") == delivered(timer, END_POS)


def test_a_delivered_timer_is_not_delivered_again() -> None:
    """What its entry has in place of its position may be the position of another one."""
    index = IdIndex(KEY)
    timer = entry(OFFSET * 8, record_index=1)
    calls.put_id(index, 1, b"a", timer)
    assert complete(index, 1, b"a", timer, END_POS)
    found = calls.find_id(index, 1, b"a")
    assert found == delivered(timer, END_POS)
    assert not complete(index, 1, b"a", found, END_POS + 1)


def test_expiry_goes_in_bounded_steps_and_misses_nothing() -> None:
    """Each step looks at no more slots than it may, and the steps get around."""
    index = IdIndex(KEY)
    count = 20_000
    for i in range(count):
        state = (DELIVERED, END_POS) if i % 3 else (PENDING, 0)
        calls.put_id(index, 1, b"%d" % i, entry(i, state=state[0], completed_pos=state[1]))
    dropped, steps = 0, 0
    while dropped < count - len(range(0, count, 3)):
        index.forget_below(END_POS)
        step = index.expire_some(100)
        assert step <= 100
        dropped += step
        steps += 1
        assert steps < count // 20
    assert index.count == len(range(0, count, 3))
    assert all(calls.find_id(index, 1, b"%d" % i) == entry(i) for i in range(0, count, 3))


def test_memory_follows_the_number_of_ids() -> None:
    """48 bytes a slot at 46 to 70 % full; what is expired makes room and is given back."""
    index = IdIndex(KEY)
    count = 50_000
    for i in range(count):
        calls.put_id(index, 1, b"%d" % i, entry(i, completed_pos=END_POS, state=DELIVERED))
    assert index.memory_bytes <= SLOT_BYTES / 0.46 * count + FIXED_BYTES
    assert index.memory_bytes >= SLOT_BYTES / 0.7 * count
    grown = index.memory_bytes
    # They expire: as many again take the place of the first.
    index.forget_below(END_POS)
    assert calls.find_id(index, 1, b"0") is None
    for i in range(count):
        calls.put_id(index, 2, b"%d" % i, entry(i, completed_pos=END_POS + 1, state=DELIVERED))
    assert index.count < 1.6 * count
    assert index.memory_bytes <= 1.6 * grown
    for _ in range(10):
        expire_all(index, END_POS + 1)
    assert index.count == 0
    assert index.memory_bytes <= FIXED_BYTES


def test_a_hundred_thousand_ids_are_all_found() -> None:
    """Every id, none that was not put, all of them gone when expired."""
    index = IdIndex(KEY)
    count = 100_000
    calls.fill_ids(index, 1, 0, count)
    assert index.count == count
    for i in range(0, count, 7):
        assert calls.find_id(index, 1, i.to_bytes(8, "little")) == entry(i, due_ms=i)
    for i in range(count, count + 10_000):
        assert calls.find_id(index, 1, i.to_bytes(8, "little")) is None
    calls.forget_ids(index, 1)
    assert sum(index.expire_some(10_000) for _ in range(200)) == count


topic_ids = st.integers(0, 3)
names = st.integers(0, 400).map(lambda i: b"name-%d" % i)


class IdIndexMachine(RuleBasedStateMachine):
    """Whatever is done to it, the index answers as a dict does."""

    @initialize(key=st.binary(min_size=16, max_size=16))
    def begin(self, key: bytes) -> None:
        self.index = IdIndex(key)
        self.model: dict[tuple[int, bytes], Entry] = {}
        self.pos = END_POS
        self.next_position = 0
        self.topic_base = 0

    def known(self, topic_id: int, name: bytes) -> Entry | None:
        found = self.model.get((topic_id, name))
        return None if found is None or 0 < found[4] <= self.pos else found

    @rule(topic=topic_ids, name=names, state=st.sampled_from([PENDING, CANCELLED, DELIVERED]))
    def put_one(self, topic: int, name: bytes, state: int) -> None:
        self.next_position += 100
        completed_pos = 0 if state == PENDING else self.pos + 50
        timer = entry(self.next_position, completed_pos=completed_pos, state=state)
        calls.put_id(self.index, self.topic_base + topic, name, timer)
        self.model[self.topic_base + topic, name] = timer

    @rule(topic=topic_ids, first=st.integers(0, 5_000), count=st.sampled_from([50, 3_000]))
    def fill(self, topic: int, first: int, count: int) -> None:
        topic_id = self.topic_base + topic
        calls.fill_ids(self.index, topic_id, first, count)
        for i in range(first, first + count):
            self.model[topic_id, i.to_bytes(8, "little")] = entry(i, due_ms=i)

    @rule(topic=topic_ids, name=names, is_current=st.booleans())
    def complete_one(self, topic: int, name: bytes, is_current: bool) -> None:
        key = (self.topic_base + topic, name)
        found = self.known(*key)
        timer = found if found and is_current else entry(-1)
        done = complete(self.index, *key, timer, self.pos + 100)
        assert done == (found is not None and is_current and found[5] != DELIVERED)
        if done:
            self.model[key] = delivered(timer, self.pos + 100)

    @rule(passed=st.integers(0, 60))
    def wait(self, passed: int) -> None:
        self.pos += passed
        self.index.forget_below(self.pos)

    @rule(budget=st.sampled_from([1, 100, 10_000]))
    def expire(self, budget: int) -> None:
        self.index.expire_some(budget)

    @rule(topic=topic_ids)
    def forget_topic(self, topic: int) -> None:
        calls.forget_ids(self.index, self.topic_base + topic)
        self.model = {
            key: timer for key, timer in self.model.items() if key[0] != self.topic_base + topic
        }
        self.topic_base += 4  # topic ids are never used again

    @rule(topic=topic_ids, name=names)
    def look_up(self, topic: int, name: bytes) -> None:
        found = calls.find_id(self.index, self.topic_base + topic, name)
        assert found == self.known(self.topic_base + topic, name)

    @invariant()
    def holds_at_least_what_is_known(self) -> None:
        if hasattr(self, "index"):
            known = sum(self.known(*key) is not None for key in self.model)
            assert self.index.count >= known

    def teardown(self) -> None:
        if not hasattr(self, "index"):
            return
        expire_all(self.index, self.pos)
        for key in self.model:
            assert calls.find_id(self.index, *key) == self.known(*key)
        assert self.index.count == sum(self.known(*key) is not None for key in self.model)


TestIdIndexMachine = IdIndexMachine.TestCase
TestIdIndexMachine.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize("seed", range(3))
def test_long_histories_agree_with_a_dict(seed: int) -> None:
    """Completing and expiring many ids leaves every search chain whole."""
    rng = random.Random(seed)
    index = IdIndex(rng.randbytes(16))
    model: dict[bytes, Entry] = {}
    pos = END_POS
    for step in range(30_000):
        name = b"%d" % rng.randrange(4_000)
        found = model.get(name)
        if found is None or rng.random() < 0.3:
            model[name] = entry(step)
            calls.put_id(index, 9, name, model[name])
        elif found[5] == PENDING:
            completed_pos = pos + rng.randrange(1, 3_000)
            assert complete(index, 9, name, found, completed_pos)
            model[name] = delivered(found, completed_pos)
        pos += rng.randrange(3)
        index.forget_below(pos)
        if step % 50 == 0:
            index.expire_some(rng.randrange(600))
        expected = None if found is None or 0 < model[name][4] <= pos else model[name]
        assert found is None or calls.find_id(index, 9, name) == expected
    for name, timer in model.items():
        expected = None if 0 < timer[4] <= pos else timer
        assert calls.find_id(index, 9, name) == expected
