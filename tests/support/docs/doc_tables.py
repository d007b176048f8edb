"""Tables of the documentation that the code determines.

`make regenerate` writes them between their marks; a test compares them.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from appliance.config.config import Config, settings
from appliance.coordination.standing import STANDINGS
from appliance.metrics import METRICS
from appliance.replication.member import MEMBER_STEPS
from appliance.replication.states import MASTER_STATES, SLAVE_STATES
from appliance.store.recovery.decisions import DECISIONS, LOG_FAULTS, REASONS, TAILS, Unclean
from appliance.topic_metrics import TOPIC_METRICS
from appliance.units import format_duration_ms
from tests.support.docs.table_columns import column_tables

DOCS: Final = Path(__file__).parents[3] / "docs"
BEGIN: Final = "<!-- table: written by tests/support/docs/doc_tables.py -->\n"
END: Final = "<!-- end of table -->\n"


def settings_table() -> str:
    """Return docs/CONFIGURATION.md's table, one row for each setting."""
    defaults = Config()
    rows = [("setting", "flag", "default", "allowed", "what it does")]
    for name, setting in settings().items():
        allowed = f"{setting.allowed} {setting.unit}".rstrip()
        flag = f"`{setting.flag}`" if setting.flag else ""
        rows.append(
            (
                f"`{setting.key}`",
                flag,
                _show_default(getattr(defaults, name)),
                allowed,
                setting.reason,
            )
        )
    return markdown_table(rows)


def _show_default(value: object) -> str:
    match value:
        case None:
            return "none"
        case "":
            return '`""`'
        case bool():
            return f"`{value}`".lower()
        case int():
            return f"`{value:_}`"
        case tuple() if all(isinstance(part, int) for part in value):
            return f"`{' '.join(format_duration_ms(part) for part in value)}`"
        case _:
            return f"`{value}`"


def metrics_tables() -> str:
    """Return docs/METRICS.md's tables, one row for each metric: of the broker, and by topic."""
    rows = [("metric", "kind", "label", "what it says")]
    for info in METRICS:
        rows.append(
            (f"`{info.name}`", info.kind, f"`{info.label}`" if info.label else "", info.help)
        )
    by_topic = [("metric at `/metrics/topics`", "kind", "what it says")]
    by_topic += [(f"`{each.full_name}`", each.kind, each.help) for each in TOPIC_METRICS]
    return f"{markdown_table(rows)}\n{markdown_table(by_topic)}"


def recovery_tables() -> str:
    """Return docs/RECOVERY.md's tables: those of `appliance.store.recovery.decisions`, in order."""
    refusals = [("a start is refused", "when")]
    refusals += [(fault.value, reason) for fault, reason in LOG_FAULTS.items()]
    stops = [("the last stop counts as unclean when",)]
    stops += [(each.value,) for each in Unclean]
    faults = [("a saved state is not used", "when")]
    faults += [(fault.value, reason) for fault, reason in REASONS.items()]
    begins = [("stop", "state without fault", "begins from", "units", "the log is read")]
    for (stop, found), decision in DECISIONS.items():
        begins.append(
            (
                stop.value,
                found.value,
                "that state" if decision.loads_state else "the log's beginning",
                "removed, rebuilt" if decision.resets_units else "kept",
                "from the disk, not the page cache" if decision.drops_cache else "as it comes",
            )
        )
    ends = [("stop", "the log ends", "what follows its end", "the report calls the stop")]
    for (stop, end), tail in TAILS.items():
        cut = "set aside and zeroed; all is synced" if tail.is_cut else "left as it is"
        ends.append((stop.value, end.value, cut, "clean" if tail.is_clean else "unclean"))
    return "\n".join(markdown_table(rows) for rows in (refusals, stops, faults, begins, ends))


def replication_tables() -> str:
    """Return docs/REPLICATION.md's tables: the states of a node, and of both ends' connections."""
    members = [("state of a node", "what happens", "the role file says first", "next state")]
    for (node, happening), step in MEMBER_STEPS.items():
        members.append((node.value, happening.value, step.write.value, step.state.value))
    tables = [markdown_table(members)]
    for role, states in (("master", MASTER_STATES), ("slave", SLAVE_STATES)):
        rows = [(f"state, on the {role}", "what happens", "next state")]
        for (state, event), then in states.items():
            rows.append((state.value, event.value, then.value))
        tables.append(markdown_table(rows))
    rows = [("a node, with a coordinator", "what happens", "then it is")]
    rows += [(at.value, event.value, then.value) for (at, event), then in STANDINGS.items()]
    tables.append(markdown_table(rows))
    return "\n".join(tables)


def markdown_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table whose first row is its head."""
    head, *body = rows
    return "".join(_row(row) for row in (head, ["---"] * len(head), *body))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


TABLES: Final[dict[str, Callable[[], str]]] = {
    "CONFIGURATION.md": settings_table,
    "METRICS.md": metrics_tables,
    "RECOVERY.md": recovery_tables,
    "REPLICATION.md": replication_tables,
    "SPARK.md": column_tables,
}


def split(text: str) -> tuple[str, str, str]:
    """Return the text before the table, the table, and the text after it."""
    before, found_begin, rest = text.partition(BEGIN)
    table, found_end, after = rest.partition(END)
    assert found_begin, "the mark that begins the table is missing"
    assert found_end, "the mark that ends the table is missing"
    return before, table, after


def main() -> None:
    for name, table in TABLES.items():
        before, _, after = split((DOCS / name).read_text())
        (DOCS / name).write_text(before + BEGIN + table() + END + after)


if __name__ == "__main__":
    main()
