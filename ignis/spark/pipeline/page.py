"""The sideline report as one HTML page: no script, nothing loaded from elsewhere, plots drawn by matplotlib as SVG.

Keys, errors and names come from messages and are whatever somebody put there. The template escapes all of them, the plots
hold them as text, and the page's content policy forbids scripts besides.
"""

from __future__ import annotations

import datetime as dt
import io
import warnings
from pathlib import Path
from typing import Any

from ignis.errors import ConfigError
from ignis.spark.pipeline.report import SidelineReport, printable

__all__ = ["render_page", "write_page"]

_TEMPLATE = Path(__file__).with_name("report.jinja")
_TOP_KEYS = 20
_DRAWN_KEYS = 12
_TOP_REASONS = 8
_LABEL_CHARS = 28
_ERROR_CHARS = 300
_COLOURS = ("#3b6ea5", "#d1783c", "#5a9a5f", "#b8505a", "#8069a8", "#8c6d4f", "#c27ba0", "#6f7780", "#a3a13f")
_INK = "#33383d"


def write_page(report: SidelineReport, path: Path) -> None:
    """Writes the page. Raises ConfigError when its libraries are not installed, OSError."""
    path.write_text(render_page(report), "utf-8")


def render_page(report: SidelineReport) -> str:
    """The page as text. Raises ConfigError when matplotlib or Jinja2 are not installed."""
    try:
        import jinja2
        import markupsafe
    except ImportError as exc:
        raise ConfigError(f"the HTML report needs Jinja2 ({exc}): pip install 'ignis-mq[spark]'") from exc
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["age"] = _age
    environment.filters["shown"] = lambda text: _cut(printable(text), _ERROR_CHARS)
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    keys = report.top_keys(_TOP_KEYS)
    charts = [
        ("By reason", _bars(list(report.by_reason().items())[:_TOP_REASONS])),
        ("By age since the failure", _histogram(report)),
        ("Keys with the most failures", _bars(keys[:_DRAWN_KEYS])),
    ]
    return template.render(
        report=report,
        rows=report.rows(),
        keys=keys,
        ages=report.ages(),
        # Made here, of escaped text alone: the only thing that goes into the page as it is.
        charts=[(title, markupsafe.Markup(svg)) for title, svg in charts if svg],  # noqa: S704
        made_at=dt.datetime.fromtimestamp(report.made_at_s, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
    )


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:,.1f} {name}"
    return f"{seconds:.0f} s"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _bars(items: list[tuple[str, int]]) -> str:
    """Horizontal bars, the first on top."""
    if not items:
        return ""
    figure, axes = _figure(height=0.6 + 0.28 * len(items))
    labels = [_cut(printable(name), _LABEL_CHARS) for name, _ in items]
    counts = [count for _, count in items]
    places = range(len(items))
    drawn = axes.barh(places, counts, color=_COLOURS[0], height=0.66)
    axes.bar_label(drawn, labels=[f"{count:,}" for count in counts], padding=4, color=_INK, fontsize=9)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, max(counts) * 1.12)
    axes.xaxis.set_visible(False)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    return _svg(figure)


def _histogram(report: SidelineReport) -> str:
    """Messages by age, one colour per reason."""
    if not report.total:
        return ""
    ages = report.ages()
    reasons = list(report.by_reason())
    shown = reasons[:_TOP_REASONS]
    figure, axes = _figure(height=3.2)
    bottoms = [0] * len(ages)
    for colour, reason in zip(_COLOURS, [*shown, None], strict=False):
        others = reasons[_TOP_REASONS:] if reason is None else [reason]
        heights = [sum(counts.get(one, 0) for one in others) for counts in ages.values()]
        if not any(heights):
            continue
        label = "other reasons" if reason is None else _cut(printable(reason), _LABEL_CHARS)
        # A label that begins with an underscore would be left out of the legend.
        axes.bar(range(len(ages)), heights, bottom=bottoms, color=colour, width=0.72, label=f"\u200b{label}")
        bottoms = [below + height for below, height in zip(bottoms, heights, strict=True)]
    axes.margins(y=0.08)
    axes.set_xticks(range(len(ages)), list(ages), fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == int(value) else "")
    axes.set_ylabel("messages", color=_INK)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return _svg(figure)


def _figure(height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ConfigError(f"the HTML report needs matplotlib ({exc}): pip install 'ignis-mq[spark]'") from exc
    # No pyplot: it keeps figures in a global of the process and may open windows.
    figure = Figure(figsize=(8.4, height), layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(colors=_INK, labelsize=9, length=0)
    return figure, axes


def _svg(figure: Any) -> str:
    """The figure as an ``svg`` element, text as text: the reader's fonts have more letters than any that we could draw."""
    import matplotlib as mpl
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a key may hold dollar signs
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ignis"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # measured with the fonts here, drawn with the reader's
        figure.savefig(
            out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")), transparent=True
        )
    drawn = out.getvalue()
    return drawn[drawn.index("<svg") :]
