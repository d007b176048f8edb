"""Items as lines of text: names and values, nested ones on indented lines. Layer 6."""

from collections.abc import Iterator
from typing import Any, Final

from appliance.commands.arguments import format_instant
from appliance.commands.output import printable
from appliance.errors import LatermqError

Item = dict[str, Any]

_INSTANTS: Final = frozenset(
    {
        *("stored_at", "timestamp", "min_timestamp", "max_timestamp", "running_max"),
        *("min_due", "max_due", "due", "highest_timestamp", "last_at", "committed_at"),
        *("state_ms", "commit_ms", "begin_ms", "completed_at", "carried_at"),
        *("after", "next_due", "instants"),  # of recurring records
    }
)

_OCTETS: Final = ("key", "value", "id")

_ONE_OF_MANY: Final = {
    "records": "record",
    "timers": "timer",
    "cancels": "cancel",
    "completed": "completed",
    "partitions": "partition",
    "entries": "entry",
    "members": "member",
    "values": "value",
    "cancellations": "cancellation",
}


def octets_of(item: Item) -> Item:
    """Return an item of a broker's answer with its octets as bytes, which text shows in quotes.

    Raises:
        LatermqError: the answer has another form.
    """
    from appliance.commands.table_rows import octets

    try:
        return item | {name: octets(item[name]) for name in _OCTETS if name in item}
    except ValueError:
        raise LatermqError("the broker's answer is not of this version of latermq") from None


def text_lines(head: str, item: Item, indent: str = "") -> Iterator[str]:
    """Yield a line of names and values, then nested values on indented lines."""
    flat, deep = [], []
    for name, value in item.items():
        is_list_of_items = isinstance(value, list) and value and isinstance(value[0], dict)
        if is_list_of_items or (isinstance(value, dict) and name in ("payload", "batch")):
            deep.append((name, value))
        else:
            flat.append(f"{name}={_text(name, value)}")
    yield " ".join([f"{indent}{head}", *flat])
    for name, value in deep:
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            yield from text_lines(_ONE_OF_MANY.get(name, name), part, indent + "  ")


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return format_instant(value) if name in _INSTANTS and value >= 0 else str(value)
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return _quoted(value)
    if isinstance(value, str):
        return printable(value) if value and " " not in value else _quoted(value)
    if isinstance(value, dict):
        pairs = (f"{printable(str(key))}:{_text('', each)}" for key, each in value.items())
        return "{" + ",".join(pairs) + "}"
    return "[" + ",".join(_text(name, each) for each in value) + "]"


def _quoted(value: str | bytes) -> str:
    return '"' + printable(value).replace('"', '\\"') + '"'
