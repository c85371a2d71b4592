"""The page about a run: one file of HTML that asks no network for anything, for light and dark and for narrow screens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from ignis.bench_report import charts, distribution
from ignis.bench_report.table import MACHINE, Series, compare, median_of, series

__all__ = ["LOOKED_FOR", "page", "write"]

LOOKED_FOR = ("Redis", "PostgreSQL", "RabbitMQ", "NATS JetStream", "beanstalkd", "huey", "persist-queue")
"""What the repository's bench compares with, and this command by itself does not."""
_FACTS = {
    "started_at_utc": "begun (UTC)", "ignis_version": "ignis", "python": "Python", "kernel": "kernel", "cpu": "processor",
    "cores": "cores", "file_system": "file system",
}  # fmt: skip
_WHICH = (
    "<p>A rate is the median of the rates of its rounds, a percentile the median of the percentiles of its rounds; the column "
    "<em>figures are</em> says of how many. The median of two rounds is their mean. No figure is that of the best round.</p>"
)
_OF_ROUNDS = "Messages per second: the bar ends at the median of the rounds, the line goes from the slowest to the fastest round."
_BY_PERCENTILE = "Time of one call by percentile: the median of the rounds, the band from the lowest to the highest."
_DISTRIBUTION = (
    "Distribution of the time of one call, all rounds together, on a logarithmic axis.{} The table has the "
    "same in figures."
)
_CSS = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1f24; --faint: #57606a; --line: #d0d7de; --bad: #b3261e;
  --warn: #9a6700; --warn-ground: #fff8e1 }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171b; --ink: #e6e8eb; --faint: #a3abb5; --line: #3a4048; --bad: #ff9a90;
    --warn: #e3b341; --warn-ground: #2b2412 }
}
* { box-sizing: border-box }
body { background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 0 }
main { margin: 0 auto; max-width: 76rem; padding: 1.5rem }
h1, h2 { line-height: 1.2; margin: 0 0 .75rem } h1 { font-size: 1.8rem } h2 { font-size: 1.25rem }
section { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1.5rem }
p, figcaption { color: var(--faint); margin: .25rem 0; max-width: 46rem } figcaption { font-size: .9rem }
.charts { display: grid; gap: 1rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)) }
figure { margin: 1rem 0; min-width: 0 } svg { display: block; height: auto; max-width: 34rem; width: 100% }
.one { margin: .75rem 0 }
.one b { color: var(--ink); font-size: 1.5rem; font-variant-numeric: tabular-nums }
.warn { background: var(--warn-ground); border-left: 4px solid var(--warn); border-radius: 4px;
  color: var(--ink); margin: 1rem 0; padding: .6rem 1rem }
dl { display: grid; gap: .25rem 1.5rem; grid-template-columns: max-content minmax(0, 1fr); margin: 1rem 0 }
dt { color: var(--faint) } dd { margin: 0; overflow-wrap: anywhere }
.scroll { margin: 1rem 0; overflow-x: auto } table { border-collapse: collapse; min-width: min(100%, 34rem) }
caption { color: var(--faint); font-size: .9rem; padding-bottom: .3rem; text-align: left }
th { color: var(--faint); font-size: .9rem; font-weight: 500; vertical-align: bottom }
th, td { border-bottom: 1px solid var(--line); padding: .4rem 1.5rem .4rem 0; text-align: left; vertical-align: top }
th:last-child, td:last-child { padding-right: 0 }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap } .n { text-align: right }
@media (max-width: 40rem) {
  main { padding: 1rem } dl { grid-template-columns: 7rem minmax(0, 1fr) }
  table, tbody { display: block } thead { display: none } caption { display: block }
  tr { border-bottom: 1px solid var(--line); display: grid; gap: .2rem 1rem; grid-template-columns: 1fr 1fr; padding: .6rem 0 }
  td, td.n { border: 0; min-width: 0; overflow-wrap: anywhere; padding: 0; text-align: left; white-space: normal }
  td:first-child { font-weight: 600; grid-column: 1 / -1 }
  td:not(:first-child)::before { color: var(--faint); content: attr(data-label);
    display: block; font-size: .8rem; font-weight: 400 }
}
.slower { color: var(--bad); font-weight: 700 }
"""


SHORT_S = 0.5
"""A round that took less says little."""
_KIND = {True: ' class="n"', False: ""}


def page(
    rows: Sequence[Mapping[str, str]], before: Sequence[Mapping[str, str]], name: str, before_name: str = ""
) -> str:
    """The page about the run ``rows``, stored as ``name``, beside the run ``before``, if there was one."""
    found, earlier = series(rows), series(before)
    parts = [
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>ignis bench: {escape(rows[0]['started_at_utc'])}</title><style>{_CSS}</style></head><body><main>",
        "<h1>ignis bench</h1>",
        _WHICH,
        f"<p>The run is {escape(name)}.</p>",
        *_short(found),
        _facts([(label, rows[0][key]) for key, label in _FACTS.items()]),
        "<section>", *_since(rows, found, earlier, before, before_name), "</section>",
    ]  # fmt: skip
    settings = list(dict.fromkeys(one.setting for one in found))
    for setting in settings:
        shown = [one for one in found if one.setting == setting]
        keys = {one.key for one in shown if one.counts}
        before_it = [one for one in earlier if one.counts and one.key in keys]
        parts += ["<section>", *_measurement(shown, before_it), "</section>"]
    parts += ["<section>", *_missing(found), "</section></main></body></html>"]
    return "\n".join(parts) + "\n"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts) + "</dl>"


def _short(found: Sequence[Series]) -> Iterable[str]:
    """A warning where little was measured: such figures differ from run to run by more than most changes do."""
    few = max((one.rounds for one in found), default=0)
    brief = [one.measurement for one in found if one.is_ignis and one.shortest_s < SHORT_S]
    said = (
        [f"Each figure is of {'one round' if few <= 1 else '2 rounds'}: take three or more, --runs 3."]
        if few < 3
        else []
    )
    if brief:
        names = ", ".join(dict.fromkeys(brief))
        said += [f"A round took less than {SHORT_S:g} s of: {names}. More --messages make most of these longer."]
    if said:
        yield f'<p class="warn" role="note"><strong>This run is short.</strong> {escape(" ".join(said))}</p>'


def _since(
    rows: Sequence[Mapping[str, str]], found: Sequence[Series], earlier: Sequence[Series],
    before: Sequence[Mapping[str, str]], before_name: str,
) -> Iterable[str]:  # fmt: skip
    yield "<h2>Since the run before</h2>"
    changes = compare(found, earlier)
    if not changes:
        yield "<p>There is no run before this one with the same measurements.</p>"
        return
    other = [label for key, label in _FACTS.items() if key in MACHINE[2:] and rows[0][key] != before[0][key]]
    if other:
        yield f"<p>Not the same machine: {escape(', '.join(other))} differ. The ratios say little.</p>"
    cells = [
        (
            f"{one.now.measurement} ({one.now.peer})", _number(one.before.median), _number(one.now.median),
            f"{one.ratio:.2f}", one.verdict,
        )
        for one in changes
    ]  # fmt: skip
    yield _table(
        f"Beside {before_name}: medians of the rounds",
        ("measurement", "before, per s", "now, per s", "now / before", "verdict"),
        cells,
    )


def _measurement(found: Sequence[Series], before: Sequence[Series]) -> Iterable[str]:
    first = found[0]
    title = first.measurement
    yield f"<h2>{escape(title)}</h2>"
    facts = [f"{first.size_bytes} bytes a message"]
    facts += [f"durability {first.durability}"] if first.durability else []
    facts += [f"{first.workers} worker thread(s)"] if first.workers else []
    yield f"<p>{escape(', '.join(facts))}.</p>"
    yield from (
        f"<p>Messages: {escape(note)}.</p>" for note in dict.fromkeys(note for one in found for note in one.notes)
    )
    ours = max((one.median for one in found if one.is_ignis and one.rates), default=math.nan)
    rated = [one for one in found if one.rates]
    if len(rated) == 1:  # a bar alone says nothing
        of = f", {_spread(rated[0])} in {rated[0].rounds} rounds" if rated[0].rounds > 1 else ""
        yield f'<p class="one"><b>{_number(rated[0].median)}</b> messages per second{of}</p>'
    yield '<div class="charts">'
    if len(rated) > 1:
        yield f"<figure>{charts.rates(found, title)}<figcaption>{_OF_ROUNDS}</figcaption></figure>"
    timed = [one for one in found if one.latencies_us]
    if timed:
        yield f"<figure>{charts.latencies(timed, title)}<figcaption>{_BY_PERCENTILE}</figcaption></figure>"
    spread = [one for one in found if one.counts]
    if spread:
        chart = charts.distributions(spread, before, title)
        dashed = " Dashed: the run before." if before else ""
        yield f"<figure>{chart}<figcaption>{_DISTRIBUTION.format(dashed)}</figcaption></figure>"
    yield "</div>"
    if spread:
        yield _distribution(spread, before, title)
    unknown = [one.peer for one in timed if not one.counts]
    if unknown:
        yield f"<p>Only percentiles are known of {escape(', '.join(unknown))}: no distribution.</p>"
    cells = [
        (
            one.peer, _number(one.median), _spread(one), median_of(one.rounds) if one.rounds else "-",
            f"{ours / one.median:.2f}" if one.rates and not math.isnan(ours) else "-",
            _number(one.latency_us("p50"), 1), _number(one.latency_us("p99"), 1), one.problem or "",
        )
        for one in found
    ]  # fmt: skip
    heads = ("peer", "per s", "slowest to fastest per s", "figures are", "ignis / peer", "p50 µs", "p99 µs", "problem")
    left_out = {
        "slowest to fastest per s": all(one.rounds <= 1 for one in found),
        "ignis / peer": all(one.is_ignis for one in found),
        "p50 µs": not timed,
        "p99 µs": not timed,
        "problem": not any(one.problem for one in found),
    }
    kept = [place for place, head in enumerate(heads) if not left_out.get(head)]
    yield _table(
        f"Figures of: {title}", [heads[place] for place in kept], [[row[place] for place in kept] for row in cells]
    )


def _distribution(found: Sequence[Series], before: Sequence[Series], title: str) -> str:
    """What the curves show, for who does not see them."""
    shown = [(one.peer, one) for one in found] + [(f"{one.peer}, the run before", one) for one in before]
    powers = distribution.decades([one.counts for _, one in shown])
    cells = [
        (label, f"{sum(one.counts.values()):,}", *(_share(distribution.share_within(one.counts, at)) for at in powers))
        for label, one in shown
    ]
    return _table(
        f"Share of the calls that took at most so long: {title}",
        ("peer", "calls", *(_power(at) for at in powers)),
        cells,
    )


def _power(decade: int) -> str:
    value, unit = (10.0**decade, "µs") if decade < 3 else (10.0 ** (decade - 3), "ms")
    return f"{value:,g} {unit}" if decade < 6 else f"{10 ** (decade - 6):,} s"


def _share(share: float) -> str:
    """Never 100 % where one took longer, never 0 % where one did not."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return f"{min(99.99, max(0.01, 100 * share)):.2f}%"


def _missing(found: Sequence[Series]) -> Iterable[str]:
    yield "<h2>Peers that are missing</h2>"
    failed = [f"{one.peer}: {one.problem}" for one in found if one.problem]
    others = {one.peer for one in found if not one.is_ignis}
    if not others:
        yield (
            f"<p>None was measured. The repository's bench compares with {escape(', '.join(LOOKED_FOR))}: "
            "<code>make bench BENCH_ARGS='--json peers.jsonl all'</code> there, then <code>--peers peers.jsonl</code> here.</p>"
        )
    elif failed:
        yield "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in dict.fromkeys(failed)) + "</ul>"
    else:
        yield "<p>All that were asked for were measured.</p>"


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    numeric = [any(map(_numeric, column)) for column in zip(*rows, strict=True)] if rows else [False] * len(heads)
    head = "".join(
        f'<th scope="col"{_KIND[right]}>{escape(one)}</th>' for one, right in zip(heads, numeric, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, row, heads, numeric)) + "</tr>" for row in rows)
    label = escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><caption>{label}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _numeric(text: str) -> bool:
    return text[:1].isdigit() and re.sub(r"[,.]|%$| to ", "", text).isdigit()


def _cell(text: str, head: str, right: bool) -> str:
    """``right``: whether its column has numbers, which stand below each other; ``head``: what it is called on a phone."""
    kind = ' class="slower"' if text == "slower" else _KIND[right]
    return f'<td{kind} data-label="{escape(head)}">{escape(text)}</td>'


def _number(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def _spread(one: Series) -> str:
    return f"{_number(min(one.rates))} to {_number(max(one.rates))}" if one.rates else "-"


def write(path: Path, text: str) -> None:
    """Writes the page as a whole, by a name of its own first."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, "utf-8")
    beside.replace(path)
