"""A claim that brings nothing and says that there is more is no empty queue."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import ignis
from ignis.storage.base import MOST_FRUITLESS, FireResult, MagazineStore
from tests.conftest import MakeApp


class Fruitless:
    """The first claims of a magazine bring nothing, as they do when others are quicker or much has expired."""

    def __init__(self, magazines: MagazineStore, count: int) -> None:
        self.left = count
        self._fire = magazines.fire
        magazines.fire = self.fire  # type: ignore[method-assign]

    def fire(self, *args: Any, **options: Any) -> FireResult:
        if self.left:
            self.left -= 1
            return FireResult([], {}, 0, True)
        return self._fire(*args, **options)


@pytest.fixture
def app(memory_url: str, new_app: MakeApp) -> ignis.Ignis:
    return new_app(memory_url)


def test_fire_of_a_magazine(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", bytes, shards=1)
    magazine.load(b"x")
    Fruitless(magazine.store, 3)
    assert [one.message for one in magazine.fire()] == [b"x"]


def test_it_has_an_end(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", bytes, shards=1)
    tries = Fruitless(magazine.store, 10_000)
    assert magazine.fire() == []
    assert tries.left == 10_000 - 1 - MOST_FRUITLESS


def test_claim_of_a_job(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", bytes, shards=1)
    magazine.load(b"x")
    Fruitless(magazine.store, 3)
    assert sum(run.messages for run in MagazineStore.claim(magazine.store, "m", 10, "job")) == 1


def test_a_busy_record_of_aerospike_is_looked_at_again() -> None:
    pytest.importorskip("aerospike")
    from ignis.storage.aerospike.catalogue import Catalogue, Magazine, ShardView
    from ignis.storage.aerospike.claim import Claimer
    from ignis.storage.aerospike.layout import Keys, SetNames
    from ignis.storage.aerospike.status_codes import BUSY
    from ignis.storage.aerospike.trickle import Trickle

    rounds: list[int] = []

    class Busy:
        namespace = "test"

        def send(self, what: str, entries: list[Any], allowed: object) -> None:
            rounds.append(len(entries))
            for entry in entries:
                entry.result = BUSY

    connection: Any = Busy()
    catalogue = Catalogue(connection, SetNames.of("client", "farm", "local"))
    views = [ShardView() for _ in range(2)]
    magazine = Magazine("m", 2, 2, "sync", Keys("m", False), views, threading.Lock())
    claimer = Claimer(connection, catalogue, Trickle(connection, catalogue))
    result, surplus = claimer.fire(magazine, 10, "me", None, 1 << 20)
    assert (result.claims, result.more, surplus) == ([], True, [])
    assert rounds == [2, 2, 2]
