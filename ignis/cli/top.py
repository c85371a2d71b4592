"""``ignis top``: the queues as they move, in a terminal or as plain text."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from ignis.cli import exit_codes, output
from ignis.cli.state import State, common_options, other_applications, pass_state
from ignis.control.queue_rates import Rates
from ignis.errors import IgnisError
from ignis.escaping import plain

__all__ = ["top"]

_COLUMNS = {
    "queue": "queue",
    "pending": "pending",
    "in": "in_per_s",
    "out": "out_per_s",
    "flight": "in_flight",
    "delayed": "delayed",
    "due": "next_due_in_s",
    "sideline": "sideline",
    "oldest": "oldest_age_s",
}
"""By what rows are sorted."""
_KEYS = {
    "n": "queue",
    "p": "pending",
    "i": "in",
    "o": "out",
    "f": "flight",
    "d": "delayed",
    "u": "due",
    "s": "sideline",
    "a": "oldest",
}
_HEADINGS = ["queue", "pending", "in/s", "out/s", "in flight", "delayed", "next due", "sideline", "oldest", "state"]
_SHORT = {"in flight": "flight", "next due": "due"}
_DROPPED = ("next due", "delayed", "out/s", "in/s", "in flight", "oldest", "sideline")
"""What a narrow terminal does without, the first first. The queue, what is pending and the state are always there in full."""
_HELP = "q ends; sorted by: n name, p pending, i in, o out, f in flight, d delayed, u next due, s sideline, a age"
_ANY_WIDTH = 10_000
_FRAME_LINES = 6
"""What stands above and below the rows."""


@click.command(short_help="Shows all active queues as they move.")
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.2, 3_600),
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option(
    "--sort",
    "key",
    default="pending",
    show_default=True,
    type=click.Choice(list(_COLUMNS)),
    help="The largest first; by queue and due the first.",
)
@click.option(
    "--once", is_flag=True, help="Plain text, once: two looks, --interval apart. So it is without a terminal too."
)
@common_options
@pass_state
def top(state: State, interval: float, key: str, once: bool) -> int:
    """Shows all active queues as they move: what waits, comes, is claimed, is delayed and has failed, and the oldest.

    Looks every --interval seconds, and rests at least as long as a look took. A look asks the store a few things of each queue,
    whatever number of messages there is. A narrow terminal shows fewer columns. With --json one document a look; with --once one.
    """
    with state.store() as store, _ended_by_signal():
        rates = Rates(store)
        try:
            if once or not (state.json or (output.on_terminal() and sys.stdin.isatty())):
                rates.look()
                time.sleep(interval)
                _plain(state, _sorted(rates.look(), key), other_applications(store))
            elif state.json:
                while True:
                    began_s = time.monotonic()
                    _plain(state, _sorted(rates.look(), key))
                    sys.stdout.flush()
                    time.sleep(_rest_s(interval, began_s))
            else:
                _live(rates, interval, key)
        except KeyboardInterrupt:  # the way to end it
            if once:
                raise
    return exit_codes.OK


def _plain(state: State, rows: list[dict[str, Any]], others: str = "") -> None:
    if state.json:
        output.document({"queues": rows})
    elif rows:
        output.table(_HEADINGS, [_cells(one) for one in rows], right=_HEADINGS[1:-1])
    else:
        output.remark(f"no queues{others}")


def _rest_s(interval: float, began_s: float) -> float:
    """Until the next look; as long as this one took, where the store is slow."""
    took_s = time.monotonic() - began_s
    return max(interval - took_s, took_s)


def _sorted(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    name = _COLUMNS[key]
    if key == "queue":
        return sorted(rows, key=lambda row: str(row["queue"]))
    if key == "due":
        return sorted(rows, key=lambda row: (row[name] is None, row[name] or 0.0, row["queue"]))
    return sorted(rows, key=lambda row: (-(row[name] or 0), row["queue"]))


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["queue"],
        output.number(row["pending"]),
        _per_s(row["in_per_s"]),
        _per_s(row["out_per_s"]),
        output.number(row["in_flight"]),
        output.number(row["delayed"]),
        output.age(row["next_due_in_s"]),
        output.number(row["sideline"]),
        output.age(row["oldest_age_s"]),
        row["state"],
    ]


def _per_s(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:,.1f}"


# -- the terminal


def _live(rates: Rates, interval: float, key: str) -> None:
    console = Console(file=sys.stdout)
    rows: list[dict[str, Any]] = []
    trouble = ""
    with _keys() as descriptor, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began_s = time.monotonic()
            try:
                rows, trouble = rates.look(), ""
            except IgnisError as exc:
                if not exc.retryable:
                    raise
                trouble = str(exc)
            until_s = time.monotonic() + _rest_s(interval, began_s)
            while True:
                live.update(_drawn(_sorted(rows, key), key, trouble, console), refresh=True)
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                    break
                typed = os.read(descriptor, 1).decode("ascii", "replace")
                if typed in ("q", ""):
                    return
                key = _KEYS.get(typed, key)


def _drawn(rows: list[dict[str, Any]], key: str, trouble: str, console: Console) -> Table:
    most = max(1, console.height - _FRAME_LINES)
    cells = [[escape(plain(cell)) for cell in _cells(row)] for row in rows[:most]]
    names = list(_HEADINGS)
    labels: dict[str, str] = {}
    for dropped in (None, None, *_DROPPED):  # all with long headings, all with short ones, and then fewer
        if dropped is not None:
            names.remove(dropped)
        wide = Table(box=box.SIMPLE_HEAD)
        _fill(wide, names, labels, cells)
        if Measurement.get(console, console.options.update_width(_ANY_WIDTH), wide).maximum <= console.width:
            break
        labels = _SHORT
    left_out = f"{len(rows) - most:,} more queue(s) below; " if len(rows) > most else ""
    drawn = Table(
        box=box.SIMPLE_HEAD,
        title=f"ignis top: {len(rows):,} queue(s), by {key}",
        title_justify="left",
        caption=escape(plain(f"{trouble}; " if trouble else "")) + left_out + _HELP,
        caption_justify="left",
        expand=True,
    )
    _fill(drawn, names, labels, cells)
    return drawn


def _fill(table: Table, names: list[str], labels: dict[str, str], rows: list[list[str]]) -> None:
    for name in names:
        if name == "queue":  # the one that may be wider than any terminal: it goes on in the next line
            table.add_column(name, overflow="fold")
        else:
            table.add_column(
                labels.get(name, name), justify="left" if name == "state" else "right", no_wrap=True,
                min_width=max(len(labels.get(name, name)), *(len(row[_HEADINGS.index(name)]) for row in rows), 1),
            )  # fmt: skip
    for row in rows:
        table.add_row(*(row[_HEADINGS.index(name)] for name in names))


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """Standard input, a key at a time and not shown; as it was when it is left."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: the terminal must be left as it was."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread, in which alone signals are handled
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
