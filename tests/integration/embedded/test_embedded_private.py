"""The embedded store keeps to directories in which nobody else could replace its files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ignis.errors import ConfigError, StoreError
from ignis.storage import open_store

pytestmark = pytest.mark.integration


def test_a_new_store_is_private(tmp_path: Path) -> None:
    open_store(f"embedded://{tmp_path}/store").close(5)
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    assert {one.stat().st_mode & 0o077 for one in (tmp_path / "store").rglob("*") if one.is_file()} == {0}


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "store"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(
        ConfigError, match=r"mode .*chmod go-w.*/store" if mode != 0o777 else r"mode .*chmod go-w.* elsewhere"
    ):
        open_store(f"embedded://{place}")
    assert list(place.iterdir()) == []
    if mode != 0o777:
        open_store(f"embedded://{place}/store").close(5)  # as it says
        shutil.rmtree(place / "store")
    place.chmod(0o755)  # as a service manager makes it
    open_store(f"embedded://{place}").close(5)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.mkdir(mode=0o700)
    os.chown(place, 65_534, 65_534)
    with pytest.raises(ConfigError, match=r"belongs to user 65534"):
        open_store(f"embedded://{place}")
    with pytest.raises(ConfigError, match=rf"{place} belongs to user 65534"):
        open_store(f"embedded://{place}/own")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_log_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "store"
    open_store(f"embedded://{place}").close(5)
    (place / "sync").chmod(mode)
    with pytest.raises(ConfigError, match=r"/store/sync has mode .*chmod go-w"):
        open_store(f"embedded://{place}")
    (place / "sync").chmod(0o700)
    open_store(f"embedded://{place}").close(5)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
def test_what_somebody_else_left_in_the_directory_is_refused(tmp_path: Path) -> None:
    """It was open to others once: who left something there keeps a hand in it."""
    place = tmp_path / "store"
    open_store(f"embedded://{place}").close(5)
    log = next((place / "sync").glob("log-*"))
    for path in (place / "sync", place / "format", place / "clock", place / "owners", log):
        os.chown(path, 65_534, 65_534)
        with pytest.raises(ConfigError, match=rf"{path.name} .*belongs to user 65534"):
            open_store(f"embedded://{place}")
        os.chown(path, 0, 0)
    open_store(f"embedded://{place}").close(5)
    (place / "clock").unlink()
    os.mkfifo(place / "clock")  # opened, it would hold up whoever opens the store
    os.chown(place / "clock", 65_534, 65_534)
    with pytest.raises(ConfigError, match=r"clock .*belongs to user 65534"):
        open_store(f"embedded://{place}")


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store" / "lock").symlink_to(victim)
    with pytest.raises(StoreError):
        open_store(f"embedded://{tmp_path}/store")
    assert not victim.exists()
