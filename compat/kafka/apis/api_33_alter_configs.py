"""AlterConfigs (key 33): v0-2.

Behaviour:
- The settings in the request replace all settings of a topic. They apply at once to every later
  record; the response waits for the flush. Either all settings of a topic are changed or none.
  compat.kafka.configs.topic_settings describes which settings are refused.
- Broker settings get INVALID_REQUEST, with a message that says where to change them. Loggers and
  other types get INVALID_REQUEST.
- A setting without a value, and a setting or resource that occurs twice, get INVALID_REQUEST.
- With validate_only, everything is checked and nothing is changed.

Deviations: none.

Versions: 1 as 0; 2 flexible. Clients should use IncrementalAlterConfigs (key 44) instead.
Layer 4; does no I/O.
"""

from functools import partial
from typing import Final

from appliance.errors import InvalidRequestError
from compat.kafka.configs.changes import change_configs
from compat.kafka.configs.entries import shown
from compat.kafka.configs.resources import NAME_FIELDS
from compat.kafka.configs.topic_settings import check_topic_settings
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import RESOURCES, on_slave, refuse_each
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces

_NEEDS: Final = Needs(
    RESOURCES, refuse_each("resources", NAME_FIELDS, "responses", ErrorCode.request_timed_out)
)

_ON_SLAVE: Final = on_slave(
    ErrorCode.not_controller, partial(refuse_each, "resources", NAME_FIELDS, "responses")
)


@handles(
    key=33, name="AlterConfigs", versions=(0, 2), flexible_from=2, needs=_NEEDS, on_slave=_ON_SLAVE
)
def alter_configs(node: Node, version: int, request: Fields) -> InPieces:
    """Replace the settings of topics, each independently."""

    def compute(_: dict[str, str], configs: list[Fields]) -> dict[str, str]:
        for config in configs:
            if config["value"] is None:
                raise InvalidRequestError(f"{shown(config['name'])} has no value: give one")
        asked = {config["name"]: config["value"] for config in configs}
        return check_topic_settings(asked, node.broker.config)

    return change_configs(node, request, compute)
