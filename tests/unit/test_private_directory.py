"""What is private is private all the way up: nobody else can put something in its place."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import ConfigError
from ignis.relay.directory import RelayDirectory
from ignis.storage import open_store
from ignis.storage.embedded.check import Alone, check_store
from ignis.storage.private_directory import check_file, check_way, make_private, make_way

STRANGER = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")


def open_embedded(place: Path) -> None:
    open_store(f"embedded://{place}").close(5)


def look_only(place: Path) -> None:
    check_way(place, "place")


def private(place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    make_private(place, "place")


def relay(place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    RelayDirectory(place)


def pipeline(module: str) -> Any:
    """A module of the pipelines, which are an extra."""
    return pytest.importorskip(f"ignis.spark.pipeline.{module}", exc_type=ConfigError)


def records(place: Path) -> None:
    with pipeline("runs").Runs(place.parent, place.name).locked():
        pass


DOORS = [open_embedded, look_only, private, relay, records]


@pytest.mark.parametrize("door", DOORS)
def test_a_directory_above_that_everybody_may_write_is_refused(tmp_path: Path, door: Callable[[Path], None]) -> None:
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    place = unsafe / "between" / "own"
    with pytest.raises(ConfigError, match=rf"everybody may write {unsafe} \(mode 777\).*chmod \+t {unsafe}"):
        door(place)
    assert not place.exists(), "nothing is made where it could be replaced"
    unsafe.chmod(0o1777)
    door(place)
    unsafe.chmod(0o777)
    with pytest.raises(ConfigError, match=f"everybody may write {unsafe}"):
        door(place)
    unsafe.chmod(0o775)
    door(place)


def set_list(place: Path, *named: tuple[int, int, int], mask: int = 7) -> None:
    """Gives it an access control list: (tag, what is allowed, whom), beside what the mode says."""
    nobody = 0xFFFFFFFF
    entries = [(1, 7, nobody), *(one for one in named if one[0] == 2), (4, 5, nobody)]
    entries += [*(one for one in named if one[0] == 8), (16, mask, nobody), (32, 5, nobody)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in entries)
    try:
        os.setxattr(place, "system.posix_acl_access", data)
    except (OSError, AttributeError) as exc:
        pytest.skip(f"no access control lists here: {exc}")


@pytest.mark.parametrize(("tag", "who"), [(2, f"user {STRANGER}"), (8, f"group {STRANGER}")])
@pytest.mark.parametrize("door", DOORS)
def test_a_directory_above_that_another_may_write_by_a_list_is_refused(
    tmp_path: Path, door: Callable[[Path], None], tag: int, who: str
) -> None:
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir(mode=0o755)
    set_list(unsafe, (tag, 7, STRANGER))
    place = unsafe / "between" / "own"
    with pytest.raises(ConfigError, match=rf"{who} may write {unsafe}, .*chmod \+t {unsafe}.*setfacl -b {unsafe}"):
        door(place)
    unsafe.chmod(0o1775)
    door(place)


def test_a_list_that_lets_nobody_else_write_is_no_harm(tmp_path: Path) -> None:
    safe = tmp_path / "safe"
    safe.mkdir(mode=0o755)
    place = safe / "own"
    for named, mask in (
        ([(2, 5, STRANGER)], 7),
        ([(2, 7, STRANGER), (8, 7, STRANGER)], 5),  # the mask takes it away
        ([(2, 7, os.geteuid()), (2, 7, 0)], 7),
        ([(8, 7, os.getegid())], 7),
        ([], 7),
    ):
        set_list(safe, *named, mask=mask)
        look_only(place)


def test_a_file_that_another_may_write_by_a_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"
    file.touch(mode=0o644)
    check_file(file, "certificate")
    set_list(file, (2, 6, STRANGER))
    with pytest.raises(ConfigError, match=f"user {STRANGER}, by its access control list"):
        check_file(file, "certificate")


@as_root
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_a_directory_above_that_belongs_to_somebody_else_is_refused(
    tmp_path: Path, door: Callable[[Path], None], mode: int
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    other.chmod(mode)
    os.chown(other, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=rf"{other} belongs to user {STRANGER}"):
        door(other / "own")
    assert not (other / "own").exists()


def test_links_are_followed_to_what_they_name(tmp_path: Path) -> None:
    unsafe, safe = tmp_path / "unsafe", tmp_path / "safe"
    for one in (unsafe, unsafe / "own", safe):
        one.mkdir()
    unsafe.chmod(0o777)
    (safe / "out").symlink_to(unsafe / "own")
    (safe / "away").symlink_to("../unsafe/../unsafe/own")
    (unsafe / "in").symlink_to(safe)
    for path in (safe / "out", safe / "away", safe / "out" / "x", unsafe / "in", safe / ".." / "unsafe" / "own"):
        with pytest.raises(ConfigError, match=f"everybody may write {unsafe}"):
            check_way(path, "place")
    (safe / "own").symlink_to(".")
    check_way(safe / "own" / "own" / "x", "place")
    (safe / "self").symlink_to("self")
    with pytest.raises(ConfigError, match="links"):
        check_way(safe / "self", "place")


@as_root
def test_a_link_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """In a directory with the sticky bit it is its owner's to change."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(tmp_path)
    os.lchown(shared / "link", STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=rf"{shared}/link belongs to user {STRANGER}"):
        check_way(shared / "link" / "store", "place")


@as_root
@pytest.mark.parametrize("door", DOORS)
def test_each_part_of_the_path_is_judged_as_it_was_given(tmp_path: Path, door: Callable[[Path], None]) -> None:
    """Where a link ends says nothing of who may set it elsewhere."""
    shared, others, everybodys, own = (
        tmp_path / "shared",
        tmp_path / "others",
        tmp_path / "everybodys",
        tmp_path / "own",
    )
    for one, mode in ((shared, 0o1777), (others, 0o755), (everybodys, 0o777), (own, 0o700)):
        one.mkdir()
        one.chmod(mode)
        (one / "link").symlink_to(own)
    os.lchown(shared / "link", STRANGER, STRANGER)
    os.chown(others, STRANGER, STRANGER)
    (tmp_path / "mine").symlink_to(shared / "link")
    refused = {
        shared / "link" / "a": rf"{shared}/link belongs to user {STRANGER}",
        others / "link" / "b": rf"{others} belongs to user {STRANGER}",
        everybodys / "link" / "c": rf"everybody may write {everybodys}",
        tmp_path / "mine" / "d": rf"{shared}/link belongs to user {STRANGER}",
        others / ".." / "own" / "e": rf"{others} belongs to user {STRANGER}",
    }
    for path, error in refused.items():
        with pytest.raises(ConfigError, match=error):
            door(path)
    assert sorted(one.name for one in own.iterdir()) == ["link"], "nothing is made through a way that is refused"
    os.lchown(shared / "link", 0, 0)
    door(shared / "link" / "f")


@as_root
def test_a_store_that_is_open_is_not_opened_again_through_the_link_of_another(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    os.lchown(tmp_path / "link", STRANGER, STRANGER)
    opened = open_store(f"embedded://{tmp_path}/store")
    try:
        with pytest.raises(ConfigError, match=rf"{tmp_path}/link belongs to user {STRANGER}"):
            open_store(f"embedded://{tmp_path}/link")
    finally:
        opened.close(5)


def test_a_relative_path_is_looked_at_from_the_root_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe = tmp_path / "unsafe"
    (unsafe / "here").mkdir(parents=True)
    unsafe.chmod(0o777)
    monkeypatch.chdir(unsafe / "here")
    for path in ("store", "./store", "."):
        with pytest.raises(ConfigError, match=f"everybody may write {unsafe}"):
            check_way(path, "place")


def test_what_is_missing_on_the_way_is_made_for_nobody_else_to_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_way(tmp_path / "a" / "b" / "store")
    finally:
        os.umask(before)
    modes = [
        one.stat().st_mode & 0o7777 for one in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "store")
    ]
    assert modes == [0o755, 0o755, 0o700]


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("x")
    for mode in (0o644, 0o600, 0o664):
        path.chmod(mode)
        check_file(path, "key")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="everybody may write it"):
        check_file(path, "key")
    check_file(tmp_path / "nowhere", "key")


def test_doctor_says_that_a_store_could_be_replaced(tmp_path: Path) -> None:
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir()
    open_embedded(unsafe / "store")
    assert check_store(unsafe / "store").problems == []
    unsafe.chmod(0o777)
    (problem,) = check_store(unsafe / "store").problems
    assert (problem.code, problem.harmless) == ("place", False)
    assert f"everybody may write {unsafe}" in problem.what


@as_root
@pytest.mark.parametrize("trap", ["fifo", "link"])
def test_the_doctor_does_not_look_at_the_store_of_somebody_else(tmp_path: Path, trap: str) -> None:
    """Its owner could have it wait, read what is another's, or repair that."""
    place = tmp_path / "store"
    open_embedded(place)
    (place / "format").unlink()
    if trap == "fifo":
        os.mkfifo(place / "format")
    else:
        (place / "format").symlink_to("/dev/zero")
    os.chown(place, STRANGER, STRANGER)
    for look in (lambda: check_store(place), Alone(place).__enter__):
        with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}: look at it as that user"):
            look()


@as_root
def test_a_pipeline_may_write_into_the_directory_of_somebody_else(tmp_path: Path) -> None:
    """That is on purpose; one that everybody may write is not."""
    make = pipeline("files")._make_private
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, STRANGER, STRANGER)
    make(str(other / "day" / "part"))
    assert (other / "day").stat().st_mode & 0o777 == 0o700
    other.chmod(0o777)
    with pytest.raises(ConfigError, match=f"everybody may write {other}"):
        make(str(other / "day" / "other"))
    assert not (other / "day" / "other").exists()


@as_root
def test_a_file_that_is_read_may_belong_to_who_installed_it(tmp_path: Path) -> None:
    path = tmp_path / "other" / "ca.pem"
    path.parent.mkdir()
    path.write_text("x")
    for one in (path, path.parent):
        os.chown(one, STRANGER, STRANGER)
    check_file(path, "authorities")
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match=f"everybody may write {path.parent}"):
        check_file(path, "authorities")
