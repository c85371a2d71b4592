"""What an array queue is without a server: names, the Lua text that is shipped."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from ignis.array_queue import ArrayQueue
from ignis.storage.base import ArrayStore
from ignis.storage.memory.store import MemoryStore

TEXT = (files("ignis") / "array_queue.lua").read_text("utf-8")


def test_what_it_says_of_itself() -> None:
    with MemoryStore() as store:
        queue = ArrayQueue(store, "tickets", "R")
        assert (queue.name, queue.bin) == ("tickets", "R")
        assert repr(queue) == "<ArrayQueue 'tickets' bin 'R'>"
        assert bool(queue)
        assert len(queue) == 0


def test_asking_whether_there_is_a_queue_does_not_call_the_store() -> None:
    store = MemoryStore()
    queue = ArrayQueue(store, "tickets")
    store.close()
    assert queue


@pytest.mark.parametrize("function", ["enqueue", "enqueue_many", "dequeue", "dequeue_many", "peek", "size"])
def test_the_module_has_what_the_pages_promise(function: str) -> None:
    assert len(re.findall(rf"^function {function}\(rec, bin\b", TEXT, re.MULTILINE)) == 1


def test_the_module_keeps_nothing_between_calls() -> None:
    """A server runs the text in several states, each used by many calls: a global would be shared by some of them."""
    functions = set(re.findall(r"^function (\w+)", TEXT, re.MULTILINE))
    assigned = set(re.findall(r"^\s*(\w+)\s*=[^=]", TEXT, re.MULTILINE))
    local = set(re.findall(r"\blocal (\w+)", TEXT)) | {"pos"}
    assert assigned - local == set()
    assert functions == {"enqueue", "enqueue_many", "dequeue", "dequeue_many", "peek", "size"}


def test_stores_have_the_facet() -> None:
    with MemoryStore() as store:
        assert isinstance(store.arrays, ArrayStore)
