"""The tables of docs/KAFKA.md that the code determines, and what it says of each API.

`make regenerate` writes them between their marks; a test compares them.
"""

import inspect
import sys
from pathlib import Path
from typing import Final

from appliance.config.config import settings
from appliance.offset_search import AT_ONCE_MAX_BYTES, FRAMES_LOOKED_THROUGH_MAX
from appliance.units import KIB
from compat.kafka import dispatch
from compat.kafka.apis import api_03_metadata, api_35_describe_log_dirs, api_61_describe_producers
from compat.kafka.apis.api_11_join_group import PROTOCOLS_MAX
from compat.kafka.apis.api_13_leave_group import MEMBERS_AT_ONCE
from compat.kafka.configs.changes import CONFIGS_MAX
from compat.kafka.configs.topic_setting_table import (
    INT_MAX,
    LEVELS,
    LONG_MAX,
    SCHEDULE_MAX,
    TOPIC_SETTINGS,
    TopicSetting,
)
from compat.kafka.groups.offset_rules import OFFSETS_AT_ONCE
from compat.kafka.protocol.registry import Api, Handler
from tests.support.docs.doc_tables import markdown_table

PATH: Final = Path(__file__).parents[3] / "docs" / "KAFKA.md"


def api_table() -> str:
    """Return one row for each API of the registry."""
    rows: list[tuple[str, ...]] = [
        ("key", "API", "advertised", "served", "on a slave", "answered by")
    ]
    rows += [_api_row(api) for api in dispatch.REGISTRY.apis]
    return markdown_table(rows)


def _api_row(api: Api) -> tuple[str, ...]:
    first, last = api.versions
    module = "compiled code"
    if api.handler is not None:
        module = f"`{api.handler.__module__.replace('.', '/')}.py`"
    served = f"{api.served_from}-{last}"
    return (str(api.key), api.name, f"{first}-{last}", served, api.on_slave.says, module)


_ONE_NAME: Final = "one name"
_ONE_PARTITION: Final = "one partition"
_WHOLE: Final = "the whole request, which has a fixed number of fields"

STEPS: Final[dict[str, str]] = {
    "ListOffsets": f"{_ONE_PARTITION}: a search in at most "
    f"{FRAMES_LOOKED_THROUGH_MAX:,} batches; a thread unpacks those beyond "
    f"{AT_ONCE_MAX_BYTES // KIB} KiB",
    "Metadata": f"one topic, or {api_03_metadata._CHUNK_PARTITIONS} of its partitions; creates one",
    "OffsetCommit": f"commits {OFFSETS_AT_ONCE} partitions, all or none; fewer if the group's name "
    "or metadata is long",
    "OffsetFetch": _ONE_PARTITION,
    "FindCoordinator": _ONE_NAME,
    "JoinGroup": f"joins with at most {PROTOCOLS_MAX} protocols; then one member of the answer",
    "Heartbeat": _WHOLE,
    "LeaveGroup": f"removes {MEMBERS_AT_ONCE:,} members",
    "SyncGroup": "the assignments of one group, at most `groups.size_max_bytes`",
    "DescribeGroups": "one member; lists those of one group, at most `groups.member_count_max`",
    "ListGroups": "one group; lists all, at most `groups.count_max`",
    "SaslHandshake": _WHOLE,
    "ApiVersions": _WHOLE,
    "CreateTopics": "creates one topic, with at most `topics.partition_count_max_per_topic`",
    "DeleteTopics": "deletes one topic, with its partitions and their committed offsets",
    "DeleteRecords": "of one topic, with at most `topics.partition_count_max_per_topic`",
    "InitProducerId": _WHOLE,
    "OffsetForLeaderEpoch": f"{_ONE_PARTITION}: a search",
    "DescribeConfigs": "one resource",
    "AlterConfigs": f"changes one topic, with at most {CONFIGS_MAX:,} settings",
    "AlterReplicaLogDirs": _ONE_PARTITION,
    "DescribeLogDirs": f"{api_35_describe_log_dirs._CHUNK_PARTITIONS} partitions of one topic",
    "CreatePartitions": "changes one topic, up to `topics.partition_count_max_per_topic`",
    "DeleteGroups": "deletes one group, with its committed offsets",
    "ElectLeaders": _ONE_PARTITION,
    "IncrementalAlterConfigs": f"changes one topic, with at most {CONFIGS_MAX:,} settings",
    "ListPartitionReassignments": "the answer, which is empty",
    "OffsetDelete": f"deletes {OFFSETS_AT_ONCE} partitions, all or none; fewer if the group's name "
    "is long",
    "DescribeCluster": _WHOLE,
    "DescribeProducers": f"{api_61_describe_producers._CHUNK_PRODUCERS} producers; lists the ids "
    "of one partition",
}
"""What is done in one step, by API."""


def costs_table() -> str:
    """Return one row for each API of the control plane.

    Raises:
        KeyError: STEPS lacks an API.
    """
    rows = [("API", "in slices", "in one step")]
    for api in dispatch.REGISTRY.apis:
        if api.handler is not None:
            rows.append((api.name, "yes" if _is_sliced(api.handler) else "no", STEPS[api.name]))
    return markdown_table(rows)


def _is_sliced(handler: Handler) -> bool:
    """Return whether a handler says that it may return steps or a response with generators."""
    returned = str(inspect.signature(handler).return_annotation)
    return any(name in returned for name in ("InPieces", "Generator", "JoinAnswer"))


def topic_settings_table() -> str:
    """Return one row for each topic setting that has a choice."""
    rows = [("setting", "values", "default", "what it does")]
    for setting in TOPIC_SETTINGS:
        if setting.limit is not None:
            limit = f"`{settings()[setting.limit].key}`"
            most = limit
            if setting.ceiling is not None:
                most = f"`{settings()['raised_batch_size_max_bytes'].key}`"
            rows.append((f"`{setting.name}`", f"0 to {most}", limit, setting.note))
        elif setting.bounds is not None:
            values = f"{setting.bounds[0]} to {_greatest(setting.bounds[1])}"
            rows.append((f"`{setting.name}`", values, _default(setting), setting.note))
        elif setting.is_duration:
            most = f"`{settings()['delay_max_ms'].key}`"
            rows.append((f"`{setting.name}`", f"1ms to {most}, `none`", "`none`", setting.note))
        elif setting.is_schedule:
            values = f"`10s 1m` and the like, up to {SCHEDULE_MAX}"
            rows.append((f"`{setting.name}`", values, f"`{LEVELS}`", setting.note))
        elif setting.is_supported:
            values = ", ".join(f"`{value}`" for value in setting.values)
            rows.append((f"`{setting.name}`", values, f"`{setting.values[0]}`", setting.note))
    return markdown_table(rows)


def _greatest(bound: int) -> str:
    return {INT_MAX: "2^31 - 1", LONG_MAX: "2^63 - 1"}.get(bound, str(bound))


def _default(setting: TopicSetting) -> str:
    if isinstance(setting.default, str):
        return f"`{settings()[setting.default].key}`"
    return _greatest(setting.default)


def fixed_settings_table() -> str:
    """Return one row for each topic setting that has one accepted value or none."""
    rows = [("setting", "accepted", "because")]
    for setting in sorted(TOPIC_SETTINGS, key=lambda setting: setting.name):
        if not setting.is_supported:
            rows.append((f"`{setting.name}`", _accepted(setting), setting.note))
    return markdown_table(rows)


def _accepted(setting: TopicSetting) -> str:
    if not setting.values:
        return "nothing"
    return f"`{setting.values[0]}`" if setting.values[0] else "the empty text"


def api_sections() -> str:
    """Return a section for each API of the control plane: the docstring of its module."""
    handlers = {api.name: api.handler for api in dispatch.REGISTRY.apis}
    return "".join(
        f"\n### {name}\n\n{describe(name, handler.__module__)}\n"
        for name, handler in handlers.items()
        if handler is not None
    )


def describe(name: str, module: str) -> str:
    """Return a module's docstring without its first line and without its layer.

    Raises:
        ValueError: it does not begin with the name of its API, or does not end with its layer.
    """
    text = inspect.getdoc(sys.modules[module]) or ""
    title, _, rest = text.partition("\n\n")
    body, found_layer, _ = rest.rpartition("\nLayer 4;")
    if not title.startswith(f"{name} (key ") or not found_layer:
        raise ValueError(f"{module}: begin with `{name} (key N): versions.`, end with the layer")
    return body.strip()


TABLES: Final = {
    "apis": api_table,
    "costs": costs_table,
    "each api": api_sections,
    "topic settings": topic_settings_table,
    "fixed topic settings": fixed_settings_table,
}


def replace_tables(text: str) -> str:
    """Return the document with every table rewritten from the code.

    Raises:
        ValueError: a mark is missing.
    """
    for name, make_table in TABLES.items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end of table -->\n"
        start = text.index(begin) + len(begin)
        stop = text.index(end, start)
        text = text[:start] + make_table() + text[stop:]
    return text


def main() -> None:
    """Write the tables of the page."""
    PATH.write_text(replace_tables(PATH.read_text()))


if __name__ == "__main__":
    main()
