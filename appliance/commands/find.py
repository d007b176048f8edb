"""`latermq find`: records and timers by key, id, position, offset and time. Layer 6."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from appliance.commands import admin_client, usage
from appliance.commands.arguments import DEFAULT_ADMIN, Admin, Json, read_past, to_bytes
from appliance.commands.items import octets_of, text_lines
from appliance.commands.offline import Meter
from appliance.commands.output import complain, json_line, print_lines
from appliance.errors import ConfigError, FindError
from appliance.find import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    FindRequest,
    answer_in_json,
    place_of,
)
from appliance.system.clock import SystemClock
from appliance.system.files import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.find import Finder
    from compat.tables.plan import Plan

EXIT_NOT_FOUND: Final = 1

FIND_TIMEOUT_S: Final = 60.0
"""One request searches for a second, and waits for those before it."""

EXAMPLES: Final = """\
Examples:

\b
  latermq find --key customer-17
  latermq find --key customer-17 --topic orders --between 24h 1h --json
  latermq find --id order-17                             a timer: accepted, cancelled, delivered
  latermq find --offset orders/0@1234
  latermq find --position 616                            the frame that `dump` or `find` has named
  latermq find --topic orders --between 2030-01-01T00:00:00Z 2030-01-01T00:05:00Z --limit 100
  latermq find --dir /var/lib/latermq --key customer-17  without a broker

Exit status: 0 something was found, 1 nothing, or the position or offset does not exist.
"""


def find(  # noqa: PLR0917 (these are flags: click passes them by name)
    key: Annotated[str | None, usage.Option(metavar="KEY", help="Records with this key.")] = None,
    id_: Annotated[
        str | None,
        usage.Option("--id", metavar="ID", help="What was done to timers with this x-deliver-id."),
    ] = None,
    position: Annotated[
        int | None, usage.Option(min=0, metavar="POS", help="The frame at this log position.")
    ] = None,
    offset: Annotated[
        str | None, usage.Option(metavar="TOPIC/P@N", help="The record at offset N of a partition.")
    ] = None,
    between: Annotated[
        tuple[str, str] | None,
        usage.Option(
            metavar="FROM TO",
            help="Received or delivered from one time to before another: an instant, or a duration "
            "before now.",
        ),
    ] = None,
    topic: Annotated[
        str | None, usage.Option("--topic", "-T", metavar="TOPIC", help="Only this topic.")
    ] = None,
    partition: Annotated[
        int | None, usage.Option(min=0, metavar="N", help="Only this partition.")
    ] = None,
    limit: Annotated[
        int, usage.Option(min=1, metavar="N", help="Show this many at most.")
    ] = LIMIT_DEFAULT,
    after: Annotated[
        str | None, usage.Option(metavar="PLACE", help="Go on where an earlier find has ended.")
    ] = None,
    directory: Annotated[
        str | None,
        usage.Option(
            "--dir", metavar="DIR", help="Read this data directory instead of asking a broker."
        ),
    ] = None,
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """Find records and timers, in the order of the log, by the index of keys or by reading it."""
    request = FindRequest(
        key=None if key is None else to_bytes(key),
        user_id=None if id_ is None else to_bytes(id_),
        position=position,
        topic=topic,
        partition=partition,
        stored=_read_times(between),
        after=after,
    )
    if offset is not None:
        name, number, wanted = place_of(offset)
        request = replace(request, topic=name, partition=number, offset=wanted)
    _check_subject(request)
    with _source(directory, admin) as ask:
        found_count = 0
        while True:
            request = replace(request, limit=min(limit - found_count, LIMIT_MAX))
            answer = ask(request)
            _show(answer, is_json=json)
            found_count += len(answer["found"])
            if answer["next"] is None or found_count >= limit:
                break
            request = replace(request, after=answer["next"])
    if answer["next"] is not None:
        complain(f"there may be more: continue with --after {answer['next']}")
    if not found_count:
        complain("nothing was found")
        raise usage.Exit(EXIT_NOT_FOUND)


COMMAND: Final = usage.Command(find, EXAMPLES)


def _read_times(between: tuple[str, str] | None) -> tuple[int | None, int | None]:
    if between is None:
        return None, None
    now_ms = SystemClock().wall_ms()
    first, last = (read_past("--between", text, now_ms) for text in between)
    if first >= last:
        raise ConfigError("--between: the first time is not before the second")
    return first, last


def _check_subject(request: FindRequest) -> None:
    subjects = (request.key, request.user_id, request.position, request.offset)
    count = sum(subject is not None for subject in subjects)
    if count > 1 or (count == 0 and request.stored == (None, None)):
        raise ConfigError("use one of --key, --id, --position and --offset, or --between alone")
    if request.user_id is not None and not 1 <= len(request.user_id) <= 255:
        raise ConfigError(f"--id has {len(request.user_id)} bytes: use 1 to 255")


# Where answers come from


@contextmanager
def _source(directory: str | None, admin: str) -> "Iterator[Callable[[FindRequest], Any]]":
    if directory is None:
        yield lambda request: admin_client.get(
            admin, "find", query=_query_of(request), timeout_s=FIND_TIMEOUT_S
        )
    else:
        with _opened(Path(directory)) as ask:
            yield ask


def _query_of(request: FindRequest) -> dict[str, str | bytes | int | None]:
    place = None
    if request.offset is not None:
        place = f"{request.topic}/{request.partition}@{request.offset}"
    return {
        "key": request.key,
        "id": request.user_id,
        "position": request.position,
        "offset": place,
        "topic": None if place else request.topic,
        "partition": None if place else request.partition,
        "from": request.stored[0],
        "to": request.stored[1],
        "limit": request.limit,
        "after": request.after,
    }


@contextmanager
def _opened(root: Path) -> "Iterator[Callable[[FindRequest], Any]]":
    """Read a data directory up to its flushed position, without a lock."""
    # Imported here so that help and argument errors do not wait for it.
    from appliance.find import Finder
    from appliance.kafka_facade import KAFKA_FACADE
    from appliance.offline.log_state import DEFAULTS
    from appliance.store.keys.key_search import KeySearch
    from appliance.store.keys.log_part import LogPart
    from compat.tables.plan import Plan

    fs, meter = OsFileSystem(), Meter()
    plan = Plan(fs, root)
    plan.advance(meter.show)
    meter.clear()
    directory, segments = plan.reader.paths.commit_log, plan.reader.segments
    part = LogPart(fs, directory, segments, plan.end, salt=plan.salt)
    unpacked_max = DEFAULTS.decompressed_size_max_bytes
    search = KeySearch(
        part,
        [_ZonePiece(zone) for zone in plan.zones],
        secret=bytes(16),
        salt=plan.salt,
        decompress=lambda codec, section: KAFKA_FACADE.decompress(codec, section, unpacked_max),
    )
    projections = plan.state.projections
    finder = Finder(
        part,
        search,
        projections.topics_by_id,
        projections.moved.place,
        KAFKA_FACADE.decompress,
        unpacked_max=unpacked_max,
    )
    try:
        yield lambda request: _ask(plan, finder, request)
    finally:
        part.close()
        plan.reader.close()


def _ask(plan: "Plan", finder: "Finder", request: FindRequest) -> Any:
    from _core.tables.plan_scan import HistoryProjections

    if request.offset is not None:
        _check_offset(plan, request)
    answer = finder.find(request, goes_on=lambda: True)
    outcomes = cast(HistoryProjections, plan.state.projections).outcomes
    for item in answer.found:
        if item["what"] == "timer":
            outcome = outcomes.outcome(item["accept_position"], item["index"])
            item["state"] = "unknown" if outcome is None else outcome[0]
    return answer_in_json(answer)


def _check_offset(plan: "Plan", request: FindRequest) -> None:
    """Raise FindError if the log cannot have an offset."""
    assert request.offset is not None
    place = f"{request.topic}/{request.partition}"
    for topic in plan.state.projections.topics_by_id.values():
        if topic.name != request.topic or (request.partition or 0) >= len(topic.partitions):
            continue
        partition = topic.partitions[request.partition or 0]
        if request.offset < partition.start_offset:
            raise FindError(
                "unknown",
                f"offset {request.offset} of {place} is gone: it begins at "
                f"{partition.start_offset}",
            )
        if request.offset >= partition.next_offset:
            raise FindError(
                "unknown",
                f"offset {request.offset} of {place} does not exist yet: it ends at "
                f"{partition.next_offset}",
            )
        return
    raise FindError("unknown", f"{place} does not exist")


class _ZonePiece:
    """A zone of a plan: it says where a scan need not look."""

    def __init__(self, zone: Any) -> None:
        self.from_pos: int = zone.start
        self.to_pos: int = zone.end
        self.stored: tuple[int, int] | None = zone.stored
        self.left_out: frozenset[int] = zone.topics

    def positions(self, digest: int, start: int) -> Iterator[int]:
        """Yield nothing: no topic that is looked for has frames here."""
        del digest, start
        return iter(())


# Output


def _show(answer: Any, *, is_json: bool) -> None:
    for part in answer["unreadable"]:
        complain(f"the log cannot be read from position {part['from']} to {part['to']}")
    if is_json:
        print_lines(map(json_line, answer["found"]))
        return
    lines: list[str] = []
    for item in answer["found"]:
        lines += text_lines(item.pop("what"), octets_of(item))
    if lines:
        print_lines(lines)
