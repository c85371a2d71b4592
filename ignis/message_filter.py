"""Which messages are meant: by id, key, age, reason, error, header and text. What the command line and the console take as a
filter."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import msgspec

from ignis.errors import UnreadableMessageError
from ignis.message import REASON_CORRUPT, REASON_UNREADABLE, Message

__all__ = ["UNKNOWN", "AtMost", "Filter", "has_headers", "has_text"]

UNKNOWN = "unknown"
"""The reason of what is in a sideline and does not say why."""


def has_text(message: Message, text: str) -> bool:
    """Whether the text stands in the stored body, as UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape") in message.body
    except UnicodeEncodeError:  # half of a surrogate pair is in no body
        return False


def has_headers(message: Message, headers: tuple[tuple[str, str], ...]) -> bool:
    """Whether it has all of these, by name and value, which is compared as text, or as JSON where it is no text. Raises
    UnreadableMessageError."""
    return all(_has(message.headers, name, value) for name, value in headers)


def _has(headers: dict[str, Any], name: str, value: str) -> bool:
    if name not in headers:
        return False
    found = headers[name]
    if isinstance(found, str):
        return found == value
    try:
        return msgspec.json.encode(found).decode() == value
    except Exception:  # whoever may publish chooses what stands there
        return False


class Filter(NamedTuple):
    """Messages that meet every condition. ``headers`` and ``text``: see `has_headers` and `has_text`."""

    ids: tuple[str, ...] = ()
    key: str | None = None
    older_than: float | None = None
    reasons: tuple[str, ...] = ()
    error: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    text: str | None = None

    @property
    def given(self) -> bool:
        """Whether there is any condition."""
        return self != Filter()

    def matches(self, record: bytes | None) -> bool:
        """Whether a stored record is meant; None is one that does not match its checksum."""
        try:
            message = None if record is None else Message.from_bytes(record)
            return self._reason_fits(message) and self._fits(message)
        except UnreadableMessageError:
            # Of such a record nothing is known but that.
            return REASON_UNREADABLE in self.reasons and self._replace(reasons=()) == Filter()

    def fits(self, message: Message) -> bool:
        """Whether a message that could be read is meant."""
        return self._reason_fits(message) and self._fits(message)

    def _reason_fits(self, message: Message | None) -> bool:
        if not self.reasons:
            return True
        return (REASON_CORRUPT if message is None else message.reason or UNKNOWN) in self.reasons

    def _fits(self, message: Message | None) -> bool:
        if message is None:
            return self._replace(reasons=()) == Filter()
        if self.ids and message.id not in self.ids:
            return False
        if self.key is not None and message.key != self.key:
            return False
        if self.error is not None and self.error not in (message.error or ""):
            return False
        if not has_headers(message, self.headers):
            return False
        if self.text is not None and not has_text(message, self.text):
            return False
        if self.older_than is None:
            return True
        failed_ms = message.failed_at_ms if message.reason is not None else None
        since_s = message.enqueued_at_us / 1e6 if failed_ms is None else failed_ms / 1000
        return time.time() - since_s > self.older_than


class AtMost:
    """The filter of a shovel pass, which lets at most ``limit`` messages through. Thread-safe."""

    def __init__(self, wanted: Filter, limit: int | None) -> None:
        self._wanted = wanted
        self._left = limit
        self._lock = threading.Lock()

    @property
    def spent(self) -> bool:
        """Whether it lets nothing more through: the pass ends."""
        return self._left == 0

    def __call__(self, message: Message) -> bool:
        if not self._wanted.fits(message):
            return False
        if self._left is None:
            return True
        with self._lock:
            taken = self._left > 0
            self._left -= taken
            return taken
