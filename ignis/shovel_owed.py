"""What a shovel has claimed and not moved: it goes back to the sideline's tail, and is tried again until the store takes it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from ignis.errors import ClosedError, ForkedHandleError, IgnisError, QueueNotFoundError, StoreFullError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.magazine import Magazine
from ignis.storage.records import group_pointers
from ignis.upkeep import Timer, timers_of

__all__ = ["Owed", "Place"]

log = logging.getLogger("ignis.shovel")

Place = tuple[int, int]
"""A shard of the sideline, and a pointer there."""

RETRY_S = 0.5
MOST_RETRY_S = 5.0
"""What the store has refused is tried again after the first of these, then after ever longer, up to the second."""
_PART = 1_000


class Owed:
    """The messages of one sideline that passes of this process have claimed and not moved. Thread-safe.

    What the store does not take back at once is tried again by a timer, whether there is another pass or not, and also after
    the shovel was stopped: until it is back, or the store is closed. When the process ends, the sweeper takes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # over who puts back: whoever comes next finds it done
        self._adding = threading.Lock()  # over the places
        self._places: list[Place] = []
        self._timer: Timer | None = None
        self._wait_s = RETRY_S
        self._said = LimitedLog(log)

    def add(self, places: Sequence[Place]) -> None:
        """These are to go back with the next call."""
        with self._adding:
            self._places += places

    def give_back(self, sideline: Magazine[Any]) -> None:
        """Puts what there is back at the sideline's tail, in parts where there is little room. What the store refuses stays
        claimed, and is tried again by itself."""
        with self._lock:
            self._attempt(sideline)

    def _attempt(self, sideline: Magazine[Any]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._adding:
            places, self._places = self._places, []
        if not places:
            return
        again = True
        try:
            while places:
                _reload_some(sideline, places)
            self._wait_s = RETRY_S
        except QueueNotFoundError:
            places = []  # removed with all that was in it
        except IgnisError as exc:
            again = not isinstance(exc, (ClosedError, ForkedHandleError))
            self._said.warning(
                event_text(
                    "shovel_claims_kept", "%d message(s) of %s stay claimed until the store takes them back: %s"
                ),
                len(places),
                sideline.name,
                exc,
            )
        finally:
            if places:
                with self._adding:
                    self._places += places
                if again:
                    self._timer = timers_of(None).after(self._wait_s, lambda: self.give_back(sideline))
                    self._wait_s = min(MOST_RETRY_S, 2 * self._wait_s)


def _reload_some(sideline: Magazine[Any], places: list[Place]) -> None:
    """Puts some of the places back and takes them from the list: fewer at a time, down to one, where the store is full. Raises
    the store's error."""
    size = _PART
    while True:
        part = places[:size]
        try:
            sideline.store.reload(sideline.name, group_pointers(part))
        except StoreFullError:
            if len(part) == 1:
                places.append(places.pop(0))  # another may be smaller
                raise
            size = len(part) // 2
        else:
            del places[: len(part)]
            return
