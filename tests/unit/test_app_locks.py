"""Threads that open a queue while another starts or closes the application: none waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from ignis import errors
from tests.support import eventually

BOUND_S = 20.0


def open_slowly(app: ignis.Ignis, queue: ignis.Queue[str], until: Callable[[], bool], began: threading.Event) -> None:
    """As `Queue.open`, which asks for the store under the queue's lock; the store is asked for when ``until`` says so."""
    with queue._lock:
        began.set()
        eventually(until)
        assert app.store is not None


def both_end(opening: threading.Thread, other: threading.Thread) -> bool:
    for thread in (opening, other):
        thread.join(BOUND_S)
    return not opening.is_alive() and not other.is_alive()


def test_a_queue_is_opened_while_the_application_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = ignis.Ignis("memory://")
    queue = app.queue("orders", str)
    queue.publish("first")
    began = threading.Event()
    opening = threading.Thread(target=open_slowly, args=(app, queue, lambda: not app.opened, began), daemon=True)

    def end_publishers(*args: Any) -> None:
        """The last step before the store is taken away."""
        if not began.is_set():
            opening.start()
            assert began.wait(BOUND_S)

    monkeypatch.setattr("ignis.app.end_publishers", end_publishers)
    closing = threading.Thread(target=app.close, daemon=True)
    closing.start()
    assert began.wait(BOUND_S)
    assert both_end(opening, closing)
    app.close()


def test_a_queue_is_opened_while_the_application_is_started() -> None:
    app = ignis.Ignis("memory://")
    queue = app.queue("orders", str)
    queue.handler(lambda message: None)
    began = threading.Event()
    opening = threading.Thread(target=open_slowly, args=(app, queue, lambda: app.running, began), daemon=True)
    opening.start()
    assert began.wait(BOUND_S)
    starting = threading.Thread(target=app.start, daemon=True)
    starting.start()
    assert both_end(opening, starting)
    app.close()


def test_what_opens_the_store_at_the_same_time_gets_the_same_one() -> None:
    with ignis.Ignis("memory://") as app:
        stores: list[object] = []
        together = threading.Barrier(8)

        def use() -> None:
            together.wait(BOUND_S)
            stores.append((app.store, app.magazines))

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND_S)
        assert stores == [(app.store, app.magazines)] * 8


@pytest.mark.parametrize("attribute", ["store", "magazines"])
def test_an_application_without_a_url_says_so_each_time(attribute: str) -> None:
    app = ignis.Ignis()
    for _ in range(2):
        with pytest.raises(errors.ConfigError, match="no store"):
            getattr(app, attribute)
