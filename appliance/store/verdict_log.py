"""Writes the verdict of a start into the log, and what follows from it. Layer 2."""

from collections.abc import Iterable
from typing import Final

from _core.layout import KIND_VERDICT
from _core.log_writer import LogWriter
from appliance.errors import RequestError
from appliance.store import control_frames
from appliance.store.state import State
from appliance.store.verdict import Verdict

KAFKA_STORAGE_ERROR: Final = 56


def append_verdict(
    verdict: Verdict,
    recovered: Iterable[int],
    state: State,
    writer: LogWriter,
    *,
    epoch: int,
    now_ms: int,
) -> tuple[str, ...]:
    """Tell the log what is lost, and skip what lost frames may have given.

    The verdict frame comes last: who finds it finds all that is skipped, too.

    Args:
        verdict: of this start.
        recovered: ids of topics whose first frame was lost.
        state, writer: of this start; the epoch frame is appended.
        epoch: of this start.
        now_ms: epoch ms.

    Returns:
        What is skipped, for people.

    Raises:
        RequestError: the disk is full.
    """
    for topic_id in recovered:
        topic = state.projections.topics_by_id[topic_id]
        topic.declared_in = state.log.append_topic(state.topics.payload(topic), topic_id)
        state.log.end()
    told = []
    for skip in list(verdict.skips()):
        told.append(str(skip))
        if not writer.append_gap(skip.partition, end_offset=skip.end, store_time_ms=now_ms):
            raise RequestError("the disk is full", code=KAFKA_STORAGE_ERROR)
    twice = state.projections.settled_twice
    if twice:
        told.append(f"{twice} timers are settled twice in the log; the second time says nothing")
    if verdict.is_empty():
        return tuple(told)
    frame, before = verdict.frame(), state.floors
    payload = control_frames.encode_verdict(frame)
    state.log.append(KIND_VERDICT, payload)
    state.apply_control(KIND_VERDICT, 0, payload, epoch)
    state.log.end()
    after = frame.floors
    told.append(
        f"producer ids go on at {after.producer_id} instead of {before.producer_id}, topic ids at "
        f"{after.topic_id} instead of {before.topic_id}, generations of groups "
        f"{frame.generation_jump} higher: lost frames may have given those between"
    )
    return tuple(told)
