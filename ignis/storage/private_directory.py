"""Directories that one user has for himself, and the way to them.

Who may write a directory may put another one in the place of what is in it. So a private directory is as private as every
directory above it, up to the root. Each must belong to this user or to root. One that everybody may write, or another user by an
access control list, must have the sticky bit, as ``/tmp`` has. They are looked at from the root on: what was found good cannot be
replaced any more by anybody but root and this user, so what is opened afterwards is what was looked at.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Collection
from pathlib import Path

from ignis.errors import ConfigError, StoreUnreachableError
from ignis.private_files import make_directory
from ignis.urls import masked_path

__all__ = ["as_owner", "check_file", "check_way", "make_private", "make_way"]

_MOST_LINKS = 40
_ACL = "system.posix_acl_access"
_ACL_VERSION, _ACL_ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
"""An entry: tag, what is allowed, and whom."""
_ACL_USER, _ACL_GROUP, _ACL_MASK = 0x02, 0x08, 0x10
_ACL_WRITE = 2
_EVERY_USER = 4_294_967_295
"""How many users a user namespace knows that leaves none out."""


def make_private(path: Path, what: str) -> None:
    """Makes the directory with mode 0700, or checks the one that is there: nobody else may put or replace files in it.

    Args:
        path: its parent must be there.
        what: names it in errors.

    Raises:
        ConfigError: a link, not a directory, not this user's, open to others, or below a directory in which others could
            replace it.
        StoreUnreachableError: it cannot be made.
    """
    check_way(path.parent, what)
    try:
        make_directory(path)
        found = path.lstat()
    except FileExistsError:
        raise ConfigError(f"{what} {masked_path(path)} is not a directory") from None
    except OSError as exc:
        raise StoreUnreachableError(f"{what} {masked_path(path)}: {exc.strerror}") from exc
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{what} {masked_path(path)} is not a directory")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{what} {masked_path(path)} belongs to user {found.st_uid}, this process is {os.geteuid()}")
    if found.st_mode & 0o077:
        raise ConfigError(
            f"{what} {masked_path(path)} has mode {found.st_mode & 0o777:o}; it must be 700: chmod 700 {masked_path(path)}"
        )


def make_way(path: Path) -> None:
    """Makes the directory with mode 0700, and those above it that are missing with 0755, whatever the umask lets through:
    those that others could write would be refused by `check_way`. Raises OSError."""
    for one in reversed(path.parents):
        if not one.is_dir():
            make_directory(one, 0o755)
    make_directory(path)


def check_file(path: str | os.PathLike[str], what: str) -> None:
    """A file whose content this process trusts, whoever it belongs to, such as who installs what this user runs: neither it nor a
    directory above may be written by everybody, see `check_way`. Raises ConfigError; for one that is not there nothing, as
    whoever opens it says so better."""
    check_way(path, what, owners=None)
    try:
        found = os.stat(path)
    except OSError:
        return
    mode = found.st_mode
    if mode & stat.S_IWOTH:
        raise ConfigError(
            f"{what} {masked_path(path)} has mode {mode & 0o7777:o}: everybody may write it; chmod o-w it"
        )
    if (writer := _listed_writer(os.fspath(path), found, None)) is not None:
        raise ConfigError(
            f"{what} {masked_path(path)} may be written by {writer}, by its access control list; setfacl -b it"
        )


def check_way(path: str | os.PathLike[str], what: str, owners: Collection[int] | None = ()) -> None:
    """Checks every directory from the root to the path, links followed, as far as there are any.

    Args:
        path: a directory or a file. Who may write it is its opener's to check.
        what: names it in errors, which name the directory that is not safe, and the remedy.
        owners: users who are trusted as well as root and this process's own; None = whoever owns a directory on the way, for
            what is put into another user's directory on purpose.

    Raises:
        ConfigError: another user could replace the path, or a part of it.
    """
    trusted = None if owners is None else {0, os.geteuid(), *owners}
    goal = os.fspath(path)
    if not goal.startswith("/"):
        goal = os.path.join(os.getcwd(), goal)
    ahead = goal.split("/")[::-1]
    here, links = "/", 0
    _check_directory("/", os.lstat("/"), trusted, what, goal)
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        there = os.path.join(here, name)
        try:
            found = os.lstat(there)
            target = os.readlink(there) if stat.S_ISLNK(found.st_mode) else None
        except OSError:
            return  # not there, or not for us to see: then it cannot be opened either
        _check_owner(there, found, trusted, what, goal)
        if target is None:
            if ahead and stat.S_ISDIR(found.st_mode):
                _check_directory(there, found, trusted, what, goal)
            here = there
            continue
        links += 1
        if links > _MOST_LINKS:
            raise ConfigError(f"{what} {masked_path(goal)}: more than {_MOST_LINKS} links on the way")
        if target.startswith("/"):
            here = "/"
        ahead += target.split("/")[::-1]


def _check_directory(path: str, found: os.stat_result, trusted: Collection[int] | None, what: str, goal: str) -> None:
    _check_owner(path, found, trusted, what, goal)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        path = masked_path(path)
        raise ConfigError(
            f"{what} {masked_path(goal)} is not safe: everybody may write {path} (mode {found.st_mode & 0o7777:o}), and so "
            f"put something else in the place of what is in it. Let its owner set the sticky bit (chmod +t {path}) or close it "
            f"(chmod o-w {path}), or name a place elsewhere"
        )
    if found.st_mode & stat.S_ISVTX:
        return
    if (writer := _listed_writer(path, found, trusted)) is not None:
        path = masked_path(path)
        raise ConfigError(
            f"{what} {masked_path(goal)} is not safe: {writer} may write {path}, by its access control list, and so put "
            f"something else in the place of what is in it. Let its owner set the sticky bit (chmod +t {path}) or remove the "
            f"list (setfacl -b {path}), or name a place elsewhere"
        )


def _listed_writer(path: str, found: os.stat_result, trusted: Collection[int] | None) -> str | None:
    """Another user, or another group than its own, that may write this by its access control list; None when there is none. Only
    Linux is asked. With a list the group's bits of the mode are what the list allows at most."""
    if not found.st_mode & stat.S_IWGRP or not hasattr(os, "getxattr"):
        return None
    try:
        data = os.getxattr(path, _ACL)
    except OSError:
        return None  # there is none, or the file system knows none
    entries = list(_ACL_ENTRY.iter_unpack(data[_ACL_VERSION.size :]))
    if not any(allowed & _ACL_WRITE for tag, allowed, _ in entries if tag == _ACL_MASK):
        return None
    users = {0, os.geteuid(), found.st_uid, *(trusted or ())}
    for tag, allowed, who in entries:
        if not allowed & _ACL_WRITE:
            continue
        if tag == _ACL_USER and who not in users:
            return f"user {who}"
        if tag == _ACL_GROUP and who not in (0, found.st_gid):
            return f"group {who}"
    return None


def as_owner(owner: int, path: str | os.PathLike[str]) -> str:
    """What to do about a place of another user. Root is not told to take it: that shuts out whom it belongs to."""
    if os.geteuid() == 0:
        return f"Run as that user (sudo -u '#{owner}')"
    return f"Run as that user, have root give it away (chown {os.geteuid()} {masked_path(path)})"


def _check_owner(path: str, found: os.stat_result, trusted: Collection[int] | None, what: str, goal: str) -> None:
    if trusted is not None and found.st_uid not in trusted and not _unmapped(found.st_uid):
        raise ConfigError(
            f"{what} {masked_path(goal)} is not safe: {masked_path(path)} belongs to user {found.st_uid}, who may put something "
            f"else in its place or in that of what is in it; this process is user {os.geteuid()}. "
            f"{as_owner(found.st_uid, path)}, or name a place elsewhere"
        )


def _unmapped(user: int) -> bool:
    """Whether this stands for a user that the process's user namespace does not know, root of the machine perhaps."""
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            if int(file.read()) != user:
                return False
        with open("/proc/self/uid_map") as file:
            return sum(int(line.split()[2]) for line in file) < _EVERY_USER
    except (OSError, ValueError, IndexError):
        return False
