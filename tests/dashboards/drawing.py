"""A dashboard as an SVG picture: its panels in their places, with axes, lines and legends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from typing import Any, Final

from tests.dashboards.prometheus import Series

COLUMN, ROW = 50, 27
"""Pixels of a column and a row of the grid, of which a dashboard has 24."""
MARGIN: Final = 6
LEFT, RIGHT, TOP, LINE = 52, 10, 26, 13
GAP_SECONDS: Final = 7
"""A longer pause between two points is a gap in the line."""
MOST_NAMED: Final = 8
COLORS: Final = (
    *("#1f78c1", "#e0752d", "#3f9b4f", "#bf1b00", "#8f3bb8", "#c4a000", "#0a8f8f", "#d6558a"),
    *("#6b7280", "#4f46a5", "#7c5a2b", "#5aa02c"),
)


def draw_dashboard(
    panels: Sequence[tuple[Mapping[str, Any], Sequence[Series]]], began: float, ended: float
) -> str:
    """The picture of all panels with their lines, from one moment to another."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in panels)
    width, height = 24 * COLUMN, rows * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>',
    ]
    parts += [_Panel(panel, lines, began, ended).draw() for panel, lines in panels]
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True)
class _Panel:
    panel: Mapping[str, Any]
    lines: Sequence[Series]
    began: float
    ended: float

    def draw(self) -> str:
        grid = self.panel["gridPos"]
        left, top = grid["x"] * COLUMN + MARGIN, grid["y"] * ROW + MARGIN
        width, height = grid["w"] * COLUMN - 2 * MARGIN, grid["h"] * ROW - 2 * MARGIN
        title = escape(self.panel["title"])
        parts = [
            f'<g transform="translate({left} {top})">',
            f'<rect width="{width}" height="{height}" rx="3" fill="white" stroke="#dcdee0"/>',
            f'<text x="10" y="17" font-weight="600" fill="#24292e">{title}</text>',
        ]
        shown = [each for each in self.lines if each.points]
        if shown:
            parts += self._chart(shown, width, height)
        else:
            reason = escape(self.panel["fieldConfig"]["defaults"].get("noValue", "No data"))
            parts.append(
                f'<text x="{width / 2}" y="{height / 2}" text-anchor="middle" fill="#8e8e8e">{reason}</text>'
            )
        return "\n".join([*parts, "</g>"])

    def _chart(self, shown: Sequence[Series], width: float, height: float) -> list[str]:
        legend, legend_lines = _legend(shown, width, height)
        bottom = height - 20 - legend_lines * LINE
        custom = self.panel["fieldConfig"]["defaults"].get("custom", {})
        is_stacked = custom.get("stacking", {}).get("mode") == "normal"
        drawn = _stacked(shown) if is_stacked else shown
        top = _round_up(max(value for each in drawn for _, value in each.points) or 1.0)
        unit = self.panel["fieldConfig"]["defaults"].get("unit", "short")

        def x(moment: float) -> float:
            return LEFT + (width - LEFT - RIGHT) * (moment - self.began) / (self.ended - self.began)

        def y(value: float) -> float:
            return bottom - (bottom - TOP) * value / top

        parts = list[str]()
        for part in range(5):
            value = top * part / 4
            parts.append(
                f'<path d="M{LEFT} {y(value):.1f}H{width - RIGHT}" stroke="#e8e9ea"/>'
                f'<text x="{LEFT - 5}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#6e7177">'
                f"{_text(value, unit)}</text>"
            )
        for minute in range(1, int((self.ended - self.began) // 60) + 1):
            at = x(self.began + 60 * minute)
            parts.append(
                f'<text x="{at:.1f}" y="{bottom + 13:.1f}" text-anchor="middle" fill="#6e7177">'
                f"{minute}:00</text>"
            )
        for number, each in enumerate(drawn):
            path = _path(each, x, y)
            parts.append(
                f'<path d="{path}" fill="none" stroke="{COLORS[number % len(COLORS)]}" stroke-width="1.3"/>'
            )
        return [*parts, *legend]


def _stacked(shown: Sequence[Series]) -> list[Series]:
    """Each line on top of those before it."""
    below, found = dict[float, float](), list[Series]()
    for each in shown:
        for moment, value in each.points:
            below[moment] = below.get(moment, 0.0) + value
        found.append(Series(each.name, [(moment, below[moment]) for moment, _ in each.points]))
    return found


def _path(series: Series, x: Any, y: Any) -> str:
    parts, last = list[str](), None
    for moment, value in series.points:
        letter = "L" if last is not None and moment - last <= GAP_SECONDS else "M"
        parts.append(f"{letter}{x(moment):.1f} {y(value):.1f}")
        last = moment
    return "".join(parts)


def _legend(shown: Sequence[Series], width: float, height: float) -> tuple[list[str], int]:
    """The names below the chart, and the number of their lines."""
    named = [(each.name, COLORS[number % len(COLORS)]) for number, each in enumerate(shown[:MOST_NAMED])]
    if len(shown) > MOST_NAMED:
        named.append((f"and {len(shown) - MOST_NAMED} more", "#8e8e8e"))
    places, at, line = list[tuple[float, int, str, str]](), 10.0, 0
    for name, color in named:
        size = 22 + 6.0 * len(name)
        if at + size > width and at > 10:
            at, line = 10.0, line + 1
        places.append((at, line, name, color))
        at += size
    parts = list[str]()
    for start, number, name, color in places:
        y = height - 9 - (line - number) * LINE
        parts.append(
            f'<path d="M{start:.0f} {y - 3}h10" stroke="{color}" stroke-width="3"/>'
            f'<text x="{start + 14:.0f}" y="{y}" fill="#24292e" font-size="10">{escape(name)}</text>'
        )
    return parts, line + 1


def _round_up(value: float) -> float:
    """A round number that is at least as large."""
    scale = 10 ** floor(log10(value))
    return next(scale * each for each in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if scale * each >= value * 0.999)


def _text(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and 0 < value < 1:
        return f"{1000 * value:.3g} ms"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    prefix = {"currencyUSD": "$"}.get(unit, "")
    suffix = {"s": " s"}.get(unit, "")
    return f"{prefix}{value:.3g}{suffix}" if value < 1000 else f"{prefix}{value / 1000:.3g}k{suffix}"
