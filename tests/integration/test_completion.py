"""Completion in real shells: a person types the beginning of a word and the tabulator."""

from __future__ import annotations

import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ignis
from tests.support import WAIT_S

pytestmark = pytest.mark.integration

READY = "ready-to-type"
SETUP = {
    "bash": 'eval "$(ignis completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -d "$HOME/dump"; eval "$(ignis completion zsh)"',
}
START = {"bash": ["bash", "--noprofile", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"]}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folder = Path(sys.executable).parent
    if not (folder / "ignis").exists():
        pytest.skip("the command ignis is not installed beside this interpreter")
    path = os.pathsep.join((str(folder), os.environ["PATH"]))
    return {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "LC_ALL": "C.UTF-8", "PS1": "> "}


def there(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")


class Terminal:
    """A shell behind a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], directory: Path) -> None:
        self._mine, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command, env=environment, cwd=directory, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._mine, text.encode())

    def expect(self, text: str) -> None:
        ends = time.monotonic() + WAIT_S
        while text not in self.seen:
            ready, _, _ = select.select([self._mine], [], [], max(0.0, ends - time.monotonic()))
            assert ready, f"no {text!r} in {self.seen!r}"
            self.seen += os.read(self._mine, 65536).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)
        os.close(self._mine)


@pytest.mark.parametrize("shell", sorted(SETUP))
def test_words_are_completed(shell: str, environment: dict[str, str], tmp_path: Path) -> None:
    there(shell)
    terminal = Terminal(START[shell], environment, tmp_path)
    try:
        # The marker is put together by the shell, so that the line's echo is not taken for its answer.
        terminal.type(f"{SETUP[shell]}; echo {READY[:5]}''{READY[5:]}\n")
        terminal.expect(READY)
        terminal.type("ignis sideli\t--help\n")
        terminal.expect("Usage: ignis sideline [OPTIONS] COMMAND")
        terminal.type("ignis sideline shov\t--he\t\n")
        terminal.expect("Usage: ignis sideline shovel")
    finally:
        terminal.close()


def test_words_are_completed_in_fish(environment: dict[str, str], tmp_path: Path) -> None:
    there("fish")
    script = 'ignis completion fish | source; complete -C "ignis sidel"; complete -C "ignis sideline shov"'
    told = subprocess.run(
        ["fish", "--no-config", "-c", script],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert [line.split("\t")[0] for line in told.stdout.splitlines()] == ["sideline", "shovel"], told


def complete(environment: dict[str, str], line: str, directory: Path) -> tuple[list[str], float]:
    """What bash is told behind the line, and how long that took."""
    asked = {**environment, "_IGNIS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    began_s = time.monotonic()
    told = subprocess.run(
        ["ignis"], env=asked, cwd=directory, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (told.returncode, told.stderr) == (0, ""), told
    return [one.partition(",")[2] for one in told.stdout.splitlines() if one], time.monotonic() - began_s


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "peek o", "consume o", "sideline shovel o", "sideline drop o", "queue purge o", "queue pause o", "publish o",
        "workers o", "sweep o", "autoscale o",
    ],
)  # fmt: skip
def test_the_names_of_queues_of_every_command(line: str, environment: dict[str, str], tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with ignis.Ignis(url) as app:
        for name in ("orders", "offers", "mails"):
            app.queue(name, bytes).publish(b"x")
    found = complete({**environment, "IGNIS_URL": url}, f"ignis {line}", tmp_path)[0]
    assert found == ["offers", "orders"]


def test_names_of_queues_are_completed(environment: dict[str, str], tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    for client, names in (("ignis", ("orders", "offers", "mails")), ("shop", ("shoes",))):
        with ignis.Ignis(url, client_id=client) as app:
            for name in names:
                app.queue(name, bytes).publish(b"x")
    assert complete(environment, f"ignis stats -u {url} o", tmp_path)[0] == ["offers", "orders"]
    assert complete(environment, f"ignis -u {url} consume ", tmp_path)[0] == ["mails", "offers", "orders"]
    assert complete(environment, f"ignis stats -u {url} --client-id shop ", tmp_path)[0] == ["shoes"]
    named = {**environment, "IGNIS_URL": url}
    for line in ("sideline list o", "worker app --queue o"):
        assert complete(named, f"ignis {line}", tmp_path)[0] == ["offers", "orders"], line
    assert complete(named, "ignis sweep orders o", tmp_path)[0] == ["offers"], "one that stands there is not said again"
    assert complete(named, "ignis stats --cl", tmp_path)[0] == ["--client-id"]


@pytest.mark.parametrize(
    "url", ["", "memory://", "nonsense", "embedded:///proc/nothing", "ignis://127.0.0.1:1", "ignis://10.255.255.1:9"]
)
def test_a_store_that_cannot_be_opened_has_no_names(environment: dict[str, str], tmp_path: Path, url: str) -> None:
    """And says nothing into the line that somebody types, nor makes them wait."""
    found, took_s = complete({**environment, "IGNIS_URL": url}, "ignis stats o", tmp_path)
    assert found == []
    assert took_s < 8, "a second, and the time to start Python on a busy machine"


def test_a_store_that_does_not_answer_has_no_names(environment: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"ignis://127.0.0.1:{server.getsockname()[1]}"
        found, took_s = complete({**environment, "IGNIS_URL": url}, "ignis stats o", tmp_path)
    assert found == []
    assert took_s < 8


def test_completing_opens_and_makes_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    store = tmp_path / "store"
    asked = {**environment, "_IGNIS_COMPLETE": "bash_complete", "COMP_WORDS": f"ignis stats -u embedded://{store} ",
             "COMP_CWORD": "4"}  # fmt: skip
    told = subprocess.run(["ignis"], env=asked, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert told.returncode == 0, told
    assert not store.exists()
