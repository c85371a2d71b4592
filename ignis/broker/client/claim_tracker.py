"""What a client has claimed, or pulled, and not accounted for: kept by the client, so that nothing that must survive a broker
lives in its memory alone.

After every new connection the client says what it holds (RESUME). The broker takes that up, and gives back what else is
claimed in this client's name: an answer that never arrived.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from ignis.broker.client import requests
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.protocol.in_flight import InFlight, PointerRange, as_pointers, runs_of
from ignis.config import ClientSettings
from ignis.errors import BadRequestError, IgnisError, PermissionDeniedError, StoreTimeoutError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.native.wire import MAX_POINTERS, pack_pointers
from ignis.stacks import start_thread
from ignis.storage.base import Claim, Pointers
from ignis.storage.os_errors import without_means

__all__ = ["ClaimTracker"]

log = logging.getLogger("ignis.broker")

T = TypeVar("T")

_LOOK_S = 0.5
"""How often the connection is looked at while something is held: a broker that was started anew waits for its clients."""


class _Connection(Protocol):
    def look(self) -> bool: ...


class Connects(Protocol):
    """A client that connects again when its connection was lost: what is asked of one here."""

    @property
    def settings(self) -> ClientSettings: ...
    @property
    def connects(self) -> int:
        """Connections so far: the number of the present one."""

    @property
    def closed(self) -> bool: ...
    @property
    def connection(self) -> _Connection | None: ...
    def connect(self, timeout_s: float | None = None) -> Any: ...
    def ask(self, request: ClientRequest[T]) -> T: ...


class ClaimTracker:
    """Remembers what one client has claimed and not accounted for, so that it can say so to a new broker. Thread-safe.

    Args:
        client: whose connection it is.
        keeps: a thread sees to it that the connection stands while anything is held (there is none before the first claim), and
            the client renews by itself. Otherwise the next claim after a new connection says what is held.
    """

    def __init__(self, client: Connects, *, keeps: bool) -> None:
        self._client = client
        self._keeps = keeps
        self._left: set[str] = set()
        """Magazines that are not tracked any more."""
        self._held = InFlight()
        self._under_way: Counter[str] = Counter()
        self._doubtful: set[str] = set()
        """Magazines of which a claim's answer did not arrive."""
        self._resuming: set[str] = set()
        self._said = 1
        """The number of the connection on which all that is held was said; the first has nothing to say."""
        self._troubles = LimitedLog(log)
        lock = threading.Lock()  # over all of the above
        self._changed = threading.Condition(lock)
        self._wanted = threading.Condition(lock)
        """What the thread waits at. Told when it has something to do, and not with each claim."""
        self._idles = False
        """The thread has nothing to do, and wants to be told."""
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def in_step(self) -> bool:
        """Whether the present connection was told all that is held: until then a claim must not keep it waiting."""
        return self._client.connects == self._said

    @contextmanager
    def claiming(self, magazine: str) -> Iterator[list[Claim]]:
        """Surrounds a claim; put what it found into the list."""
        found: list[Claim] = []
        arrived = False
        if self._keeps and self._thread is None:
            self._begin()  # before anything is claimed: what cannot be kept must not be claimed either
        if not self._keeps and self._client.connects > self._said:
            with suppress(IgnisError):
                self._resume()
        with self._changed:
            timeout_s = self._client.settings.timeout_s
            if not self._changed.wait_for(lambda: magazine not in self._resuming, timeout_s):
                raise StoreTimeoutError("RESUME", int(1000 * timeout_s), "client.timeout_s")
            self._under_way[magazine] += 1
        try:
            yield found
            arrived = True
        finally:
            with self._changed:
                if magazine in self._left:
                    pass
                elif found:
                    self._held.add(magazine, [run for one in found for run in runs_of(one.shard, one.pointers)])
                elif not arrived:
                    self._doubtful.add(magazine)
                self._under_way[magazine] -= 1
                if self._idles and (self._held or self._doubtful):
                    self._idles = False
                    self._wanted.notify()

    def _begin(self) -> None:
        """Starts the thread. Raises StoreUnreachableError."""
        with self._changed:
            if self._thread is not None or self._closed:
                return
            thread = self._thread = threading.Thread(target=self._keep, name="ignis-broker-claims", daemon=True)
        try:
            with without_means("claims of this client cannot be kept"):
                start_thread(thread)
        except BaseException:
            self._thread = None
            raise

    def accounted(self, magazine: str, pointers: Pointers) -> None:
        """Forgets what is held no longer."""
        if self._held.count_of(magazine):
            with self._changed:
                self._held.take(magazine, [run for shard, many in pointers.items() for run in runs_of(shard, many)])

    def leave(self, magazine: str) -> None:
        """What is held of this magazine is not tracked any more: it is subscribed to, and a subscription ends with its
        connection."""
        with self._changed:
            self._left.add(magazine)
            self._held.forget(magazine)
            self._doubtful.discard(magazine)

    def close(self) -> None:
        """What is held is not looked after any more. Idempotent."""
        with self._changed:
            self._closed = True
            self._wanted.notify()

    # -- the thread

    def _keep(self) -> None:
        while True:
            try:
                with self._changed:
                    while not (self._closed or self._held or self._doubtful):
                        self._idles = True
                        self._wanted.wait()
                    if self._wanted.wait_for(lambda: self._closed, _LOOK_S):
                        return
                connection = self._client.connection
                if connection is None or not connection.look():
                    self._client.connect(self._client.settings.max_retry_wait_s)
                self._resume()
            except IgnisError as exc:
                if self._client.closed:
                    return
                log.debug(event_text("claims_no_broker", "no broker for what is held: %s"), exc)
            except Exception as exc:
                with suppress(MemoryError):  # the thread stays, whatever there is no memory for
                    self._troubles.error("what is held could not be looked after", exc_info=exc)
                time.sleep(_LOOK_S)

    def _resume(self) -> None:
        """Says what is held, unless that was done on this connection."""
        number = self._client.connects
        with self._changed:
            if number == self._said:
                return
            magazines = {*self._held.magazines(), *self._doubtful}
        left = False
        for magazine in magazines:
            left = not self._resume_one(magazine) or left
        with self._changed:
            if not left and number == self._client.connects:
                self._said = number

    def _resume_one(self, magazine: str) -> bool:
        """False when that has to wait: a claim is on its way, which must be neither lost nor taken for one that is."""
        with self._changed:
            if self._under_way[magazine]:
                return False
            self._resuming.add(magazine)
            runs = self._held.runs(magazine)
        try:
            self._say(magazine, runs)
        finally:
            with self._changed:
                self._resuming.discard(magazine)
                self._changed.notify_all()
        with self._changed:
            self._doubtful.discard(magazine)
        return True

    def _say(self, magazine: str, runs: Sequence[PointerRange]) -> None:
        if sum(stop - start for _, start, stop in runs) > MAX_POINTERS:
            log.warning(
                event_text("claims_too_many", "more than %d messages of %s are held: a new broker is not told"),
                MAX_POINTERS,
                magazine,
            )
            return
        try:
            count = self._client.ask(requests.resume(magazine, pack_pointers(as_pointers(runs)), self._keeps))
        except (BadRequestError, PermissionDeniedError) as exc:
            log.info(
                event_text("claims_not_resumed", "the broker cannot be told what is held of %s: %s"), magazine, exc
            )
            return
        held = sum(stop - start for _, start, stop in runs)
        if held:
            log.info(
                event_text(
                    "claims_resumed",
                    "the broker knows what is held of %s: %d message(s) stay here, %d went to others meanwhile",
                ),
                magazine,
                count,
                held - count,
            )
