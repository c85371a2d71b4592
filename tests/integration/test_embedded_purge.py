"""A purge of the embedded store that ends before its end: what it had removed is gone, and the rest is there once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import StoreBusyError
from ignis.storage import open_store
from ignis.storage.embedded import claims
from tests.contract.support import drain, numbered
from tests.support import eventually

PURGER = """
import sys
from ignis.storage import open_store
magazines = open_store(sys.argv[1]).magazines
left = None
print("begins", flush=True)
while left != {}:
    left = magazines.purge("m", 3, left=left).left
"""


@pytest.mark.parametrize("durability", ["sync", "none"])
def test_the_claims_cannot_be_written_after_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """The data's transaction is durable by then; what claims and fire pointers say is only late."""
    with open_store(f"embedded://{tmp_path}/store") as store:
        magazines = store.magazines
        magazines.declare("m", 2, durability)
        magazines.load_records("m", 0, numbered(10))
        magazines.fire("m", 2, "me")

        def fails(*args: Any) -> None:
            raise StoreBusyError("no")

        with monkeypatch.context() as patched:
            patched.setattr(claims, "skip_retired", fails)
            with pytest.raises(StoreBusyError):
                magazines.purge("m", 4)
        assert [one.in_flight for one in magazines.metadata("m")] == [2, 0]
        assert drain(magazines, "m") == ["m6", "m7", "m8", "m9"]
        assert magazines.load_records("m", 0, numbered(1)) == 11
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
