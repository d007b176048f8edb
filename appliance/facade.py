"""What a client protocol contributes to the broker. Layer 4; does no I/O."""

from collections.abc import Callable
from dataclasses import dataclass

from _core.partition import Topic
from appliance.config import Config


@dataclass(frozen=True, slots=True)
class Facade:
    """What the Kafka facade contributes; the broker itself knows no client protocol.

    Attributes:
        decompress: (codec, record section, most bytes) -> plain bytes; raises RequestError with
            the bytes that were unpacked in vain in `unpacked_size`.
        configure_topic: sets on a topic what its settings mean under a configuration.
    """

    decompress: Callable[[int, memoryview, int], bytes]
    configure_topic: Callable[[Topic, Config], None]
