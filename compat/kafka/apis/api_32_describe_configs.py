"""DescribeConfigs (key 32): v1-4.

Behaviour:
- Topics: every setting that has a value here. A limit that the topic does not lower is the broker's
  (compat.kafka.configs.topic_settings). A missing topic gets UNKNOWN_TOPIC_OR_PARTITION, an invalid
  name INVALID_TOPIC_EXCEPTION. The internal topic has the defaults.
- The broker, by its id or "": every setting by latermq's name, and the Kafka settings that tools
  look for (compat.kafka.configs.broker_settings); all are read-only. Another id gets
  INVALID_REQUEST.
- Loggers, groups, client metrics and unknown types get INVALID_REQUEST; the message names the type.
- A resource that the request names more than once is answered once, with INVALID_REQUEST.
- The list of keys filters the settings; null and empty mean all. Unknown keys are left out.
- If requested: synonyms, which are all sources of the value in order of precedence, and
  documentation (v3+).

Deviations:
- Kafka describes a resource as often as the request names it.
- Kafka describes its loggers, and from version 4 on the settings of groups; neither exists here.

Versions: 1 synonyms and sources; 2 as 1; 3 types and documentation; 4 flexible.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.configs.broker_settings import list_broker_settings
from compat.kafka.configs.entries import ConfigEntry, ResourceType
from compat.kafka.configs.internal_topic import INTERNAL_TOPIC
from compat.kafka.configs.resources import NAME_FIELDS, check_broker, find_topic
from compat.kafka.configs.topic_settings import list_topic_settings
from compat.kafka.node import Node
from compat.kafka.protocol import messages
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import answer_each
from compat.kafka.protocol.needs import RESOURCES, refuse_each
from compat.kafka.protocol.registry import SERVED, Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces

_KEY: Final = 32

_KNOWN_MAX: Final = 100
"""Different settings of topics that are kept encoded during a request, a few KiB each."""

_NO_CONFIGS: Final = {"configs": ()}


_NEEDS: Final = Needs(
    RESOURCES,
    refuse_each("resources", NAME_FIELDS, "results", ErrorCode.request_timed_out, configs=()),
)


@handles(
    key=_KEY,
    name="DescribeConfigs",
    versions=(1, 4),
    flexible_from=4,
    needs=_NEEDS,
    on_slave=SERVED,
)
def describe_configs(node: Node, version: int, request: Fields) -> InPieces:
    """Describe resources, each independently."""
    describer = _Describer(node, version, request)
    results = answer_each(
        request["resources"], NAME_FIELDS, "resource", describer.describe, refused=_NO_CONFIGS
    )
    return InPieces({"results": results})


class _Describer:
    """Describes the resources of one request.

    Thousands of topics may have nearly the same settings, so equal settings are encoded once.
    """

    def __init__(self, node: Node, version: int, request: Fields) -> None:
        self._node = node
        self._version = version
        self._shows_synonyms: bool = request["include_synonyms"]
        self._shows_notes: bool = request.get("include_documentation", False)
        self._entries: dict[ConfigEntry, bytes] = {}
        self._topics: dict[tuple[frozenset[tuple[str, str]], frozenset[str]], list[bytes]] = {}

    def describe(self, resource: Fields) -> Fields:
        """Describe a resource. Raises RequestError."""
        return {"configs": self._encode_configs(resource)}

    def _encode_configs(self, resource: Fields) -> list[bytes]:
        kind, name = resource["resource_type"], resource["resource_name"]
        keys = frozenset(resource["configuration_keys"] or ())
        if kind != ResourceType.TOPIC:
            check_broker(self._node, kind, name)
            return self._encode_chosen(list_broker_settings(self._node), keys)
        settings = {} if name == INTERNAL_TOPIC else find_topic(self._node, name).settings
        key = frozenset(settings.items()), keys
        if key not in self._topics:
            if len(self._topics) >= _KNOWN_MAX:
                self._topics.clear()
                self._entries.clear()
            entries = list_topic_settings(settings, self._node.broker.config)
            self._topics[key] = self._encode_chosen(entries, keys)
        return self._topics[key]

    def _encode_chosen(self, entries: list[ConfigEntry], keys: frozenset[str]) -> list[bytes]:
        return [self._encode(entry) for entry in entries if not keys or entry.name in keys]

    def _encode(self, entry: ConfigEntry) -> bytes:
        known = self._entries.get(entry)
        if known is not None:
            return known
        synonyms = entry.synonyms if self._shows_synonyms else ()
        fields = {
            **entry.fields(),
            "synonyms": [
                {"name": each.name, "value": each.value, "source": each.source} for each in synonyms
            ],
            "config_type": entry.type,
            "documentation": entry.note if self._shows_notes else None,
        }
        encoded = messages.encode_response_item(_KEY, self._version, "results.configs", fields)
        self._entries[entry] = encoded
        return encoded
