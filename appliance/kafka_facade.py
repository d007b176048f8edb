"""What the broker needs of the Kafka facade, and how a topic's settings reach it. Layer 6."""

from _core.queue.partition import Topic
from appliance.config.config import Config
from appliance.facade import Facade
from compat.kafka import dispatch
from compat.kafka.configs.internal_topic import closed_keys
from compat.kafka.configs.topic_settings import read_topic_policy
from compat.kafka.protocol.codecs import decompress
from compat.kafka.protocol.error_codes import name_of_code


def configure_topic(topic: Topic, config: Config) -> None:
    """Apply a topic's settings to it."""
    policy = read_topic_policy(topic.settings, config)
    topic.configure(
        reads_delay_headers=policy.reads_delay_headers,
        passes_invalid_delays=policy.passes_invalid_delays,
        requires_delay=policy.requires_delay,
        deliveries_per_s=policy.deliveries_per_s,
        delivery_spread_ms=policy.delivery_spread_ms,
        pending_max=policy.pending_timers_max,
        retry_delays_ms=policy.retry_delays_ms,
        retry_max=policy.retry_max,
        delay_default_ms=policy.delay_default_ms,
        log_append_time=policy.uses_append_time,
        due_timestamp=policy.uses_due_time,
        batch_size_max=policy.batch_size_max_bytes,
        delay_max_ms=policy.delay_max_ms,
    )


KAFKA_FACADE = Facade(
    decompress=decompress,
    configure_topic=configure_topic,
    closed_topics=closed_keys,
    label_names={"requests": dispatch.name_of_api, "request_errors": name_of_code},
)
