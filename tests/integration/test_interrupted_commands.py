"""Ctrl-C while the command is being loaded: at any moment it ends with 130 and one line, as later on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import WAIT_S

pytestmark = pytest.mark.integration

HOOK = """\
import signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""
SCRIPT = Path(sys.executable).with_name("ignis")
FORMS = {
    "module": [sys.executable, "-m", "ignis"],
    "script": [sys.executable, str(SCRIPT)],
}


def interrupted_at(name: str, command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command that gets a SIGINT when it looks for the module of that name."""
    directory.joinpath("sitecustomize.py").write_text(HOOK.format(name=name))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(Path(__file__).parents[2])])}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=2 * WAIT_S, check=False)


@pytest.mark.parametrize("name", ["ignis.errors", "ignis.app", "ignis.cli.broker", "ignis.broker.server.server"])
@pytest.mark.parametrize("form", FORMS)
def test_an_interrupt_while_the_command_is_loaded(form: str, name: str, embedded_url: str, tmp_path: Path) -> None:
    if form == "script" and not SCRIPT.exists():
        pytest.skip("the package is not installed")
    ended = interrupted_at(name, [*FORMS[form], "broker", "--url", embedded_url, "--bind", "127.0.0.1:0"], tmp_path)
    assert (ended.returncode, ended.stderr, ended.stdout) == (130, "ignis: interrupted\n", "")


def test_a_program_that_imports_the_library_is_interrupted_as_any_other(tmp_path: Path) -> None:
    program = "try:\n    from ignis import Ignis\nexcept KeyboardInterrupt:\n    print('its own')"
    ended = interrupted_at("ignis.app", [sys.executable, "-c", program], tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "its own\n", "")
