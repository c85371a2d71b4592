"""A producer's channel that was removed or moved, with the relay's directory perhaps: what its receipts raise."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

from ignis.errors import StoreUnreachableError, WaitTimeoutError
from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.native import MappedOutbox
from ignis.relay.directory import RelayDirectory

__all__ = ["Loss", "give_up"]

log = logging.getLogger("ignis.relay")


class Loss:
    """The error for what was in a channel that was removed or moved, and that no relay has: made once, and logged once.

    The error is StoreUnreachableError. Its text says how many messages it is about, and whether they may be stored all the same;
    it is ``retryable`` where the channel is gone for good. None: a relay had refused the channel, and set it aside.
    """

    def __init__(self, directory: RelayDirectory, channel: Path) -> None:
        self._directory = directory
        self._channel = channel
        self._lock = threading.Lock()
        self._error: StoreUnreachableError | None = None

    def __call__(self, count: int, moved: bool, had_relay: bool) -> StoreUnreachableError | None:
        """``count`` messages were in it; ``moved``: its file has another name; ``had_relay``: one had taken it up before."""
        with self._lock:
            if self._error is not None:
                return self._error
            if moved and self._directory.was_set_aside(self._channel):
                return None
            error = self._error = StoreUnreachableError(self._text(count, moved, had_relay))
            error.retryable = not moved
        if count:
            log_safely(log, logging.ERROR, event_text("channel_lost", "%s"), error)
        else:
            log_safely(
                log, logging.WARNING, event_text("channel_gone", "channel %s is gone; it was empty"), self._channel
            )
        return error

    def _text(self, count: int, moved: bool, had_relay: bool) -> str:
        told = f"{count:,} message(s) that no relay has confirmed"
        if moved:
            return (
                f"channel {self._channel} was moved away, with {told}: a relay on the place where it is now stores them, and "
                "published again they are then stored twice"
            )
        unless = (
            "the relay that had the channel has stored them"
            if had_relay
            else "a relay was about to take it up, or it was copied"
        )
        return (
            f"channel {self._channel} was removed, with {told}: they are lost, unless {unless}; published again, those are "
            "stored twice"
        )


def give_up(lost: MappedOutbox) -> None:
    """Closes a channel that is lost. A thread that still waits in it leaves within a moment, and the memory goes with it."""
    with contextlib.suppress(WaitTimeoutError):
        lost.close()
