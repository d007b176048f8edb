"""A produced batch becomes the frame that the model makes of it, byte for byte."""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from _core.log.frames import check, read_header
from tests.support.docs import golden_frames as golden
from tests.support.harness.configs import small_config
from tests.support.harness.produce_harness import ProduceHarness
from tests.support.oracles import frames_model as model

START_MS = golden.START_MS

Ask = tuple[str, int, bytes]
"""What a record asks for: kind of header, a number, an id (empty: none)."""

LEVEL_MS = (1_000, 5_000, 10_000, 30_000, 60_000)

ASKS = st.one_of(
    st.just(("none", 0, b"")),
    st.tuples(st.just("delay"), st.integers(0, 10**9), st.sampled_from([b"", b"a", b"bb"])),
    st.tuples(st.just("at"), st.integers(-1000, 10**9), st.sampled_from([b"", b"a", b"bb"])),
    st.tuples(st.just("level"), st.integers(0, 5), st.sampled_from([b"", b"a", b"bb"])),
    st.tuples(st.just("cancel"), st.just(0), st.sampled_from([b"a", b"bb"])),
    st.tuples(st.just("id"), st.just(0), st.sampled_from([b"a", b"bb"])),
)


def asked_headers(ask: Ask) -> tuple[tuple[bytes, bytes], ...]:
    kind, number, user_id = ask
    headers: list[tuple[bytes, bytes]] = []
    if kind == "delay":
        headers.append((b"x-delay", str(number).encode()))
    elif kind == "at":
        headers.append((b"x-deliver-at", str(START_MS + number).encode()))
    elif kind == "level":
        headers.append((b"x-delay-level", str(number).encode()))
    elif kind == "cancel":
        return ((b"x-deliver-cancel", user_id),)
    if user_id:
        headers.append((b"x-deliver-id", user_id))
    return tuple(headers)


def due_of(ask: Ask) -> int | None:
    kind, number, user_id = ask
    if kind == "delay":
        return START_MS + number
    if kind == "at":
        return START_MS + number
    if kind == "level" and number:
        return START_MS + LEVEL_MS[number - 1]
    return START_MS if user_id else None


def split_by_model(sent: model.Batch, asks: list[Ask]) -> model.Frame:
    """The accept frame that the contract in docs/FORMAT.md asks for."""
    visible: list[model.Record] = []
    held: list[model.Held] = []
    cancels: list[model.Cancel] = []
    offsets = dict.fromkeys(range(1, 6), 0)
    for index, (record, ask) in enumerate(zip(sent.records, asks, strict=True)):
        kind, number, user_id = ask
        due = due_of(ask)
        kept = tuple(header for header in record.headers if not header[0].startswith(b"x-"))
        added = [(b"x-accepted-at", str(START_MS).encode()), (b"x-due-at", str(due).encode())]
        added += [(b"x-due-id", user_id)] if user_id else []
        stamped = replace(record, headers=kept + tuple(added))
        if kind == "cancel":
            cancels.append(model.Cancel(index=index, kind=1, user_id=user_id))
        elif due is None:
            visible.append(record)
        elif due <= START_MS:
            visible.append(stamped)
            if user_id:
                cancels.append(model.Cancel(index=index, kind=2, user_id=user_id, due=due))
        else:
            timer = model.Held(index=index, due=due, record=stamped, user_id=user_id)
            if kind == "level":
                timer = replace(timer, level=number, level_offset=offsets[number])
                offsets[number] += 1
            held.append(timer)
    latest = max(record.timestamp for record in sent.records)
    whole = replace(sent, base_timestamp=sent.first_timestamp, max_timestamp=latest)
    frame = model.Frame(
        kind=model.ACCEPT,
        epoch=golden.EPOCH,
        salt=golden.SALT,
        position=golden.FIRST_FRAME_POS,
        topic_id=1,
        flushed=golden.FLUSHED_POS,
        store_time=START_MS,
        base_offset=0 if visible else -1,
        partition=0,
        record_count=len(visible),
        producer_id=sent.producer_id,
        producer_epoch=sent.producer_epoch,
        first_sequence=sent.base_sequence,
        last_sequence=sent.base_sequence + len(asks) - 1 if sent.producer_id >= 0 else -1,
    )
    if visible:
        times = [record.timestamp for record in visible]
        frame = replace(
            frame,
            visible=replace(
                whole, records=tuple(visible), max_timestamp=None, leader_epoch=golden.EPOCH
            ).encode(),
            min_timestamp=min(times),
            max_timestamp=max(times),
            running_max=max(times),
        )
    return model.with_timers(frame, held, whole, cancels)


@settings(max_examples=120)
@given(
    asks=st.lists(ASKS, min_size=1, max_size=8),
    times=st.lists(st.integers(-100, 10**6), min_size=8, max_size=8),
    producer=st.sampled_from([(-1, -1, -1), (7, 0, 0), (7, 3, 99)]),
    has_trace=st.booleans(),
)
def test_produced_batches_become_the_frames_that_the_model_makes(
    asks: list[Ask], times: list[int], producer: tuple[int, int, int], has_trace: bool
) -> None:
    """Header, tables, ids, both batches and all checksums, byte for byte."""
    trace = ((b"trace", b"t"), (b"empty", None)) if has_trace else ()
    records = tuple(
        model.Record(
            timestamp=START_MS + times[index],
            key=b"k%d" % index,
            value=None if index == 3 else bytes(index),
            headers=(*asked_headers(ask), *trace),
        )
        for index, ask in enumerate(asks)
    )
    sent = model.Batch(
        records=records,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    harness = ProduceHarness(small_config(delay_levels=LEVEL_MS))
    harness.broker.topics.create("jobs", 1, {})
    harness.produce("jobs", 0, sent.encode())
    data = golden.last_frame(harness.log())
    assert data == split_by_model(sent, asks).encode()
    assert check(data, golden.FIRST_FRAME_POS) == "whole"


def frames_of(log: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(log):
        size = read_header(log[at:])["size"]
        yield at, log[at : at + size]
        at += size


def test_each_frame_names_what_was_flushed_when_it_was_appended() -> None:
    harness = ProduceHarness()
    harness.broker.topics.create("jobs", 1, {})
    batch = model.Batch(records=golden.now_and_later().records[:1]).encode()
    for _ in range(3):
        harness.produce("jobs", 0, batch)
    frames = list(frames_of(harness.log()))
    assert [read_header(data)["kind"] for _, data in frames] == [12, 10, 5, 1, 1, 1]
    for pos, data in frames[4:]:
        assert read_header(data)["flushed"] == pos  # one batch, one flush
