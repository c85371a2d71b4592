"""SIGUSR1: what a process is doing, into its log: the messages in hand as JSON, and the stacks of all threads."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import queue as queues_
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import msgspec

from ignis.app import Ignis
from ignis.log_format import event_text
from ignis.stacks import start_thread

__all__ = ["dumping_on_signal", "in_hand"]

log = logging.getLogger("ignis.dump")


def in_hand(app: Ignis) -> dict[str, Any]:
    """What every consumer of the application has claimed and not finished. Those that have nothing are left out."""
    consumers = [(queue.name, queue.consumer) for queue in app.queues()]
    return {name: one.in_hand() for name, one in consumers if one is not None and not one.idle}


@contextlib.contextmanager
def dumping_on_signal(describe: Callable[[], dict[str, Any]], stacks_fd: int | None = None) -> Iterator[None]:
    """While it lasts SIGUSR1 writes the stacks and ``describe()`` to the log. The stacks come from C: they are written although
    no Python code may be able to run. Only in the main thread; elsewhere nothing is installed.

    Args:
        stacks_fd: the file of a supervisor, which logs what is written there. None = stderr.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler runs in the middle of anything, logging included: it only wakes the thread that may log.
    asked: queues_.SimpleQueue[bool] = queues_.SimpleQueue()

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.put(True)

    def work() -> None:
        while asked.get():
            try:
                state = describe()
                log.warning(event_text("in_hand", "in hand: %s"), msgspec.json.encode(state).decode(), extra=state)
            except Exception:
                log.exception(event_text("in_hand_unknown", "in hand: not known"))

    before = signal.signal(signal.SIGUSR1, on_signal)
    registered = stacks_fd is not None or _has_descriptor()
    if registered:
        faulthandler.register(
            signal.SIGUSR1, file=sys.stderr if stacks_fd is None else stacks_fd, all_threads=True, chain=True
        )
    thread = threading.Thread(target=work, name="ignis-dump", daemon=True)
    start_thread(thread)
    try:
        yield
    finally:
        if registered:
            faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)
        asked.put(False)
        thread.join(1.0)


def _has_descriptor() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False
