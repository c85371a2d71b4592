"""`ignis doctor`: what is wrong with a store is said, what can be repaired is, and nothing is thrown away."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ignis.cli import main
from ignis.errors import StoreBusyError, StoreFormatError
from ignis.native.store import Log
from ignis.storage import open_store
from ignis.storage.base import QueueRecord
from ignis.storage.engine.check import Alone, check_store
from ignis.storage.engine.log_files import SECTOR_BYTES, Segment, parse_name

QUEUES = 16
SMALL = {"max_store_bytes": 64 << 20}  # and small segments


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store that was closed in good order, with entries that were flushed one by one."""
    path = tmp_path / "store"
    with open_store(f"engine://{path}", **SMALL) as store:
        for number in range(QUEUES):
            store.queues.put(QueueRecord(f"q{number}"))
    return path


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IGNIS_CONFIG", raising=False)


def examine(capsys: pytest.CaptureFixture[str], directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["doctor", "--json", str(directory), *options])
    return code, json.loads(capsys.readouterr().out)


def codes(document: dict[str, Any]) -> list[str]:
    return [one["code"] for one in [*document["problems"], *(p for c in document["classes"] for p in c["problems"])]]


def segment_of(directory: Path) -> Path:
    return max((directory / "sync").glob("log-*"))


def positions(path: Path) -> list[int]:
    segment = Segment(path)
    try:
        found, position = [], segment.base
        while (entry := segment.entry_at(position)) is not None:
            found.append(position)
            position = entry.next
        return found
    finally:
        segment.close()


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def found_queues(directory: Path) -> set[str]:
    with open_store(f"engine://{directory}", **SMALL) as store:
        return {f"q{number}" for number in range(QUEUES) if store.queues.get(f"q{number}") is not None}


ALL = {f"q{number}" for number in range(QUEUES)}


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_sound_store(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(directory)
    code, document = examine(capsys, directory)
    assert (code, document["sound"], codes(document)) == (0, True, [])
    assert document["classes"][0]["entries"] == {"key": QUEUES, "open": 1}
    assert contents(directory) == before
    assert main(["doctor", f"engine://{directory}"]) == 0
    assert "sound" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["header", "payload", "length"])
def test_a_damaged_entry(directory: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    path = segment_of(directory)
    at = positions(path)[10] + SECTOR_BYTES
    offset = at + {"header": 8, "payload": 60, "length": 2}[place]
    overwrite(path, offset, b"\xff\xff")
    damaged = path.read_bytes()
    code, document = examine(capsys, directory)
    assert (code, document["sound"], codes(document)) == (1, False, ["log-damaged"])
    [problem] = document["classes"][0]["problems"]
    assert problem["offset"] == at
    assert path.read_bytes() == damaged
    code, document = examine(capsys, directory, "--repair")
    assert (code, document["repaired"]["sound"], codes(document["repaired"])) == (0, True, [])
    [aside] = (directory / "aside" / "sync").glob("*@*[0-9]")
    assert aside.read_bytes() == damaged[at : at + problem["bytes"]]
    assert "checksum" in aside.with_name(f"{aside.name}.reason").read_text()
    # The first entry is the generation's, then one for each queue.
    assert found_queues(directory) == ALL - {"q9"}


def test_two_damaged_entries_side_by_side(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment_of(directory)
    at = positions(path)
    for number in (5, 6):
        overwrite(path, at[number] + SECTOR_BYTES + 30, b"\xff\xff")
    _, document = examine(capsys, directory, "--repair")
    [problem] = document["classes"][0]["problems"]
    assert problem["bytes"] == at[7] - at[5]
    assert document["repaired"]["sound"]
    assert found_queues(directory) == ALL - {"q4", "q5"}


def test_a_tail_that_did_not_get_to_the_disk_is_no_damage(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment_of(directory)
    last = positions(path)[-1]
    overwrite(path, last + SECTOR_BYTES + 40, bytes(4))
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (0, ["tail"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert found_queues(directory) == ALL - {f"q{QUEUES - 1}"}


@pytest.mark.parametrize("wrong", [1, 2])
def test_a_damaged_header_of_a_segment(directory: Path, capsys: pytest.CaptureFixture[str], wrong: int) -> None:
    path = segment_of(directory)
    overwrite(path, 20, b"\xff" * wrong)
    with pytest.raises(StoreFormatError, match="no segment of the log"):
        open_store(f"engine://{directory}", **SMALL)
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["segment-damaged"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, document["repaired"]["sound"]) == (0, True)
    assert (directory / "aside" / "sync" / path.name).exists() == (wrong > 1)
    assert found_queues(directory) == (ALL if wrong == 1 else set())


def test_a_damaged_checkpoint_is_no_loss(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(str(directory / "sync"))
    log.checkpoint()
    log.close()
    [path] = (directory / "sync").glob("checkpoint-*")
    overwrite(path, 700, b"\xff\xff\xff")
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (0, ["checkpoint-damaged"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert (directory / "aside" / "sync" / path.name).exists()
    assert found_queues(directory) == ALL


def test_a_segment_that_was_cut_short(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(f"engine://{directory}", **SMALL) as store:  # a second generation, with a segment of its own
        store.queues.put(QueueRecord("later"))
    first, _ = sorted((directory / "sync").glob("log-*"))
    assert parse_name(first.name) == ("log", 1, 1)
    at = positions(first)
    os.truncate(first, at[12] + SECTOR_BYTES)
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["segment-short", "log-damaged"])
    assert document["classes"][0]["problems"][1]["offset"] == at[12] + SECTOR_BYTES
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    # The last of the first generation was written again by the second, which could not know that it was flushed.
    assert found_queues(directory) == {f"q{number}" for number in [*range(11), QUEUES - 1]}
    with open_store(f"engine://{directory}", **SMALL) as store:
        assert store.queues.get("later") is not None


def test_the_last_segment_was_cut_short(
    directory: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Files are laid out at their whole size before anything in them counts: a shorter one is no tail of a power cut."""
    path = segment_of(directory)
    at = positions(path)
    os.truncate(path, at[12] + SECTOR_BYTES + 10)
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["segment-short", "tail"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert found_queues(directory) == {f"q{number}" for number in range(11)}
    os.truncate(segment_of(directory), 4096)
    open_store(f"engine://{directory}", **SMALL).close()
    assert "is damaged: 4096 of its" in caplog.text


def test_nothing_is_left_of_the_beginning(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(f"engine://{directory}", **SMALL) as store:
        store.queues.put(QueueRecord("later"))
    min((directory / "sync").glob("log-*")).unlink()
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["no-checkpoint"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (1, ["no-checkpoint"])


def test_what_dead_processes_left(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "format.12.ab.new").write_bytes(b"x")
    (directory / "sync" / f"tmp-log-{3:016x}-{9:016x}").write_bytes(b"x")
    (directory / "sync" / f"log-{1:016x}-{7:016x}").write_bytes(bytes(4096))
    (directory / "sync" / "notes").write_bytes(b"x")
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (0, ["leftover", "leftover", "stranger", "leftover"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, ["stranger"])
    assert (directory / "sync" / "notes").exists()


@pytest.mark.parametrize("content", [b"", b"{", None])
def test_the_format_file(directory: Path, capsys: pytest.CaptureFixture[str], content: bytes | None) -> None:
    path = directory / "format"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(StoreFormatError):
        open_store(f"engine://{directory}", **SMALL)
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["format"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert found_queues(directory) == ALL


def test_another_version_is_not_touched(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "format").write_text('{"format": 99}')
    before = contents(directory)
    assert main(["doctor", str(directory), "--repair"]) == 1
    assert "format 99" in capsys.readouterr().err
    assert contents(directory) == before


def test_a_store_that_is_open(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(f"engine://{directory}", **SMALL):
        assert main(["doctor", str(directory)]) == 4
        assert "is open in a process" in capsys.readouterr().err
    with Alone(directory):
        check_store(directory)
        with pytest.raises(StoreBusyError, match="ignis doctor"):
            open_store(f"engine://{directory}", **SMALL)
    assert found_queues(directory) == ALL


def test_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "none")]) == 3
    assert not (tmp_path / "none").exists()
    assert main(["doctor", str(tmp_path)]) == 1  # a directory, and no store
    assert not os.listdir(tmp_path)
    capsys.readouterr()


def test_a_mode_in_which_others_could_write(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory.chmod(0o777)
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["mode"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_store_over_lmdb_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files are strangers to the doctor, who must not lay hands on them."""
    open_store(f"embedded://{tmp_path}/store").close()
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["doctor", f"{tmp_path}/store", "--repair"]) != 0
    assert "over LMDB" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before
