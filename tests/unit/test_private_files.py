"""What is made is its owner's to use, and nobody else's, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ignis import Ignis
from ignis.broker.auth.users_file import editing, load_users
from ignis.file_lock import FileLock
from ignis.native import Channel
from ignis.private_files import make_directory, make_temporary, open_private
from ignis.relay.directory import RelayDirectory

UMASKS = [0, 0o022, 0o277, 0o377, 0o477, 0o777]


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    try:
        yield request.param
    finally:
        os.umask(before)


def modes(top: Path) -> dict[str, str]:
    """Of everything below, and of the directory itself."""
    found = {str(one.relative_to(top)): oct(stat.S_IMODE(one.lstat().st_mode)) for one in (top, *top.rglob("*"))}
    assert len(found) > 1
    return found


def store(place: Path) -> None:
    app = Ignis(f"embedded://{place}")
    try:
        for durability in ("sync", "interval", "none"):
            app.queue(f"q-{durability}", bytes, durability=durability).publish(b"x")
    finally:
        app.close()


def relay(place: Path) -> None:
    directory = RelayDirectory(place)
    directory.write_state({"pid": 1})


def users(place: Path) -> None:
    make_directory(place)
    for _ in range(2):
        with editing(place / "users.json"):
            pass
    load_users(place / "users.json")


def lock(place: Path) -> None:
    make_directory(place)
    taken = FileLock.take(place / "lock")
    assert taken is not None
    taken.close()


def channel(place: Path) -> None:
    make_directory(place)
    Channel.create(place / "channel", role="producer").close()


def temporary(place: Path) -> None:
    make_directory(place)
    made = Path(make_temporary("x-", place))
    os.close(open_private(made / "file", os.O_WRONLY | os.O_CREAT | os.O_EXCL))


@pytest.mark.parametrize("door", [store, relay, users, lock, channel, temporary])
def test_directories_are_0700_and_files_0600(tmp_path: Path, umask: int, door: Callable[[Path], None]) -> None:
    place = tmp_path / "place"
    door(place)
    wrong = {name: mode for name, mode in modes(place).items() if mode not in ("0o600", "0o700")}
    assert wrong == {}
    for name, mode in modes(place).items():
        assert mode == ("0o700" if (place / name).is_dir() else "0o600"), name


def test_a_directory_on_the_way_can_be_entered(tmp_path: Path, umask: int) -> None:
    store(tmp_path / "a" / "b" / "store")
    for one in (tmp_path / "a", tmp_path / "a" / "b"):
        mode = stat.S_IMODE(one.stat().st_mode)
        assert mode & 0o700 == 0o700
        assert mode & 0o077 == 0o055 & ~umask


def test_what_is_there_keeps_what_others_may(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o644)
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    folder = tmp_path / "folder"
    os.mkdir(folder)
    folder.chmod(0o755)
    make_directory(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
