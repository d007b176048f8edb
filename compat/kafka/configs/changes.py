"""Code shared by AlterConfigs and IncrementalAlterConfigs; each resource is changed independently.

Layer 3; does no I/O.
"""

from collections.abc import Callable
from typing import TypeAlias

from appliance.errors import InvalidRequestError, RequestError
from compat.kafka.configs.broker_settings import HOW_TO_CHANGE
from compat.kafka.configs.entries import ResourceType, shown
from compat.kafka.configs.resources import DUPLICATE, check_broker, find_topic
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode, code_of
from compat.kafka.protocol.registry import Fields

Compute: TypeAlias = Callable[[dict[str, str], list[Fields]], dict[str, str]]
"""(current settings of a topic, requested changes) -> its new settings, checked; raises
RequestError."""


def change_configs(node: Node, request: Fields, compute: Compute) -> Fields:
    """Change the settings of topics, or with `validate_only` only check the changes.

    Args:
        node: the broker.
        request: its `resources` have `resource_type`, `resource_name` and `configs`, each of these
            with a `name` and a `value`.
        compute: computes the new settings.
    """
    named: dict[tuple[int, str], list[Fields]] = {}
    for resource in request["resources"]:
        key = resource["resource_type"], resource["resource_name"]
        named.setdefault(key, []).append(resource)
    responses = []
    for (kind, name), resources in named.items():
        result: Fields = {"error_code": ErrorCode.none, "error_message": None}
        try:
            if len(resources) > 1:
                raise InvalidRequestError(DUPLICATE)
            _change(node, resources[0], compute, is_only_checked=request["validate_only"])
        except RequestError as error:
            result = {"error_code": code_of(error), "error_message": error.message}
        responses.append({**result, "resource_type": kind, "resource_name": name})
    return {"responses": responses}


def _change(node: Node, resource: Fields, compute: Compute, *, is_only_checked: bool) -> None:
    kind, name, configs = resource["resource_type"], resource["resource_name"], resource["configs"]
    if kind != ResourceType.TOPIC:
        check_broker(node, kind, name)
        if configs:
            raise InvalidRequestError(f"{shown(configs[0]['name'])}: {HOW_TO_CHANGE}")
        return
    topic = find_topic(node, name)
    _check_names(configs)
    settings = compute(dict(topic.settings), configs)
    if not is_only_checked:
        node.broker.topics.replace_settings(topic, settings)


def _check_names(configs: list[Fields]) -> None:
    seen = set()
    for config in configs:
        if config["name"] in seen:
            raise InvalidRequestError(
                f"{shown(config['name'])} occurs more than once: give it once"
            )
        seen.add(config["name"])
