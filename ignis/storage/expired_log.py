"""The warning that messages have run out of time."""

from __future__ import annotations

import logging

from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.log_limit import LogLimit

__all__ = ["ExpiredLog"]

log = logging.getLogger("ignis.storage")

_PERIOD_S = 60.0


class ExpiredLog:
    """Warns that messages of one store have run out of time. Thread-safe.

    It does so at once, and then at most once a minute for each magazine, with all since then. How many there were in all
    is in `ignis.storage.records.ShardState`.
    """

    def __init__(self) -> None:
        self._limit = LogLimit(_PERIOD_S)

    def note(self, magazine: str, count: int) -> None:
        """So many were retired just now."""
        due = self._limit.due(magazine, count) if count else 0
        if due:
            log_safely(
                log,
                logging.WARNING,
                event_text(
                    "messages_expired",
                    "%d message(s) of %s waited longer than their time to live (message_expiry_s, or a deadline) and were "
                    "dropped",
                ),
                due,
                magazine,
            )
