"""What the dead held: claims of clients and brokers that ended without giving them back.

Looked for before claims, and once when a broker begins: clients of the one before it have had time to come back by then, and
what those held that did not is pending again.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from ignis.broker.protocol.in_flight import PointerRange, as_pointers
from ignis.broker.server.claimants import CLIENT_PREFIX, OWNER_PREFIX
from ignis.broker.server.context import ApplicationContext
from ignis.broker.server.peer import Peer
from ignis.broker.server.redelivery import Redelivery
from ignis.errors import ClosedError, QueueNotFoundError
from ignis.log_format import event_text

__all__ = ["Clients", "Recovery"]

log = logging.getLogger("ignis.broker")

_RECOVER_S = 10.0
_OTHERS_S = 60.0
_GRACE_S = 5.0
"""On top of ``redeliver_after_s``: how long after the start of a broker the clients of the one before it have to come back.
They look for it every half second, and try to connect every two seconds at least."""

Found = tuple[str, str, list[PointerRange]]
"""(owner, magazine, what it holds)."""


class Clients(Protocol):
    """Who is connected to the broker, or was a moment ago."""

    def awaited(self) -> set[str]:
        """The owners whose connection stands, or was lost a moment ago. From any thread."""

    def peers_of(self, owner: str) -> Sequence[Peer]:
        """The connections of one client. Belongs to the event loop."""

    def alone(self) -> bool:
        """Whether this broker is the only one of the store: the clients of another are not here. In a thread."""


class Recovery:
    """Takes back what dead claimants hold of one application's queues.

    Args:
        context: of the application.
        redelivery: counts the crashes of what clients held.
        clients: who is here.
    """

    def __init__(self, context: ApplicationContext, redelivery: Redelivery, clients: Clients) -> None:
        self._context = context
        self._magazines = context.magazines
        self._redelivery = redelivery
        self._clients = clients
        self._lock = threading.Lock()  # over the next one, which threads of the store's use
        self._recovered: dict[str, float] = {}
        self._opened_s = time.monotonic()
        self._take_back_s = self._opened_s + context.broker.settings.redeliver_after_s + _GRACE_S

    @property
    def young(self) -> bool:
        """Whether clients may still hold what a broker before this one claimed for them."""
        return time.monotonic() < self._opened_s + _OTHERS_S

    def recover(self, magazine: str) -> None:
        """What was held by clients and brokers of this machine that are dead goes back to the tail; looked for every ten
        seconds at most. On stores that cannot prove a death quickly it is the sweeper's. In a thread."""
        with self._lock:
            if time.monotonic() < self._recovered.get(magazine, 0.0) + _RECOVER_S:
                return
            self._recovered[magazine] = time.monotonic()
        if self._context.store.local_dir is not None:
            self._recover(magazine)

    def tidy(self) -> None:
        """Forgets what is too old: names come from clients."""
        now_s = time.monotonic()
        with self._lock:
            self._recovered = {name: at_s for name, at_s in self._recovered.items() if now_s - at_s <= _RECOVER_S}

    def look(self) -> None:
        """Now and then, on the event loop: once, when clients of an earlier broker had time to come back, takes back what
        those held that did not."""
        broker = self._context.broker
        if time.monotonic() >= self._take_back_s and not broker.state.draining:
            self._take_back_s = math.inf
            broker.threads.call(self._take_back, self._took_back, None, self._not_taken_back)

    def _take_back(self, _: None) -> tuple[bool, list[Found]]:
        """What clients hold whose broker died. In a thread. Returns whether this broker is the only one of the store, without
        which those who are not here may be at another; and what those hold that came back."""
        alone = self._clients.alone()
        found: list[Found] = []
        for magazine in self._magazines.names():
            try:
                found += self._recover(magazine, everybody=True, absent=alone)
            except QueueNotFoundError:
                continue  # dropped meanwhile
        return alone, found

    def _took_back(self, result: tuple[bool, list[Found]]) -> None:
        """What a client holds that came back is its connection's again, unless it has said so itself."""
        alone, found = result
        if not alone and self.young:
            # The broker before this one is listed for some seconds more.
            self._take_back_s = time.monotonic() + _GRACE_S
        for owner, magazine, runs in found:
            for peer in self._clients.peers_of(owner)[-1:]:
                if peer.uses(self._context) and magazine not in peer.held.ever:
                    peer.claims.take_up(magazine, runs)

    def _not_taken_back(self, exc: BaseException) -> None:
        if not isinstance(exc, ClosedError):
            self._take_back_s = time.monotonic() + _GRACE_S
            self._context.said.warning(
                event_text(
                    "recovery_look_failed",
                    "what clients of an earlier broker held cannot be looked for, trying again: %s",
                ),
                exc,
            )

    def _recover(self, magazine: str, *, everybody: bool = False, absent: bool = False) -> list[Found]:
        """Gives back what the dead held: one crash more for a client's, which may have died of it. With ``absent`` also what
        is held by clients that are not here; theirs is no crash. Returns, with ``everybody``, what those hold that are here."""
        magazines = self._magazines
        present: list[Found] = []
        claimants = magazines.claimants(magazine)
        awaited = self._clients.awaited() if claimants else set()
        for owner, dead in claimants.items():
            if not owner.startswith(OWNER_PREFIX) or owner == self._context.broker.owner:
                continue
            is_client = owner.startswith(CLIENT_PREFIX)
            # If its process is dead all the same, its connection ends, and what it held goes back for that.
            here = is_client and owner in awaited
            gone = not here and (dead or (absent and is_client))
            if not gone and not everybody:
                continue
            runs = [(one.shard, one.first, one.last + 1) for one in magazines.held(magazine, owner)]
            if not gone:
                present.append((owner, magazine, runs))
                continue
            if dead and is_client:
                self._redelivery.count_crash(magazine, runs)
            else:
                magazines.reload(magazine, as_pointers(runs))
            log.info(
                event_text("recovery_gives_back", "%d run(s) of %s, held by %s, which is %s, go back"),
                len(runs),
                magazine,
                owner,
                "dead" if dead else "gone",
            )
        return present
