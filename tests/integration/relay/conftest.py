"""A relay's directory and store for each test, and a producer's queue there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis
from tests.support import WAIT_S
from tests.support.relay import Place, place


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


@pytest.fixture
def queue(here: Place) -> Iterator[ignis.Queue[bytes]]:
    """The queue as a producer in this process has it."""
    app = ignis.Ignis(here.url, store={"timeout_s": WAIT_S})
    yield app.queue("q", bytes)
    app.close()
