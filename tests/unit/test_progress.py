"""The display of what a command is doing, and a pipeline's steps on it."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TextColumn

from ignis import progress as module
from ignis.progress import Progress, make_progress


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def lines(out: io.StringIO) -> list[str]:
    return [re.sub(r"in \d+\.\d s$", "in T", line) for line in out.getvalue().splitlines()]


def test_a_part_is_a_line_at_its_end(out: io.StringIO) -> None:
    shown = Progress(Console(file=out))
    with shown.phase("reading", 5_000) as phase:
        phase.done(1_234)
    with shown.phase("waiting"):
        pass
    with shown.phase("counting tasks") as phase:
        phase.done(3, 4, "3 of 4 tasks")
        phase.end(10)
    with shown.bar("shown while it runs"):
        pass
    shown.note("a [bold] file\x1b[2J")
    assert lines(out) == [
        "reading: 1,234 in T", "waiting: in T", "counting tasks: 10 in T", "a [bold] file\\x1b[2J",
    ]  # fmt: skip


def test_a_part_that_fails_is_not_done(out: io.StringIO) -> None:
    with pytest.raises(ZeroDivisionError), Progress(Console(file=out)).phase("dividing"):
        _ = 1 / 0
    assert lines(out) == []


def test_a_long_part_says_so_now_and_then(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    with Progress(Console(file=out), line_every_s=10).phase("reading", 8) as phase:
        for now_s in (1.0, 10.0, 12.0, 21.0):
            phase.done(int(now_s) // 3)
    assert out.getvalue().splitlines() == ["reading: 3 of 8", "reading: 7 of 8", "reading: 7 in 21.0 s"]


def test_a_terminal_has_a_bar_and_marks(out: io.StringIO) -> None:
    console = Console(file=out, force_terminal=True, width=80)
    with Bars(TextColumn("{task.description}|{task.fields[says]}"), console=console, transient=True) as bars:
        shown = Progress(console, bars, line_every_s=0.001)
        with shown.phase("reading", 8) as phase:
            phase.done(3)
            assert [(task.description, task.completed, task.total) for task in bars.tasks] == [("reading", 3, 8)]
        assert not bars.tasks
        shown.note("so it is")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "done reading: 3 in " in text
    assert " ->  so it is" in text


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress(quiet=True) as shown:
        with shown.phase("reading", 1) as phase:
            phase.done(1)
        with shown.bar("reading") as phase:
            phase.done(1)
        shown.note("nothing")
    assert capsys.readouterr() == ("", "")


def test_the_steps_of_a_pipeline(out: io.StringIO) -> None:
    pytest.importorskip("pyspark")
    from ignis.spark.pipeline import Shown, Step

    shown, first, second = (
        Shown(Progress(Console(file=out))),
        Step("read", "reading rows"),
        Step("move", "moving files"),
    )
    shown.begin(first)
    shown.tasks(first, 2, 4)
    first.count = 100
    shown.end(first)
    shown.begin(second)
    shown.tasks(second, 4, 4)
    shown.end(second)
    shown.note("read again")
    assert lines(out) == ["reading rows: 100 in T", "moving files: in T", "read again"]
