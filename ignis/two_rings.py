"""What publishers share that have a second ring for the messages with a time."""

from __future__ import annotations

import time
from typing import TypeVar

from ignis.publisher import Publisher

__all__ = ["TwoRingPublisher"]

M = TypeVar("M")


class TwoRingPublisher(Publisher[M]):
    """A publisher that may have a second ring, itself a publisher. `flush` and the counts are about both; how they are closed
    differs, and is said by each kind."""

    _second: Publisher[M] | None = None
    """Made by the first message that needs it."""

    def flush_within(self, left_s: float, of_s: float) -> None:
        second, until_s = self._second, time.monotonic() + left_s
        if second is not None:
            second._press()  # both at once
        super().flush_within(left_s, of_s)
        if second is not None:
            second.flush_within(max(0.0, until_s - time.monotonic()), of_s)

    @property
    def sent(self) -> int:
        return super().sent + (0 if self._second is None else self._second.sent)

    @property
    def pending(self) -> int:
        return super().pending + (0 if self._second is None else self._second.pending)

    @property
    def failed(self) -> int:
        return super().failed + (0 if self._second is None else self._second.failed)
