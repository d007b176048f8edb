"""Appends the verdict of a start to the log, and applies it. Layer 2."""

from collections.abc import Iterable

from _core.bytes.layout import KIND_VERDICT
from _core.state.writer import LogWriter
from appliance.errors import DiskFullError
from appliance.store.recovery.verdict import Verdict
from appliance.store.state import control_frames
from appliance.store.state.state import State


def append_verdict(
    verdict: Verdict,
    recovered: Iterable[int],
    state: State,
    writer: LogWriter,
    *,
    epoch: int,
    now_ms: int,
) -> tuple[str, ...]:
    """Append what is lost to the log, and skip values that lost frames may have used.

    The verdict frame comes last: a replay that finds it has also found all frames of the skips.

    Args:
        verdict: of this start.
        recovered: ids of topics whose first frame is lost.
        state, writer: of this start; the epoch frame is already appended.
        epoch: of this start.
        now_ms: epoch ms.

    Returns:
        The skipped values, as sentences for the operator.

    Raises:
        RequestError: the disk is full.
    """
    for topic_id in recovered:
        topic = state.projections.topics_by_id[topic_id]
        topic.declared_in = state.log.append_topic(state.topics.payload(topic), topic_id)
        state.log.end()
    skips = []
    for skip in list(verdict.skips()):
        skips.append(str(skip))
        if not writer.append_gap(skip.partition, end_offset=skip.end, store_time_ms=now_ms):
            raise DiskFullError("the disk is full")
    twice = state.projections.completed_twice
    if twice:
        skips.append(f"{twice} timers are completed twice in the log; the second time is ignored")
    if verdict.is_empty():
        return tuple(skips)
    frame, before = verdict.frame(), state.floors
    payload = control_frames.encode_verdict(frame)
    state.log.append(KIND_VERDICT, payload)
    state.apply_control(KIND_VERDICT, 0, payload, epoch)
    state.log.end()
    after = frame.floors
    who = "lost frames may have used the values between"
    if verdict.restored_in is not None:
        who = "the broker of the backup may have used the values between since"
    skips.append(
        f"producer ids continue at {after.producer_id} instead of {before.producer_id}, topic ids "
        f"at {after.topic_id} instead of {before.topic_id}, group generations are "
        f"{frame.generation_jump} higher: {who}"
    )
    return tuple(skips)
