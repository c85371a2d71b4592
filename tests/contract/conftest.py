"""Every test of this folder runs on every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ignis.storage.base import MagazineStore, Store
from tests.contract.support import Kind


@pytest.fixture(params=["memory", "embedded", "aerospike", "broker"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    one = Kind(request.param, tmp_path)
    yield one
    one.forget()


@pytest.fixture
def store(kind: Kind) -> Store:
    return kind.open()


@pytest.fixture(params=["sync", "interval", "none"])
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def magazines(store: Store) -> MagazineStore:
    """With a magazine ``m`` of four shards."""
    store.magazines.declare("m", 4)
    return store.magazines
