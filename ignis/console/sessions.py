"""Who has logged in from a browser: sessions in memory, each known to its browser by a cookie and a token. No I/O.

A cookie alone is not enough: browsers send it to every port of the host, also to those of other users of the machine. The token
is told once, at the login, and kept by the page where only pages of the same port can read it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Session", "Sessions"]

MOST = 1_000
MOST_OF_A_USER = 20
_SECRET_BYTES = 32


@dataclass
class Session:
    """One login. ``credential``: what the user proved themselves with, as the users file keeps it; when that is changed there
    the session ends."""

    user: str
    credential: str
    began_s: float
    seen_s: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES), repr=False)


class Sessions:
    """Begins, finds and ends sessions. Thread-safe. Bounded: beyond the bounds the session that was unused longest ends.

    Args:
        idle_s: a session without a request for so long has ended.
        most_s: so long after its login it has ended in any case.
        clock: seconds; injectable for tests.
    """

    def __init__(self, idle_s: float, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.idle_s = idle_s
        self.most_s = most_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Session] = OrderedDict()
        """Digest of the cookie -> its session, the longest unused first. A cookie itself is kept nowhere."""

    def begin(self, user: str, credential: str) -> tuple[str, Session]:
        """A new session; returns the cookie's value with it."""
        cookie, now_s = secrets.token_urlsafe(_SECRET_BYTES), self._clock()
        made = Session(user, credential, now_s, now_s)
        with self._lock:
            self._drop_ended(now_s)
            of_user = [key for key, one in self._known.items() if one.user == user]
            for key in of_user[: max(0, len(of_user) + 1 - MOST_OF_A_USER)]:
                del self._known[key]
            while len(self._known) >= MOST:
                self._known.popitem(last=False)
            self._known[_digest(cookie)] = made
        return cookie, made

    def find(self, cookie: str, csrf: str) -> Session | None:
        """The session of a cookie and its token, which is used with that; None when they are unknown or it has ended. A cookie
        without its token neither uses nor ends a session."""
        key, now_s = _digest(cookie), self._clock()
        with self._lock:
            found = self._known.get(key)
            if found is None or not hmac.compare_digest(found.csrf.encode(), csrf.encode("utf-8", "surrogatepass")):
                return None
            if self._ended(found, now_s):
                del self._known[key]
                return None
            found.seen_s = now_s
            self._known.move_to_end(key)
            return found

    def end(self, cookie: str) -> None:
        """Ends the session of a cookie. Idempotent."""
        with self._lock:
            self._known.pop(_digest(cookie), None)

    def _drop_ended(self, now_s: float) -> None:
        for key in [key for key, one in self._known.items() if self._ended(one, now_s)]:
            del self._known[key]

    def _ended(self, one: Session, now_s: float) -> bool:
        return now_s - one.seen_s > self.idle_s or now_s - one.began_s > self.most_s

    def __len__(self) -> int:
        return len(self._known)


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).hexdigest()
