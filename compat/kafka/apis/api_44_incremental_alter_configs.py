"""IncrementalAlterConfigs (key 44): v0-1.

Behaviour:
- Each setting in the request is set, deleted (reset to its default), or, if it is a list, extended
  or reduced; all other settings are kept. Either all settings of a topic are changed or none. They
  apply at once to every later record; the response waits for the flush.
  compat.kafka.configs.topic_settings describes which settings are refused.
- Deleting a setting that is not set is not an error. Append and subtract on a setting that is not a
  list get INVALID_CONFIG.
- Broker settings get INVALID_REQUEST, with a message that says where to change them. Loggers and
  other types get INVALID_REQUEST.
- A missing value, an unknown operation, and a setting or resource that occurs twice get
  INVALID_REQUEST.
- With validate_only, everything is checked and nothing is changed.

Deviations: none.

Versions: 0 as 1; 1 flexible.
Layer 4; does no I/O.
"""

import enum
from functools import partial
from typing import Final

from appliance.config.config import Config
from appliance.errors import InvalidRequestError, InvalidSettingError
from compat.kafka.configs.changes import change_configs
from compat.kafka.configs.entries import shown
from compat.kafka.configs.resources import NAME_FIELDS
from compat.kafka.configs.topic_settings import check_topic_settings, find_topic_setting
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import RESOURCES, on_slave, refuse_each
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces


class _Operation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_NEEDS: Final = Needs(
    RESOURCES, refuse_each("resources", NAME_FIELDS, "responses", ErrorCode.request_timed_out)
)

_ON_SLAVE: Final = on_slave(
    ErrorCode.not_controller, partial(refuse_each, "resources", NAME_FIELDS, "responses")
)


@handles(
    key=44,
    name="IncrementalAlterConfigs",
    versions=(0, 1),
    flexible_from=1,
    needs=_NEEDS,
    on_slave=_ON_SLAVE,
)
def incremental_alter_configs(node: Node, version: int, request: Fields) -> InPieces:
    """Change settings of topics, each independently."""

    def compute(present: dict[str, str], configs: list[Fields]) -> dict[str, str]:
        for config in configs:
            _apply(present, config, node.broker.config)
        return present

    return change_configs(node, request, compute)


def _apply(settings: dict[str, str], config: Fields, limits: Config) -> None:
    """Apply one operation. Raises RequestError."""
    name: str = config["name"]
    value: str | None = config["value"]
    operation: int = config["config_operation"]
    if operation == _Operation.DELETE:
        settings.pop(name, None)
        return
    if operation not in set(_Operation):
        raise InvalidRequestError(f"operation {operation} is unknown: use 0 to {max(_Operation)}")
    if value is None:
        raise InvalidRequestError(f"{shown(name)} has no value: give one")
    if operation != _Operation.SET:
        value = _changed_list(settings, name, value, _Operation(operation))
    settings |= check_topic_settings({name: value}, limits)


def _changed_list(settings: dict[str, str], name: str, value: str, operation: _Operation) -> str:
    """Return a list setting with items added or removed. Raises InvalidSettingError."""
    setting = find_topic_setting(name)
    if not setting.is_list:
        raise InvalidSettingError(f"{name} is not a list: use SET instead of {operation.name}")
    items = _items(settings.get(name, setting.values[0]))
    changed = _items(value)
    if operation == _Operation.APPEND:
        items |= changed
    else:
        items = {item: None for item in items if item not in changed}
    return ",".join(items)


def _items(value: str) -> dict[str, None]:
    """Return the items of a list in order, as keys: a list may have thousands."""
    items = (part.strip() for part in value.split(","))
    return {item: None for item in items if item}
