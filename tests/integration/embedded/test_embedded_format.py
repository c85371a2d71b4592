"""A directory is looked at before a byte of it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ignis.errors import ConfigError, StoreFormatError, StoreUnreachableError
from ignis.storage import open_store
from ignis.storage.embedded.check import check_store
from tests.support.embedded import Child

pytestmark = pytest.mark.integration


def contents(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")
    }


def test_a_store_over_lmdb_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "store"
    (path / "sync").mkdir(parents=True, mode=0o700)
    path.chmod(0o700)
    (path / "FORMAT").write_text('{"format": 1, "events": 1024}')
    (path / "boot").write_text("a-boot")
    (path / "sync" / "data.mdb").write_bytes(bytes(8192))
    before = contents(path)
    with pytest.raises(StoreFormatError, match="kept in LMDB"):
        open_store(f"embedded://{path}")
    assert contents(path) == before


@pytest.mark.parametrize("content", [b'{"format": 99}', b"", b"{", b"[]", b'{"format": "x"}', b'{"format": true}'])
def test_another_format_is_refused_and_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store"
    open_store(f"embedded://{path}").close()
    (path / "format").write_bytes(content)
    before = contents(path)
    with pytest.raises(StoreFormatError, match="format"):
        open_store(f"embedded://{path}")
    assert contents(path) == before


@pytest.mark.parametrize("kind", ["log", "checkpoint"])
def test_a_file_of_a_later_version_is_refused_and_not_touched(tmp_path: Path, kind: str) -> None:
    from ignis.native import crc32c
    from ignis.native.store import Log

    path = tmp_path / "store"
    open_store(f"embedded://{path}").close()
    log = Log(str(path / "sync"))
    log.checkpoint()
    log.close()
    one = max((path / "sync").glob(f"{kind}-*"))
    head = bytearray(one.read_bytes())
    if kind == "log":
        head[8:12] = (2).to_bytes(4, "big")
        head[64:68] = crc32c(bytes(head[:64])).to_bytes(4, "big")
    else:
        head[8:12] = (2).to_bytes(4, "little")
        head[56:60] = crc32c(bytes(head[:56])).to_bytes(4, "little")
    one.write_bytes(head)
    before = contents(path / "sync")
    with pytest.raises(StoreFormatError):
        open_store(f"embedded://{path}")
    after = contents(path / "sync")
    for name in [name for name in before if name.startswith("control-")]:  # made anew at each opening
        del before[name], after[name]
    assert after == before


@pytest.mark.parametrize("swapped", [False, True], ids=["damaged", "of another machine"])
def test_the_byte_order_of_a_checkpoint(tmp_path: Path, swapped: bool) -> None:
    """A mark that is damaged costs the checkpoint, not the store; one of a machine of the other byte order is refused."""
    from ignis.native.store import Log

    path = tmp_path / "store"
    open_store(f"embedded://{path}").close()
    log = Log(str(path / "sync"))
    log.checkpoint()
    log.close()
    [one] = (path / "sync").glob("checkpoint-*")
    head = bytearray(one.read_bytes())
    if swapped:
        head[:8], head[12:16] = head[7::-1], head[15:11:-1]
    else:
        head[12] ^= 0x40
    one.write_bytes(head)
    if swapped:
        with pytest.raises(StoreFormatError):
            open_store(f"embedded://{path}")
        with pytest.raises(StoreFormatError, match="another byte order"):
            check_store(path)
    else:
        assert [problem.code for one in check_store(path).classes for problem in one.problems] == ["checkpoint-damaged"]
        open_store(f"embedded://{path}").close()


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(StoreFormatError, match=r"holiday\.jpg"):
        open_store(f"embedded://{tmp_path}")
    assert list(contents(tmp_path)) == ["holiday.jpg"]


def test_looking_does_not_create(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for _ in range(2):
        with pytest.raises(StoreUnreachableError, match="no store"):
            open_store(f"embedded://{path}", create=False)
        assert not path.exists() or not list(path.iterdir())
        path.mkdir(exist_ok=True)
    path.rmdir()
    open_store(f"embedded://{path}").close()
    open_store(f"embedded://{path}", create=False).close()


def test_a_directory_in_which_others_could_write(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.mkdir()
    path.chmod(0o770)
    with pytest.raises(ConfigError, match="others could replace files"):
        open_store(f"embedded://{path}")
    assert contents(path) == {}


def test_processes_that_create_it_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def use(say: object) -> None:
        with open_store(f"embedded://{path}") as store:
            store.locks.next_epoch("s")

    children = [Child(use) for _ in range(5)]
    for child in children:
        with child:
            assert (child.lines(), child.join()) == ([], 0)
    with open_store(f"embedded://{path}") as store:
        assert store.locks.epoch("s") == 5


def test_damage_is_told_at_the_opening(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "store"
    with open_store(f"embedded://{path}") as store:
        for _ in range(5):
            store.locks.next_epoch("s")
    segment = max((path / "sync").glob("log-*"))
    data = bytearray(segment.read_bytes())
    at = data.index(b"Elocal")
    data[at] ^= 1
    segment.write_bytes(data)
    with open_store(f"embedded://{path}") as store:
        assert "bytes of the log are damaged" in caplog.text
        assert "ignis doctor" in caplog.text
        assert int(store.stats()["damaged_bytes"]) > 0
        assert store.locks.epoch("s") == 5
