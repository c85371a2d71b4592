"""Removing many messages: where the store has no room for a large transaction, and where it fails half way."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

import ignis
from ignis import clearing
from ignis.clearing import purge
from ignis.errors import StoreFailedError, StoreFullError
from ignis.storage.purging import Purged


class Full:
    """Has room for the pages of so many deletes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.waiting = 5_000

    def purge(self, name: str, limit: int, *, in_flight: bool, left: Mapping[int, Any] | None) -> Purged:
        if min(limit, self.waiting) > self.most:
            raise StoreFullError("no room")
        removed = min(limit, self.waiting)
        self.waiting -= removed
        return Purged(removed, 0, {0: (1, self.waiting)} if self.waiting else {})


def test_a_purge_of_a_full_store_goes_in_smaller_steps() -> None:
    store: Any = Full(700)
    assert purge(store, "jobs").waiting == 5_000


def test_a_purge_without_any_room_ends() -> None:
    store: Any = Full(0)
    with pytest.raises(StoreFullError):
        purge(store, "jobs")


@pytest.mark.parametrize("call", ["purge", "delete", "where"])
def test_the_error_says_what_was_removed_before(
    memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A call of several transactions ends at one of them: what those before it did stays."""
    queue = memory_app.queue("jobs", int, shards=1)
    queue.publish_many(range(2_500))
    store: Any = memory_app.store.magazines
    name = {"purge": "purge", "delete": "delete_waiting", "where": "scan"}[call]
    real, calls = getattr(store, name), []

    def refuse(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise LookupError("no") if call == "where" else StoreFailedError("store: a disk that fails")
        return real(*given, **named)

    monkeypatch.setattr(store, name, refuse)
    monkeypatch.setattr(clearing, "PURGE_BATCH", 1_000)
    remove: Any = queue.purge if call == "purge" else functools.partial(queue.delete, where=lambda message: True)
    with pytest.raises(LookupError if call == "where" else StoreFailedError) as caught:
        remove()
    assert caught.value.removed_messages == 2_000  # type: ignore[attr-defined]
    assert queue.main.pending() == 500
    if call != "where":
        assert str(caught.value) == "store: a disk that fails; 2,000 messages were removed before"


def test_an_error_before_anything_was_removed_says_nothing_of_it(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int, shards=1)
    queue.publish(1)
    with pytest.raises(ZeroDivisionError) as caught:
        queue.delete(where=lambda message: 1 / 0)
    assert not hasattr(caught.value, "removed_messages")
