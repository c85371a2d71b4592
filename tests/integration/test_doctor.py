"""`ignis doctor`: what is wrong with a store is said, what can be repaired is, and nothing is thrown away."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis, Queue
from ignis.cli import main
from ignis.errors import StoreBusyError, StoreFormatError, StoreFullError
from ignis.metrics import Collector, Exposition
from ignis.native import PackedBatch, Record, encode_record
from ignis.native.store import Log
from ignis.storage import open_store
from ignis.storage.base import QueueRecord
from ignis.storage.embedded.check import Alone, check_store
from ignis.storage.embedded.log_files import ENTRY_HEADER_BYTES, SECTOR_BYTES, Segment, parse_name
from tests.support.disk import disk, fill_disk

QUEUES = 16
SMALL = {"max_store_bytes": 64 << 20}  # and small segments


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store that was closed in good order, with entries that were flushed one by one."""
    path = tmp_path / "store"
    with open_store(f"embedded://{path}", **SMALL) as store:
        for number in range(QUEUES):
            store.queues.put(QueueRecord(f"q{number}"))
    return path


@pytest.fixture
def opened_again(directory: Path) -> Path:
    """That store with more in its first segment than an opening writes again, and a second one: a generation of its own."""
    with open_store(f"embedded://{directory}", **SMALL) as store:
        store.magazines.declare("large", 1)
        for _ in range(2):
            store.magazines.load_records("large", 0, [encode_record(b"x" * 65_536)])
    with open_store(f"embedded://{directory}", **SMALL) as store:
        store.queues.put(QueueRecord("later"))
    assert len(list((directory / "sync").glob("log-*"))) == 2
    return directory


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
    with open_store(f"embedded://{directory}", **SMALL) as store:
        return {f"q{number}" for number in range(QUEUES) if store.queues.get(f"q{number}") is not None}


ALL = {f"q{number}" for number in range(QUEUES)}


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_sound_store(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(directory)
    code, document = examine(capsys, directory)
    assert (code, document["sound"], codes(document)) == (0, True, [])
    assert document["classes"][0]["entries"] == {"key": QUEUES, "open": 1, "witness": 1}
    assert contents(directory) == before
    assert main(["doctor", f"embedded://{directory}"]) == 0
    assert "sound" in capsys.readouterr().out


def _holes(path: Path) -> list[Path]:
    """Segments whose follower was taken away, the last one aside."""
    numbers = {parse_name(one.name): one for one in sorted((path / "sync").glob("log-*"))}
    return [
        one
        for name, one in list(numbers.items())[:-1]
        if name is not None and (name[0], name[1], name[2] + 1) not in numbers
    ]


def test_the_unused_end_before_a_segment_that_was_emptied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is old and still claimed keeps its segment, and those behind it go: nobody says any more where it ended."""
    path = tmp_path / "store"
    deadline = time.monotonic() + 120
    with Ignis(f"embedded://{path}", store=SMALL) as app:
        queue = app.queue("jobs", bytes, shards=1)
        kept = 0
        while not _holes(path) and time.monotonic() < deadline:
            queue.publish_many([b"x" * 997] * 500)
            fired = queue.main.fire(500)
            if kept < 2_000:
                kept += len(fired)  # left claimed
            else:
                queue.main.delete(fired)
    emptied = _holes(path)
    assert emptied, "no segment went from the middle of the log"
    code, document = examine(capsys, path)
    assert (code, document["sound"], codes(document)) == (0, True, [])
    # Damage before that end is told as ever.
    overwrite(emptied[0], SECTOR_BYTES + positions(emptied[0])[1] - positions(emptied[0])[0] + 8, b"\xff\xff")
    code, document = examine(capsys, path)
    assert (code, codes(document)) == (1, ["log-damaged"])


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


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize("place", ["body", "end of a record", "shard", "length"])
def test_a_damaged_batch(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    place: str,
    repaired: bool,
) -> None:
    path = tmp_path / "store"
    bodies = [f"{number}" * 40 for number in range(8)]
    with open_store(f"embedded://{path}", **SMALL) as store:
        store.magazines.declare("m", 1)
        store.magazines.load("m", [(0, PackedBatch.pack([encode_record(body.encode()) for body in bodies]))], None)
        assert store.magazines.fire("m", 2, "me", shards=[0]).total() == 2
        store.magazines.delete("m", {0: [1]})
    file = segment_of(path)
    segment = Segment(file)
    at = (
        next(one for one in positions(file) if (entry := segment.entry_at(one)) and entry.kind == "load") - segment.base
    )
    segment.close()
    at += SECTOR_BYTES
    # Headers of the entry, the load, the part, the batch; the index; and the third record.
    index = at + 24 + 8 + 16 + 24
    length = file.read_bytes()[index + 3] + file.read_bytes()[index + 2] * 256
    offset = {
        "body": index + 64 + 2 * length + 60,
        "end of a record": index + 3 * 8 + 2,
        "shard": at + 33,
        "length": at + 2,
    }
    overwrite(file, offset[place], b"\xee")
    lost = {bodies[2]} if place == "body" else set()
    _, document = examine(capsys, path, *(["--repair"] if repaired else []))
    [problem] = document["classes"][0]["problems"]
    assert (problem["code"], problem["readable"], problem["unreadable"]) == ("log-damaged", 8 - len(lost), len(lost))
    if repaired:
        assert codes(document["repaired"]) == []
    with open_store(f"embedded://{path}", **SMALL) as store:
        figures = store.directory.log("sync").figures()  # type: ignore[attr-defined]
        if not repaired:
            assert (figures["salvaged_records"], figures["damaged_records"]) == (8 - len(lost), len(lost))
            assert "messages in them that can be read" in caplog.text
        assert figures["damaged_bytes"] == (0 if repaired else problem["bytes"])
        fired = store.magazines.fire("m", 8, "me", shards=[0])
        found = [record for one in fired.claims for record in one.records]
        assert [None if record is None else Record(record).body.decode() for record in found] == [
            None if body in lost else body for body in bodies[2:]
        ]


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
    last = positions(path)[-1]  # which says that what is before it was flushed
    overwrite(path, last + SECTOR_BYTES + ENTRY_HEADER_BYTES, b"\0\0\0\x50 half of an entry")
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (0, ["tail"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert found_queues(directory) == ALL


def test_the_last_entry_that_was_flushed_is_no_tail(
    directory: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = segment_of(directory)
    *_, last, witness = positions(path)
    overwrite(path, last + SECTOR_BYTES + 40, b"\xff\xff")
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["log-damaged"])
    [problem] = document["classes"][0]["problems"]
    assert problem["bytes"] == witness - last
    assert found_queues(directory) == ALL - {f"q{QUEUES - 1}"}
    assert f"{witness - last} bytes of the log are damaged" in caplog.text


@pytest.mark.parametrize("wrong", [1, 2])
def test_a_damaged_header_of_a_segment(directory: Path, capsys: pytest.CaptureFixture[str], wrong: int) -> None:
    path = segment_of(directory)
    overwrite(path, 20, b"\xff" * wrong)
    with pytest.raises(StoreFormatError, match="no segment of the log"):
        open_store(f"embedded://{directory}", **SMALL)
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["segment-damaged"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, document["repaired"]["sound"]) == (0, True)
    assert (directory / "aside" / "sync" / path.name).exists() == (wrong > 1)
    assert found_queues(directory) == (ALL if wrong == 1 else set())


# Each field of its header, and its image.
@pytest.mark.parametrize("place", [0, 8, 12, 16, 24, 32, 40, 48, 52, 56, 700])
def test_a_damaged_checkpoint_is_no_loss(directory: Path, capsys: pytest.CaptureFixture[str], place: int) -> None:
    log = Log(str(directory / "sync"))
    log.checkpoint()
    log.close()
    [path] = (directory / "sync").glob("checkpoint-*")
    overwrite(path, place, b"\xff\xff\xff")
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (0, ["checkpoint-damaged"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert (directory / "aside" / "sync" / path.name).exists()
    assert found_queues(directory) == ALL


def test_a_segment_that_was_cut_short(opened_again: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = opened_again
    first, _ = sorted((directory / "sync").glob("log-*"))
    assert parse_name(first.name) == ("log", 2, 1)  # what the first opening left was written again
    at = positions(first)
    os.truncate(first, at[12] + SECTOR_BYTES)
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["segment-short", "log-damaged"])
    assert document["classes"][0]["problems"][1]["offset"] == at[12] + SECTOR_BYTES
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert found_queues(directory) == {f"q{number}" for number in range(11)}
    with open_store(f"embedded://{directory}", **SMALL) as store:
        assert store.queues.get("later") is not None


def test_the_last_segment_was_cut_short(
    directory: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Files are laid out at their whole size before anything in them counts: a shorter one is no tail of a power cut."""
    path = segment_of(directory)
    at = positions(path)
    os.truncate(path, at[12] + SECTOR_BYTES + 10)
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["segment-short", "log-damaged"])  # it was known how far it was flushed
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert found_queues(directory) == {f"q{number}" for number in range(11)}
    os.truncate(segment_of(directory), 4096)
    open_store(f"embedded://{directory}", **SMALL).close()
    assert "is damaged: 4096 of its" in caplog.text


def test_nothing_is_left_of_the_beginning(opened_again: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = opened_again
    min((directory / "sync").glob("log-*")).unlink()
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["no-checkpoint"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (1, ["no-checkpoint"])


@pytest.mark.parametrize("how", ["removed", "zeroed", "emptied"])
def test_the_newest_segment_is_gone(opened_again: Path, capsys: pytest.CaptureFixture[str], how: str) -> None:
    """An opening refuses, names it and changes nothing; the doctor says so too, and gives it up when told to."""
    directory = opened_again
    newest = segment_of(directory)
    if how == "removed":
        newest.unlink()
    else:
        overwrite(newest, 0, bytes(512 if how == "emptied" else newest.stat().st_size))
    before = {name: data for name, data in contents(directory).items() if "control" not in name}
    with pytest.raises(StoreFormatError, match=f"{newest.name}.*ignis doctor {directory}"):
        open_store(f"embedded://{directory}", **SMALL)
    assert {name: data for name, data in contents(directory).items() if "control" not in name} == before
    code, document = examine(capsys, directory)
    assert code == 1
    assert ("segment-damaged" if how == "emptied" else "segment-missing") in codes(document)
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert found_queues(directory) == ALL


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


def test_the_files_of_the_contest_for_the_sweeper_are_the_stores_own(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ignis(f"embedded://{directory}", store=SMALL) as app:
        app.queue("q0").open()
        assert app.sweep_queue("q0").swept == 0
        assert list(directory.glob("leader-*.lock"))
        (directory / "member-sweeper+123-abc.lock").write_bytes(b"")  # of an instance that was killed
    (directory / "leader-notes.txt").write_bytes(b"x")
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (0, ["stranger"])
    assert document["problems"][0]["file"] == "leader-notes.txt"


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": ', b'{"format": 2', b'{"format": "2"}', None])
def test_the_format_file(directory: Path, capsys: pytest.CaptureFixture[str], content: bytes | None) -> None:
    path = directory / "format"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(StoreFormatError):
        open_store(f"embedded://{directory}", **SMALL)
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
    with open_store(f"embedded://{directory}", **SMALL):
        assert main(["doctor", str(directory)]) == 4
        assert "is open in a process" in capsys.readouterr().err
    with Alone(directory):
        check_store(directory)
        with pytest.raises(StoreBusyError, match="ignis doctor"):
            open_store(f"embedded://{directory}", **SMALL)
    assert found_queues(directory) == ALL


def test_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "none")]) == 3
    assert not (tmp_path / "none").exists()
    (tmp_path / "data").mkdir()
    capsys.readouterr()
    assert main(["doctor", str(tmp_path)]) == 3  # a directory, and no store
    assert capsys.readouterr().err == f"ignis: no store at {tmp_path}\n"
    assert os.listdir(tmp_path) == ["data"]
    (tmp_path / "file").write_text("no store")
    assert main(["doctor", str(tmp_path / "file")]) == 3
    assert (
        capsys.readouterr().err == f"ignis: no store at {tmp_path / 'file'}: it is a file, and a store is a directory\n"
    )


def test_room_that_the_store_keeps_is_no_stranger(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("ahead", "spare"):
        (directory / "sync" / f"tmp-{kind}-{1:016x}-{9:016x}").write_bytes(bytes(4096))
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document)) == (0, [])
    assert found_queues(directory) == ALL


@pytest.mark.parametrize("place", [".", "sync"])
def test_a_mode_in_which_others_could_write(directory: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    (directory / place).chmod(0o777)
    code, document = examine(capsys, directory)
    assert (code, codes(document)) == (1, ["mode"])
    code, document = examine(capsys, directory, "--repair")
    assert (code, codes(document["repaired"])) == (0, [])
    assert (directory / place).stat().st_mode & 0o777 == 0o700


def test_a_store_over_lmdb_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files are strangers to the doctor, who must not lay hands on them."""
    (tmp_path / "store" / "sync").mkdir(parents=True)
    (tmp_path / "store" / "FORMAT").write_text('{"format": 1, "events": 1024}')
    (tmp_path / "store" / "sync" / "data.mdb").write_bytes(bytes(8192))
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["doctor", f"{tmp_path}/store", "--repair"]) != 0
    assert "kept in LMDB" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before


def publish_until_refused(queue: Queue[bytes], **options: Any) -> None:
    with contextlib.suppress(StoreFullError):
        while True:
            queue.publish_many([bytes(900)] * 100, **options)


def test_a_full_disk_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is damaged, and it ends with 1: what is published is refused."""
    with disk(tmp_path / "disk", "24m") as path:
        with Ignis(f"embedded://{path}/store") as app:
            app.queue("jobs", bytes).publish(b"one")
            assert app.store.stats()["free_bytes"] > 1 << 20
            fill_disk(path / "ballast")
            publish_until_refused(app.queue("jobs"))
            figures = app.store.stats()
            assert (figures["free_bytes"], figures["refused_loads_limit"]) == (0, 0)
            assert figures["refused_loads_room"] == app.store.process_stats()["refused_loads_room"] >= 1
            text = Exposition(Collector(app.stats)).text().decode()
            assert "ignis_store_free_bytes 0.0" in text
            assert f'ignis_store_refused_loads_total{{reason="room"}} {figures["refused_loads_room"]}.0' in text
        assert main(["doctor", f"{path}/store"]) == 1
        said = capsys.readouterr().out
        assert "sound" in said.splitlines()
        assert "PROBLEM room: 0 B free on the disk: loads are refused, or will be soon" in said
        (path / "ballast").unlink()
        assert main(["doctor", f"{path}/store", "--json"]) == 0
        room = json.loads(capsys.readouterr().out)["room"]
        assert (room["short"], room["free_bytes"] > 1 << 20) == (False, True)


def test_the_limit_of_a_store_is_another_reason(tmp_path: Path) -> None:
    with Ignis(f"embedded://{tmp_path}/store", store={"max_store_bytes": 4 << 20}) as app:
        queue = app.queue("jobs", bytes)
        publish_until_refused(queue)
        figures = app.store.stats()
        assert (figures["refused_loads_limit"], figures["refused_loads_room"]) == (1, 0)
        publish_until_refused(queue, delay=3_600)
        assert app.store.stats()["refused_loads_limit"] == 2


@contextlib.contextmanager
def seen_read_only(directory: Path, at: Path) -> Iterator[Path]:
    """The directory once more, where nothing can be written. Needs root."""
    at.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "--bind", "-o", "ro", str(directory), str(at)], capture_output=True, timeout=30, check=False
        ).returncode
    ):
        pytest.skip("cannot mount a directory here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(at)], capture_output=True, timeout=30, check=True)
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], capture_output=True, timeout=30, check=False)


def test_a_store_that_cannot_be_written(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with seen_read_only(directory, tmp_path / "copy") as copy:
        code, found = examine(capsys, copy)
        assert (code, found["sound"]) == (0, True)
        assert [(one["code"], one["harmless"]) for one in found["problems"]] == [("read-only", True)]
        assert "is not known" in found["problems"][0]["what"]
        # Who has it open through another mount of this machine is seen all the same, and nobody opens it meanwhile.
        with open_store(f"embedded://{directory}"):
            assert main(["doctor", str(copy)]) == 4
        assert f"{copy} is open in a process" in capsys.readouterr().err
        with Alone(copy, writes=False), pytest.raises(StoreBusyError, match="doctor"):
            open_store(f"embedded://{directory}").close()
        assert main(["doctor", "--repair", str(copy)]) == 3
        assert "read-only file system: repair it where it can be written" in capsys.readouterr().err
        assert main(["--url", f"embedded://{copy}", "stats"]) == 3
        error = capsys.readouterr().err
        assert "is on a read-only file system, and whoever opens a store writes" in error
        assert f"'ignis doctor {copy}'" in error


def test_damage_of_a_store_that_cannot_be_written(
    opened_again: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = min((opened_again / "sync").glob("log-*"))
    data = bytearray(segment.read_bytes())
    data[SECTOR_BYTES + ENTRY_HEADER_BYTES + 4] ^= 0xFF
    segment.write_bytes(data)
    with seen_read_only(opened_again, tmp_path / "copy") as copy:
        code, found = examine(capsys, copy)
    assert (code, found["sound"]) == (1, False)
    assert "log-damaged" in [one["code"] for one in found["classes"][0]["problems"]]
