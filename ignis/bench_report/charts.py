"""Charts of a run, as SVG that stands in a page: no address of anything else in it, and the colour of its text is the page's."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ignis.bench_report import distribution
from ignis.bench_report.table import QUANTILES, Series

__all__ = ["distributions", "latencies", "rates"]

_INK = "#010203"
"""Stands for the colour of the page's text, which differs by light and dark."""
_COLOURS = ("#2f7fd0", "#d0661f", "#2a9a6b", "#a05fd0", "#b8860b", "#d04a6b")
"""Each has a contrast of 3 to 1 and more with both backgrounds."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "ignis", "font.size": 9, "font.family": "sans-serif",
    "text.color": _INK, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
_LINES = ("-", "-.", ":")
"""Where there are more curves than colours."""
_WIDTH = 5.0
"""In inches: so narrow that the text is read on a phone too."""
_numbers = itertools.count(1)


def rates(found: Sequence[Series], title: str) -> str:
    """Messages a second: a bar to the median of each peer, a line from its slowest to its fastest round."""
    shown = [one for one in found if one.rates]
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 0.9 + 0.4 * len(shown)), layout="constrained")
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
            figure,
            f"{title}: messages per second, bars to the median of the rounds, lines from the slowest to the fastest round",
        )


def latencies(found: Sequence[Series], title: str) -> str:
    """One call's time by percentile, on a logarithmic scale: the share of calls that were at least so quick."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for number, one in enumerate(found):
            names = [name for name in QUANTILES if name in one.latencies_us]
            places = range(len(QUANTILES))
            at = [places[list(QUANTILES).index(name)] for name in names]
            colour, line = _look(number)
            axes.plot(
                at,
                [one.latency_us(name) for name in names],
                line,
                marker="o",
                markersize=4,
                color=colour,
                label=one.peer,
            )
            low, high = ([pick(one.latencies_us[name]) for name in names] for pick in (min, max))
            axes.fill_between(at, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        bottom, top = axes.get_ylim()
        axes.yaxis.set_minor_formatter(_minor if top < 30 * bottom else NullFormatter())
        axes.set_xticks(range(len(QUANTILES)), [name.replace("_", ".") for name in QUANTILES])
        axes.set_xlabel("percentile of calls")
        axes.set_ylabel("microseconds")
        axes.grid(visible=True, axis="y", alpha=0.25, color=_INK)
        if len(found) > 1:
            axes.legend(frameon=False)
        return _svg(figure, f"{title}: time of one call in microseconds by percentile, median and range of the rounds")


def distributions(found: Sequence[Series], before: Sequence[Series], title: str) -> str:
    """The share of calls that took no longer, over a logarithmic axis of time: one curve each, that of the run before dashed."""
    colours = {one.key: _look(number) for number, one in enumerate(found)}
    says = []
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for one, label, is_before in [(one, one.peer, False) for one in found] + [
            (one, f"{one.peer}, the run before", True) for one in before
        ]:
            colour, line = colours[one.key]
            at, shares = distribution.shares(one.counts)
            width = 1.2 if is_before else 1.8
            axes.step(
                at, [100 * share for share in shares], "--" if is_before else line,
                where="post", color=colour, linewidth=width, label=label,
            )  # fmt: skip
            half, most = (at[next(i for i, share in enumerate(shares) if share >= q)] for q in (0.5, 0.99))
            says.append(f"{label}: half within {_plain(half)}, 99 % within {_plain(most)}")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_ylim(0, 102)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.set_xlabel("microseconds of one call, logarithmic")
        axes.set_ylabel("share of calls that took no longer")
        axes.grid(visible=True, alpha=0.25, color=_INK)
        if len(says) > 1:
            axes.legend(frameon=False, loc="lower right", fontsize=8)
        return _svg(figure, f"{title}: distribution of the time of one call, in microseconds. {'; '.join(says)}")


def _minor(value: float, _: object) -> str:
    """Some of the ticks between powers of ten, where there are few of these."""
    return f"{value:,g}" if f"{value:e}"[0] in "25" else ""


def _plain(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:.3g}" if value < 1_000 else f"{round(value, 2 - math.floor(math.log10(value))):,.0f}"


def _look(number: int) -> tuple[str, str]:
    return _COLOURS[number % len(_COLOURS)], _LINES[number // len(_COLOURS) % len(_LINES)]


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
