"""Where memory, descriptors or threads are lacking when something is opened or started."""

from __future__ import annotations

import errno
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import StoreUnreachableError
from ignis.storage import open_store


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_opening_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = os.open

    def refuse(path: Any, *args: Any, **more: Any) -> int:
        if str(path).endswith("/owners"):
            raise OSError(number, os.strerror(number))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreUnreachableError, match="owners"):
        open_store(f"embedded://{tmp_path}/s")
    monkeypatch.undo()
    open_store(f"embedded://{tmp_path}/s").close()


def test_opening_a_store_with_one_descriptor_more_each_time(tmp_path: Path) -> None:
    """Until there are enough of them: whichever is the one that is lacking, it is the caller's error, and nothing stays open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    filled = [os.dup(0)]
    while filled[-1] < highest:  # earlier tests of this process may have left some open above free ones
        filled.append(os.dup(0))
    lowest = filled.pop()
    os.close(lowest)
    refused = 0
    for more in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, hard))
        try:
            open_store(f"embedded://{tmp_path}/s").close()
            break
        except StoreUnreachableError as refusal:
            refused += "Too many open files" in str(refusal)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert os.dup(0) == lowest, "a descriptor was left open"
        os.close(lowest)
    for fd in filled:
        os.close(fd)
    assert 4 < refused == more < 39


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
