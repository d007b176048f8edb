"""The tables of docs/KAFKA.md that the code determines, and what it says of each API.

`make regenerate` writes them between their marks; a test compares them.
"""

import inspect
import sys
from pathlib import Path
from typing import Final

from appliance.config.config import settings
from compat.kafka import dispatch
from compat.kafka.configs.topic_setting_table import (
    INT_MAX,
    LONG_MAX,
    TOPIC_SETTINGS,
    TopicSetting,
)
from compat.kafka.protocol.registry import Api
from tests.support.docs.doc_tables import markdown_table

PATH: Final = Path(__file__).parents[3] / "docs" / "KAFKA.md"


def api_table() -> str:
    """Return one row for each API of the registry."""
    rows: list[tuple[str, ...]] = [("key", "API", "advertised", "served", "answered by")]
    rows += [_api_row(api) for api in dispatch.REGISTRY.apis]
    return markdown_table(rows)


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
            most = limit if setting.ceiling is None else "what a request and a segment hold"
            rows.append((f"`{setting.name}`", f"0 to {most}", limit, setting.note))
        elif setting.bounds is not None:
            values = f"{setting.bounds[0]} to {_greatest(setting.bounds[1])}"
            rows.append((f"`{setting.name}`", values, _default(setting), setting.note))
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
