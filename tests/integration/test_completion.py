"""Completion in real shells: a person types the beginning of a word and the tabulator."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def test_completing_opens_and_makes_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    store = tmp_path / "store"
    asked = {**environment, "_IGNIS_COMPLETE": "bash_complete", "COMP_WORDS": f"ignis stats -u embedded://{store} ",
             "COMP_CWORD": "4"}  # fmt: skip
    told = subprocess.run(["ignis"], env=asked, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert told.returncode == 0, told
    assert not store.exists()
