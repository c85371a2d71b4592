"""Where memory, descriptors or threads are lacking when something is opened or started."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import StoreUnreachableError
from ignis.storage import open_store


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_opening_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = os.open

    def refuse(path: Any, *args: Any, **more: Any) -> int:
        if str(path).endswith("data.mdb"):
            raise OSError(number, os.strerror(number))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreUnreachableError, match="environment claims"):
        open_store(f"embedded://{tmp_path}/s")
    monkeypatch.undo()
    open_store(f"embedded://{tmp_path}/s").close()


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), OSError(errno.EMFILE, "no files")]
)
def test_starting(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    queue = memory_app.queue("q", int)
    queue.handler(print)
    queue.publish(1)

    def refuse(self: threading.Thread) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreUnreachableError):
            memory_app.start()
        with pytest.raises(StoreUnreachableError):
            queue.publisher()
    assert memory_app.stop(5)
    assert queue.main.pending() == 1
