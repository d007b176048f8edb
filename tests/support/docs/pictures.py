"""The pictures of docs/ARCHITECTURE.md, as SVG.

`make regenerate` writes them; a test compares them. The picture of the layers follows from the
tables in tests/test_layers.py. Text is placed by the width of a monospaced character, so that
nothing overlaps whatever font a viewer has.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from tests.test_layers import FLOORS, LAYERS

PICTURES: Final = Path(__file__).parents[3] / "docs" / "pictures"

WIDTH: Final = 980
MARGIN: Final = 20
CHARACTER_WIDTH: Final = 7.8
"""Of the monospaced font at its size, in pixels; a little more than any common font takes."""
CHIP_HEIGHT: Final = 24
GAP: Final = 8
PAD: Final = 10

_STYLE: Final = """\
<style>
text { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px; fill: #1f2328; }
.number { text-anchor: end; }
.title { font-weight: bold; }
.dim { fill: #57606a; }
.page { fill: #ffffff; }
.band { fill: #f3f5f7; stroke: #c8d0d8; }
.chip { fill: #ffffff; stroke: #8c959f; }
.core { fill: #fff4d6; stroke: #b58900; }
.line { stroke: #57606a; fill: none; }
.sync { stroke: #b3261e; stroke-width: 2; }
.wait { stroke: #8c959f; stroke-dasharray: 4 4; fill: none; }
.head { fill: #57606a; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.dim { fill: #9da7b1; }
.page { fill: #0d1117; }
.band { fill: #161b22; stroke: #3d444d; }
.chip { fill: #0d1117; stroke: #656c76; }
.core { fill: #3a2f0b; stroke: #d4a72c; }
.line { stroke: #9da7b1; }
.sync { stroke: #ff7b72; }
.wait { stroke: #656c76; }
.head { fill: #9da7b1; }
}
</style>
"""


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{_number(x)}" y="{_number(y)}"{attribute}>{escape(text)}</text>\n'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
        f'height="{_number(height)}" rx="4" class="{kind}"/>\n'
    )


def _svg(height: float, title: str, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_number(height)}" '
        f'width="{WIDTH}" height="{_number(height)}" role="img">\n'
    )
    page = f'<rect width="{WIDTH}" height="{_number(height)}" class="page"/>\n'
    return f"{head}<title>{escape(title)}</title>\n{_STYLE}{page}{''.join(parts)}</svg>\n"


# The layers

LABELS: Final[dict[int, tuple[str, str]]] = {
    6: ("composition root", "wires all parts"),
    5: ("event loop", "asyncio and sockets"),
    4: ("synchronous", "broker, tools, APIs"),
    3: ("sans-IO", "protocol and policy"),
    2: ("files", "through FileSystem"),
    1: ("shared", "clock, files, settings"),
    0: ("compiled core", "no I/O, no clock"),
}
BAND_HEIGHT_MIN: Final = 58
"""Room for the two lines of a label."""
LABEL_WIDTH: Final = 200
APPLIANCE_WIDTH: Final = 440
COMPAT_WIDTH: Final = WIDTH - 2 * MARGIN - LABEL_WIDTH - APPLIANCE_WIDTH
COLUMNS: Final = (("appliance", APPLIANCE_WIDTH), ("compat", COMPAT_WIDTH))


def packages_of(layer: int) -> list[str]:
    """Return the modules and packages that LAYERS puts into a layer, in its order.

    A package that is listed only because it contains others of the layer is left out.
    """
    patterns = [pattern for pattern, number in LAYERS.items() if number == layer]
    names = dict.fromkeys(pattern.removesuffix(".*") for pattern in patterns)
    return [
        name
        for name in names
        if f"{name}.*" in patterns or not any(other.startswith(f"{name}.") for other in names)
    ]


def _rows(labels: list[str], width: float) -> list[list[str]]:
    """Break labels into rows of chips that fit into `width`."""
    rows: list[list[str]] = [[]]
    used = 0.0
    for label in labels:
        needed = _chip_width(label) + GAP
        if rows[-1] and used + needed > width:
            rows.append([])
            used = 0.0
        rows[-1].append(label)
        used += needed
    return rows


def _chip_width(label: str) -> float:
    return len(label) * CHARACTER_WIDTH + 16


def _chips(x: float, y: float, rows: list[list[str]], kind: str) -> list[str]:
    parts = []
    for row in rows:
        at = x
        for label in row:
            parts.append(_box(at, y, _chip_width(label), CHIP_HEIGHT, kind))
            parts.append(_text(at + 8, y + 16, label))
            at += _chip_width(label) + GAP
        y += CHIP_HEIGHT + GAP
    return parts


def _cell_rows(layer: int, column: str, width: float) -> list[list[str]]:
    names = packages_of(layer)
    floors = _floors_of(names)
    if floors:
        return floors if column == "appliance" else [[]]
    labels = [
        _label(name, column) for name in names if name == column or name.startswith(f"{column}.")
    ]
    return _rows(labels, width - 2 * PAD)


def _label(name: str, column: str) -> str:
    if name in ("appliance", "compat.kafka"):
        return "everything else"
    return name if name == column else name.removeprefix("compat.kafka.").removeprefix(f"{column}.")


def _floors_of(names: list[str]) -> list[list[str]]:
    """Return the packages of a layer by floor, the highest first; [] if it has no floors."""
    for floors in FLOORS:
        top = {name.rpartition(".")[0] for name in floors}
        if top & set(names):
            heights = sorted(set(floors.values()), reverse=True)
            return [
                [name.removeprefix("appliance.") for name in floors if floors[name] == height]
                for height in heights
            ]
    return []


def layers_picture() -> str:
    """Draw the layers from the highest to the lowest, one band each."""
    parts = [
        _text(MARGIN + PAD, 28, "layer", "dim"),
        _text(MARGIN + LABEL_WIDTH, 28, "appliance: the broker", "dim"),
        _text(MARGIN + LABEL_WIDTH + APPLIANCE_WIDTH, 28, "compat: facade, tables", "dim"),
    ]
    y = 40.0
    for layer in sorted(set(LAYERS.values()), reverse=True):
        cells = [_cell_rows(layer, column, width) for column, width in COLUMNS]
        row_count = max(len(rows) for rows in cells)
        height = max(BAND_HEIGHT_MIN, row_count * (CHIP_HEIGHT + GAP) - GAP + 2 * PAD)
        parts.append(_box(MARGIN, y, WIDTH - 2 * MARGIN, height, "band"))
        name, rule = LABELS[layer]
        parts.append(_text(MARGIN + PAD, y + 26, f"{layer} {name}", "title"))
        parts.append(_text(MARGIN + PAD, y + 46, rule, "dim"))
        x = float(MARGIN + LABEL_WIDTH)
        for rows, (_, width) in zip(cells, COLUMNS, strict=True):
            parts += _chips(x, y + PAD, rows, "core" if layer == 0 else "chip")
            x += width
        y += height + GAP
    parts.append(_text(MARGIN + PAD, y + 16, "Imports point down or stay within a layer.", "dim"))
    floors = "Layers 2 and 0 have floors, and a package imports only from lower floors."
    parts.append(_text(MARGIN + PAD, y + 34, floors, "dim"))
    return _svg(y + 50, "The layers of latermq", parts)


# A delayed record


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what happens, and an arrow between two lanes; a box if they are the same."""

    text: str
    origin: str
    target: str
    is_sync: bool = False


LANES: Final = ("producer", "loop", "state", "log", "consumer")
STEPS: Final[tuple[Step | str, ...]] = (
    Step("Produce; the record has x-delay: 30s", "producer", "loop"),
    Step("check the batch, read the header, split", "loop", "loop"),
    Step("append one accept frame", "loop", "log"),
    Step("apply: timer into the due queue", "loop", "state"),
    Step("pwritev: committed", "log", "log"),
    Step("fdatasync: flushed", "log", "log", is_sync=True),
    Step("acknowledge, base offset -1", "loop", "producer"),
    "The record waits. A kill costs a replay: the log rebuilds the due queue.",
    Step("at the due time: take the timer", "state", "loop"),
    Step("read the record, checked, from the log", "log", "loop"),
    Step("append a deliver frame: record, timer id", "loop", "log"),
    Step("apply: offset given, timer completed", "loop", "state"),
    Step("pwritev: committed", "log", "log"),
    Step("fdatasync: flushed, so visible", "log", "log", is_sync=True),
    Step("answer the parked Fetch", "loop", "consumer"),
)
STEP_HEIGHT: Final = 30
LANES_LEFT: Final = 430
NUMBER_RIGHT: Final = MARGIN + 28
LANE_WIDTH: Final = 122


def _lane_x(lane: str) -> float:
    return float(LANES_LEFT + LANES.index(lane) * LANE_WIDTH)


def _arrow(step: Step, y: float) -> list[str]:
    start, end = _lane_x(step.origin), _lane_x(step.target)
    kind = "sync" if step.is_sync else "line"
    if start == end:
        return [_box(start - 7, y - 7, 14, 14, f"chip {kind}" if step.is_sync else "chip")]
    side = 1 if end > start else -1
    tip = end - side * 2
    line = (
        f'<line x1="{_number(start)}" y1="{_number(y)}" x2="{_number(tip)}" y2="{_number(y)}" '
        f'class="{kind}"/>\n'
    )
    points = f"{_number(tip)},{_number(y)} " + " ".join(
        f"{_number(tip - side * 8)},{_number(y + offset)}" for offset in (-4, 4)
    )
    return [line, f'<polygon points="{points}" class="head"/>\n']


def delayed_record_picture() -> str:
    """Draw the steps of a delayed record: their text on the left, arrows beside it."""
    top = 50.0
    bottom = top + len(STEPS) * STEP_HEIGHT
    parts = []
    for lane in LANES:
        x = _lane_x(lane)
        parts.append(_text(x - len(lane) * CHARACTER_WIDTH / 2, 30, lane, "title"))
        parts.append(
            f'<line x1="{_number(x)}" y1="40" x2="{_number(x)}" y2="{_number(bottom)}" '
            'class="wait"/>\n'
        )
    number = 0
    for index, step in enumerate(STEPS):
        y = top + index * STEP_HEIGHT + STEP_HEIGHT / 2
        if isinstance(step, str):
            parts.append(_box(MARGIN, y - 12, WIDTH - 2 * MARGIN, 24, "band"))
            parts.append(_text(MARGIN + PAD, y + 4, step, "title"))
            continue
        number += 1
        parts.append(_text(NUMBER_RIGHT, y + 4, str(number), "dim number"))
        parts.append(_text(NUMBER_RIGHT + 12, y + 4, step.text))
        parts += _arrow(step, y)
    legend = "A square is a step of one lane, a red one an fdatasync. state: _core.state."
    parts.append(_text(MARGIN + PAD, bottom + 24, legend, "dim"))
    return _svg(bottom + 40, "The way of a delayed record", parts)


DRAWN: Final = {
    "layers.svg": layers_picture,
    "delayed_record.svg": delayed_record_picture,
}
"""File in docs/pictures -> what draws it."""


def main() -> None:
    """Write every picture."""
    PICTURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        (PICTURES / name).write_text(draw())


if __name__ == "__main__":
    main()
