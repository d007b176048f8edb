"""IncrementalAlterConfigs (key 44): v0-1.

Behaviour:
- Each setting that the request names is set, deleted (it has its default again), or, if it is a
  list, gets items added or taken away; all others stay. All settings of a topic are changed or
  none; they hold at once, for every record from then on, and the answer waits for the flush. What
  is refused, and how: compat.kafka.topic_settings.
- To delete what is not set is no error. To append to what is no list: INVALID_CONFIG.
- Settings of the broker: INVALID_REQUEST, with a sentence that says where they are changed. Loggers
  and other kinds: INVALID_REQUEST.
- An operation without the value it needs, an unknown operation, a setting or a resource that occurs
  twice: INVALID_REQUEST.
- With validate_only everything is checked and nothing is changed.

Deviations: none.

Versions: 0 as 1; 1 flexible.
Layer 4; does no I/O.
"""

import enum

from appliance.config import Config
from appliance.errors import InvalidSettingError, RequestError
from compat.kafka.config_changes import change_configs
from compat.kafka.config_entries import shown
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles
from compat.kafka.topic_settings import check_topic_settings, find_topic_setting


class _Operation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@handles(key=44, name="IncrementalAlterConfigs", versions=(0, 1), flexible_from=1)
def incremental_alter_configs(node: Node, version: int, request: Fields) -> Fields:
    """Change settings, of each topic for itself."""

    def compute(present: dict[str, str], configs: list[Fields]) -> dict[str, str]:
        for config in configs:
            _apply(present, config, node.broker.config)
        return present

    return change_configs(node, request, compute)


def _apply(settings: dict[str, str], config: Fields, limits: Config) -> None:
    """Do one operation. Raises RequestError."""
    name: str = config["name"]
    value: str | None = config["value"]
    operation: int = config["config_operation"]
    if operation == _Operation.DELETE:
        settings.pop(name, None)
        return
    if operation not in set(_Operation):
        raise RequestError(f"there is no operation {operation}", ErrorCode.INVALID_REQUEST)
    if value is None:
        raise RequestError(f"{shown(name)} has no value", ErrorCode.INVALID_REQUEST)
    if operation != _Operation.SET:
        value = _changed_list(settings, name, value, _Operation(operation))
    settings |= check_topic_settings({name: value}, limits)


def _changed_list(settings: dict[str, str], name: str, value: str, operation: _Operation) -> str:
    """Return what a list is after items were added or taken away. Raises InvalidSettingError."""
    setting = find_topic_setting(name)
    if not setting.is_list:
        raise InvalidSettingError(f"{name} is no list: {operation.name} cannot be done with it")
    items = _items(settings.get(name, setting.values[0]))
    changed = _items(value)
    if operation == _Operation.APPEND:
        items += [item for item in changed if item not in items]
    else:
        items = [item for item in items if item not in changed]
    return ",".join(items)


def _items(value: str) -> list[str]:
    return [item for item in dict.fromkeys(part.strip() for part in value.split(",")) if item]
