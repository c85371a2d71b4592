"""``ignis top``: figures and rates, sorted, once and in a real terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from ignis.app import Ignis
from ignis.cli import main
from ignis.cli.top import _drawn
from ignis.control.queue_rates import Rates
from tests.support import WAIT_S
from tests.support.broker import RunningBroker

Run = Callable[..., "tuple[int, list[str], str]"]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str) -> Run:
    monkeypatch.setenv("IGNIS_URL", url)

    def call(*arguments: str) -> tuple[int, list[str], str]:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out.splitlines(), err

    return call


@pytest.fixture(params=["embedded", "broker"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        yield f"embedded://{tmp_path / 'store'}"
        return
    with RunningBroker(f"embedded://{tmp_path / 'store'}") as broker:
        yield broker.url


@pytest.fixture
def app(url: str) -> Iterator[Ignis]:
    with Ignis(url) as opened:
        yield opened


def test_rates_are_those_between_two_looks(app: Ignis) -> None:
    now_s = 100.0
    rates = Rates(app.store, lambda: now_s)
    queue = app.queue("orders", int, shards=2)
    queue.publish_many(range(10))
    (row,) = rates.look()
    assert (row["pending"], row["in_per_s"], row["out_per_s"], row["next_due_in_s"]) == (10, None, None, None)
    queue.publish_many(range(30))
    queue.publish(1, delay="1h")
    assert len(queue.main.fire(8)) == 8
    now_s += 4
    (row,) = rates.look()
    assert (row["pending"], row["in_flight"], row["delayed"]) == (32, 8, 1)
    assert (row["in_per_s"], row["out_per_s"]) == (7.5, 2.0)
    assert 0 < row["next_due_in_s"] <= 3_600
    assert row["oldest_age_s"] >= 0


def test_once_is_plain_text_and_sorted(run: Run, app: Ignis) -> None:
    app.queue("few", int).publish(1)
    app.queue("many", int).publish_many(range(5))
    app.queue("none", int).open()
    code, out, _ = run("top", "--once", "--interval", "0.2")
    assert (code, out[0].split()[:2]) == (0, ["queue", "pending"])
    assert [line.split()[:3] for line in out[1:]] == [["many", "5", "0"], ["few", "1", "0"], ["none", "0", "0"]]
    code, out, _ = run("top", "--interval", "0.2", "--sort", "queue")  # without a terminal
    assert [line.split()[0] for line in out[1:]] == ["few", "many", "none"]
    (told,) = map(json.loads, run("top", "--once", "--interval", "0.2", "--json")[1])
    assert next((one["queue"], one["pending"], one["state"]) for one in told["queues"]) == ("many", 5, "no handler")
    assert run("top", "--sort", "colour")[0] == 2


NARROW_ROWS = [
    {
        "queue": name, "state": state, "pending": 1_234_567, "in_flight": 12_345, "delayed": 45_678, "sideline": 3_304,
        "in_per_s": 1_234.0, "out_per_s": 1_187.0, "oldest_age_s": 86_399.0, "next_due_in_s": 3_599.0,
    }
    for name, state in (("orders-of-today", "active"), ("reports", "publish only"))
]  # fmt: skip


@pytest.mark.parametrize(
    ("width", "missing"),
    [
        (140, []),
        (100, ["due", "delayed"]),
        (80, ["due", "delayed", "out/s", "in/s"]),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_no_cut_cell(width: int, missing: list[str]) -> None:
    console = Console(width=width, height=30, file=io.StringIO(), force_terminal=False)
    with console.capture() as shown:
        console.print(_drawn(NARROW_ROWS, "pending", "", console))
    text = shown.get()
    assert "…" not in text and all(len(line) <= width for line in text.splitlines())
    head = next(line for line in text.splitlines() if line.split()[:1] == ["queue"])
    for row in (["orders-of-today", "1,234,567", "active"], ["reports", "1,234,567", "publish only"]):
        assert any(all(cell in line for cell in row) for line in text.splitlines())
    columns = {
        one for one in ("in/s", "flight", "sideline", "delayed", "out/s", "oldest", "due") if one in head.split()
    }
    assert columns == {"in/s", "flight", "sideline", "delayed", "out/s", "oldest", "due"} - set(missing)


def test_a_name_wider_than_the_terminal_is_folded() -> None:
    console = Console(width=60, height=30, file=io.StringIO(), force_terminal=False)
    with console.capture() as shown:
        console.print(_drawn([{**NARROW_ROWS[1], "queue": "z" * 90}], "pending", "", console))
    text = shown.get()
    assert (text.count("z"), "publish only" in text, "…" in text) == (90, True, False)


class Terminal:
    """`ignis top` in a terminal of 140 columns."""

    def __init__(self, url: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 140, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        command = [sys.executable, "-m", "ignis", "--url", url, "top", "--interval", "0.2"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "30"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        self.seen = b""

    def shows(self, text: bytes) -> None:
        """Waits until it has."""
        while text not in self.seen:
            assert select.select([self.ours], [], [], WAIT_S)[0], self.seen
            self.seen += os.read(self.ours, 65_536)

    def end(self) -> int:
        try:
            while self.process.poll() is None:  # or it would wait for us
                if select.select([self.ours], [], [], 0.05)[0]:
                    self.seen += os.read(self.ours, 65_536)
            return self.process.wait(WAIT_S)
        finally:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


@pytest.mark.parametrize("way", ["q", "ctrl-c", "SIGTERM"])
@pytest.mark.parametrize("url", ["embedded"], indirect=True)
def test_in_a_terminal(app: Ignis, url: str, way: str) -> None:
    queue = app.queue("orders", int)
    queue.publish_many(range(1_234))
    terminal = Terminal(url)
    try:
        terminal.shows(b"1,234")
        terminal.shows(b"by pending")
        queue.publish(1)
        terminal.shows(b"1,235")
        os.write(terminal.ours, b"n")
        terminal.shows(b"by queue")
        if way == "SIGTERM":
            terminal.process.send_signal(signal.SIGTERM)
        elif way == "ctrl-c":
            terminal.process.send_signal(signal.SIGINT)
        else:
            os.write(terminal.ours, b"q")
        assert terminal.end() == 0
        assert terminal.seen.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in terminal.seen
        assert termios.tcgetattr(terminal.theirs)[3] == terminal.before[3], "the terminal is as it was"
    finally:
        terminal.process.kill()
        terminal.process.wait()
        terminal.close()
