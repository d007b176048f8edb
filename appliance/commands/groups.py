"""`latermq groups`: list, describe with lag, alter, reset-offsets. Layer 6."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from appliance.commands import kafka_client, usage
from appliance.commands.arguments import (
    DEFAULT_BOOTSTRAP,
    SEARCHED_BY,
    Bootstrap,
    Json,
    SearchedBy,
    asked_time,
    check_by,
    check_group,
    read_past,
    read_place,
)
from appliance.commands.output import (
    complain,
    print_fields,
    print_json,
    print_line,
    print_table,
    printable,
)
from appliance.dead_letters import retry_topic
from appliance.errors import ConfigError, RequestError, UnknownTopicError
from appliance.system.clock import SystemClock
from appliance.units import counted

EXAMPLES: Final = """\
Examples:

\b
  latermq tail orders --group billing --follow     a member of that group
  latermq groups list
  latermq groups describe billing
  latermq groups alter billing --retry-schedule '10s 1m 10m' --retry-max 8
  latermq groups reset-offsets billing --to earliest
  latermq groups reset-offsets billing --topic orders --since 2h --dry-run
"""

app = usage.Group(
    help="List and describe consumer groups, set their offsets and their retries.",
    epilog=EXAMPLES,
)

GroupName = Annotated[str, usage.Argument(metavar="GROUP", help="Name of the group.")]


@app.command("list")
def list_groups(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List all consumer groups."""
    with kafka_client.admin_client(bootstrap) as client:
        groups = sorted(client.list_groups(), key=lambda each: str(each["group_id"]))
    found = [
        {
            "name": group["group_id"],
            "state": group["group_state"],
            "protocol_type": group["protocol_type"],
        }
        for group in groups
    ]
    if json:
        print_json(found)
        return
    rows = [tuple(printable(cell) for cell in each.values()) for each in found]
    print_table(
        ("GROUP", "STATE", "TYPE"),
        rows,
        empty="there are no groups yet: `latermq tail TOPIC --group NAME` joins one",
    )


@app.command("describe")
def describe_group(
    group: GroupName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False
) -> None:
    """Show the members of a group, and its offset and lag in each partition."""
    with kafka_client.admin_client(bootstrap) as client:
        if all(each["group_id"] != group for each in client.list_groups()):
            raise UnknownTopicError(f"there is no group {printable(group)}")
        found = client.describe_groups([group])[group]
        offsets = _offsets_with_lag(client, group)
    members = [_member(each) for each in found["members"]]
    if json:
        shown = {
            "name": group,
            "state": found["group_state"],
            "protocol_type": found["protocol_type"],
            "protocol": found["protocol_data"],
            "members": members,
            "offsets": offsets,
        }
        print_json(shown)
        return
    print_fields((("group", printable(group)), ("state", found["group_state"])))
    _print_members(members)
    _print_offsets(offsets, members)


def _offsets_with_lag(client: Any, group: str) -> list[dict[str, Any]]:
    from kafka import OffsetSpec  # type: ignore[import-untyped]

    committed = client.list_group_offsets(group)[group]
    ends = client.list_partition_offsets(dict.fromkeys(committed, OffsetSpec.LATEST))
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": where.offset,
            "end_offset": ends[partition].offset,
            "lag": max(0, ends[partition].offset - where.offset),
            "metadata": where.metadata,
        }
        for partition, where in sorted(committed.items())
    ]


def _member(member: Any) -> dict[str, Any]:
    assignment = member["member_assignment"]
    partitions: list[dict[str, Any]] | None = None
    if isinstance(assignment, dict):  # else the member is not a consumer
        partitions = [
            {"topic": each["topic"], "partition": index}
            for each in assignment["assigned_partitions"]
            for index in each["partitions"]
        ]
    return {
        "member_id": member["member_id"],
        "instance_id": member.get("group_instance_id"),
        "client_id": member["client_id"],
        "host": member["client_host"].removeprefix("/"),  # brokers write it as Java does
        "assignment": partitions,
    }


def _print_members(members: list[dict[str, Any]]) -> None:
    rows = [
        (
            printable(member["member_id"]),
            printable(member["client_id"]),
            member["host"],
            None if member["assignment"] is None else len(member["assignment"]),
        )
        for member in members
    ]
    print_table(("MEMBER", "CLIENT", "HOST", "PARTITIONS"), rows, empty="the group has no members")


def _print_offsets(offsets: list[dict[str, Any]], members: list[dict[str, Any]]) -> None:
    readers = {
        (each["topic"], each["partition"]): printable(member["client_id"])
        for member in members
        for each in member["assignment"] or ()
    }
    rows = [
        (
            printable(each["topic"]),
            each["partition"],
            each["offset"],
            each["end_offset"],
            each["lag"],
            readers.get((each["topic"], each["partition"])),
        )
        for each in offsets
    ]
    head = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "READ BY")
    print_table(head, rows, empty="the group has committed no offsets")


@app.command("alter")
def alter_group(
    group: GroupName,
    schedule: Annotated[
        str | None,
        usage.Option(
            "--retry-schedule",
            metavar="DELAYS",
            help="Delay before each attempt: '10s 1m 10m'; or levels, the default.",
        ),
    ] = None,
    attempts: Annotated[
        int | None,
        usage.Option(
            "--retry-max", metavar="N", help="Attempts before a record goes to GROUP.dlq."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change how often, and when, the records of a group are retried.

    The rules are settings of the topic GROUP.retry, which is created if there is none.
    """
    check_group(group)
    given = {"retry.schedule": schedule, "retry.max": None if attempts is None else str(attempts)}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise ConfigError("there is nothing to change: use --retry-schedule or --retry-max")
    topic = retry_topic(group)
    with kafka_client.admin_client(bootstrap) as client:
        is_there = topic in client.list_topics()
        if not is_there:
            wanted = {"num_partitions": -1, "configs": changes}
            (made,) = client.create_topics({topic: wanted}, raise_errors=False)["topics"]
            kafka_client.check_code(made["error_code"], made.get("error_message"))
    if is_there:
        kafka_client.change_topic(bootstrap, topic, dict(changes))
    verb = "changed" if is_there else "created"
    print_line(f"{printable(topic)} {verb}: {counted(len(changes), 'setting')}")


@app.command("reset-offsets")
def reset_offsets(  # noqa: PLR0917 (these are flags: click passes them by name)
    group: GroupName,
    to: Annotated[
        str | None, usage.Option(metavar="WHERE", help="earliest, latest, or an offset.")
    ] = None,
    since: Annotated[
        str | None,
        usage.Option(
            metavar="TIME",
            help="To what became visible since then, or this long ago: 2h; see --by.",
        ),
    ] = None,
    by: SearchedBy = None,
    topic: Annotated[
        list[str] | None,
        usage.Option(
            "--topic", metavar="TOPIC", help="Default: topics with offsets; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        usage.Option("--partition", "-p", min=0, metavar="N", help="Only this one; may repeat."),
    ] = None,
    dry_run: Annotated[
        bool, usage.Option("--dry-run", help="Show the new offsets without setting them.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Set the offsets of a group. The group must have no members."""
    check_group(group)
    if (to is None) == (since is None):
        raise ConfigError("give the new offsets with either --to or --since")
    check_by(by, since)
    where = None if to is None else read_place("--to", to)
    since_ms = None if since is None else read_past("--since", since, SystemClock().wall_ms())
    with kafka_client.admin_client(bootstrap) as client:
        committed = client.list_group_offsets(group)[group]
        chosen = _chosen(client, committed, group, topic, partition)
        asked = None if since_ms is None else asked_time(since_ms, by)
        targets = _targets(client, chosen, where, asked)
        if not dry_run:
            commit_offsets(client, group, targets)
    moves = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "old_offset": committed[each].offset if each in committed else None,
            "new_offset": offset,
        }
        for each, offset in sorted(targets.items())
    ]
    if json:
        print_json(moves)
        return
    rows = [tuple(move.values()) for move in moves]
    print_table(("TOPIC", "PARTITION", "OLD OFFSET", "NEW OFFSET"), rows, empty="")
    if since is not None and by is None:
        complain(SEARCHED_BY)
    if dry_run:
        complain("nothing was changed: repeat without --dry-run to set these offsets")


def _chosen(
    client: Any,
    committed: Mapping[Any, Any],
    group: str,
    topics: list[str] | None,
    indexes: list[int] | None,
) -> list[Any]:
    """Return the partitions that the options select."""
    from kafka import TopicPartition

    partitions = list(committed)
    if topics:
        partitions = []
        for found in client.describe_topics(topics):
            kafka_client.check_code(
                found["error_code"], f"there is no topic {printable(found['name'])}"
            )
            partitions += [
                TopicPartition(found["name"], part["partition_index"])
                for part in found["partitions"]
            ]
    chosen = [each for each in partitions if not indexes or each.partition in indexes]
    if not chosen:
        raise UnknownTopicError(
            f"group {printable(group)} has no offsets in these partitions: name a topic with "
            "--topic, and partitions that it has"
        )
    return chosen


def _targets(
    client: Any, partitions: list[Any], where: str | int | None, asked: int | None
) -> dict[Any, int]:
    """Return the new offset of each partition, limited to what the partition holds."""
    from kafka import OffsetSpec

    begins = client.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    ends = client.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    found: Mapping[Any, Any] = ends
    if asked is not None:
        found = client.list_partition_offsets(dict.fromkeys(partitions, asked))
    elif where == "earliest":
        found = begins
    targets = {}
    for each in partitions:
        offset = where if isinstance(where, int) else found[each].offset
        if offset < 0:  # no record is that new
            offset = ends[each].offset
        targets[each] = min(max(offset, begins[each].offset), ends[each].offset)
    return targets


def commit_offsets(client: Any, group: str, targets: Mapping[Any, int]) -> None:
    """Set offsets of a group.

    Args:
        client: a KafkaAdminClient.
        group: its name.
        targets: the offset of each TopicPartition.

    Raises:
        RequestError: the group has members, or the broker refuses.
    """
    from kafka import OffsetAndMetadata, errors

    has_members = (errors.UnknownMemberIdError, errors.RebalanceInProgressError)
    offsets = {each: OffsetAndMetadata(offset, "", None) for each, offset in targets.items()}
    for error in client.alter_group_offsets(group, offsets).values():
        if error in has_members:
            raise RequestError(
                f"group {printable(group)} has members, which would ignore new offsets: stop them "
                "first"
            )
        kafka_client.check_code(error.errno, None)
