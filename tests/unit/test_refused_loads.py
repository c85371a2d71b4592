"""What an open store says when it has no room: the log itself has one word for all of it."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from ignis.errors import StoreFullError
from ignis.storage.embedded.room import RefusedLoads

FULL = "store: disk full (/x): No space left on device"


def test_what_the_disk_has_left_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimpleNamespace(f_bavail=100, f_frsize=4096, f_files=40, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    refused = RefusedLoads(tmp_path)
    with (
        pytest.raises(
            StoreFullError, match=r"No space left on device \(409,600 bytes are free, and no file more\)$"
        ) as found,
        refused,
    ):
        raise StoreFullError(FULL)
    refused.count(found.value)
    assert str(found.value).count("free") == 1
    disk.f_favail = 1
    with pytest.raises(StoreFullError, match=r"\(409,600 bytes are free\)$"), refused:
        raise StoreFullError(FULL)
    assert refused.figures() == {"refused_loads_limit": 0, "refused_loads_room": 3}


def test_a_limit_of_the_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1 << 20, 1 << 20))
    with (
        pytest.raises(StoreFullError, match=r"a file of this process may have 1,048,576 bytes: ulimit -f"),
        RefusedLoads(tmp_path),
    ):
        raise StoreFullError(FULL)


def test_the_bound_of_a_store_stays_as_it_is(tmp_path: Path) -> None:
    text = "store: /x holds as many bytes of messages as it may: 5 (max_store_bytes)"
    with pytest.raises(StoreFullError) as found, RefusedLoads(tmp_path):
        raise StoreFullError(text)
    assert str(found.value) == text
