"""Threads that must outlast whatever happens in one of their rounds, such as a moment without memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ignis.hooks import log_safely
from ignis.log_format import event_text

__all__ = ["outlast"]

_PAUSE_S = 0.1
_SAY_AGAIN_S = 60.0


def outlast(logger: logging.Logger, loop: Callable[[], None]) -> None:
    """Runs the loop of a thread until it returns. What leaves it is logged, once a minute at most; then it begins again.

    The loop catches what ends it by itself. Nothing here needs memory to go on.
    """
    said_at_s = float("-inf")
    while True:
        try:
            try:
                loop()
                return
            except Exception as exc:
                if time.monotonic() - said_at_s >= _SAY_AGAIN_S:
                    said_at_s = time.monotonic()
                    name = threading.current_thread().name
                    log_safely(
                        logger,
                        logging.ERROR,
                        event_text("thread_goes_on", "thread %s met what should not happen, and goes on: %r"),
                        name,
                        exc,
                        exc_info=exc,
                    )
        except Exception:
            said_at_s = float("-inf")  # it was not said
        time.sleep(_PAUSE_S)
