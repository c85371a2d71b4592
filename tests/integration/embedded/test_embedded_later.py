"""Delayed messages of the embedded store: what a kill leaves, what older versions do, and what is damaged."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ignis.errors import StoreFormatError
from ignis.native import PackedBatch, Record, encode_record
from ignis.storage import open_store
from ignis.storage.base import MagazineStore
from ignis.storage.embedded import format as stored_format
from ignis.storage.later import Delayed, later_of
from tests.contract.support import batch, drain

ROUNDS = 4
_FAR_MS = 1 << 47
SHARDS = 3

PROGRAM = """
    import random, sys
    from ignis.native import PackedBatch, Record, encode_record
    from ignis.storage import open_store

    url, seed = sys.argv[1], int(sys.argv[2])
    rng = random.Random(seed)
    store = open_store(url)
    m = store.magazines
    m.declare("m", 3)
    mine = {}

    def say(*words):
        sys.stdout.write(" ".join(map(str, words)) + "\\n")
        sys.stdout.flush()

    for n in range(10**9):
        choice = rng.random()
        if choice < 0.5:
            names = [f"{seed}-{n}-{k}" for k in range(rng.randrange(1, 4))]
            now_ms = round(store.now_s() * 1000)
            dues = [now_ms + rng.choice([0, 5, 40, 10**7]) for _ in names]
            shard = rng.randrange(3)
            say("begin", *names)
            records = [encode_record(one.encode()) for one in names]
            (first,) = m.load_later("m", [(shard, PackedBatch.pack(records))], [dues], None)
            say("put", *names)
            mine.update({name: (shard, first + k) for k, name in enumerate(names)})
        elif choice < 0.6 and mine:
            name = rng.choice(sorted(mine))
            shard, pointer = mine.pop(name)
            say("cancelling", name)
            if m.cancel_later("m", {shard: [pointer]}):
                say("cancelled", name)
            else:
                say("moved", name)
        elif choice < 0.8:
            m.move_due("m", rng.randrange(1, 5))
        else:
            for claim in m.fire("m", 3, store.owner).claims:
                for pointer, record in zip(claim.pointers, claim.records):
                    name = Record(record).body.decode()
                    say("taking", name)
                    m.delete("m", {claim.shard: [pointer]})
                    say("taken", name)
"""


def there(magazines: MagazineStore) -> list[str]:
    """Every message of the queue, wherever it is."""
    found = [
        Record(record).body.decode()
        for name in ("m", later_of("m"))
        for _, _, record in magazines.scan(name, limit=1_000_000)
        if record is not None
    ]
    listed = magazines.list_later("m", limit=1_000_000)
    assert len(listed) == magazines.delayed("m")
    assert [one[:3] for one in listed] == sorted(one[:3] for one in listed)
    assert (magazines.next_due_ms("m") is None) == (not listed)
    return found


def test_a_kill_at_any_moment_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    rng = random.Random(5)
    begun: set[str] = set()
    put: set[str] = set()
    leaving: set[str] = set()
    gone: set[str] = set()
    for round_ in range(ROUNDS):
        command = [sys.executable, str(program), url]
        actors = [
            subprocess.Popen([*command, str(2 * round_ + who)], stdout=subprocess.PIPE, text=True) for who in range(2)
        ]
        lines: list[list[str]] = []
        for actor in actors:  # all of them are at work
            assert actor.stdout is not None
            lines.append(actor.stdout.readline().split())
        time.sleep(rng.random() / 4)
        for actor in actors:
            os.kill(actor.pid, signal.SIGKILL)
        for actor in actors:
            assert actor.stdout is not None
            lines += [line.split() for line in actor.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            actor.wait()
            actor.stdout.close()
        for what, *names in filter(None, lines):
            {
                "begin": begun,
                "put": put,
                "cancelling": leaving,
                "taking": leaving,
                "cancelled": gone,
                "taken": gone,
            }.get(what, set()).update(names)
        store = open_store(url)
        try:
            found = there(store.magazines)
            assert len(found) == len(set(found)), "a message is there twice"
            assert set(found) <= begun
            assert put - leaving <= set(found), "a message is lost"
            assert not gone & set(found), "a message is back"
        finally:
            store.close()
    assert put and gone


def test_older_versions_refuse_a_store_with_due_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"embedded://{tmp_path}/store"
    store = open_store(url)
    store.magazines.declare("m", 4)
    assert json.loads((tmp_path / "store/format").read_text()) == {"format": 2}
    store.magazines.load_later("m", [(0, batch("a"))], [[1 << 45]], None)
    assert json.loads((tmp_path / "store/format").read_text()) == {"format": 3}
    store.close()
    with monkeypatch.context() as older:
        older.setattr(stored_format, "LATER_VERSION", 2)
        with pytest.raises(StoreFormatError, match="format 3"):
            open_store(url)
    store = open_store(url)
    assert store.magazines.delayed("m") == 1
    store.close()


def test_what_is_moved_survives_compaction_and_checkpoints(tmp_path: Path) -> None:
    store = open_store(f"embedded://{tmp_path}/store")
    store.magazines.declare("m", SHARDS, "none")
    far_ms = round(store.now_s() * 1000) + 3_600_000
    kept = []
    for n in range(400):
        store.magazines.load_later("m", [(n % SHARDS, batch(f"far{n}" + "x" * 4_000))], [[far_ms + n]], None)
        kept.append(f"far{n}" + "x" * 4_000)
        store.magazines.load_records("m", n % SHARDS, list(batch("y" * 60_000).records()))
        drain(store.magazines, "m")
    store.close()
    store = open_store(f"embedded://{tmp_path}/store")
    found = store.magazines.list_later("m", limit=1_000)
    assert [one.due_ms for one in found] == [far_ms + n for n in range(400)]
    assert [Record(one.record).body.decode() for one in found if one.record is not None] == kept
    store.close()


def test_a_list_reads_a_batch_once(tmp_path: Path) -> None:
    """Neighbours in time are strewn over large batches: a page reads the index of each once, and not for each row."""
    count = 20_000
    dues_ms = [_FAR_MS + number * 7919 % count for number in range(count)]
    with open_store(f"embedded://{tmp_path}/store") as store:
        magazines = store.magazines
        magazines.declare("m", 1)
        for _ in range(2):
            batch = PackedBatch.pack([encode_record(b"%d" % number) for number in range(count)])
            magazines.load_later("m", [(0, batch)], [dues_ms], None)
        before = _read_bytes()
        rows, cut = magazines.list_later_within("m", after=None, limit=2_000, max_bytes=1 << 20)
        read = _read_bytes() - before
        assert (len(rows), cut) == (2_000, False)
        assert rows == magazines.list_later("m", limit=2_000)
        assert [one[:3] for one in rows] == sorted(one[:3] for one in rows)
    assert read < 8 << 20  # with an index of 160 KB for each row: 300 MB


def test_a_list_within_a_bound_goes_on_where_it_ended(tmp_path: Path) -> None:
    found: list[Delayed] = []
    with open_store(f"embedded://{tmp_path}/store") as store:
        magazines = store.magazines
        magazines.declare("m", 2)
        for shard in (0, 1):
            batch = PackedBatch.pack([encode_record(bytes(1 + number * 37 % 900)) for number in range(300)])
            magazines.load_later("m", [(shard, batch)], [[_FAR_MS + number * 11 % 300 for number in range(300)]], None)
        whole = magazines.list_later("m", limit=1_000)
        cut = True
        while cut:
            after = found[-1][:3] if found else None
            rows, cut = magazines.list_later_within("m", after=after, limit=1_000, max_bytes=5_000)
            assert len(rows) == 1 or sum(len(one.record or b"") for one in rows) <= 5_000
            found += rows
    assert found == whole
    assert len(whole) == 600


def _read_bytes() -> int:
    """What this process has read from files, as the kernel counts it."""
    return int(Path("/proc/self/io").read_text().split()[1])
