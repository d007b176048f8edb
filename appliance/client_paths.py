"""Makes the compiled paths of Produce and Fetch with the limits of the configuration. Layer 4."""

from collections.abc import Callable
from typing import TypeAlias

from _core.log.view import LogView
from _core.paths.answer import Reply, ResponseSlot
from _core.paths.delay_split import BatchSplitter
from _core.paths.fetch import FetchPath
from _core.paths.produce import ProducePath
from _core.paths.retry_rules import RetryRules
from _core.paths.timer_quota import TimerQuota
from _core.state.projections import Projections
from _core.state.writer import LogWriter
from appliance.config.config import Config
from appliance.cron_rules import CronRules
from appliance.facade import Facade
from appliance.retry_topics import Made

ControlPlane: TypeAlias = Callable[[memoryview], Reply | ResponseSlot | str]
"""Answers a request that is neither Produce nor Fetch; see `_core.paths.session.Session`."""


def make_produce_path(
    writer: LogWriter,
    quota: TimerQuota,
    config: Config,
    facade: Facade,
    *,
    cluster_id: str,
    make_topic: Callable[[str, int], Made] | None,
    instants: CronRules,
) -> ProducePath:
    """Return what handles produced records.

    Args:
        writer: appends them.
        quota: of pending timers.
        config: the limits.
        facade: unpacks batches, and names the topics to which nobody writes.
        cluster_id: of this cluster.
        make_topic: makes the topics of consumer retry, by name and number of partitions; None if
            nothing is accepted.
        instants: computes those of records that recur.
    """
    levels = list(config.delay_levels)
    rules = make_topic and RetryRules(writer.projections, levels, make_topic)
    splitter = BatchSplitter(
        levels,
        record_size_max=config.record_size_max_bytes,
        header_count_max=config.header_count_max,
        delayed_count_max=config.delayed_count_max,
        header_size_max=config.header_size_max_bytes,
        retry_rules=rules,
        instant_rules=instants,
    )
    return ProducePath(
        writer,
        splitter,
        facade.decompress,
        item_count_max=_item_count_max(config),
        record_count_max=config.record_count_max,
        delayed_size_max=config.delayed_size_max_bytes,
        unpacked_batch_max=config.decompressed_size_max_bytes,
        unpacked_size_max=config.request_decompressed_size_max_bytes,
        closed_topics=facade.closed_topics(cluster_id),
        quota=quota,
    )


def make_fetch_path(
    projections: Projections, view: LogView, config: Config, facade: Facade, cluster_id: str
) -> FetchPath:
    """Return what handles fetched records.

    Args:
        projections, view: topics and partitions, and the frame cache.
        config: the limits.
        facade: names the topics that nobody reads.
        cluster_id: of this cluster.
    """
    return FetchPath(
        projections,
        view,
        size_max=config.fetch_size_max_bytes,
        item_count_max=_item_count_max(config),
        closed_topics=facade.closed_topics(cluster_id),
    )


def _item_count_max(config: Config) -> int:
    """Topics and partitions together that a request may name."""
    return config.partition_total_max + config.topic_count_max
