"""What the contract tests share: one store to open again and again, and records that say what they are."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ignis.native import PackedBatch, Record, encode_record
from ignis.storage import open_store
from ignis.storage.base import FireResult, MagazineStore, ShardState, Store
from tests.support import aerospike as aerospike_support
from tests.support.broker import RunningBroker

ONE_KIND = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("memory", marks=pytest.mark.long),
        "embedded",
        "aerospike",
        pytest.param("broker", marks=pytest.mark.long),
    ],
    indirect=True,
)
"""For a test that waits, of what lies above the stores: on the embedded one; on all where all takes place that takes long."""

_numbers = itertools.count(1)


class Kind:
    """One store by URL, whose content outlives its handles. ``open`` gives a handle, all are closed by ``close_all``."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory / "store"
        self._clients: list[str] = []
        self._broker: RunningBroker | None = None
        if name == "memory":
            self.url = f"memory://contract-{os.getpid()}-{next(_numbers)}"
        elif name == "aerospike":
            # Deployments share their data sets otherwise, as those of the Java library do.
            self.url = aerospike_support.url(scope="local")
            self._clients = [parse_qs(urlsplit(self.url).query)["client_id"][0], "billing"]
        elif name == "broker":
            self._broker = RunningBroker(f"embedded://{self.directory}")
            self.url = self._broker.url
        else:
            self.url = f"{name}://{self.directory}"
        self._opened: list[Store] = []

    @property
    def in_directory(self) -> bool:
        """Whether its content is in ``directory``, and survives the process."""
        return self.name == "embedded"

    def follows(self, pointer: int, last: int) -> bool:
        """Whether a load after a reopen goes on behind that pointer; right behind it, where an opening leaves no numbers out."""
        return pointer > last if self.name == "embedded" else pointer == last + 1

    def open(self, **options: Any) -> Store:
        self._opened.append(open_store(self.url, **options))
        return self._opened[-1]

    def close_all(self) -> None:
        for store in self._opened:
            store.close(10)
        self._opened.clear()

    def forget(self) -> None:
        """At the end of a test: what is not in a directory of the test's is removed."""
        self.close_all()
        if self._broker is not None:
            self._broker.stop()
        if self._clients:
            aerospike_support.forget(aerospike_support.address(), self._clients)

    def reopen(self, **options: Any) -> Store:
        """As after an orderly end of the process."""
        self.close_all()
        return self.open(**options)


def record(text: str, **fields: Any) -> bytes:
    return encode_record(text.encode(), **fields)


def records(*texts: str) -> list[bytes]:
    return [record(text) for text in texts]


def numbered(count: int, prefix: str = "m") -> list[bytes]:
    return records(*(f"{prefix}{number}" for number in range(count)))


def text(data: bytes | None) -> str | None:
    return None if data is None else Record(data).body.decode()


def texts(result: FireResult) -> list[str | None]:
    """Bodies of everything fired, in order."""
    return [text(one) for claim in result.claims for one in claim.records]


def pointers(result: FireResult) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for claim in result.claims:
        found.setdefault(claim.shard, []).extend(claim.pointers)
    return found


def batch(*bodies: str) -> PackedBatch:
    return PackedBatch.pack(records(*bodies))


def state(magazines: MagazineStore, magazine: str, shard: int = 0) -> ShardState:
    return magazines.metadata(magazine)[shard]


def drain(magazines: MagazineStore, magazine: str, owner: str = "drainer", limit: int = 1_000) -> list[str | None]:
    """Fires and deletes until nothing is pending."""
    bodies: list[str | None] = []
    while True:
        result = magazines.fire(magazine, limit, owner)
        if not result.claims:
            return bodies
        bodies += texts(result)
        assert magazines.delete(magazine, pointers(result)) == result.total()


def peeked(rows: Mapping[int, Mapping[int, bytes | None]]) -> dict[int, dict[int, str | None]]:
    return {shard: {pointer: text(one) for pointer, one in many.items()} for shard, many in rows.items()}


def scanned(rows: Sequence[tuple[int, int, bytes | None]]) -> list[tuple[int, int, str | None]]:
    return [(shard, pointer, text(one)) for shard, pointer, one in rows]


def tick() -> int:
    """A moment, in the wall clock's milliseconds, that lies between what was done before and what is done after: a store
    counts by a clock of its own, which may differ by a few of them."""
    time.sleep(0.01)
    now_ms = int(time.time() * 1000)
    time.sleep(0.01)
    return now_ms
