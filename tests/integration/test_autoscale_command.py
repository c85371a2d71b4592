"""``ignis autoscale --exec``: restarts, take-overs, commands that hang, and a leader file that is deleted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ignis
from ignis.cli.command import Command, CommandError
from ignis.errors import ConfigError
from tests.support import WAIT_S, eventually
from tests.support.fleet import alive

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

Scale = Callable[..., subprocess.Popen[bytes]]

# Notes the number it is told, and who told it; holds while there is a file "hang", deaf to SIGTERM, with a child.
TOOL = """
import os, signal, subprocess, sys, time
with open("told", "a") as file:
    file.write(sys.argv[1] + " " + str(os.getppid()) + "\\n")
if os.path.exists("hang"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("hanging.new", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename("hanging.new", "hanging")
    time.sleep(600)
with open("count", "w") as file:
    file.write(sys.argv[1])
"""


@pytest.fixture
def scale(tmp_path: Path, embedded_url: str) -> Iterator[Scale]:
    """``scale(*options)``: an autoscaler as a process, with a tool that scales nothing and notes everything."""
    (tmp_path / "tool.py").write_text(TOOL)
    made: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"log{len(made)}").open("wb") as log:
            made.append(
                subprocess.Popen(
                    [
                        sys.executable, "-m", "ignis", "autoscale", "-u", embedded_url, "--interval", "50ms", "--max", "9",
                        "--messages-per-worker", "10", "--max-age", "0", "--cool-down", "1h",
                        "--exec", f"{sys.executable} tool.py {{}}", *options,
                    ],
                    cwd=tmp_path,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    stderr=log,
                )
            )  # fmt: skip
        return made[-1]

    yield start
    for one in made:
        if one.poll() is None:
            one.kill()
        one.wait(WAIT_S)


@pytest.fixture
def queue(embedded_url: str, new_app: Callable[..., ignis.Ignis]) -> ignis.Queue[int]:
    return new_app(embedded_url).queue("jobs", int)


def told(directory: Path) -> list[int]:
    path = directory / "told"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def tellers(directory: Path) -> list[int]:
    path = directory / "told"
    return [int(line.split()[1]) for line in path.read_text().splitlines()] if path.exists() else []


def test_after_a_restart_it_scales_down(tmp_path: Path, scale: Scale, queue: ignis.Queue[int]) -> None:
    queue.publish_many(range(45))
    first = scale()
    eventually(lambda: told(tmp_path) == [5])
    first.send_signal(signal.SIGTERM)
    assert first.wait(WAIT_S) == 0
    queue.main.delete(queue.main.fire(100))
    scale("--min", "0")
    eventually(lambda: told(tmp_path) == [5, 0], "it knows of no workers, and says so all the same")


def test_after_a_takeover_it_scales_down(tmp_path: Path, scale: Scale, queue: ignis.Queue[int]) -> None:
    """The second one last knew of as many as are wanted now, and the first one has made more meanwhile."""
    queue.publish_many(range(15))
    first = scale()
    eventually(lambda: told(tmp_path) == [2])
    second = scale("--workers", "1", "--cool-down", "0")
    queue.publish_many(range(30))
    eventually(lambda: told(tmp_path) == [2, 5])
    eventually(lambda: (tmp_path / "count").read_text() == "5")
    eventually(lambda: "stands by" in (tmp_path / "log1").read_text(), "it has seen the first one")
    queue.main.delete(queue.main.fire(100))
    first.kill()
    eventually(lambda: told(tmp_path) == [2, 5, 1], "a long cool-down was the first one's alone")
    assert tellers(tmp_path)[-1] == second.pid


def test_it_asks_how_many_there_are(tmp_path: Path, scale: Scale, queue: ignis.Queue[int]) -> None:
    queue.publish_many(range(45))
    (tmp_path / "count").write_text("5\n")
    scale("--count", "cat count", "--cool-down", "0")
    queue.publish_many(range(10))
    eventually(lambda: told(tmp_path)[-1:] == [6])
    assert (tmp_path / "count").read_text() == "6"
    before = len(told(tmp_path))
    (tmp_path / "count").write_text("2")  # somebody else scales by hand
    eventually(lambda: len(told(tmp_path)) > before and (tmp_path / "count").read_text() == "6")


@pytest.mark.long
def test_a_hanging_command_is_ended_with_us(tmp_path: Path, scale: Scale, queue: ignis.Queue[int]) -> None:
    (tmp_path / "hang").touch()
    queue.publish_many(range(45))
    process = scale()
    eventually((tmp_path / "hanging").exists)
    pids = [int(text) for text in (tmp_path / "hanging").read_text().split()]
    assert all(map(alive, pids))
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    assert not any(map(alive, pids))


def test_a_hanging_command_is_ended_in_time_and_tried_again(
    tmp_path: Path, scale: Scale, queue: ignis.Queue[int]
) -> None:
    (tmp_path / "hang").touch()
    queue.publish_many(range(45))
    scale("--command-timeout", "1s")
    eventually((tmp_path / "hanging").exists)
    pids = [int(text) for text in (tmp_path / "hanging").read_text().split()]
    (tmp_path / "hang").unlink()
    eventually(lambda: (tmp_path / "count").exists() and (tmp_path / "count").read_text() == "5")
    assert not any(map(alive, pids))
    assert "it took over 1 s" in (tmp_path / "log0").read_text()


def test_one_acts_after_the_leader_file_was_deleted(tmp_path: Path, scale: Scale, queue: ignis.Queue[int]) -> None:
    queue.open()
    first = scale()
    eventually(lambda: told(tmp_path) == [1])
    second = scale("--min", "2")
    directory = Path(queue.app.store.local_dir or "")
    eventually(lambda: len(list(directory.glob("member-autoscaler*"))) == 2)
    (directory / "leader-autoscaler.lock").unlink()
    eventually(lambda: (directory / "leader-autoscaler.lock").exists() and "epoch 2" in _text(directory))
    # From now on, whatever is wanted, one of them says so.
    leading = first if f":{first.pid}:" in _text(directory) else second
    seen = len(told(tmp_path))
    queue.publish_many(range(35))
    eventually(lambda: told(tmp_path)[-1] == 4)
    queue.publish_many(range(10))
    eventually(lambda: told(tmp_path)[-1] == 5)
    later = [pid for pid, count in zip(tellers(tmp_path), told(tmp_path), strict=True) if count in (4, 5)]
    assert set(later) == {leading.pid}
    assert told(tmp_path)[seen:].count(4) == told(tmp_path)[seen:].count(5) == 1


def _text(directory: Path) -> str:
    return (directory / "leader-autoscaler.lock").read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo many", "answers 'many'"),
        ("true", "answers ''"),
        ("echo -1", "answers '-1'"),
        ("false", "ended with 1"),
        ("ignis-no-such-command", "cannot be run"),
        ("yes", "was ended: it took over 0.2 s"),
    ],
    ids=["text", "nothing", "negative", "fails", "missing", "endless"],
)
def test_answers_that_are_no_number(text: str, why: str) -> None:
    with pytest.raises(CommandError, match=why):
        Command("--count", text, 0.2 if text == "yes" else WAIT_S).ask()


@pytest.mark.parametrize(("text", "why"), [("'x", "cannot be read"), (" ", "is empty")], ids=["quote", "empty"])
def test_commands_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Command("--exec", text, 1.0)
