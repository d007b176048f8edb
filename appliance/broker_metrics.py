"""Collects a broker's metrics from its parts. Layer 4."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Final

from _core.paths.deliver import DeliverPath
from _core.paths.fetch import FetchPath
from _core.paths.produce import ProducePath
from appliance.config.config import Config
from appliance.early_expiry import EarlyExpiry
from appliance.errors import StorageError
from appliance.metrics import Gauges, Metrics
from appliance.model import DiskState
from appliance.pending_timers import PendingTimers
from appliance.producers import Producers
from appliance.retention import Retention
from appliance.store.keys.key_index import KeyIndex
from appliance.store.message_store import MessageStore
from appliance.system.process import anonymous_bytes
from appliance.timer_stages import TimerStages
from appliance.units import MS_PER_SECOND

PRODUCE_KEY: Final = 0
FETCH_KEY: Final = 1
DISK_STATES: Final[tuple[DiskState, ...]] = ("ok", "warn", "refusing")
"""A state's index is its number on the metrics page."""


def gauges(
    config: Config,
    store: MessageStore,
    deliver: DeliverPath,
    index: KeyIndex,
    *,
    retention: Retention,
    expires_early: bool,
    timers: PendingTimers,
    stages: TimerStages,
    now_ms: int,
    connections: int,
    inflight_bytes: int,
) -> Gauges:
    """Return the current values.

    Args:
        config, store, deliver, index, retention: of the broker.
        expires_early: records expire because the disk is too full.
        timers: the pending ones.
        stages: of timers.
        now_ms: epoch ms.
        connections: open connections of Kafka clients.
        inflight_bytes: memory of their requests and answers.
    """
    projections, pointers = store.state.projections, store.log.pointers
    due, memory = projections.due, store.log.view.memory
    expiry = store.state.expiry
    levels = timers.levels(config.delay_levels)
    values = Gauges(
        connections=connections,
        anonymous_bytes=anonymous_bytes(),
        inflight_bytes=inflight_bytes,
        producers=projections.producers.count,
        pending_timers=due.pending,
        pending_timers_max=config.pending_timers_max,
        waiting_timers=deliver.waiting,
        unreadable_timers=deliver.unreadable_count,
        held_timers=due.held_count,
        unloaded_timers=store.timer_memory.left,
        enqueue_stopped=stages.is_stopped("enqueue"),
        dequeue_stopped=stages.is_stopped("dequeue"),
        id_bytes=projections.ids.memory_bytes,
        unsaved_timer_bytes=store.runs.delta_bytes,
        checkpoint_failed=store.checkpoints.failure is not None,
        checkpoint_lag_bytes=store.checkpoints.lag_bytes,
        cache_bytes=memory.size,
        locked_bytes=memory.locked_size,
        log_wrote_pos=pointers.wrote,
        log_committed_pos=pointers.committed,
        log_flushed_pos=pointers.flushed,
        log_visible_pos=pointers.visible,
        key_index_pos=index.indexed_pos,
        key_index_lag_bytes=max(0, pointers.flushed - index.indexed_pos),
        key_index_rows=index.row_count,
        key_index_runs=index.run_count,
        recovered_damage=len(store.damage),
        clock_jump_seconds=expiry.age_clock.jump_ms // MS_PER_SECOND if expiry else 0,
        log_start_pos=store.log.start_pos,
        log_reclaimable_bytes=store.head_freer.reclaimable_bytes(retention.kept_from),
        log_dead_bytes=max(0, pointers.wrote - store.log.start_pos - store.head_freer.live_bytes),
        write_amplification=_write_amplification(store),
        carry_held_back=not store.head_freer.may_carry(),
        expires_early=expires_early,
        insecure=config.allow_insecure,
        level_next_offset={each.level: each.max_offset for each in levels},
        level_lag={each.level: each.lag for each in levels if each.lag is not None},
    )
    return _with_disk(_with_deliveries(values, timers, now_ms), store)


def following_gauges(
    config: Config, store: MessageStore, connections: int, inflight_bytes: int
) -> Gauges:
    """Return the current values of a broker that starts, or of a slave; the others are 0.

    Args:
        config, store, connections, inflight_bytes: as for `gauges`.
    """
    pointers = store.log.pointers
    values = Gauges(
        connections=connections,
        anonymous_bytes=anonymous_bytes(),
        inflight_bytes=inflight_bytes,
        pending_timers_max=config.pending_timers_max,
        log_wrote_pos=pointers.wrote,
        log_committed_pos=pointers.committed,
        log_flushed_pos=pointers.flushed,
        log_visible_pos=pointers.visible,
        insecure=config.allow_insecure,
    )
    follower = store.follower
    if follower is None:
        return values
    projections = store.state.projections
    with suppress(StorageError):  # the other values are right nevertheless
        total_bytes, free_bytes = store.space()
        values = replace(
            values,
            disk_total_bytes=total_bytes,
            disk_used_bytes=total_bytes - free_bytes,
            disk_free_bytes=free_bytes,
        )
    return replace(
        values,
        producers=projections.producers.count,
        pending_timers=projections.due.pending,
        held_timers=projections.due.held_count,
        unloaded_timers=follower.timer_memory.left,
        id_bytes=projections.ids.memory_bytes,
        unsaved_timer_bytes=follower.unsaved_timer_bytes,
        checkpoint_failed=follower.checkpoints.failure is not None,
        checkpoint_lag_bytes=follower.checkpoints.lag_bytes if follower.has_log else 0,
        log_visible_pos=follower.shown_pos,
        log_start_pos=store.log.start_pos,
        disk_log_bytes=pointers.wrote - store.log.start_pos,
    )


def _with_disk(values: Gauges, store: MessageStore) -> Gauges:
    disk = store.disk_space.status()
    return replace(
        values,
        disk_full=store.log.is_full,
        disk_state=DISK_STATES.index(disk.state),
        disk_total_bytes=disk.total_bytes,
        disk_used_bytes=disk.total_bytes - disk.free_bytes,
        disk_free_bytes=disk.free_bytes,
        disk_log_bytes=disk.log_bytes,
        disk_seconds_until_full=store.disk_space.seconds_until_full,
    )


def _with_deliveries(values: Gauges, timers: PendingTimers, now_ms: int) -> Gauges:
    next_due_ms = timers.next_due_ms()
    backlog = timers.backlog(now_ms, next_due_ms)
    return replace(
        values,
        dequeue_backlog=backlog.count,
        dequeue_backlog_seconds=backlog.behind_ms / MS_PER_SECOND,
        next_due_seconds=(next_due_ms or 0) / MS_PER_SECOND,
    )


def _write_amplification(store: MessageStore) -> float:
    """Bytes appended since the start for each byte that was not appended again."""
    appended_bytes = store.log.pointers.wrote - store.report.end_pos
    new_bytes = appended_bytes - store.head_freer.carried_bytes
    return appended_bytes / new_bytes if new_bytes > 0 else 1.0


def collect(
    metrics: Metrics,
    store: MessageStore,
    produce: ProducePath,
    fetch: FetchPath,
    deliver: DeliverPath,
) -> None:
    """Copy the counters of the store and the compiled paths into `metrics`."""
    state = store.state.projections
    metrics.freed_bytes = store.head_freer.freed_bytes
    metrics.carried_bytes = store.head_freer.carried_bytes
    metrics.recycled_segments = store.log.recycled_count
    collect_requests(metrics, produce, fetch)
    metrics.delay_refused = produce.delays.refused
    metrics.delay_passed = produce.delays.passed
    metrics.replies = produce.replies.written
    if produce.retry_rules is not None:
        metrics.retried_records = produce.retry_rules.retried
        metrics.dead_letters = produce.retry_rules.dead
    metrics.sent_to_slave = {"near": fetch.replica.near_count, "late": fetch.replica.late_count}
    metrics.accepted_frames = state.accepted_frames
    metrics.accepted_records = state.accepted_records + state.timers_accepted
    metrics.timers_accepted = state.timers_accepted
    metrics.timers_delivered = state.timers_delivered
    metrics.timers_cancelled = state.timers_cancelled
    metrics.timers_replaced = state.timers_replaced
    metrics.id_reads = store.runs.ids.read_count
    metrics.delivered_frames = deliver.frames
    metrics.moved_occurrences = deliver.moved_count
    metrics.delivery_lateness_seconds.counts = deliver.lateness
    metrics.delivery_lateness_seconds.total = deliver.lateness_sum_ms / MS_PER_SECOND


def collect_expiry(
    metrics: Metrics, producers: Producers, retention: Retention, early_expiry: EarlyExpiry
) -> None:
    """Copy the counters of what was forgotten, expired or refused into `metrics`."""
    metrics.producers_forgotten = producers.forgotten_count
    metrics.producers_refused = producers.refused
    metrics.expired_records = retention.expired_records
    metrics.early_expired_records = early_expiry.expired_records


def collect_requests(metrics: Metrics, produce: ProducePath, fetch: FetchPath) -> None:
    """Copy the numbers of requests that the compiled paths handled into `metrics`."""
    metrics.requests[PRODUCE_KEY] = produce.requests
    metrics.requests[FETCH_KEY] = fetch.requests
    metrics.request_errors = dict(Counter(produce.refused) + Counter(fetch.refused))
