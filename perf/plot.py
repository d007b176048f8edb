"""A benchmark as a picture: one group of bars for each workload, in SVG without any library."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from perf.figures import METRICS, Figure, Metric, Result
from perf.report import number

_WIDTH: Final = 860
_LEFT: Final = 220
_RIGHT: Final = 200
_BAR_HEIGHT: Final = 14
_ROW_HEIGHT: Final = 19
_TITLE_HEIGHT: Final = 30
_TOP: Final = 40
_LINE_HEIGHT: Final = 16
_LINE_COLUMNS: Final = 120

# Distinguishable with red-green blindness.
_COLOURS: Final = {
    "latermq async": "#0072b2",
    "latermq sync": "#56b4e9",
    "latermq, async flush": "#0072b2",
    "latermq, sync flush": "#56b4e9",
    "Kafka": "#d55e00",
    "Kafka flush=1": "#e69f00",
    "mock": "#999999",
}
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.s{fill:#555}"
    ".w{stroke:#222;stroke-width:1.5}"
)


def plot(results: Sequence[Result], metric_of: Mapping[str, str], subtitle: str) -> str:
    """Return an SVG document: medians as bars, smallest and largest run as whiskers.

    `metric_of` names the metric that is drawn for each workload; each group has its own scale.
    """
    groups: dict[str, list[tuple[str, Figure]]] = {}
    for result in results:
        figure = result.find(metric_of[result.workload])
        if figure is not None:
            groups.setdefault(result.workload, []).append((result.broker, figure))
    body: list[str] = []
    top = _TOP
    for line in textwrap.wrap(subtitle, _LINE_COLUMNS):
        body.append(f'<text class="s" x="10" y="{top}">{escape(line)}</text>')
        top += _LINE_HEIGHT
    for workload, bars in groups.items():
        body.append(_title(METRICS[metric_of[workload]], workload, top))
        top += _TITLE_HEIGHT
        largest = max(figure.max for _, figure in bars) or 1.0
        for broker, figure in bars:
            body += _bar(broker, figure, largest, top)
            top += _ROW_HEIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top + 20}" '
        f'viewBox="0 0 {_WIDTH} {top + 20}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text class="t" x="10" y="22">latermq benchmark: medians, with the range of the runs'
        f"</text>"
    )
    return "\n".join([head, *body, "</svg>", ""])


def _title(metric: Metric, workload: str, top: int) -> str:
    better = "more" if metric.is_more_better else "less"
    return (
        f'<text class="t" x="10" y="{top + 22}">{escape(workload)} '
        f'<tspan class="s" font-weight="normal">{escape(metric.title)}, {better} is better'
        f"</tspan></text>"
    )


def _bar(broker: str, figure: Figure, largest: float, top: int) -> list[str]:
    room = _WIDTH - _LEFT - _RIGHT
    width, low, high = (room * value / largest for value in (figure.median, figure.min, figure.max))
    middle = top + _BAR_HEIGHT / 2
    label_x = _LEFT + max(width, high) + 8
    return [
        f'<text x="{_LEFT - 8}" y="{top + 11}" text-anchor="end">{escape(broker)}</text>'
        f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR_HEIGHT}" '
        f'fill="{_COLOURS.get(broker, "#009e73")}"/>',
        f'<line class="w" x1="{_LEFT + low:.1f}" y1="{middle}" x2="{_LEFT + high:.1f}" '
        f'y2="{middle}"/>'
        f'<text x="{label_x:.1f}" y="{top + 11}">{number(figure.median)}</text>',
    ]
