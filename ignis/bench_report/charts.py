"""Charts of a run, as SVG that stands in a page: no address of anything else in it, and the colour of its text is the page's."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from ignis.bench_report.table import QUANTILES, Series

__all__ = ["latencies", "rates"]

_INK = "#010203"
"""Stands for the colour of the page's text, which differs by light and dark."""
_COLOURS = ("#2f7fd0", "#d0661f", "#2a9a6b", "#a05fd0", "#b8860b", "#d04a6b")
"""Each has a contrast of 3 to 1 and more with both backgrounds."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "ignis", "font.size": 10, "font.family": "sans-serif",
    "text.color": _INK, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
_numbers = itertools.count(1)


def rates(found: Sequence[Series], title: str) -> str:
    """Messages a second: a bar to the median of each peer, a line from its slowest to its fastest round."""
    shown = [one for one in found if one.rates]
    with rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 0.9 + 0.45 * len(shown)), layout="constrained")
        axes = figure.add_subplot()
        medians = [one.median for one in shown]
        spread = [[one.median - min(one.rates) for one in shown], [max(one.rates) - one.median for one in shown]]
        colours = [_COLOURS[0] if one.is_ignis else _COLOURS[1] for one in shown]
        axes.barh([one.peer for one in shown], medians, xerr=spread, color=colours, ecolor=_INK, capsize=3, height=0.6)
        axes.invert_yaxis()
        axes.set_xlabel("messages per second")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.locator_params(axis="x", nbins=5)
        return _svg(
            figure, f"{title}: median of the rounds in messages per second, with the slowest and the fastest round"
        )


def latencies(found: Sequence[Series], title: str) -> str:
    """One call's time by percentile, on a logarithmic scale: the share of calls that were at least so quick."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for number, one in enumerate(found):
            names = [name for name in QUANTILES if name in one.latencies_us]
            places = range(len(QUANTILES))
            at = [places[list(QUANTILES).index(name)] for name in names]
            colour = _COLOURS[number % len(_COLOURS)]
            axes.plot(
                at, [one.latency_us(name) for name in names], marker="o", markersize=4, color=colour, label=one.peer
            )
            low, high = ([pick(one.latencies_us[name]) for name in names] for pick in (min, max))
            axes.fill_between(at, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.set_yscale("log")
        axes.set_xticks(range(len(QUANTILES)), [name.replace("_", ".") for name in QUANTILES])
        axes.set_xlabel("percentile of calls")
        axes.set_ylabel("microseconds")
        axes.grid(visible=True, axis="y", alpha=0.25, color=_INK)
        axes.legend(frameon=False)
        return _svg(figure, f"{title}: time of one call in microseconds by percentile, median and range of the rounds")


def _svg(figure: Figure, says: str) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = out.getvalue()
    text = text[text.index("<svg") :]
    opening, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', opening)
    assert box is not None
    # Names are the page's: two charts must not have the same.
    number = next(_numbers)
    rest = re.sub(r'\bid="([^"]*)"', rf'id="c{number}-\1"', rest)
    rest = re.sub(r'(href="#|url\(#)', rf"\g<1>c{number}-", rest)
    rest = rest.replace(_INK, "currentColor")
    rest = re.sub(r' xmlns(:\w+)?="[^"]*"', "", rest)
    return f'<svg {box[0]} role="img" aria-label="{escape(says)}">{rest}'
