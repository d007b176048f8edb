"""`latermq topics`: list, create, describe, alter, delete. Layer 6."""

import sys
from typing import Annotated, Any, Final

import click

from appliance.commands import kafka_client, usage
from appliance.commands.arguments import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    TopicName,
    read_pairs,
)
from appliance.commands.output import (
    complain,
    print_fields,
    print_json,
    print_line,
    print_table,
    printable,
)
from appliance.errors import ConfigError
from appliance.units import counted

EXAMPLES: Final = """\
Examples:

\b
  latermq topics list
  latermq topics create orders --partitions 4
  latermq topics create audit --set message.timestamp.type=LogAppendTime
  latermq topics describe orders --all
  latermq topics alter orders --set delay.required=true --unset retention.ms
  latermq topics delete orders --yes
"""

app = usage.Group(
    help="List, create, describe, alter and delete topics.",
    epilog=EXAMPLES,
)


@app.command("list")
def list_topics(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List all topics but Kafka's internal one, with the number of records that can be read."""
    with kafka_client.admin_client(bootstrap) as client:
        topics = [each for each in client.describe_topics(None) if not each["is_internal"]]
        counts = _record_counts(client, topics)
    found = [
        {
            "name": topic["name"],
            "partitions": len(topic["partitions"]),
            "records": counts[topic["name"]],
        }
        for topic in sorted(topics, key=lambda each: str(each["name"]))
    ]
    if json:
        print_json(found)
        return
    rows = [(printable(each["name"]), each["partitions"], each["records"]) for each in found]
    print_table(
        ("TOPIC", "PARTITIONS", "RECORDS"),
        rows,
        empty="there are no topics yet: create one with `latermq topics create NAME`",
    )


def _record_counts(client: Any, topics: list[Any]) -> dict[str, int]:
    counts = dict.fromkeys((topic["name"] for topic in topics), 0)
    for partition, (begin, end) in _offsets(client, topics).items():
        counts[partition.topic] += end - begin
    return counts


def _offsets(client: Any, topics: list[Any]) -> dict[Any, tuple[int, int]]:
    """Return the first and the next offset of each partition."""
    from kafka import OffsetSpec, TopicPartition  # type: ignore[import-untyped]

    partitions = [
        TopicPartition(topic["name"], part["partition_index"])
        for topic in topics
        for part in topic["partitions"]
    ]
    if not partitions:
        return {}
    begins = client.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    ends = client.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return {each: (begins[each].offset, ends[each].offset) for each in partitions}


@app.command("create")
def create_topic(
    topic: TopicName,
    partitions: Annotated[
        int | None,
        usage.Option(
            "--partitions", "-p", min=1, metavar="N", help="How many; default: the broker's."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        usage.Option("--set", metavar="NAME=VALUE", help="A topic setting; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create a topic. docs/KAFKA.md lists the settings."""
    wanted = {
        "num_partitions": -1 if partitions is None else partitions,
        "configs": dict(read_pairs("--set", setting)),
    }
    with kafka_client.admin_client(bootstrap) as client:
        (made,) = client.create_topics({topic: wanted}, raise_errors=False)["topics"]
        kafka_client.check_code(made["error_code"], made.get("error_message"))
    if json:
        print_json({"name": topic, "partitions": made["num_partitions"]})
    else:
        made_count = counted(made["num_partitions"], "partition")
        print_line(f"{printable(topic)} created with {made_count}")


@app.command("describe")
def describe_topic(
    topic: TopicName,
    all_: Annotated[
        bool, usage.Option("--all", help="Also show settings that have their default.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the partitions of a topic, their offsets, and its settings."""
    with kafka_client.admin_client(bootstrap) as client:
        (found,) = client.describe_topics([topic])
        kafka_client.check_code(found["error_code"], f"there is no topic {printable(topic)}")
        offsets = _offsets(client, [found])
        settings = _settings(client, topic, with_defaults=all_)
    partitions = [
        {"partition": part.partition, "start_offset": begin, "end_offset": end}
        for part, (begin, end) in sorted(offsets.items())
    ]
    shown = {
        "name": topic,
        "id": str(found["topic_id"]),
        "settings": settings,
        "partitions": partitions,
    }
    if json:
        print_json(shown)
        return
    print_fields((("topic", printable(topic)), ("id", shown["id"])))
    if settings:
        print_fields([(name, printable(value)) for name, value in settings.items()])
    rows = [tuple(part.values()) for part in partitions]
    print_table(("PARTITION", "FIRST", "NEXT"), rows, empty="the topic has no partitions")


def _settings(client: Any, topic: str, *, with_defaults: bool) -> dict[str, str]:
    from kafka.admin import ConfigResource, ConfigResourceType  # type: ignore[import-untyped]

    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    answer = client.describe_configs(
        [resource], config_filter="all" if with_defaults else "modified"
    )
    found = answer["topic"][topic]
    return {name: "" if each["value"] is None else each["value"] for name, each in found.items()}


@app.command("alter")
def alter_topic(
    topic: TopicName,
    setting: Annotated[
        list[str] | None,
        usage.Option("--set", metavar="NAME=VALUE", help="A new value; may be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        usage.Option("--unset", metavar="NAME", help="Back to its default; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change settings of a topic, all of them or none. docs/KAFKA.md lists the settings."""
    changes: dict[str, str | None] = dict(read_pairs("--set", setting))
    for name in unset or ():
        if name in changes:
            raise ConfigError(f"{printable(name)} is both set and unset: leave one out")
        changes[name] = None
    if not changes:
        raise ConfigError("there is nothing to change: use --set NAME=VALUE or --unset NAME")
    kafka_client.change_topic(bootstrap, topic, changes)
    print_line(f"{printable(topic)} changed: {counted(len(changes), 'setting')}")


@app.command("delete")
def delete_topic(
    topic: TopicName,
    yes: Annotated[bool, usage.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a topic, its records and its pending delayed records."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("standard input is not a terminal: use --yes to delete the topic")
        question = f"Delete {printable(topic)}, its records and its pending delayed records?"
        if not click.confirm(question, err=True):
            complain("nothing was deleted")
            raise usage.Exit(1)
    with kafka_client.admin_client(bootstrap) as client:
        (gone,) = client.delete_topics([topic], raise_errors=False)["topics"]
        kafka_client.check_code(gone["error_code"], gone.get("error_message"))
    print_line(f"{printable(topic)} deleted")
