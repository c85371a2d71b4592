"""``ignis broker user``: what it writes, what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ignis.broker.auth.authenticator import UsersFile
from ignis.broker.auth.principal import Credentials
from ignis.cli.broker import _announce
from ignis.cli.broker_user import user
from ignis.cli.state import State
from ignis.errors import ConfigError, IgnisError


@pytest.mark.parametrize(("password", "warns"), [("1234567", True), ("12345678", False), ("\u00e4" * 7, True)])
def test_a_short_password_is_warned_of(path: Path, password: str, warns: bool) -> None:
    done = call(path, "add", "ann", "--password", "--allow", "all:*", stdin=f"{password}\n")
    assert (done.exception, done.stdout.strip()) == (None, "added ann")
    assert ("fewer than 8 characters" in done.stderr) == warns
    assert password not in done.stderr
    assert UsersFile(path).authenticate(Credentials(user="ann", password=password)).name == "ann"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


def call(path: Path, *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(user, [*arguments, "--users", str(path)], input=stdin, standalone_mode=False)


def test_a_token_is_printed_once_and_works(path: Path) -> None:
    done = call(path, "add", "robot", "--token", "--allow", "publish:orders.*")
    assert done.exception is None
    token = done.stdout.strip().splitlines()[-1]
    assert token not in path.read_text()
    robot = UsersFile(path).authenticate(Credentials(token=token))
    assert robot.allows("SEND", "orders.eu")
    assert not robot.allows("SEND", "bills")
    shown = call(path, "list", "--json").stdout
    assert token.split("_", 2)[2] not in shown
    assert json.loads(shown) == [
        {"user": "robot", "allow": ["publish:orders.*"], "password": False, "tokens": [token.split("_")[1]],
         "certificate": False}
    ]  # fmt: skip


def test_a_password_comes_from_stdin(path: Path) -> None:
    done = call(path, "add", "ann", "--password", "--certificate", "--allow", "all:*", stdin="open sesame\nmore\n")
    assert (done.exception, done.stdout.strip()) == (None, "added ann")
    assert "sesame" not in path.read_text()
    users = UsersFile(path)
    assert users.authenticate(Credentials(user="ann", password="open sesame")).name == "ann"
    assert users.authenticate(Credentials(certificate="ann")).name == "ann"
    assert call(path, "list").stdout.split() == ["ann", "all:*", "(password,", "certificate)"]


def test_users_are_replaced_and_removed(path: Path) -> None:
    call(path, "add", "ann", "--certificate", "--allow", "all:*")
    again = call(path, "add", "ann", "--certificate", "--allow", "look:*")
    assert isinstance(again.exception, ConfigError)
    assert "--replace" in str(again.exception)
    assert call(path, "add", "ann", "--certificate", "--allow", "look:*", "--replace").exception is None
    assert json.loads(call(path, "list", "--json").stdout)[0]["allow"] == ["look:*"]
    assert call(path, "remove", "ann", "--json").exception is None
    assert json.loads(call(path, "list", "--json").stdout) == []
    assert isinstance(call(path, "remove", "ann").exception, IgnisError)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["add", "ann", "--allow", "all:*"], "--password, --token or --certificate"),
        (["add", "ann", "--token"], "--allow"),
        (["add", "a/b", "--token", "--allow", "all:*"], "user name"),
        (["add", "ann", "--token", "--allow", "everything"], "permission"),
        (["add", "ann", "--password", "--allow", "all:*"], "1 to 1024 bytes"),
        (["remove", "ann"], "No such file"),
        (["list"], "No such file"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(path: Path, arguments: list[str], says: str) -> None:
    done = call(path, *arguments)
    assert isinstance(done.exception, ConfigError)
    assert says in str(done.exception)
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_file_that_root_changes_stays_its_owners(path: Path) -> None:
    call(path, "add", "ann", "--certificate", "--allow", "all:*")
    os.chown(path, 65_534, 65_533)
    assert call(path, "remove", "ann").exception is None
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65_534, 65_533, 0o600)


def test_a_file_that_somebody_has_put_in_the_way_is_not_written_to(path: Path) -> None:
    before = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    before.write_text("mine")
    before.chmod(0o666)
    with before.open() as held:
        assert call(path, "add", "ann", "--certificate", "--allow", "all:*").exception is None
        assert held.read() == "mine"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("open_to_all", "tls", "says"),
    [
        (True, None, "(no users: whoever reaches the port may do all; no TLS)"),
        (False, object(), "(only its users; TLS)"),
    ],
)
def test_the_start_line_says_who_is_let_in(
    capsys: pytest.CaptureFixture[str], open_to_all: bool, tls: object, says: str
) -> None:
    made: Any = SimpleNamespace(host="h", port=1, tls=tls, authenticator=SimpleNamespace(open=open_to_all))
    _announce(State(), made, None)
    assert f" on h:1 {says}; SIGTERM" in capsys.readouterr().err
