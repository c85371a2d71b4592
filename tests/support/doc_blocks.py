"""The code blocks of README and docs, and how they are run: as they stand, in a directory that was empty before the page's
first one.

Words behind the language of a fence say what a reader sees anyway:

* ``file=NAME``: the block is that file; nothing is run
* ``background``: runs until the page ends, then gets Ctrl-C
* ``continues``: Python that goes on where the block before it ended
* ``needs=aerospike|spark|docker|repository|cluster``: what must be there
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import WAIT_S, eventually

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^( *)```(.*?)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
RUN = ("sh", "python")
SHOWN = ("text", "mermaid", "toml", "json", "ini", "sql", "c", "dockerfile", "yaml", "js", "go")
LONGEST_S = 240.0


@dataclass(frozen=True)
class Block:
    """One fence of a page."""

    page: str
    line: int
    language: str
    words: dict[str, str] = field(hash=False)
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text("utf-8")
    for found in FENCE.finditer(text):
        language, *words = shlex.split(found[2]) or [""]
        named = dict(word.partition("=")[::2] for word in words)
        yield Block(page, text.count("\n", 0, found.start()) + 1, language, named, textwrap.dedent(found[3]))


class Page:
    """Runs the blocks of one page, from its first to its last."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = environment
        self._background: list[tuple[Block, subprocess.Popen[str]]] = []
        self._python = ""

    def run(self, block: Block) -> None:
        if name := block.words.get("file"):
            (self.directory / name).write_text(block.text)
        elif "background" in block.words:
            self._background.append((block, self._start(block)))
            self._until_it_serves(*self._background[-1])
        else:
            code = self._start(block).wait(LONGEST_S)
            assert code == 0, f"{block}: exit code {code}\n{block.text}\n{self._output(block).read_text()}"

    def _start(self, block: Block) -> subprocess.Popen[str]:
        if block.language == "python":
            self._python = self._python + block.text if "continues" in block.words else block.text
            script = self.directory / f"block_{block.line}.py"
            script.write_text(self._python)
            command = [sys.executable, str(script)]
        else:
            command = ["bash", "-euo", "pipefail", "-c", block.text]
        with self._output(block).open("w") as output:
            return subprocess.Popen(
                command, cwd=self.directory, env=self.environment, text=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _until_it_serves(self, block: Block, process: subprocess.Popen[str]) -> None:
        said = self._output(block)
        eventually(lambda: said.stat().st_size > 0 or process.poll() is not None, what=f"{block} says something")
        assert process.poll() is None, f"{block} ended: {said.read_text()}"

    def _output(self, block: Block) -> Path:
        return self.directory / f"block_{block.line}.out"

    def close(self) -> list[str]:
        """Ends what runs, as Ctrl-C in its terminal does, and returns what did not end well."""
        wrong = []
        for block, process in reversed(self._background):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                code = process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait(WAIT_S)
            if code not in (0, 130, -signal.SIGINT):
                wrong.append(f"{block}: exit code {code}\n{self._output(block).read_text()}")
        return wrong
