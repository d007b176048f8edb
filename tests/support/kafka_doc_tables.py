"""The tables of docs/KAFKA.md that the code determines.

`python -m tests.support.kafka_doc_tables` writes them anew between their marks; a test compares
them.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from appliance.config import settings
from compat.kafka import control
from compat.kafka.registry import Api
from compat.kafka.topic_setting_table import TOPIC_SETTINGS, TopicSetting

PATH: Final = Path(__file__).parents[2] / "docs" / "KAFKA.md"


def api_table() -> str:
    """Return one row for each API of the registry."""
    rows: list[tuple[str, ...]] = [("key", "API", "advertised", "served", "answered by")]
    rows += [_api_row(api) for api in control.REGISTRY.apis]
    return _table(rows)


def _api_row(api: Api) -> tuple[str, ...]:
    first, last = api.versions
    module = "compiled code"
    if api.handler is not None:
        module = f"`{api.handler.__module__.replace('.', '/')}.py`"
    return (str(api.key), api.name, f"{first}-{last}", f"{api.served_from}-{last}", module)


def topic_settings_table() -> str:
    """Return one row for each topic setting that has a choice."""
    rows = [("setting", "values", "default", "what it does")]
    for setting in TOPIC_SETTINGS:
        if setting.limit is not None:
            limit = f"`{settings()[setting.limit].key}`"
            rows.append((f"`{setting.name}`", f"0 to {limit}", limit, setting.note))
        elif setting.is_supported:
            values = ", ".join(f"`{value}`" for value in setting.values)
            rows.append((f"`{setting.name}`", values, f"`{setting.values[0]}`", setting.note))
    return _table(rows)


def fixed_settings_table() -> str:
    """Return one row for each topic setting that has one accepted value or none."""
    rows = [("setting", "accepted", "because")]
    for setting in sorted(TOPIC_SETTINGS, key=lambda setting: setting.name):
        if not setting.is_supported:
            rows.append((f"`{setting.name}`", _accepted(setting), setting.note))
    return _table(rows)


def _accepted(setting: TopicSetting) -> str:
    if not setting.values:
        return "nothing"
    return f"`{setting.values[0]}`" if setting.values[0] else "the empty text"


TABLES: Final = {
    "apis": api_table,
    "topic settings": topic_settings_table,
    "fixed topic settings": fixed_settings_table,
}


def replace_tables(text: str) -> str:
    """Return the document with every table as the code determines it.

    Raises:
        ValueError: a mark is missing.
    """
    for name, make_table in TABLES.items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end of table -->\n"
        start = text.index(begin) + len(begin)
        stop = text.index(end, start)
        text = text[:start] + make_table() + text[stop:]
    return text


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = rows
    return "".join(_row(row) for row in (head, ["---"] * len(head), *body))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PATH.write_text(replace_tables(PATH.read_text()))
