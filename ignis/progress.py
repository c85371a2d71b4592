"""What a command shows while it works: a bar on a terminal, a line per part elsewhere, nothing where it is to be quiet."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ignis.escaping import plain

__all__ = ["Phase", "Progress", "make_progress"]


class Phase:
    """One part in progress."""

    def __init__(self, progress: Progress, title: str, total: int | None, task: TaskID | None) -> None:
        self.count: int | None = None
        """How many are done; None = they are not counted."""
        self._progress = progress
        self._title = title
        self._total = total
        self._task = task
        self._line_at_s = time.monotonic() + progress.line_every_s

    def done(self, count: int, total: int | None = None, says: str | None = None) -> None:
        """So many are done by now; of ``total``, where that is another one now. ``says``: shown instead of the numbers."""
        self.count = count
        self._total = total if total is not None else self._total
        if says is None:
            says = f"{count:,}" if self._total is None else f"{count:,} of {self._total:,}"
        if self._task is not None and self._progress.bars is not None:
            self._progress.bars.update(self._task, completed=count, total=self._total, says=says)
        elif self._progress.line_every_s and time.monotonic() >= self._line_at_s:
            self._line_at_s = time.monotonic() + self._progress.line_every_s
            self._progress.line(f"{self._title}: {says}")

    def end(self, count: int | None) -> None:
        """The last line says so many, where something else was counted on the way; None = nothing."""
        self.count = count


class Progress:
    """Shows parts one after the other, on stderr. Not thread-safe.

    Args:
        console: where to; None = nowhere.
        bars: the live display on a terminal; None = plain lines.
        line_every_s: without a terminal, a part that takes longer says so this often; 0 = only at its end.
    """

    def __init__(self, console: Console | None, bars: Bars | None = None, line_every_s: float = 0.0) -> None:
        self._console = console
        self.bars = bars
        self.line_every_s = line_every_s if console is not None and bars is None else 0.0

    @contextlib.contextmanager
    def bar(self, title: str, total: int | None = None) -> Iterator[Phase]:
        """Shows a part while it runs, and nothing afterwards."""
        task = None if self.bars is None else self.bars.add_task(title, total=total, says="")
        try:
            yield Phase(self, title, total, task)
        finally:
            if self.bars is not None and task is not None:
                self.bars.remove_task(task)

    @contextlib.contextmanager
    def phase(self, title: str, total: int | None = None) -> Iterator[Phase]:
        """`bar`, and when it went well a line with how long it took and how many there were. An empty title shows nothing."""
        if not title or self._console is None:
            yield Phase(Progress(None), title, total, None)
            return
        began_s = time.monotonic()
        with self.bar(title, total) as phase:
            yield phase
        count = "" if phase.count is None else f" {phase.count:,}"
        self.line(f"{title}:{count} in {time.monotonic() - began_s:.1f} s", "done", "green")

    def note(self, text: str) -> None:
        """A line about something that happened."""
        self.line(text, " -> ", "yellow")

    def line(self, text: str, mark: str = "", style: str = "") -> None:
        """A line that stays. The mark stands before it on a terminal."""
        if self._console is not None:
            shown = Text(plain(text, keep="\n"))
            if mark and self.bars is not None:
                shown = Text.assemble((mark, style), " ", shown)
            self._console.print(shown, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def make_progress(*, quiet: bool, line_every_s: float = 0.0) -> Iterator[Progress]:
    """The display that fits where stderr goes."""
    if quiet:
        yield Progress(None)
        return
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield Progress(console, None, line_every_s)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[says]}"))
    with Bars(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        yield Progress(console, bars)
