"""The functions that a client protocol provides to the broker. Layer 4; does no I/O."""

from collections.abc import Callable
from dataclasses import dataclass

from _core.queue.partition import Topic
from appliance.config.config import Config
from appliance.metrics import LabelNames


@dataclass(frozen=True, slots=True)
class Facade:
    """The functions that the Kafka facade provides; the broker itself knows no client protocol.

    Attributes:
        decompress: (codec, record section, size limit in bytes) -> plain bytes; raises
            RequestError; its `unpacked_size` is the number of bytes unpacked before it failed, and
            `is_too_large` whether there are more than the limit, or the data is damaged.
        closed_topics: (cluster id) -> names and 16-byte ids of topics that clients can list, and
            neither write nor read.
        configure_topic: applies a topic's settings to it under a configuration.
        label_names: names the numbers by which metrics count the protocol.
    """

    decompress: Callable[[int, memoryview, int], bytes]
    configure_topic: Callable[[Topic, Config], None]
    closed_topics: Callable[[str], frozenset[bytes]]
    label_names: LabelNames
