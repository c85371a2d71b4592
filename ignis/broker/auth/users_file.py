"""Reads and writes the users file: who may connect, with what, and to do what.

``ignis broker user`` makes it, the broker reads it. It is JSON of mode 0600, replaced as a whole. It has hashes of passwords and
digests of tokens, never these themselves.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ignis.broker.auth import passwords
from ignis.broker.auth.permissions import Rule
from ignis.config import check_name
from ignis.errors import ConfigError, LockHeldError
from ignis.file_lock import FileLock
from ignis.private_files import open_private
from ignis.regular_files import regular_only
from ignis.storage.private_directory import check_way
from ignis.urls import masked_path

__all__ = ["Token", "User", "Users", "editing", "load_users"]

VERSION = 1
MAX_BYTES = 16 << 20
_LOCK_S = 10.0
_POLL_S = 0.02


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token, as the file keeps it."""

    id: str
    digest: str


class User(msgspec.Struct, forbid_unknown_fields=True):
    """A user. ``certificate``: a verified client certificate with this common name is enough to be this user."""

    name: str
    allow: list[str]
    password: str = ""
    tokens: list[Token] = []
    certificate: bool = False

    def check(self) -> None:
        """Raises ConfigError for a name, rule or hash that cannot be."""
        check_name(self.name, "user")
        for rule in self.allow:
            Rule(rule)
        if self.password:
            passwords.check_hash(self.password)


class Users(msgspec.Struct, forbid_unknown_fields=True):
    """The users of a file."""

    version: int = VERSION
    users: list[User] = []

    def find(self, name: str) -> User | None:
        """Returns the user of that name, or None."""
        return next((user for user in self.users if user.name == name), None)


def load_users(path: str | os.PathLike[str], *, as_owner: bool = False) -> Users:
    """Reads and checks the file.

    Args:
        as_owner: for root, who looks at the file of another user and trusts that one: a broker trusts root and its own user.

    A link, such as those of a mounted secret, is followed when it and all that is on its way belong to root or to the user who
    may own the file.

    Raises ConfigError: it is not there, belongs to another user, others may read it or could replace it, or something in it
    makes no sense. The text never has a secret.
    """
    try:
        linked = os.path.islink(path)
        if linked:  # before anything is opened: another user's link would choose what
            owner = os.stat(path).st_uid
            check_way(path, "users file", owners=(owner,) if as_owner and os.geteuid() == 0 else ())
        descriptor = regular_only(path, os.O_RDONLY | (0 if linked else os.O_NOFOLLOW))
    except OSError as exc:
        raise ConfigError(f"users file {masked_path(path)}: {exc.strerror}") from exc
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        here = os.geteuid()
        if found.st_uid not in (here, 0) and not (as_owner and here == 0):
            raise ConfigError(
                f"users file {masked_path(path)} belongs to user {found.st_uid}, who says with it who may do what; it must "
                f"belong to user {here}, as which this process runs, or to root (chown {here})"
            )
        if found.st_mode & 0o077:
            raise ConfigError(
                f"users file {masked_path(path)} has mode {found.st_mode & 0o777:o}: only its owner may read it (chmod 600)"
            )
        check_way(path, "users file", owners=(found.st_uid,) if as_owner and here == 0 else ())
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"users file {masked_path(path)} is larger than {MAX_BYTES} bytes")
    try:
        users = msgspec.json.decode(data, type=Users)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"users file {masked_path(path)}: {exc}") from None
    if users.version != VERSION:
        raise ConfigError(f"users file {masked_path(path)} has version {users.version}, this build reads {VERSION}")
    names: set[str] = set()
    for user in users.users:
        user.check()
        if user.name in names:
            raise ConfigError(f"users file {masked_path(path)} has user {user.name!r} twice")
        names.add(user.name)
    return users


@contextlib.contextmanager
def editing(path: str | os.PathLike[str]) -> Iterator[Users]:
    """Gives the users to be changed, and writes them back at the end of the block unless it raises. One editor at a time.

    The file is made when it is not there, with mode 0600; one that is there keeps its owner and mode. What root makes in the
    directory of another user is that user's, whose broker could not read it else. Durable on return. Raises ConfigError as
    `load_users`, LockHeldError when another edits it for over 10 s or has begun to because the lock's file was removed,
    OSError.
    """
    target = Path(path)
    if target.is_symlink():
        raise ConfigError(
            f"users file {masked_path(target)} is a symbolic link, which a change would put a file in the place of: change "
            f"{masked_path(os.path.realpath(target))} instead, or what made the link"
        )
    like = _like(target)
    lock = _lock(target, like)
    try:
        _give(lock.descriptor, like)
        users = load_users(target, as_owner=True) if target.exists() else Users()
        yield users
        for user in users.users:
            user.check()
        if not lock.valid:
            raise LockHeldError(
                f"users file {masked_path(target)} is not changed: {masked_path(lock.path)} was removed, and another may edit it"
            )
        _replace(target, msgspec.json.format(msgspec.json.encode(users), indent=2) + b"\n", like)
    finally:
        lock.close()


def _lock(target: Path, like: os.stat_result) -> FileLock:
    """The lock beside the users file. Raises ConfigError for one that another user could hold or has chosen."""
    deadline, name = time.monotonic() + _LOCK_S, f"{target}.lock"
    while True:
        _check_lock(name, like)
        try:
            found = FileLock.take(name)
        except OSError as exc:
            raise ConfigError(f"lock {masked_path(name)} of the users file: {exc.strerror}") from exc
        if found is not None:
            _check_lock(name, like)  # it was made meanwhile
            return found
        if time.monotonic() >= deadline:
            raise LockHeldError(f"users file {masked_path(target)}: another process edits it for over {_LOCK_S:g} s")
        time.sleep(_POLL_S)


def _check_lock(name: str, like: os.stat_result) -> None:
    """In a directory where all may make files another user may have made it first, to hold it for good. Raises ConfigError."""
    try:
        found = os.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise ConfigError(f"lock {masked_path(name)} of the users file: {exc.strerror}") from exc
    here, remedy = os.geteuid(), "; remove it, where nobody edits the users file"
    what = f"lock {masked_path(name)} of the users file"
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{what} is not a regular file{remedy}")
    trusted = (here, 0, like.st_uid) if here == 0 else (here, 0)
    if found.st_uid not in trusted:
        raise ConfigError(
            f"{what} belongs to user {found.st_uid}, who can keep everybody from changing the users file{remedy}"
        )
    if found.st_mode & 0o022:
        raise ConfigError(
            f"{what} has mode {found.st_mode & 0o777:o}: others may open it and keep it locked (chmod go-w){remedy}"
        )


def _like(target: Path) -> os.stat_result:
    """Returns whose the file and what lies beside it are to be: as the file is, else as its directory. Raises ConfigError where
    another user could replace it."""
    try:
        found = os.stat(target, follow_symlinks=False)
    except FileNotFoundError:
        try:
            found = os.stat(target.parent)
        except OSError as exc:
            raise ConfigError(f"users file {masked_path(target)}: {exc.strerror}") from exc
    check_way(target, "users file", owners=(found.st_uid,) if os.geteuid() == 0 else ())
    return found


def _give(descriptor: int, like: os.stat_result) -> None:
    """Gives what root has made to its owner. Not what has another name as well: the owner of the directory could have given it
    that, to be given a file of root's."""
    if os.geteuid() == 0 and os.fstat(descriptor).st_nlink == 1:
        os.fchown(descriptor, like.st_uid, like.st_gid)


def _replace(target: Path, data: bytes, like: os.stat_result) -> None:
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of an editor that was killed; nobody else has the lock
    descriptor = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
    try:
        with open(descriptor, "wb") as file:
            _give(descriptor, like)
            if stat.S_ISREG(like.st_mode):
                os.fchmod(descriptor, like.st_mode & 0o700)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
