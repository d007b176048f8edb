"""The scan of a segment whose file was an earlier one: old bytes are neither frames nor lost."""

import pytest

from _core.queue.partition import Topic
from _core.state.projections import Projections
from _core.state.scan import LogScan
from appliance.store.state import control_frames as control
from tests.support.oracles import frames_model as model
from tests.support.values.scanned_log import Log, reader, sizes, small_log

SEGMENT = 4096
END_ZEROS = bytes(16)
SALT = 0x51A7


def new_log() -> Log:
    """A log that ends in its second segment."""
    log = small_log(accepts=20, segment_size=SEGMENT, salt=SALT)
    assert SEGMENT + 500 < log.end < 2 * SEGMENT - 1_500
    return log


def old_segment(*, base: int = 0, salt: int = SALT) -> bytes:
    """A full segment of a log, with frames of other sizes."""
    old = Log(SEGMENT, salt=salt)
    old.topic()
    while old.end < base + SEGMENT:
        old.accept(value=b"o" * (7 * old.next_offset % 50))
    return bytes(old.data[base : base + SEGMENT])


def on_old_bytes(log: Log, old: bytes, ending: bytes) -> list[tuple[int, bytes]]:
    """The segments of a log that ends with `ending` in a file that held `old`."""
    base = log.end // SEGMENT * SEGMENT
    written = bytes(log.data[base:]) + ending
    return [*log.segments()[:-1], (base, written + old[len(written) :])]


def scan(
    segments: list[tuple[int, bytes]],
    *,
    watermark: int = -1,
    known_flushed: int = -1,
    asked: list[tuple[int, int]] | None = None,
) -> LogScan:
    projections = Projections(id_key=bytes(16))

    def apply_control(kind: int, topic_id: int, payload: bytes, epoch: int) -> None:
        if kind == model.TOPIC:
            frame = control.decode_topic(payload)
            topic = Topic(frame.name, frame.uuid, topic_id, {})
            projections.add_topic(topic, list(frame.partitions))

    found = LogScan(
        projections,
        sizes(segments),
        reader(segments, asked=asked),
        apply_control,
        watermark=watermark,
        known_flushed=known_flushed,
    )
    while not found.step(1 << 40):
        pass
    return found


def test_old_frames_after_the_end_are_neither_read_nor_lost() -> None:
    log, old = new_log(), old_segment()
    found = scan(on_old_bytes(log, old, END_ZEROS))
    assert (found.pos, found.damage, found.has_leftovers) == (log.end, [], False)
    assert found.garbage_end <= log.end


def test_an_old_segment_that_is_not_written_at_all_follows_a_full_one() -> None:
    log = new_log()
    full = bytes(log.data[:SEGMENT])
    frames = scan([(0, full)]).frames
    found = scan([(0, full), (SEGMENT, old_segment())])
    assert (found.pos, found.frames, found.damage) == (SEGMENT, frames, [])


@pytest.mark.parametrize("count", [1, 8, 100, 159, 200])
def test_a_torn_frame_over_old_bytes_is_garbage_up_to_the_next_old_frame(count: int) -> None:
    log, old = new_log(), old_segment()
    end = log.end
    log.accept(value=b"new" * 30)
    torn = bytes(log.data[end : end + count])
    del log.data[end:]
    found = scan(on_old_bytes(log, old, torn))
    assert (found.pos, found.damage) == (end, [])
    # Old frames are at most 300 bytes long.
    assert end + count - 8 <= found.garbage_end <= end + count + 300


def test_bytes_that_are_no_old_frame_are_garbage() -> None:
    log, old = new_log(), old_segment()
    segments = on_old_bytes(log, old, END_ZEROS)
    base, content = segments[-1]
    spoiled = bytearray(content)
    spoiled[SEGMENT - 700 : SEGMENT - 600] = b"\xaa" * 100
    found = scan([*segments[:-1], (base, bytes(spoiled))])
    assert found.pos == log.end
    assert base + SEGMENT - 608 <= found.garbage_end <= base + SEGMENT


def test_frames_of_another_log_are_garbage() -> None:
    log, foreign = new_log(), old_segment(salt=SALT + 1)
    found = scan(on_old_bytes(log, foreign, END_ZEROS))
    assert found.pos == log.end
    assert found.garbage_end > log.end + 500


def test_frames_of_a_later_position_are_garbage() -> None:
    """No file is reused that may have them."""
    log, later = new_log(), old_segment(base=2 * SEGMENT)
    found = scan(on_old_bytes(log, later, END_ZEROS))
    assert found.pos == log.end
    assert found.garbage_end > log.end + 500


def test_a_frame_that_was_never_flushed_is_found_among_old_ones() -> None:
    log, old = new_log(), old_segment()
    end = log.end
    log.accept(value=b"lost", flushed=SEGMENT)
    kept = log.accept(value=b"kept", flushed=SEGMENT)
    after = log.end
    size = kept - end
    segments = on_old_bytes(log, old, END_ZEROS)
    base, content = segments[-1]
    torn = bytearray(content)
    torn[end - base : end - base + size] = old[end - base : end - base + size]
    found = scan([*segments[:-1], (base, bytes(torn))])
    assert (found.pos, found.damage, found.has_leftovers) == (end, [], True)
    assert found.garbage_end == after
    # If it was flushed, the frame before it is damaged, and it counts itself.
    found = scan([*segments[:-1], (base, bytes(torn))], known_flushed=after)
    assert (found.pos, [each[:2] for each in found.damage]) == (after, [(end, kept)])


def test_old_bytes_after_the_watermark_are_not_read() -> None:
    log, old = new_log(), old_segment()
    segments = on_old_bytes(log, old, END_ZEROS)
    asked: list[tuple[int, int]] = []
    found = scan(segments, watermark=log.end, asked=asked)
    assert (found.pos, found.has_leftovers) == (log.end, False)
    assert found.garbage_end <= log.end
