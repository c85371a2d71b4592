"""A purge of the embedded store that ends before its end: what it had removed is gone, and the rest is there once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ignis.storage import open_store
from tests.contract.support import drain, numbered
from tests.support import eventually
from tests.support.embedded import open_at, power_cut

PURGER = """
import sys
from ignis.storage import open_store
magazines = open_store(sys.argv[1]).magazines
left = None
print("begins", flush=True)
while left != {}:
    left = magazines.purge("m", 3, left=left).left
"""


@pytest.mark.parametrize(("durability", "left"), [("sync", 4), ("none", 8)])
def test_a_purge_and_a_power_cut(tmp_path: Path, durability: str, left: int) -> None:
    """A step is whole: with ``sync`` it is gone for good, elsewhere all of it comes back when it was not flushed."""
    with open_at(tmp_path / "store") as store:
        magazines = store.magazines
        magazines.declare("m", 2, durability)
        magazines.load_records("m", 0, numbered(10))
        magazines.fire("m", 2, "me")
        store.directory.log(durability).flush()  # type: ignore[attr-defined]
        assert magazines.purge("m", 4).waiting == 4
        cut = power_cut(store, tmp_path / "cut")
    with open_at(cut) as store:
        magazines = store.magazines
        assert [one.in_flight for one in magazines.metadata("m")] == [2, 0]
        assert drain(magazines, "m") == [f"m{number}" for number in range(10 - left, 10)]
        assert magazines.load_records("m", 0, numbered(1)) > 10
        assert drain(magazines, "m") == ["m0"]


def test_a_purge_that_is_killed(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with open_store(url) as store:
        store.magazines.declare("m", 2)
        for shard in (0, 1):
            store.magazines.load_records("m", shard, numbered(3_000, f"{shard}-"))
        with subprocess.Popen([sys.executable, "-c", PURGER, url], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"begins\n"
                eventually(lambda: sum(one.pending for one in store.magazines.metadata("m")) < 5_900)
            finally:
                process.kill()
        left = store.magazines.scan("m", limit=10_000)
        assert sum(one.in_flight for one in store.magazines.metadata("m")) == 0, "nothing is left claimed"
        bodies = drain(store.magazines, "m")
        assert len(bodies) == len(set(bodies)) == len(left) < 6_000
