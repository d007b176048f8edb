"""Code shared by AlterConfigs and IncrementalAlterConfigs; each resource is changed independently.

Layer 3; does no I/O.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from appliance.errors import InvalidRequestError
from compat.kafka.configs.broker_settings import HOW_TO_CHANGE
from compat.kafka.configs.entries import ResourceType, shown
from compat.kafka.configs.resources import NAME_FIELDS, check_broker, find_topic
from compat.kafka.node import Node
from compat.kafka.protocol.named_items import answer_each
from compat.kafka.protocol.registry import Fields
from compat.kafka.protocol.slices import InPieces

CONFIGS_MAX: Final = 1_000
"""Settings of one resource in a request: it is changed in one step."""

Compute: TypeAlias = Callable[[dict[str, str], list[Fields]], dict[str, str]]
"""(current settings of a topic, requested changes) -> its new settings, checked; raises
RequestError."""


def change_configs(node: Node, request: Fields, compute: Compute) -> InPieces:
    """Change the settings of topics, or with `validate_only` only check the changes.

    Args:
        node: the broker.
        request: its `resources` have `resource_type`, `resource_name` and `configs`, each of these
            with a `name` and a `value`.
        compute: computes the new settings.
    """
    change = partial(_change, node, compute, is_only_checked=request["validate_only"])
    return InPieces(
        {"responses": answer_each(request["resources"], NAME_FIELDS, "resource", change)}
    )


def _change(node: Node, compute: Compute, resource: Fields, *, is_only_checked: bool) -> Fields:
    kind, name, configs = resource["resource_type"], resource["resource_name"], resource["configs"]
    if kind != ResourceType.TOPIC:
        check_broker(node, kind, name)
        if configs:
            raise InvalidRequestError(f"{shown(configs[0]['name'])}: {HOW_TO_CHANGE}")
        return {}
    topic = find_topic(node, name)
    _check_names(configs)
    settings = compute(dict(topic.settings), configs)
    if not is_only_checked:
        node.broker.topics.replace_settings(topic, settings)
    return {}


def _check_names(configs: list[Fields]) -> None:
    if len(configs) > CONFIGS_MAX:
        raise InvalidRequestError(
            f"{len(configs)} settings are more than there are: use at most {CONFIGS_MAX}"
        )
    seen = set()
    for config in configs:
        if config["name"] in seen:
            raise InvalidRequestError(
                f"{shown(config['name'])} occurs more than once: give it once"
            )
        seen.add(config["name"])
