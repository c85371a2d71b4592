"""What the demo shows while it runs: bars on a terminal, a line per part elsewhere, nothing with ``--json``."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

__all__ = ["Phase", "Progress", "make_progress"]


class Phase:
    """One part in progress."""

    def __init__(self, bars: Bars | None, task: TaskID | None) -> None:
        self._bars = bars
        self._task = task
        self.count = 0

    def done(self, count: int, total: int | None = None) -> None:
        """So many are done by now; of ``total``, where that is another one now."""
        self.count = count
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=count, total=total)


class Progress:
    """Shows parts one after the other, on stderr. Not thread-safe.

    Args:
        console: where to; None = nowhere.
        bars: the live display on a terminal; None = plain lines.
    """

    def __init__(self, console: Console | None, bars: Bars | None) -> None:
        self._console = console
        self._bars = bars

    @contextlib.contextmanager
    def phase(self, title: str, total: int | None = None) -> Iterator[Phase]:
        """Shows a part while it runs, and how long it took when it went well. An empty title shows nothing."""
        if not title or self._console is None:
            yield Phase(None, None)
            return
        began = time.monotonic()
        task = None if self._bars is None else self._bars.add_task(title, total=total)
        phase = Phase(self._bars, task)
        try:
            yield phase
        finally:
            if self._bars is not None and task is not None:
                self._bars.remove_task(task)
        count = f" {phase.count:,}" if total and phase.count else ""
        self._line(f"{title}:{count} in {time.monotonic() - began:.1f} s", "done", "green")

    def note(self, text: str) -> None:
        """A line about something that happened."""
        self._line(text, " -> ", "yellow")

    def _line(self, text: str, mark: str, style: str) -> None:
        if self._console is not None:
            self._console.print(
                f"[{style}]{mark}[/{style}] {text}" if self._bars is not None else f"{mark} {text}",
                highlight=False,
                soft_wrap=True,
            )


@contextlib.contextmanager
def make_progress(*, quiet: bool) -> Iterator[Progress]:
    """The display that fits where stderr goes."""
    if quiet:
        yield Progress(None, None)
        return
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield Progress(console, None)
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    with Bars(*columns, console=console, transient=True) as bars:
        yield Progress(console, bars)
