"""docs/FORMAT.md, the encoders and the bytes in tests/golden say the same."""

import re
import struct
from dataclasses import replace
from typing import Any

import pytest

from _core.bytes import layout
from _core.log.frames import check, read_header
from appliance.store import checkpoint
from appliance.store.keys import key_runs
from appliance.store.paths import segment_name
from appliance.store.runs import id_run, run_files, timer_log
from appliance.store.state import control_frames as control
from appliance.store.state import group_deltas as deltas
from appliance.store.state import group_frames as group
from appliance.store.state import payload, sequences, snapshot
from tests.support.docs import golden_frames as golden
from tests.support.docs.format_doc import (
    PATH,
    Explainer,
    bytes_of,
    explain,
    field_tables,
    number_tables,
    struct_format,
)
from tests.support.docs.source_files import enum_numbers
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.produce_harness import ProduceHarness
from tests.support.oracles import frames_model as model
from tests.support.values import carry_payloads as carry
from tests.support.values import txn_payloads as txn

PAGE = PATH.read_text()
FIELDS = field_tables(PAGE)
NUMBERS = number_tables(PAGE)
LAYOUT = enum_numbers("_core/bytes/layout.pxd")

FIXED_TABLES = [
    ("header", "AT_", layout.FRAME_HEADER_SIZE),
    ("timer entry", "TIMER_AT_", layout.TIMER_ENTRY_SIZE),
    ("rule", "RULE_AT_", layout.RULE_HEAD_SIZE),
    ("cancel entry", "CANCEL_AT_", layout.CANCEL_ENTRY_SIZE),
    ("completed entry", "COMPLETED_AT_", layout.COMPLETED_ENTRY_SIZE),
    ("unit", "UNIT_AT_", layout.UNIT_SIZE),
    ("run timer", "RUN_TIMER_AT_", layout.RUN_TIMER_SIZE),
    ("run completed", "RUN_COMPLETED_AT_", layout.RUN_COMPLETED_SIZE),
    ("run completed due", "RUN_COMPLETED_DUE_AT_", layout.RUN_COMPLETED_DUE_SIZE),
    ("run id", "RUN_ID_AT_", layout.RUN_ID_SIZE),
    ("batch", "BATCH_AT_", layout.BATCH_HEADER_SIZE),
]

PAYLOAD_STRUCTS: dict[str, struct.Struct] = {
    "checkpoint": checkpoint.COPY,
    "control head": snapshot.HEAD,
    "state partition": snapshot.PARTITION,
    "level offset": snapshot.LEVEL_OFFSET,
    "offset run": snapshot.UNIT_RUN,
    "kept bytes": snapshot.KEPT_BYTES,
    "carried part": snapshot.CARRIED_PART,
    "forget pos": snapshot.FORGET_POS,
    "age": snapshot.AGE,
    "age mark": snapshot.AGE_MARK,
    "size mark": snapshot.SIZE_MARK,
    "state range": snapshot.RANGE,
    "damage": snapshot.RANGE,
    "state run": run_files.ENTRY,
    "run": run_files.HEAD,
    "run block": run_files.BLOCK_HEAD,
    "block place": timer_log.DIRECTORY.place,
    "TimerLog end": timer_log.DIRECTORY.end,
    "id block place": id_run.DIRECTORY.place,
    "ids end": id_run.DIRECTORY.end,
    "pending timers": snapshot.PENDING,
    "due minutes page": struct.Struct(">qI"),
    "due minutes slot": struct.Struct(">BI"),
    "key run": key_runs.HEAD,
    "key row": struct.Struct(">Qq"),
    "key page tail": struct.Struct(">IIxxxxI"),
    "topic": control.TOPIC_HEAD,
    "topic partition": control.TOPIC_PARTITION,
    "producer": control.PRODUCER,
    "stages": control.STAGES,
    "epoch": control.EPOCH,
    "head": control.HEAD,
    "verdict": control.VERDICT,
    "offset": payload.COUNT,
    "offset entry": group.OFFSET_ENTRY,
    "group": group.GROUP_HEAD,
    "group member": group.MEMBER_HEAD,
    "group delta": deltas.GROUP_DELTA,
    "left member": deltas.LEFT_MEMBER,
    "changed member": deltas.CHANGED_MEMBER,
    "changed text": deltas.CHANGED_FIELD,
    "changed octets": deltas.CHANGED_FIELD,
    "txn": txn.TXN_HEAD,
    "txn partition": txn.TXN_PARTITION,
    "txn timer": txn.TXN_TIMER,
    "txn cancellation": txn.TXN_CANCELLATION,
    "carry": payload.COUNT,
    "carry value": snapshot.VALUE_HEAD,
    "carried origin": struct.Struct(">qq"),
    "sequences": sequences.SEQUENCES_HEAD,
    "sequences producer": sequences.PRODUCER_STATE,
    "sequences batch": sequences.SEQUENCE,
    "levels": payload.COUNT,
    "level": carry.LEVEL,
    "ids": payload.COUNT,
}


def layout_names(prefix: str) -> dict[str, int]:
    """The constants of `_core/bytes/layout.pxd` that begin so, by the rest of their name."""
    return {
        name.removeprefix(prefix): value
        for name, value in LAYOUT.items()
        if name.startswith(prefix)
    }


def in_doc_case(names: dict[str, int]) -> dict[str, int]:
    return {name.lower().replace("_", " "): value for name, value in names.items()}


def normal(format_: str) -> str:
    """A struct format with one code for each field, so that only the bytes count."""
    return re.sub(r"(\d+)x", lambda match: "x" * int(match[1]), format_)


# The page and the layout


@pytest.mark.parametrize(("table", "prefix", "size"), FIXED_TABLES)
def test_offsets_on_the_page_are_those_of_the_layout(table: str, prefix: str, size: int) -> None:
    fields = FIELDS[table]
    documented = {field.name: field.offset for field in fields if field.name}
    assert documented == in_doc_case(layout_names(prefix))
    ends = [field.offset + field.size for field in fields if field.offset is not None]
    assert [field.offset for field in fields] == [0, *ends[:-1]], "fields overlap or leave a gap"
    assert ends[-1] == size


@pytest.mark.parametrize(
    "prefix", ["KIND", "FRAME_FLAG", "DUE", "MISSED", "COMPLETION", "CANCEL_BY"]
)
def test_numbers_on_the_page_are_those_of_the_layout(prefix: str) -> None:
    assert NUMBERS[prefix] == in_doc_case(layout_names(f"{prefix}_"))


def test_sizes_in_the_text_are_those_of_the_layout() -> None:
    assert f"header   := {layout.FRAME_HEADER_SIZE} bytes" in PAGE
    assert f"| {layout.FRAME_MAGIC:#06X}, ".replace("0X", "0x") in PAGE
    assert f"| version | {layout.FORMAT_VERSION} |" in PAGE
    assert f"first {layout.BATCH_CRC_START} bytes of each batch" in PAGE
    file_size = f"{layout.UNITS_PER_FILE:,} units, {layout.UNITS_PER_FILE * layout.UNIT_SIZE:,} by"
    assert file_size in PAGE
    assert f"at most {layout.RUN_BLOCK_SIZE_MAX:,} |" in PAGE
    assert f"at least {LAYOUT['RUN_OFFSETS_MIN']:,} more" in PAGE


@pytest.mark.parametrize("table", PAYLOAD_STRUCTS)
def test_payload_tables_on_the_page_are_those_of_the_encoders(table: str) -> None:
    assert struct_format(FIELDS[table]) == normal(PAYLOAD_STRUCTS[table].format)


def test_every_table_of_the_page_is_held_against_something() -> None:
    texts_alone = {"topic setting"}
    assert (
        set(FIELDS) == {table for table, _, _ in FIXED_TABLES} | set(PAYLOAD_STRUCTS) | texts_alone
    )
    assert set(NUMBERS) == {"KIND", "FRAME_FLAG", "DUE", "MISSED", "COMPLETION", "CANCEL_BY"}


def listed(table: str, name: str) -> dict[str, int]:
    """The numbers that the meaning of a field lists, such as "1 classic, 2 consumer"."""
    (field,) = [field for field in FIELDS[table] if field.name == name]
    return {
        word.strip(): int(number)
        for number, word in re.findall(r"\b(\d+) ([a-z ]+)", field.meaning)
    }


@pytest.mark.parametrize(
    ("table", "field", "module", "prefix"),
    [
        ("topic", "op", control, "TOPIC_"),
        ("offset entry", "op", group, "OFFSET_"),
        ("group", "op", group, "GROUP_"),
        ("group", "type", group, "GROUP_"),
        ("group", "state", group, "STATE_"),
        ("txn", "op", txn, "TXN_"),
        ("txn", "outcome", txn, "OUTCOME_"),
        ("carry value", "kind", carry, "VALUE_"),
    ],
)
def test_numbers_listed_on_the_page_are_those_of_the_code(
    table: str, field: str, module: Any, prefix: str
) -> None:
    names = {
        name.removeprefix(prefix): value
        for name, value in vars(module).items()
        if name.startswith(prefix) and isinstance(value, int)
    }
    documented = listed(table, field)
    assert documented
    assert documented.items() <= in_doc_case(names).items()


def test_kinds_that_a_carry_frame_holds_are_those_of_the_page() -> None:
    frames = range(layout.KIND_TOPIC, layout.KIND_EPOCH + 1)
    assert {*frames, *listed("carry value", "kind").values()} == carry.VALUE_KINDS


# Golden bytes


WITHOUT_BYTES = {
    *(layout.KIND_ACCESS_CONTROL, layout.KIND_CREDENTIALS, layout.KIND_QUOTAS),
    layout.KIND_SHARED_GROUP,
}
"""Reserved kinds of which the page does not say yet what they hold."""


def golden_bytes(name: str) -> bytes:
    return bytes_of(golden.golden_path(name).read_text().splitlines())


@pytest.mark.parametrize("name", golden.FRAMES)
def test_frames_are_made_byte_for_byte_as_they_always_were(name: str) -> None:
    """A failure here is a change of the format: see docs/FORMAT.md, "Changing the format"."""
    assert golden.FRAMES[name].make() == golden_bytes(name)


@pytest.mark.parametrize("name", golden.FRAMES)
def test_golden_files_are_explained_by_the_tables_of_the_page(name: str) -> None:
    text = golden.golden_path(name).read_text()
    assert text == golden.golden_text(name, golden_bytes(name))


@pytest.mark.parametrize("name", golden.FRAMES)
def test_golden_frames_are_whole_where_they_stand(name: str) -> None:
    data = golden_bytes(name)
    size = read_header(data)["size"]
    expected = "written by a newer latermq" if golden.FRAMES[name].is_reserved else "whole"
    assert check(data + bytes(size - len(data)), golden.FRAMES[name].position) == expected


def test_every_kind_has_golden_bytes_and_every_golden_file_is_made() -> None:
    kinds = {read_header(golden_bytes(name))["kind"] for name in golden.FRAMES}
    assert kinds | WITHOUT_BYTES == set(layout_names("KIND_").values())
    assert not kinds & WITHOUT_BYTES
    assert {path.stem for path in golden.GOLDEN.iterdir()} == set(golden.FRAMES)


def test_worked_example_on_the_page_is_the_golden_frame() -> None:
    assert golden.with_example(PAGE, golden_bytes(golden.EXAMPLE)) == PAGE
    between = PAGE.partition(golden.BEGIN)[2].partition(golden.END)[0]
    assert bytes_of(between.splitlines()) == golden_bytes(golden.EXAMPLE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| 40 | i64 | base offset |", "| 40 | i32 | base offset |"),
        ("| u32 | partition count | |", "| u16 | partition count | |"),
        ("| text? | leader |", "| octets | leader |"),
        ("| zero 2 | | |\n| name size", "| name size"),
    ],
)
def test_a_wrong_table_on_the_page_does_not_explain_the_bytes(old: str, new: str) -> None:
    assert old in PAGE
    page = PAGE.replace(old, new)
    frame = golden_bytes("topic" if "leader" not in old else "group")
    with pytest.raises((AssertionError, KeyError, ValueError, struct.error)):
        assert explain(frame, page) == explain(frame, PAGE)


# The model makes the same bytes; tests/unit/core/paths/test_produced_frames.py has accept frames


def stamped(record: model.Record, due_ms: int, user_id: bytes = b"") -> model.Record:
    """The record as it is held: without request headers, with what the broker adds."""
    kept = tuple(header for header in record.headers if not header[0].startswith(b"x-"))
    added = [(b"x-accepted-at", golden.START_MS), (b"x-due-at", due_ms)]
    headers = kept + tuple((key, str(value).encode()) for key, value in added)
    return replace(record, headers=headers + (((b"x-due-id", user_id),) if user_id else ()))


def named_held() -> model.Held:
    due_ms = golden.START_MS + 10_000
    record = stamped(golden.named_and_cancels().records[0], due_ms, b"job-1")
    return model.Held(index=0, due=due_ms, level=3, level_offset=0, user_id=b"job-1", record=record)


def test_model_makes_the_golden_deliver_frame() -> None:
    timer = named_held()
    batch = model.Batch(records=(timer.record,), base_offset=1, leader_epoch=golden.EPOCH)
    frame = model.Frame(
        kind=model.DELIVER,
        epoch=golden.EPOCH,
        salt=golden.SALT,
        position=golden.SECOND_FRAME_POS,
        topic_id=golden.TOPIC_ID,
        flushed=golden.SECOND_FRAME_POS,
        store_time=golden.START_MS + golden.MINUTE_MS,
        base_offset=1,
        partition=0,
        record_count=1,
        timer_count=1,
        min_timestamp=timer.record.timestamp,
        max_timestamp=timer.record.timestamp,
        running_max=golden.START_MS - 4,
        min_due_time=timer.due,
        max_due_time=timer.due,
        tables=model.completed_table(
            [
                model.Completed(
                    accept_pos=golden.FIRST_FRAME_POS,
                    index=0,
                    user_id=b"job-1",
                    op=model.DUE_FINAL,
                    level=timer.level,
                    due=timer.due,
                )
            ]
        ),
        visible=batch.encode(),
    )
    assert frame.encode() == golden_bytes("deliver")


CONTROL_PAYLOADS = {
    "topic": (model.TOPIC, 1, control.encode_topic(golden.TOPIC_FRAME)),
    "offset": (model.OFFSET, 0, golden.encode_offsets(golden.OFFSETS)),
    "producer": (model.PRODUCER, 0, control.encode_producer(golden.NEXT_PRODUCER_ID)),
    "stages": (model.STAGES, 0, control.encode_stages(golden.STOPPED)),
    "group": (model.GROUP, 0, group.encode_group(golden.GROUP_FRAME)),
    "group_delta": (model.GROUP_DELTA, 0, deltas.encode_delta(golden.GROUP_DELTA)),
    "txn": (model.TXN, 0, txn.encode_txn(golden.TXN_COMMIT)),
    "head": (model.HEAD, 0, control.encode_head(golden.HEAD_FRAME)),
    "verdict": (model.VERDICT, 0, control.encode_verdict(golden.VERDICT_FRAME)),
    "epoch": (model.EPOCH, 0, control.encode_epoch(golden.EPOCH_FRAME)),
}


@pytest.mark.parametrize("name", CONTROL_PAYLOADS)
def test_model_makes_the_golden_control_frames(name: str) -> None:
    kind, topic_id, data = CONTROL_PAYLOADS[name]
    frame = model.control_frame(
        kind,
        data,
        topic_id=topic_id,
        store_time=golden.START_MS,
        flags=model.OPTIONAL if kind == model.STAGES else 0,
    )
    assert frame.encode() == golden_bytes(name)


def test_base_crc_of_the_golden_delta_is_that_of_the_model() -> None:
    crcs = [model.crc32c(group.encode_member(member)) for member in golden.GROUP_FRAME.members]
    head = group.encode_group(replace(golden.GROUP_FRAME, members=()))
    head = head[: group.GROUP_HEAD.size - 4] + struct.pack(">I", 2) + head[group.GROUP_HEAD.size :]
    expected = model.crc32c(head + struct.pack(">2I", *crcs))
    assert golden.GROUP_DELTA.base_crc == expected


def test_model_makes_the_golden_blank_frame() -> None:
    assert model.Frame(kind=model.BLANK, blank_size=4096).encode() == golden_bytes("blank")


# Files beside the log


def test_units_of_a_delivered_and_a_produced_record_are_as_the_page_says() -> None:
    harness = ProduceHarness()
    harness.broker.topics.create("jobs", 1, {})
    harness.produce("jobs", 0, golden.named_and_cancels().encode())
    harness.clock.advance_ms(golden.MINUTE_MS)
    harness.broker.deliver_due()
    harness.broker.close()
    queue = harness.disk.files()[DATA_DIR / "consumequeue" / "jobs" / "0" / segment_name(0)]
    unit = struct.Struct(struct_format(FIELDS["unit"]))
    sizes = [len(golden_bytes(name)) for name in ("accept_named", "deliver")]
    assert queue == unit.pack(golden.FIRST_FRAME_POS, sizes[0], 0) + unit.pack(
        golden.SECOND_FRAME_POS, sizes[1], 0
    )


def test_log_of_a_broker_is_explained_to_its_end_by_the_page() -> None:
    """Also the frames whose random ids keep them out of tests/golden."""
    harness = ProduceHarness()
    harness.broker.topics.create("jobs", 3, {"delay.headers": "on"})
    harness.produce("jobs", 2, golden.named_and_cancels().encode())
    harness.broker.allocate_producer_id()
    harness.broker.topics.delete("jobs")
    harness.broker.flush()
    log, at, kinds = harness.log(), 0, []
    while at < len(log):
        header = read_header(log[at:])
        kinds.append(header["kind"])
        explainer = Explainer(PAGE, log[at : at + header["size"]])
        assert bytes_of(explainer.frame()) == log[at : at + header["size"]]
        at += header["size"]
    assert kinds == [
        model.HEAD,
        model.EPOCH,
        model.TOPIC,
        model.ACCEPT,
        model.PRODUCER,
        model.TOPIC,
    ]
