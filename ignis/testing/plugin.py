"""The pytest plugin: ``pytest_plugins = ["ignis.testing.plugin"]`` in the uppermost ``conftest.py``, or ``-p`` with its name.

It is turned on by name: an entry point would import the library in every run of pytest wherever it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from ignis.app import Ignis
from ignis.testing.clock import ManualClock
from ignis.testing.memory import use_memory_store

__all__ = ["ignis_app", "ignis_clock", "ignis_on_memory"]

_CLOSE_S = 10.0


@pytest.fixture
def ignis_clock() -> ManualClock:
    """The clock of `ignis_app` and `ignis_on_memory`."""
    return ManualClock()


@pytest.fixture
def ignis_app(ignis_clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ignis]:
    """An application on a fresh memory store, without settings from the environment; closed after the test."""
    for name in [one for one in os.environ if one.startswith("IGNIS_")]:
        monkeypatch.delenv(name)
    app = Ignis("memory://", clock=ignis_clock)
    yield app
    app.close(_CLOSE_S)


@pytest.fixture
def ignis_on_memory(ignis_clock: ManualClock) -> Iterator[Callable[[Ignis], Ignis]]:
    """``ignis_on_memory(shop.app)``: that application, on a fresh memory store until the test ends; see `use_memory_store`."""
    with ExitStack() as stack:

        def move(app: Ignis) -> Ignis:
            stack.enter_context(use_memory_store(app, ignis_clock))
            return app

        yield move
