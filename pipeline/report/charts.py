"""Charts as inline SVG that take their colours and their font from the page, so that they follow its theme.

Drawn by matplotlib with stand-in colours that are replaced by the page's own; no date, no random ids: the same data gives the
same bytes. Numbers only; whatever is said in words stands in the page beside the chart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, ACCENT, BAD, SOFT, LINE = "#010101", "#010102", "#010103", "#010104", "#010105"
_THEME = {INK: "currentColor", ACCENT: "var(--accent)", BAD: "var(--bad)", SOFT: "var(--soft)", LINE: "var(--line)"}
_STYLE: Any = {
    "svg.hashsalt": "report", "svg.fonttype": "none", "font.size": 7, "axes.edgecolor": LINE, "axes.labelcolor": SOFT,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.major.size": 0, "ytick.major.size": 0, "axes.spines.top": False,
    "axes.spines.right": False, "axes.spines.left": False, "axes.grid": True, "axes.grid.axis": "y", "grid.color": LINE,
    "grid.linewidth": 0.7, "axes.axisbelow": True, "lines.linewidth": 1.5, "lines.solid_capstyle": "round",
}  # fmt: skip


def trend(values: Sequence[float | None], moved: Sequence[int] = (), other: Sequence[float | None] = ()) -> Markup:
    """One quantity over the nights, oldest first, the last one dotted; `moved` places are ringed, `other` is a pale second line."""

    def draw(axes: Any) -> None:
        if any(value is not None for value in other):
            axes.plot(range(len(other)), _gaps(other), color=SOFT, linewidth=1, linestyle=(0, (3, 2)))
        axes.plot(range(len(values)), _gaps(values), color=ACCENT, marker="o", markersize=2 if len(values) > 1 else 4)
        for place in moved:
            axes.plot([place], [values[place]], marker="o", markersize=8, markerfacecolor="none", markeredgecolor=BAD, linestyle="none")
        last = max((place for place, value in enumerate(values) if value is not None), default=None)
        if last is not None:
            axes.plot([last], [values[last]], marker="o", markersize=5, color=ACCENT)
        axes.set_xlim(-0.5, max(len(values) - 0.5, 0.5))
        axes.set_xticks([])
        axes.yaxis.set_major_locator(MaxNLocator(3))
        known = [value for value in [*values, *other] if value is not None]
        level = max(map(abs, known), default=1.0) or 1.0
        if known and max(known) - min(known) < 0.02 * level:  # a flat line stays flat, whatever its last digits do
            axes.set_ylim(min(known) - 0.05 * level, max(known) + 0.05 * level)
        else:
            axes.margins(y=0.2)
        if known and min(known) >= 0 > axes.get_ylim()[0]:
            axes.set_ylim(bottom=0)

    return _svg(3.2, 1.25, draw)


def timeline(t_s: Sequence[float], series: Sequence[Sequence[float | None]]) -> Markup:
    """Quantities over the seconds of a run: the first strong, the others softer."""

    def draw(axes: Any) -> None:
        for values, colour, width in zip(series, (ACCENT, SOFT, BAD), (1.6, 1.1, 1.1)):
            axes.plot(t_s, _gaps(values), color=colour, linewidth=width)
        axes.fill_between(t_s, _gaps(series[0]), color=ACCENT, alpha=0.12, linewidth=0)
        axes.set_ylim(bottom=0)
        axes.set_xlim(min(t_s), max(max(t_s), min(t_s) + 1e-9))
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} s")

    return _svg(6.4, 1.6, draw)


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]


def _svg(width_in: float, height_in: float, draw: Callable[[Any], None]) -> Markup:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Markup(_themed(buffer.getvalue()))


def _themed(text: str) -> str:
    """The bare <svg> with the page's colours and font; hidden from screen readers, which have the numbers beside it."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(<g) id="[^"]*"', r"\1", text)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true" focusable="false">', text, count=1)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px; font-family: inherit", text)
    text = text.replace("xlink:href", "href")
    for stand_in, colour in _THEME.items():
        text = text.replace(stand_in, colour)
    return re.sub(r"\n\s*", "\n", text).strip()
