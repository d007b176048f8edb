"""One example of each kind of frame: how to make it, and the files that keep its bytes.

`make regenerate` writes tests/golden/ and the example in docs/FORMAT.md. Commit a change of them
only as docs/FORMAT.md says under "Changing the format".
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID

from _core.log.pointers import Pointers
from _core.log.tail import LogTail
from _core.timers.id_index import CANCELLED, DELIVERED
from appliance.store.runs.run_files import IdRow
from appliance.store.state import control_frames as control
from appliance.store.state import group_deltas as deltas
from appliance.store.state import group_frames as group
from appliance.store.state import sequences, snapshot
from tests.support.docs.format_doc import PATH, explain
from tests.support.harness.produce_harness import ProduceHarness
from tests.support.oracles import frames_model as model
from tests.support.simulator.virtual_clock import FIRST_EPOCH, START_MS
from tests.support.values import carry_payloads as carry
from tests.support.values import txn_payloads as txn

GOLDEN: Final = Path(__file__).parents[2] / "golden"
BEGIN: Final = "<!-- example: written by tests/support/docs/golden_frames.py -->\n"
END: Final = "<!-- end of example -->\n"
EXAMPLE: Final = "accept_split"

TOPIC_ID: Final = 1
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
JOBS: Final = UUID("6a6f6273-0000-4000-8000-000000000001")
CLUSTER: Final = UUID("6c6d7100-0000-4000-8000-00000000000c")
SEGMENT_SIZE: Final = 65_536
EPOCH: Final = FIRST_EPOCH
SALT: Final = 0x59D235D0
FLUSHED_POS: Final = 400
"""The end of the epoch frame: the topic frame is not flushed when the first batch comes."""
FIRST_FRAME_POS: Final = 616
"""After the head, the epoch frame and the topic frame of a log whose only topic is `jobs`."""
SECOND_FRAME_POS: Final = 1192
"""After the frame that holds `named_and_cancels`."""
RECURRING_POS: Final = 1144
"""After the frame that holds `nightly`."""
MOVED_POS: Final = 1024
"""After the frame that holds `missed_nightly`."""


def last_frame(log: bytes) -> bytes:
    """The last frame of a log."""
    at = 0
    while True:
        size = int.from_bytes(log[at + 4 : at + 8], "big")
        if at + size == len(log):
            return log[at:]
        at += size


def encode_offsets(entries: Sequence[group.OffsetEntry]) -> bytes:
    """Encode the payload of an offset frame."""
    return group.join_offsets([group.encode_offset(entry) for entry in entries])


def now_and_later() -> model.Batch:
    """The batch of the worked example, as its producer sends it."""
    return model.Batch(
        records=(
            model.Record(timestamp=START_MS, key=b"now", value=b"a"),
            model.Record(
                timestamp=START_MS, key=b"later", value=b"b", headers=((b"x-delay", b"1m"),)
            ),
        )
    )


def named_and_cancels() -> model.Batch:
    """An idempotent batch: a named timer on level 3, one due at once, a cancel."""
    ask = (
        ((b"x-delay-level", b"3"), (b"x-deliver-id", b"job-1"), (b"trace", b"t")),
        ((b"x-deliver-at", str(START_MS).encode()), (b"x-deliver-id", b"job-2")),
        ((b"x-deliver-cancel", b"job-3"),),
    )
    records = [
        model.Record(timestamp=START_MS - 5 + i, key=b"k", value=b"v", headers=headers)
        for i, headers in enumerate(ask)
    ]
    return model.Batch(records=tuple(records), producer_id=7, producer_epoch=2, base_sequence=40)


def nightly() -> model.Batch:
    """A record that comes each night, and an ordinary one that is due with it."""
    ask = (
        ((b"x-cron", b"0 2 * * *"), (b"x-cron-zone", b"Etc/UTC"), (b"x-deliver-id", b"night")),
        ((b"x-delay", b"2h"),),
    )
    return model.Batch(
        records=tuple(
            model.Record(timestamp=START_MS, key=b"k", value=b"v", headers=headers)
            for headers in ask
        )
    )


def missed_nightly() -> model.Batch:
    """The first record of `nightly`, which does not come if it is missed."""
    (first, _) = nightly().records
    headers = (*first.headers, (b"x-cron-missed", b"none"))
    return model.Batch(records=(replace(first, headers=headers),))


def _rig_frame(*steps: Callable[[ProduceHarness], object]) -> Callable[[], bytes]:
    def make() -> bytes:
        harness = ProduceHarness()
        harness.broker.topics.create("jobs", 1, {})
        for step in steps:
            step(harness)
        return last_frame(harness.log())

    return make


def _send(batch: model.Batch) -> Callable[[ProduceHarness], object]:
    return lambda harness: harness.produce("jobs", 0, batch.encode())


def _deliver_after(duration_ms: int) -> Callable[[ProduceHarness], object]:
    def step(harness: ProduceHarness) -> None:
        harness.clock.advance_ms(duration_ms)
        harness.broker.deliver_due()
        harness.broker.flush()

    return step


def log_tail(*, start: int = 0, size: int = SEGMENT_SIZE) -> LogTail:
    """A tail at the start of a segment of `size` bytes, without a next one."""
    tail = LogTail(Pointers(start, sync_flush=True), reserve_bytes=0)
    tail.enter_segment(start + size)
    tail.prepare_spare = lambda: False
    tail.roll = lambda _: False
    return tail


def _control(
    kind: int, payload: bytes, *, topic_id: int = 0, flags: int = 0
) -> Callable[[], bytes]:
    def make() -> bytes:
        tail = log_tail()
        tail.append_control(
            kind, topic_id=topic_id, store_time_ms=START_MS, payload=payload, flags=flags
        )
        return b"".join(bytes(part) for part in tail.take())

    return make


def _blank() -> bytes:
    tail = log_tail(size=4096)
    tail.append_blank()
    return b"".join(bytes(part) for part in tail.take())


def _cancel() -> bytes:
    table = model.completed_table(
        [
            model.Completed(
                accept_pos=FIRST_FRAME_POS,
                index=0,
                user_id=b"job-1",
                op=model.DUE_FINAL,
                due=START_MS + 10_000,
            ),
            model.Completed(
                accept_pos=FIRST_FRAME_POS,
                index=4,
                op=model.DUE_FINAL,
                level=2,
                due=START_MS + 5_000,
            ),
        ]
    )
    return model.Frame(
        kind=model.CANCEL,
        position=4096,
        topic_id=TOPIC_ID,
        store_time=START_MS,
        partition=0,
        timer_count=2,
        tables=table,
    ).encode()


def _carry_timers() -> bytes:
    def record(value: bytes) -> model.Record:
        return model.Record(timestamp=START_MS, key=b"later", value=value)

    frame = model.Frame(
        kind=model.CARRY,
        position=8192,
        epoch=1,
        topic_id=TOPIC_ID,
        store_time=START_MS + DAY_MS,
        partition=0,
    )
    held = [
        model.Held(
            accept_pos=FIRST_FRAME_POS, index=1, due=START_MS + 9 * DAY_MS, record=record(b"b")
        ),
        model.Held(
            accept_pos=SECOND_FRAME_POS,
            index=0,
            due=START_MS + 2 * DAY_MS,
            level=18,
            level_offset=5,
            user_id=b"job-1",
            record=record(b"c"),
        ),
    ]
    return model.with_timers(frame, held, model.Batch(records=())).encode()


def _carry_control() -> bytes:
    payload = carry.encode_carry(CARRIED)
    return model.control_frame(
        model.CARRY,
        payload,
        position=16_384,
        store_time=START_MS + DAY_MS,
        flags=model.CONTROL,
    ).encode()


def _carried_records() -> bytes:
    """Two records of a segment that is gone, and an offset between them that compaction emptied."""
    batch = model.Batch(
        records=(
            model.Record(timestamp=START_MS, key=b"a", value=b"1"),
            model.Record(timestamp=START_MS + 1, key=b"b", value=b"2"),
        ),
        base_offset=40,
        leader_epoch=2,
        offset_deltas=(0, 2),
    )
    return model.Frame(
        kind=model.CARRIED_RECORDS,
        position=24_576,
        epoch=9,
        topic_id=TOPIC_ID,
        store_time=START_MS,
        base_offset=40,
        partition=0,
        record_count=2,
        min_timestamp=START_MS,
        max_timestamp=START_MS + 1,
        running_max=START_MS + 7,
        tables=struct.pack(">qq", 4096, START_MS + DAY_MS),
        visible=batch.encode(),
    ).encode()


TOPIC_FRAME: Final = control.TopicFrame(
    control.TOPIC_DECLARED,
    "jobs",
    JOBS,
    ((0, 17, START_MS), (5, 5, -1)),
    {"delay.headers": "on", "message.timestamp.type": "CreateTime"},
)
FLOORS: Final = control.Floors(producer_id=3000, topic_id=12, generation=7)
HEAD_FRAME: Final = control.HeadFrame(
    cluster=CLUSTER, salt=0x5A1F0C3D, node=1, floors=FLOORS, lost=((4096, 8192), (65_536, 65_800))
)
VERDICT_FRAME: Final = control.VerdictFrame(
    floors=FLOORS, generation_jump=4, lost=((65_536, 65_800),)
)
EPOCH_FRAME: Final = control.EpochFrame(3, 4096, CLUSTER)
NEXT_PRODUCER_ID: Final = 2000
OFFSETS: Final = (
    group.OffsetEntry(
        op=group.OFFSET_COMMITTED,
        group="workers",
        topic_id=TOPIC_ID,
        partition=0,
        offset=17,
        leader_epoch=3,
        metadata="",
        commit_ms=START_MS,
        commit_pos=FIRST_FRAME_POS,
    ),
    group.OffsetEntry(
        op=group.OFFSET_COMMITTED,
        group="workers",
        topic_id=TOPIC_ID,
        partition=1,
        offset=6,
        metadata="m",
        commit_ms=START_MS,
        commit_pos=SECOND_FRAME_POS,
        retention_ms=DAY_MS,
        producer_id=7,
        producer_epoch=2,
    ),
    group.OffsetEntry(op=group.OFFSET_DELETED, group="old", topic_id=TOPIC_ID, partition=0),
)
GROUP_FRAME: Final = group.GroupFrame(
    op=group.GROUP_SAVED,
    group="workers",
    state=group.STATE_STABLE,
    generation=4,
    state_ms=START_MS,
    state_pos=SECOND_FRAME_POS,
    protocol_type="consumer",
    protocol="range",
    leader="w-1",
    members=(
        group.GroupMember(
            member_id="w-1",
            instance_id="static-1",
            client_id="w",
            client_host="127.0.0.1",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=300_000,
            metadata=b"\x00\x01",
            assignment=b"\x00\x02\x03",
        ),
        group.GroupMember(
            member_id="w-2",
            rack_id="r",
            client_id="",
            client_host="::1",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            epoch=4,
            previous_epoch=3,
            target=b"\x01",
        ),
    ),
)
GROUP_CHANGED: Final = replace(
    GROUP_FRAME,
    state=group.STATE_COMPLETING_REBALANCE,
    generation=5,
    leader="w-3",
    members=(
        replace(
            GROUP_FRAME.members[0],
            member_id="w-3",
            session_timeout_ms=30_000,
            metadata=b"\x00\x02",
            assignment=b"",
        ),
        replace(GROUP_FRAME.members[1], member_id="w-4", client_id="v", metadata=b"\x05"),
    ),
)
"""Member 0 has joined again under another id, member 1 has left, and another one has joined."""
STOPPED: Final = control.StoppedStages(dequeue=True)

GROUP_DELTA: Final = deltas.GroupDelta(
    group="workers",
    state=group.STATE_COMPLETING_REBALANCE,
    generation=5,
    state_ms=START_MS,
    state_pos=SECOND_FRAME_POS,
    base_crc=deltas.MemberSums.of(GROUP_FRAME).base_crc(GROUP_FRAME),
    is_cleared=True,
    texts={"leader": "w-3"},
    left=(1,),
    changed=(
        deltas.MemberChange(
            index=0,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=300_000,
            values={"member_id": "w-3", "metadata": b"\x00\x02"},
        ),
    ),
    joined=GROUP_CHANGED.members[1:],
)
GROUP_DELETED: Final = group.GroupFrame(op=group.GROUP_DELETED, group="old")
TXN_COMMIT: Final = txn.TxnFrame(
    op=txn.TXN_COMMIT,
    transactional_id="ledger",
    producer_id=7,
    producer_epoch=2,
    timeout_ms=MINUTE_MS,
    begin_ms=START_MS,
    partitions=(txn.TxnPartition(TOPIC_ID, 0, first_offset=12), txn.TxnPartition(TOPIC_ID, 1)),
)
TXN_OPEN: Final = txn.TxnFrame(
    op=txn.TXN_PREPARE,
    outcome=txn.OUTCOME_ABORT,
    transactional_id="ledger",
    producer_id=7,
    producer_epoch=2,
    previous_producer_id=6,
    timeout_ms=MINUTE_MS,
    begin_ms=START_MS,
    partitions=(txn.TxnPartition(TOPIC_ID, 0, first_offset=12, marker_offset=15),),
    timers=((FIRST_FRAME_POS, 1), (SECOND_FRAME_POS, 0)),
    cancellations=(
        txn.Cancellation(
            accept_pos=SECOND_FRAME_POS,
            index=2,
            topic_id=TOPIC_ID,
            partition=0,
            kind=model.CANCEL_BY_DELIVERY,
            due_ms=START_MS,
            user_id=b"job-\xff",
        ),
    ),
)
SEQUENCES: Final = (
    sequences.ProducerState(
        producer_id=7,
        epoch=2,
        last_pos=SECOND_FRAME_POS,
        batches=(
            sequences.SequencedBatch(first=40, last=42, answer=-1, store_ms=START_MS),
            sequences.SequencedBatch(first=43, last=43, answer=12, store_ms=START_MS + 9),
        ),
    ),
    sequences.ProducerState(producer_id=1001, epoch=0, last_pos=0, batches=()),
)
LEVELS: Final = {3: 2, 18: 6}
IDS: Final = (
    IdRow(
        hash_high=0x1122334455667788,
        hash_low=0x99AABBCC,
        topic_id=TOPIC_ID,
        accept_pos=FIRST_FRAME_POS,
        due_ms=START_MS,
        completed_pos=SECOND_FRAME_POS,
        index=1,
        partition=0,
        state=DELIVERED,
    ),
    IdRow(
        hash_high=0xFF22334455667788,
        hash_low=0,
        topic_id=TOPIC_ID,
        accept_pos=SECOND_FRAME_POS,
        due_ms=START_MS + 1,
        completed_pos=SECOND_FRAME_POS + 160,
        index=0,
        partition=1,
        state=CANCELLED,
    ),
)
CARRIED: Final = (
    carry.CarriedValue(model.TOPIC, TOPIC_ID, control.encode_topic(TOPIC_FRAME)),
    carry.CarriedValue(model.OFFSET, 0, encode_offsets(OFFSETS)),
    carry.CarriedValue(model.PRODUCER, 0, control.encode_producer(NEXT_PRODUCER_ID)),
    carry.CarriedValue(model.GROUP, 0, group.encode_group(GROUP_FRAME)),
    carry.CarriedValue(model.TXN, 0, txn.encode_txn(TXN_OPEN)),
    carry.CarriedValue(model.EPOCH, 0, control.encode_epoch(EPOCH_FRAME)),
    carry.CarriedValue(snapshot.VALUE_SEQUENCES, TOPIC_ID, carry.encode_sequences(1, SEQUENCES)),
    carry.CarriedValue(carry.VALUE_LEVELS, 0, carry.encode_levels(LEVELS)),
    carry.CarriedValue(carry.VALUE_IDS, 0, carry.encode_ids(IDS)),
)


@dataclass(frozen=True, slots=True)
class Golden:
    """A file of tests/golden: the log position of its frame, and how to make it."""

    position: int
    make: Callable[[], bytes]
    is_model: bool = False
    """latermq does not write such a frame yet: the model made it."""
    is_reserved: bool = False
    """latermq does not read it yet either: it refuses it as written by a newer latermq."""


FRAMES: Final[dict[str, Golden]] = {
    EXAMPLE: Golden(FIRST_FRAME_POS, _rig_frame(_send(now_and_later()))),
    "accept_verbatim": Golden(
        FIRST_FRAME_POS,
        _rig_frame(_send(model.Batch(records=now_and_later().records[:1]))),
    ),
    "accept_named": Golden(FIRST_FRAME_POS, _rig_frame(_send(named_and_cancels()))),
    "deliver": Golden(
        SECOND_FRAME_POS, _rig_frame(_send(named_and_cancels()), _deliver_after(MINUTE_MS))
    ),
    "accept_recurring": Golden(FIRST_FRAME_POS, _rig_frame(_send(nightly()))),
    "deliver_recurring": Golden(
        RECURRING_POS, _rig_frame(_send(nightly()), _deliver_after(2 * HOUR_MS))
    ),
    "cancel_moved": Golden(
        MOVED_POS, _rig_frame(_send(missed_nightly()), _deliver_after(3 * HOUR_MS))
    ),
    "cancel": Golden(4096, _cancel, is_model=True),
    "carry_timers": Golden(8192, _carry_timers, is_model=True),
    "carry_control": Golden(16_384, _carry_control, is_model=True),
    "topic": Golden(0, _control(model.TOPIC, control.encode_topic(TOPIC_FRAME), topic_id=TOPIC_ID)),
    "topic_deleted": Golden(
        0,
        _control(
            model.TOPIC,
            control.encode_topic(control.TopicFrame(control.TOPIC_DELETED, "jobs", JOBS, (), {})),
            topic_id=TOPIC_ID,
        ),
    ),
    "offset": Golden(0, _control(model.OFFSET, encode_offsets(OFFSETS))),
    "producer": Golden(0, _control(model.PRODUCER, control.encode_producer(NEXT_PRODUCER_ID))),
    "group": Golden(0, _control(model.GROUP, group.encode_group(GROUP_FRAME))),
    "group_delta": Golden(0, _control(model.GROUP_DELTA, deltas.encode_delta(GROUP_DELTA))),
    "group_deleted": Golden(0, _control(model.GROUP, group.encode_group(GROUP_DELETED))),
    "txn": Golden(
        0, _control(model.TXN, txn.encode_txn(TXN_COMMIT)), is_model=True, is_reserved=True
    ),
    "carried_records": Golden(24_576, _carried_records, is_model=True),
    "stages": Golden(
        0, _control(model.STAGES, control.encode_stages(STOPPED), flags=model.OPTIONAL)
    ),
    "head": Golden(0, _control(model.HEAD, control.encode_head(HEAD_FRAME))),
    "verdict": Golden(0, _control(model.VERDICT, control.encode_verdict(VERDICT_FRAME))),
    "epoch": Golden(0, _control(model.EPOCH, control.encode_epoch(EPOCH_FRAME))),
    "blank": Golden(0, _blank),
}


def golden_path(name: str) -> Path:
    return GOLDEN / f"{name}.txt"


def golden_text(name: str, data: bytes) -> str:
    """The content of a golden file."""
    golden = FRAMES[name]
    maker = "the model of the tests" if golden.is_model else "latermq"
    head = f"{name}: {len(data)} bytes at position {golden.position} of the log, made by {maker}"
    return "\n".join([head, "", *explain(data), ""])


def example_text(data: bytes) -> str:
    """The worked example as it stands in docs/FORMAT.md."""
    return "\n".join(["", "```", *explain(data), "```", "", ""])


def with_example(page: str, data: bytes) -> str:
    """The page with its worked example replaced."""
    before, found_begin, rest = page.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    assert found_begin, "the mark that begins the example is missing"
    assert found_end, "the mark that ends the example is missing"
    return before + BEGIN + example_text(data) + END + after


def main() -> None:
    """Write the golden files and the example of the page."""
    GOLDEN.mkdir(exist_ok=True)
    for name, golden in FRAMES.items():
        golden_path(name).write_text(golden_text(name, golden.make()))
    PATH.write_text(with_example(PATH.read_text(), FRAMES[EXAMPLE].make()))


if __name__ == "__main__":
    main()
