"""More bytes than one entry of the log may have, which is 512 MiB of what is loaded."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import ignis
from ignis.control.redelivery import recover_owner
from ignis.errors import MessageTooLargeError
from ignis.native import PackedBatch, encode_record
from ignis.storage import open_store

pytestmark = pytest.mark.integration

MEGABYTE = bytes(1_000_000)
COUNT = 540


def test_more_than_an_entry_of_the_log_takes_is_published_and_swept(tmp_path: Path) -> None:
    with ignis.Ignis(f"embedded://{tmp_path}/store") as app:
        queue = app.queue("q", bytes, shards=1, durability="none")
        assert len(queue.publish_many([MEGABYTE] * COUNT)) == COUNT
        while app.store.magazines.fire("q", 50, "gone").claims:
            pass
        assert recover_owner(app.store, "gone", "it was killed").sidelined == COUNT
        assert (queue.main.in_flight(), queue.sideline.pending()) == (0, COUNT)


@pytest.mark.long
def test_what_is_due_at_one_time_is_moved_however_large_it_is(tmp_path: Path) -> None:
    """How large the due ones of a batch are is guessed by all of it: here they are all that is large in it."""
    large, small = encode_record(bytes(16_000_000)), encode_record(b"x")
    with open_store(f"embedded://{tmp_path}/store") as store:
        store.magazines.declare("m", 1, "none")
        now_ms = int(store.now_s() * 1000)
        dues_ms = [now_ms - 1] + [now_ms + 3_600_000] * 300
        for _ in range(35):
            batch = PackedBatch.pack([large] + [small] * 300)
            store.magazines.load_later("m", [(0, batch)], [dues_ms], None)
        while store.magazines.move_due("m").moved:
            pass
        assert store.magazines.metadata("m")[0].pending == 35


def test_what_one_call_may_not_have_is_said(tmp_path: Path) -> None:
    """A store is told to load all of it in one transaction: nothing is stored, and the error names the true limit."""
    batches = [(0, PackedBatch.pack([encode_record(MEGABYTE)] * 60)) for _ in range(9)]
    with open_store(f"embedded://{tmp_path}/store") as store:
        store.magazines.declare("m", 1, "none")
        with pytest.raises(MessageTooLargeError, match="is over the limit of 536870912 bytes") as caught:
            store.magazines.load("m", batches, None)
        assert (caught.value.limit_bytes, caught.value.part) == (512 << 20, "call")
        assert 540_000_000 < caught.value.size_bytes < 541_000_000
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        assert store.magazines.metadata("m")[0].load_pointer == 0
        # Whichever pointers: they are later ones in another generation of the log.
        assert store.magazines.load("m", batches[:8], None)[0] >= 1, "and the batches are as they were"
        assert store.magazines.metadata("m")[0].pending == 8 * 60
