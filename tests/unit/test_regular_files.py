"""Named pipes and devices in the place of files: refused at once, at every door, and never waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ignis.regular_files import check_regular, read_bytes, read_text
from tests.support import WAIT_S

STORE = "ignis.Ignis('embedded://{0}/store').queue('q', str).publish('x')"
RELAY = "ignis.Ignis('relay://{0}/relay').store"

# What is opened, from which file, after what was done before, and the word of the error.
DOORS = {
    "settings": ("ignis.Ignis('memory://', config='{0}/pipe')", "pipe", "", "ConfigError"),
    "users": (
        "from ignis.broker.auth.users_file import load_users; os.chmod('{0}/pipe', 0o600); load_users('{0}/pipe')",
        "pipe",
        "",
        "ConfigError",
    ),
    "certificate": (
        "from ignis.broker.auth.tls import server_context; server_context('{0}/pipe', '{0}/pipe')",
        "pipe",
        "",
        "ConfigError",
    ),
    "authorities": ("ignis.Ignis('ignis+tls://127.0.0.1:1?ca={0}/pipe').store", "pipe", "", "ConfigError"),
    "pipeline": (
        "from ignis.spark.pipeline.description import load_description; load_description('{0}/pipe')",
        "pipe",
        "",
        "ConfigError",
    ),
    "format of a store": (STORE, "store/format", STORE, "Store"),
    "clock of a store": (STORE, "store/clock", STORE, "Store"),
    "owners of a store": (STORE, "store/owners", STORE, "Store"),
    "segment that is checked": (
        "from ignis.cli import main; raise SystemExit(main(['doctor', '{0}/store']))",
        "store/sync/{segment}",
        STORE,
        "doctor",
    ),
    "segment of a store": (STORE, "store/sync/{segment}", STORE, "Store"),
    "relay's state": (RELAY, "relay/relay.json", RELAY, ""),
}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import os, ignis\n{code}"],
        capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_a_pipe_is_refused_and_not_waited_for(door: str, tmp_path: Path) -> None:
    code, place, before, says = (text.replace("{0}", str(tmp_path)) for text in DOORS[door])
    if before:
        done = run(before)
        assert done.returncode == 0, done.stderr
    path = tmp_path / place
    if "{segment}" in place:
        [path] = sorted(path.parent.glob("log-*"))[:1]
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    done = run(code)
    assert (done.returncode != 0) == bool(says), done.stderr
    if says == "doctor":
        assert "it is a named pipe" in done.stdout
    elif says:
        assert "ignis.errors." in done.stderr.splitlines()[-1]
        assert says in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    for call in (read_bytes, read_text, check_regular):
        with pytest.raises(OSError, match=f"it is a (named )?{kind} and not a file"):
            call(path)


def test_what_is_one(tmp_path: Path) -> None:
    (tmp_path / "it").write_text("ä")
    (tmp_path / "link").symlink_to("it")
    for name in ("it", "link"):
        assert read_text(tmp_path / name) == "ä"
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "nothing")
