"""AlterConfigs (key 33): v0-2.

Behaviour:
- A topic gets the settings of the request and loses all others that it had; they hold at once, for
  every record from then on, and the answer waits for the flush. What is refused, and how:
  compat.kafka.topic_settings. All settings of a topic are changed or none.
- Settings of the broker: INVALID_REQUEST, with a sentence that says where they are changed. Loggers
  and other kinds: INVALID_REQUEST.
- A setting without value, a setting or a resource that occurs twice: INVALID_REQUEST.
- With validate_only everything is checked and nothing is changed.

Deviations: none.

Versions: 1 as 0; 2 flexible. IncrementalAlterConfigs (key 44) is what to use instead.
Layer 4; does no I/O.
"""

from appliance.errors import RequestError
from compat.kafka.config_changes import change_configs
from compat.kafka.config_entries import shown
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles
from compat.kafka.topic_settings import check_topic_settings


@handles(key=33, name="AlterConfigs", versions=(0, 2), flexible_from=2)
def alter_configs(node: Node, version: int, request: Fields) -> Fields:
    """Replace settings, of each topic for itself."""

    def compute(_: dict[str, str], configs: list[Fields]) -> dict[str, str]:
        for config in configs:
            if config["value"] is None:
                raise RequestError(
                    f"{shown(config['name'])} has no value", ErrorCode.INVALID_REQUEST
                )
        asked = {config["name"]: config["value"] for config in configs}
        return check_topic_settings(asked, node.broker.config)

    return change_configs(node, request, compute)
