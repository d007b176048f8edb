"""`latermq dump`: show the content of a data directory. Layer 6."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from appliance.commands import usage
from appliance.commands.arguments import Json, to_bytes
from appliance.commands.items import text_lines
from appliance.commands.offline import (
    EXIT_FAULTS,
    DirArgument,
    Live,
    finding_in_json,
    opened,
    reports_failure,
)
from appliance.commands.output import complain, json_line, octets_in_json, print_lines, printable
from appliance.errors import ConfigError
from appliance.offline.findings import Fault, Findings, Note
from appliance.store.log.frame_kinds import KIND_NAMES

if TYPE_CHECKING:
    from appliance.offline.dump import Dump
    from appliance.offline.frame_items import Item

EXAMPLES: Final = """\
Examples:

\b
  latermq dump /var/lib/latermq                          the frames of the log
  latermq dump /var/lib/latermq --content --from 1048576 --to 2097152
  latermq dump /var/lib/latermq --kind topic --kind epoch
  latermq dump /var/lib/latermq records --topic orders --offsets 100:200
  latermq dump /var/lib/latermq timers --pending --json
  latermq dump /var/lib/latermq timers --topic orders --id order-17
  latermq dump /var/lib/latermq queues --topic orders --partition 0
  latermq dump /var/lib/latermq state

Exit status: 0 done, 1 part of the data is damaged (it prints where), 2 nothing could be shown.
"""

_KINDS: Final = {name.replace(" ", "-"): number for number, name in KIND_NAMES.items()}

_LINES_AT_ONCE: Final = 512


class What(StrEnum):
    """What a dump shows."""

    FRAMES = "frames"
    RECORDS = "records"
    TIMERS = "timers"
    QUEUES = "queues"
    STATE = "state"
    CHECKPOINT = "checkpoint"


@reports_failure
def dump(  # noqa: PLR0917 (these are flags: click passes them by name)
    directory: DirArgument,
    what: Annotated[
        What,
        usage.Argument(
            help="frames of the log; visible records; timers; units of the ConsumeQueues; the "
            "state after replay of the log; the checkpoint and the state snapshots it names."
        ),
    ] = What.FRAMES,
    topic: Annotated[str | None, usage.Option(metavar="TOPIC", help="Only this topic.")] = None,
    partition: Annotated[
        int | None, usage.Option(min=0, metavar="N", help="Only this partition.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        usage.Option(choices=_KINDS, help="Only frames of this kind; may be repeated."),
    ] = None,
    from_: Annotated[
        int, usage.Option("--from", min=0, metavar="POS", help="Start at this log position.")
    ] = 0,
    to: Annotated[
        int | None, usage.Option(min=0, metavar="POS", help="Stop before this log position.")
    ] = None,
    offsets: Annotated[
        str | None,
        usage.Option(metavar="FROM:TO", help="Only offsets FROM to TO - 1; either may be empty."),
    ] = None,
    id_: Annotated[
        str | None, usage.Option("--id", metavar="ID", help="Only timers with this id.")
    ] = None,
    pending: Annotated[bool, usage.Option("--pending", help="Only pending timers.")] = False,
    content: Annotated[
        bool,
        usage.Option("--content", help="Also the content of frames: records, timers, cancels."),
    ] = False,
    live: Live = False,
    json: Json = False,
) -> None:
    """Show the content of a data directory, as text or JSON lines.

    Read-only: it creates and changes nothing in the directory.
    """
    # Imported here so that help and argument errors do not wait for it.
    from appliance.kafka_facade import KAFKA_FACADE
    from appliance.offline.dump import Dump, Filters

    first_offset, end_offset = _read_offsets(offsets)
    filters = Filters(
        topic=topic,
        partition=partition,
        kinds=frozenset(_KINDS[each] for each in kind) if kind else None,
        first_pos=from_,
        end_pos=to,
        first_offset=first_offset,
        end_offset=end_offset,
        user_id=None if id_ is None else to_bytes(id_),
        is_pending=pending,
    )
    printer = _Printer(is_json=json)
    findings = Findings(printer.finding)
    with opened(Path(directory), findings, may_be_live=live) as data:
        source = Dump(data, findings, filters, KAFKA_FACADE.decompress)
        try:
            for item in _items(source, what, with_contents=content):
                printer.item(what, item)
        finally:
            printer.flush()
    if findings.fault_count:
        raise usage.Exit(EXIT_FAULTS)


COMMAND: Final = usage.Command(dump, EXAMPLES)


def _items(source: "Dump", what: What, *, with_contents: bool) -> "Iterator[Item]":
    match what:
        case What.FRAMES:
            return source.frames(with_contents=with_contents)
        case What.RECORDS:
            return source.records()
        case What.TIMERS:
            return source.timers()
        case What.QUEUES:
            return source.queues()
        case What.STATE:
            return source.state()
        case What.CHECKPOINT:
            return source.checkpoint()


def _read_offsets(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, colon, end = text.partition(":")
    numbers = [int(each) if each.isascii() and each.isdigit() else None for each in (first, end)]
    if not colon or [bool(first), bool(end)] != [each is not None for each in numbers]:
        raise ConfigError(f"--offsets {text!r} is invalid: use FROM:TO")
    return numbers[0], numbers[1]


class _Printer:
    """Prints items, many lines per write."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._lines: list[str] = []

    def finding(self, finding: Fault | Note) -> None:
        """Report a finding next to the items around it; as text, on standard error."""
        self.flush()
        if self._is_json:
            self._lines.append(json_line(finding_in_json(finding)))
        else:
            kind = "fault" if isinstance(finding, Fault) else "note"
            complain(f"{kind}: {printable(str(finding))}")

    def item(self, what: What, item: "Item") -> None:
        """Print one item."""
        if self._is_json:
            self._lines.append(json_line(_for_json(item)))
        elif what is What.FRAMES:
            head = f"{item.pop('position')} {item.pop('kind')}"
            self._lines += text_lines(head, item, "")
        elif what in (What.STATE, What.CHECKPOINT):
            self._lines += text_lines(item.pop("type"), item, "")
        else:
            self._lines += text_lines(str(what).removesuffix("s"), item, "")
        if len(self._lines) >= _LINES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Print the buffered lines."""
        lines, self._lines = self._lines, []
        if lines:
            print_lines(lines)


def _for_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return octets_in_json(value)
    if isinstance(value, dict):
        return {name: _for_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_for_json(each) for each in value]
    return value
