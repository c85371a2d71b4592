"""Users, passwords, tokens, permissions, and how fast one may be wrong."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.broker.auth import authenticator, passwords
from ignis.broker.auth.authenticator import UsersFile
from ignis.broker.auth.peer_certificate import common_name
from ignis.broker.auth.permissions import FREE, Permissions, Rule
from ignis.broker.auth.principal import Credentials
from ignis.broker.auth.throttle import Throttle
from ignis.broker.auth.users_file import Token, User, Users, editing, load_users
from ignis.broker.protocol.permission_words import GROUPS
from ignis.errors import ConfigError, TooManyRequestsError, UnauthenticatedError

SECRET = "correct horse battery staple"


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the broker logged; threads of others may log as well."""
    return [one for one in caplog.records if one.name.startswith("ignis.broker")]


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def kept() -> str:
    return passwords.hash_password(SECRET)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


def add(path: Path, *users: User) -> None:
    with editing(path) as all_users:
        all_users.users.extend(users)


# -- passwords and tokens


def test_a_password_is_verified_by_its_hash_alone(kept: str) -> None:
    assert passwords.verify_password(SECRET, kept)
    for wrong in ("", SECRET + " ", SECRET.upper(), "x" * 2_000, "\ud800", SECRET + "\0", "\0" + SECRET):
        assert not passwords.verify_password(wrong, kept)
    assert SECRET not in kept
    assert passwords.hash_password(SECRET) != kept, "salted"


def test_a_password_has_no_nul(kept: str) -> None:
    """A hash by HMAC does not tell one with NUL characters behind it from one without."""
    assert not passwords.verify_password(SECRET + 9 * "\0", kept)
    for bad in ("\0", SECRET + "\0", "a\0b"):
        with pytest.raises(ConfigError, match="no NUL"):
            passwords.hash_password(bad)


@pytest.mark.parametrize("bad", ["", "x" * 1_025])
def test_a_password_has_a_length(bad: str) -> None:
    with pytest.raises(ConfigError, match="1 to 1024 bytes"):
        passwords.hash_password(bad)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "plain text",
        "$scrypt$ln=15,r=8,p=1$$",
        "$scrypt$ln=15,r=8,p=1$short$short",
        # Costs that would stop the machine, or none at all, are no hash of ours.
        "$scrypt$ln=30,r=8,p=1$" + "A" * 22 + "$" + "A" * 43,
        "$scrypt$ln=02,r=8,p=1$" + "A" * 22 + "$" + "A" * 43,
        "$scrypt$ln=15,r=64,p=1$" + "A" * 22 + "$" + "A" * 43,
    ],
)
def test_a_hash_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError):
        passwords.verify_password("x", bad)


def test_tokens_are_random_and_kept_as_digests() -> None:
    made = [passwords.new_token() for _ in range(50)]
    assert len({one.text for one in made}) == len({one.id for one in made}) == 50
    for one in made:
        parts = passwords.split_token(one.text)
        assert parts is not None
        assert parts[0] == one.id
        assert passwords.token_matches(parts[1], one.digest)
        assert not passwords.token_matches(parts[1][:-1] + "~", one.digest)
        assert parts[1] not in one.digest
    for text in ("", "ign_", made[0].text + "x", made[0].text[:-1], "x" * 100_000):
        assert passwords.split_token(text) is None


# -- permissions


@pytest.mark.parametrize(
    ("rules", "command", "queue", "allowed"),
    [
        (["publish:orders"], "SEND", "orders", True),
        (["publish:orders"], "SEND_BATCH", "orders", True),
        (["publish:orders"], "SEND", "orders2", False),
        (["publish:orders"], "CONSUME", "orders", False),
        (["publish:orders"], "FIRE", "orders", False),
        (["publish:orders.*"], "SEND", "orders.eu", True),
        (["publish:orders.*"], "SEND", "orders", False),
        (["publish:orders*"], "SEND", "orders", True),
        (["consume,publish:a,b*"], "ACK", "bcd", True),
        (["consume,publish:a,b*"], "SEND", "a", True),
        (["consume,publish:a,b*"], "SEND", "ab", False),
        (["SEND:a"], "SEND", "a", True),
        (["SEND:a"], "SEND_BATCH", "a", False),
        (["all:*"], "DELETE_QUEUE", "anything", True),
        (["all:*"], "A_COMMAND_OF_TOMORROW", "", True),
        (["all:orders"], "METRICS", "", False),
        (["look:orders"], "METRICS", "", False),
        (["look:*"], "METRICS", "", True),
        (["look:*"], "SEND", "orders", False),
        (["look:*", "publish:orders"], "SEND", "orders", True),
        (["locks:*"], "LOCK_ACQUIRE", "", True),
        ([], "SEND", "orders", False),
        ([], "PING", "", True),
    ],
)
def test_rules(rules: list[str], command: str, queue: str, allowed: bool) -> None:
    permissions = Permissions(rules)
    assert permissions.allows(command, queue) is allowed
    assert permissions.allows(command, queue) is allowed, "remembered"


@pytest.mark.parametrize(
    "text", ["", "publish", "publish:", ":orders", "fly:orders", "publish:or/ders", "publish:*x", "send:orders", "publish:**"]
)  # fmt: skip
def test_a_rule_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="permission"):
        Rule(text)


@given(st.sampled_from(sorted(GROUPS)), st.text("abc.", min_size=1, max_size=6), st.text("abc.", max_size=8))
def test_a_rule_allows_nothing_but_its_queues(group: str, prefix: str, queue: str) -> None:
    exact, beginning = Rule(f"{group}:{prefix}"), Rule(f"{group}:{prefix}*")
    for command in set().union(*GROUPS.values()):
        in_group = command in GROUPS[group]
        assert exact.allows(command, queue) is (in_group and queue == prefix)
        assert beginning.allows(command, queue) is (in_group and queue.startswith(prefix))


def test_what_a_user_tries_is_remembered_in_bounds() -> None:
    permissions = Permissions(["publish:orders"])
    for n in range(10_000):
        assert not permissions.allows("SEND", f"guess{n}")
    assert len(permissions._remembered) <= 4_096


def test_what_is_too_long_for_a_name_is_not_remembered() -> None:
    """A request may name 65,535 bytes, and is refused."""
    permissions = Permissions(["publish:orders"])
    for n in range(100):
        assert not permissions.allows("SEND", "x" * 201 + str(n))
    assert not permissions._remembered


def test_all_connections_of_a_user_remember_together(path: Path, kept: str) -> None:
    add(path, User("web", ["publish:orders"], password=kept))
    users = UsersFile(path)
    credentials = Credentials(user="web", password=SECRET)
    assert users.authenticate(credentials) is users.authenticate(credentials)


def test_every_command_of_the_protocol_is_in_a_group() -> None:
    commands = pytest.importorskip("ignis.broker.protocol.commands")
    known = FREE.union(*GROUPS.values())
    names = {command.name for command in commands.Command} - {command.name for command in commands.ANSWERS}
    assert names <= known, "a new command needs a permission"
    assert known - {"CONNECT", "DISCONNECT", "PING", "PONG"} <= names, "a permission for a command that there is not"


# -- the file


def test_the_file_is_private_and_has_no_secret(path: Path, kept: str) -> None:
    token = passwords.new_token()
    add(path, User("ann", ["publish:*"], password=kept, tokens=[Token(token.id, token.digest)]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert SECRET not in text
    assert token.text not in text
    assert token.text.split("_", 2)[2] not in text
    assert load_users(path) == Users(users=[User("ann", ["publish:*"], kept, [Token(token.id, token.digest)])])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"version": 2}',
        b'{"version": 1, "users": [{"name": "a/b", "allow": []}]}',
        b'{"version": 1, "users": [{"name": "a", "allow": ["fly:*"]}]}',
        b'{"version": 1, "users": [{"name": "a", "allow": [], "password": "plain"}]}',
        b'{"version": 1, "users": [{"name": "a", "allow": [], "pasword": "x"}]}',
        b'{"version": 1, "users": [{"name": "a", "allow": []}, {"name": "a", "allow": []}]}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_makes_no_sense_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError):
        load_users(path)


def test_a_file_that_others_may_read_is_refused(path: Path, tmp_path: Path) -> None:
    add(path, User("ann", ["all:*"]))
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="only its owner may read it"):
        load_users(path)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="No such file"):
        load_users(tmp_path / "nowhere")


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
STRANGER = 65_534


def mounted(tmp_path: Path, path: Path) -> Path:
    """The users file as a mounted secret has it: a link to a link to a directory."""
    mount = tmp_path / "mount"
    (mount / "..2026").mkdir(parents=True)
    mount.chmod(0o1777)
    path.rename(mount / "..2026" / "users.json")
    (mount / "..data").symlink_to("..2026")
    (mount / "users.json").symlink_to("..data/users.json")
    return mount / "users.json"


def test_a_link_is_followed_and_seen_when_it_is_set_elsewhere(path: Path, tmp_path: Path) -> None:
    add(path, User("ann", ["all:*"]))
    link = mounted(tmp_path, path)
    assert [user.name for user in load_users(link).users] == ["ann"]
    next_one = tmp_path / "mount" / "..2027"
    next_one.mkdir()
    add(next_one / "users.json", User("ben", ["all:*"]))
    (tmp_path / "mount" / "new").symlink_to("..2027")
    (tmp_path / "mount" / "new").rename(tmp_path / "mount" / "..data")
    assert [user.name for user in load_users(link).users] == ["ben"]
    (tmp_path / "mount" / "..data").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        load_users(link)


def test_a_link_is_not_changed_into_a_file(path: Path, tmp_path: Path) -> None:
    add(path, User("ann", ["all:*"]))
    link = mounted(tmp_path, path)
    with pytest.raises(ConfigError, match=rf"is a symbolic link.*change {tmp_path}/mount/..2026/users.json instead"):
        add(link, User("ben", ["all:*"]))
    assert link.is_symlink()
    assert [user.name for user in load_users(link).users] == ["ann"]


@as_root
@pytest.mark.parametrize("whose", ["mount/users.json", "mount/..data", "mount/..2026", "mount"])
def test_a_link_on_whose_way_another_user_has_a_hand_is_refused(path: Path, tmp_path: Path, whose: str) -> None:
    add(path, User("ann", ["all:*"]))
    link = mounted(tmp_path, path)
    os.lchown(tmp_path / whose, STRANGER, STRANGER)
    for as_owner in (False, True):
        with pytest.raises(ConfigError, match=rf"{whose} belongs to user {STRANGER}"):
            load_users(link, as_owner=as_owner)


@as_root
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    """He could say with it who may do what."""
    add(path, User("ann", ["all:*"]))
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}"):
        load_users(path)
    with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}"):
        UsersFile(path)


def test_a_file_below_a_directory_that_everybody_may_write_is_refused(path: Path) -> None:
    add(path, User("ann", ["all:*"]))
    path.parent.chmod(0o777)
    for refused in (load_users, UsersFile, add):
        with pytest.raises(ConfigError, match=rf"everybody may write {path.parent}"):
            refused(path)
    path.parent.chmod(0o1777)
    load_users(path)


def test_a_named_pipe_is_no_users_file(path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="is a named pipe and not a file"):
        load_users(path)


@as_root
def test_what_root_edits_stays_its_owners(tmp_path: Path) -> None:
    """The broker's user must be able to read it, and to edit it next."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    os.chown(home, STRANGER, STRANGER)
    path = home / "users.json"
    for mode in (0o600, 0o400):
        add(path, User(f"user{mode}", ["all:*"]))
        for one in home.iterdir():
            assert (one.stat().st_uid, one.stat().st_gid) == (STRANGER, STRANGER), one
        path.chmod(0o400)
        add(path, User(f"other{mode}", ["all:*"]))
        assert stat.S_IMODE(path.stat().st_mode) == 0o400, "its mode stays too"
        assert path.stat().st_uid == STRANGER
        path.unlink()
    assert len(list(home.iterdir())) == 1, "the lock's file"


@as_root
def test_a_file_of_roots_is_not_given_away(tmp_path: Path) -> None:
    """The owner of the directory has given it the lock's name as well."""
    home, treasure = tmp_path / "home", tmp_path / "treasure"
    treasure.touch(mode=0o600)
    home.mkdir(mode=0o700)
    os.chown(home, STRANGER, STRANGER)
    os.link(treasure, home / "users.json.lock")
    add(home / "users.json", User("ann", ["all:*"]))
    assert treasure.stat().st_uid == 0


@as_root
def test_a_lock_of_another_user_is_refused(tmp_path: Path) -> None:
    """In a directory where all may make files somebody could hold it for good."""
    home = tmp_path / "home"
    home.mkdir(mode=0o1777)
    home.chmod(0o1777)
    lock = home / "users.json.lock"
    lock.touch(mode=0o600)
    os.chown(lock, STRANGER, STRANGER)
    with pytest.raises(
        ConfigError, match=rf"users.json.lock of the users file belongs to user {STRANGER}, .* remove it"
    ):
        add(home / "users.json", User("ann", ["all:*"]))
    assert not (home / "users.json").exists()
    lock.unlink()
    add(home / "users.json", User("ann", ["all:*"]))
    os.chown(lock, 0, 0)
    add(home / "users.json", User("bob", ["all:*"]))


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "writable"])
def test_a_lock_that_is_no_file_of_ones_own_is_refused(path: Path, tmp_path: Path, kind: str) -> None:
    lock = path.with_name(f"{path.name}.lock")
    match kind:
        case "pipe":
            os.mkfifo(lock)
        case "link":
            lock.symlink_to(tmp_path / "elsewhere")
        case "directory":
            lock.mkdir()
        case _:
            lock.touch()
            lock.chmod(0o666)
    with pytest.raises(
        ConfigError, match="has mode 666: others may" if kind == "writable" else "is not a regular file"
    ):
        add(path, User("ann", ["all:*"]))
    assert not (tmp_path / "elsewhere").exists()


def test_an_edit_that_fails_changes_nothing(path: Path) -> None:
    add(path, User("ann", ["all:*"]))
    before = path.read_bytes()
    with pytest.raises(ConfigError), editing(path) as users:
        users.users.append(User("bob", ["fly:*"]))
    with pytest.raises(ZeroDivisionError), editing(path) as users:
        users.users = [1 // 0]  # type: ignore[list-item]
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.tmp"))


def test_editors_take_turns(path: Path) -> None:
    threads = [threading.Thread(target=add, args=(path, User(f"user{n}", ["look:*"]))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {user.name for user in load_users(path).users} == {f"user{n}" for n in range(8)}


# -- who is let in


@pytest.fixture
def users(path: Path, kept: str, clock: Clock) -> UsersFile:
    token = passwords.split_token(TOKEN.text)
    assert token is not None
    add(
        path,
        User("ann", ["publish:orders"], password=kept),
        User("robot", ["consume:*"], tokens=[Token(TOKEN.id, TOKEN.digest)]),
        User("machine", ["look:*"], certificate=True),
    )
    return UsersFile(path, clock=clock)


TOKEN = passwords.new_token()


def test_the_three_ways_in(users: UsersFile) -> None:
    assert users.open is False
    ann = users.authenticate(Credentials(user="ann", password=SECRET))
    assert (ann.name, ann.allows("SEND", "orders"), ann.allows("SEND", "other")) == ("ann", True, False)
    assert users.authenticate(Credentials(token=TOKEN.text)).name == "robot"
    assert users.authenticate(Credentials(certificate="machine")).name == "machine"


@pytest.mark.parametrize(
    "credentials",
    [
        Credentials(),
        Credentials(user="ann"),
        Credentials(user="ann", password=SECRET + "x"),
        Credentials(user="nobody", password="nobody has this password"),
        Credentials(user="", password=SECRET),
        Credentials(user="robot", password=""),
        Credentials(user="robot", password="nobody has this password"),
        Credentials(token="ign_" + "0" * 12 + "_" + "A" * 43),
        Credentials(token=TOKEN.text[:-1] + ("A" if TOKEN.text[-1] != "A" else "B")),
        Credentials(token="x" * 100_000),
        Credentials(certificate="ann"),
        Credentials(certificate="nobody"),
        # A wrong token is not made good by a right certificate: what was shown first counts.
        Credentials(token="wrong", certificate="machine"),
    ],
)
def test_everybody_else_gets_the_same_answer(
    users: UsersFile, credentials: Credentials, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(UnauthenticatedError) as refused:
        users.authenticate(credentials)
    assert str(refused.value) == authenticator._REFUSED
    for secret in filter(None, (credentials.password, credentials.token)):
        assert secret not in caplog.text
        assert secret not in repr(credentials)


def test_an_unknown_user_costs_a_hash_too(users: UsersFile, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def counting(password: str, kept: str) -> bool:
        hashed.append(kept)
        return False

    monkeypatch.setattr(authenticator, "verify_password", counting)
    for name in ("ann", "nobody", "robot"):
        with pytest.raises(UnauthenticatedError):
            users.authenticate(Credentials(user=name, password="x"))
    assert len(hashed) == 3


def wrong(users: UsersFile, where: str, **given: str) -> type[BaseException]:
    with pytest.raises((UnauthenticatedError, TooManyRequestsError)) as refused:
        users.authenticate(Credentials(**(given or {"user": "ann", "password": "guess"}), network=where))
    return refused.type


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords are compared at no cost."""
    monkeypatch.setattr(
        authenticator, "verify_password", lambda password, kept: password == SECRET and kept.startswith("$")
    )


def test_failures_slow_a_name_at_an_address_down(users: UsersFile, clock: Clock, quick: None) -> None:
    assert [wrong(users, "a") for _ in range(11)] == [UnauthenticatedError] * 11
    right = Credentials(user="ann", password=SECRET, network="a")
    with pytest.raises(
        TooManyRequestsError, match=r"^11 failed logins, the limit is 10 \(try again in 1 s\)$"
    ) as refused:
        users.authenticate(right)
    assert refused.value.retry_after_s == 1
    clock.now += 1.01
    assert users.authenticate(right).name == "ann"
    assert [wrong(users, "a") for _ in range(11)] == [UnauthenticatedError] * 11, "a success begins anew"


def test_wrong_guesses_of_one_name_at_an_address_keep_out_nobody_else(
    users: UsersFile, path: Path, clock: Clock, quick: None, kept: str
) -> None:
    add(path, User("bob", ["look:*"], password=kept))
    clock.now += 1.01
    while wrong(users, "a") is not TooManyRequestsError:
        pass
    assert users.authenticate(Credentials(user="bob", password=SECRET, network="a")).name == "bob"
    assert users.authenticate(Credentials(user="ann", password=SECRET, network="b")).name == "ann"
    assert users.authenticate(Credentials(token=TOKEN.text, network="a")).name == "robot"
    assert users.authenticate(Credentials(certificate="machine", network="a")).name == "machine"


def test_right_tokens_and_certificates_are_let_in_whatever_else_was_wrong(users: UsersFile, clock: Clock) -> None:
    while wrong(users, "a", token="wrong") is not TooManyRequestsError:
        pass
    while wrong(users, "a", certificate="nobody") is not TooManyRequestsError:
        pass
    assert users.authenticate(Credentials(token=TOKEN.text, network="a")).name == "robot"
    while wrong(users, "a", token="wrong") is not TooManyRequestsError:
        pass
    assert users.authenticate(Credentials(certificate="machine", network="a")).name == "machine"


def test_a_user_who_is_guessed_from_everywhere_gets_in_at_once(users: UsersFile, clock: Clock, quick: None) -> None:
    """And who guesses from ever new addresses has one try at each."""
    for n in range(60):
        assert wrong(users, f"address {n}") is UnauthenticatedError
    assert users.authenticate(Credentials(user="ann", password=SECRET, network="home")).name == "ann"
    assert [wrong(users, "new") for _ in range(3)] == [UnauthenticatedError] * 2 + [TooManyRequestsError]


def test_the_log_says_a_whole_second_at_least(
    users: UsersFile, clock: Clock, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert [wrong(users, "a") for _ in range(11)] == [UnauthenticatedError] * 11
    clock.now += 0.75
    assert wrong(users, "a") is TooManyRequestsError
    assert "refused for 1 s more" in caplog.text


def subject(*names: tuple[str, str]) -> dict[str, object]:
    """A certificate as the interpreter gives it: one name in each part of the subject."""
    return {"subject": tuple((one,) for one in names)}


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (subject(("organizationName", "x"), ("commonName", "ops")), "ops"),
        ({"subject": ((("organizationName", "x"), ("commonName", "ops")),)}, "ops"),
        (subject(("commonName", "ops"), ("commonName", "nobody")), ""),
        (subject(("commonName", "ops"), ("commonName", "ops")), ""),
        ({"subject": ((("commonName", "ops"), ("commonName", "nobody")),)}, ""),
        (subject(("organizationName", "ops")), ""),
        ({}, ""),
    ],
)
def test_a_certificate_names_its_user_with_its_one_common_name(certificate: dict[str, object], name: str) -> None:
    assert common_name(certificate) == name


def test_who_guesses_many_names_has_one_try_at_each(users: UsersFile, clock: Clock, quick: None) -> None:
    for n in range(60):
        assert wrong(users, "a", user=f"user{n}", password="summer") is UnauthenticatedError
    assert users.authenticate(Credentials(user="ann", password=SECRET, network="a")).name == "ann"
    assert [wrong(users, "a") for _ in range(3)] == [UnauthenticatedError] * 2 + [TooManyRequestsError], (
        "a success is no excuse"
    )
    clock.now += 901
    assert [wrong(users, "a") for _ in range(11)] == [UnauthenticatedError] * 11


def test_the_address_counts_without_its_port(users: UsersFile, clock: Clock, quick: None) -> None:
    for port in range(11):
        with pytest.raises(UnauthenticatedError):
            users.authenticate(Credentials(user="ann", password="x", peer=f"2001:db8::{port:x}:{40_000 + port}"))
    with pytest.raises(TooManyRequestsError):
        users.authenticate(Credentials(user="ann", password=SECRET, peer="2001:db8::ffff:1"))


def test_long_names_do_not_fill_the_memory(users: UsersFile, quick: None) -> None:
    wrong(users, "a", user="x" * 8_000, password="x")
    assert max(len(name) for _, name in users._guesses._failures) <= 129  # type: ignore[misc]


def test_a_changed_file_counts_for_the_next_login(
    users: UsersFile, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    robot = Credentials(token=TOKEN.text)
    users.authenticate(robot)
    with editing(path) as all_users:
        all_users.users = [user for user in all_users.users if user.name != "robot"]
    clock.now += 1.01
    with pytest.raises(UnauthenticatedError):
        users.authenticate(robot)
    good = path.read_bytes()
    path.write_bytes(b"{")
    clock.now += 1.01
    assert users.authenticate(Credentials(certificate="machine")).name == "machine"
    assert "as they were before stay in force" in caplog.text
    path.write_bytes(good.replace(b"machine", b"gadget"))
    clock.now += 1.01
    assert users.authenticate(Credentials(certificate="gadget")).name == "gadget"
    os.unlink(path)
    clock.now += 1.01
    assert users.authenticate(Credentials(certificate="gadget")).name == "gadget"


def test_users_by_certificate_need_a_broker_that_asks_for_one(
    users: UsersFile, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    users.certificates_checked(True)
    assert not said(caplog)
    users.certificates_checked(False)
    (line,) = said(caplog)
    assert line.levelname == "WARNING"
    assert "(machine)" in line.getMessage()
    assert "--tls-client-ca" in line.getMessage()
    add(path, User("gadget", ["look:*"], certificate=True))
    clock.now += 1.01
    users.authenticate(Credentials(token=TOKEN.text))
    assert "(gadget, machine)" in said(caplog)[-1].getMessage()


def test_a_change_of_mode_is_noticed(
    users: UsersFile, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path.chmod(0o644)
    clock.now += 1.01
    users.authenticate(Credentials(token=TOKEN.text))
    assert "only its owner may read it" in caplog.text


def test_a_broker_does_not_start_without_its_users(path: Path) -> None:
    with pytest.raises(ConfigError):
        UsersFile(path)
    path.write_text(json.dumps({"version": 1, "users": []}))
    path.chmod(0o644)
    with pytest.raises(ConfigError):
        UsersFile(path)


# -- the throttle


def test_waits_double_up_to_a_bound_and_are_forgotten(clock: Clock) -> None:
    throttle = Throttle(2, first_wait_s=1, max_wait_s=8, forget_s=100, clock=clock)
    waits = []
    for _ in range(40):
        throttle.failed("a")
        waits.append(throttle.wait_s("a"))
    assert waits[:7] == [0, 0, 1, 2, 4, 8, 8]
    assert max(waits) == 8
    assert throttle.wait_s("b") == 0
    clock.now += 101
    throttle.failed("a")
    assert throttle.wait_s("a") == 0
    throttle.failed("a")
    throttle.failed("a")
    assert throttle.wait_s("a") == 1
    throttle.succeeded("a")
    assert throttle.wait_s("a") == 0


def test_the_throttle_remembers_a_bounded_number_of_keys(clock: Clock) -> None:
    throttle = Throttle(0, max_keys=100, clock=clock)
    for n in range(1_000):
        throttle.failed(f"key{n}")
    assert len(throttle) == 100
    assert throttle.wait_s("key999") > 0
    assert throttle.wait_s("key0") == 0


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        (Credentials(user="eve", password="x"), "login of user 'eve' from "),
        (
            Credentials(user="a\n2026 INFO all is well\x1b[2J'", password="x"),
            r"""user "a\n2026 INFO all is well\x1b[2J'" from """,
        ),
        (Credentials(user="x" * 10_000, password="x"), f"user '{'x' * 64}'... from "),
        (Credentials(certificate="mal\rory"), r"certificate 'mal\rory' from "),
        (Credentials(token="ign_secret"), "login of a token from "),
        (Credentials(), "login of nobody from "),
    ],
)
def test_the_log_names_who_was_refused(
    users: UsersFile, caplog: pytest.LogCaptureFixture, credentials: Credentials, says: str
) -> None:
    for _ in range(3):
        with pytest.raises((UnauthenticatedError, TooManyRequestsError)):
            users.authenticate(credentials)
    texts = [one.getMessage() for one in said(caplog)]
    assert texts
    assert all(says in text and "secret" not in text and text.isprintable() for text in texts)


def test_logins_that_fail_all_the_time_do_not_fill_the_log(
    users: UsersFile, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = Credentials(token="wrong")
    for _ in range(300):
        with pytest.raises((UnauthenticatedError, TooManyRequestsError)):
            users.authenticate(credentials)
    assert 1 <= len(said(caplog)) <= 2, "one line of each kind"
    clock.now += 3_600
    with pytest.raises(UnauthenticatedError):
        users.authenticate(credentials)
    assert "more like this were not logged" in said(caplog)[-1].getMessage()
