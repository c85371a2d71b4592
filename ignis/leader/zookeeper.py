"""Leader by ZooKeeper: contest, members, assignments, activation.

One thread per candidate brings what is in ZooKeeper in line with what should be there, again and again: at every watch
that fires, at every change of the connection, and every ``refresh_s`` without a cause. Each round begins from what it
reads, so that it does not matter which event was missed.

Leading takes three things: the lowest place in the contest; an assignment in the own communicator node whose balancer id
is the own name, under the epoch of that place; and an answer from ZooKeeper within the session timeout. The epoch is the
transaction that made the place (czxid), which rises from leader to leader. The store is told before anything is done
under it, and refuses lower ones from then on.

A lost or suspended connection ends the leadership at once. Back again, a former leader takes a new place at the end.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from typing import Any, NamedTuple

from ignis.config import LeaderSettings, check_name
from ignis.errors import (
    ClosedError,
    CoordinatorError,
    CoordinatorUnreachableError,
    ForkedHandleError,
    StaleEpochError,
)
from ignis.leader.base import Leadership, LeaderStatus, forget_after_fork
from ignis.leader.zookeeper_election import Contest
from ignis.leader.zookeeper_paths import Assignment
from ignis.leader.zookeeper_session import Session
from ignis.log_format import event_text
from ignis.stacks import start_thread
from ignis.storage.base import Fence, Store
from ignis.upkeep import outlast

__all__ = ["ZooKeeperLeader", "instance_name"]

log = logging.getLogger("ignis.leader")

_RETRY_S = 1.0
_LEAVE_S = 5.0


def instance_name() -> str:
    """A name that no other instance has."""
    host = "".join(char if char.isalnum() or char in "._-" else "-" for char in socket.gethostname())[:80]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


class Office(NamedTuple):
    """A place won in the contest."""

    epoch: int
    since_ms: int


class ZooKeeperLeader(Leadership):
    """Stands for one scope in an election in ZooKeeper, and leads while it has the first place and the assignment.

    Args:
        store, scope: see `Leadership`.
        session: shared by the candidates of one application.
        settings: see ``ignis.config``.
        instance: this candidate's name; "" = one of its own.
        own_session: whether `close` ends the session too.
    """

    kind = "zookeeper"

    def __init__(
        self,
        store: Store,
        scope: str,
        session: Session,
        settings: LeaderSettings,
        instance: str = "",
        *,
        own_session: bool = False,
    ) -> None:
        super().__init__(store, scope, settings.refresh_s)
        self.instance = check_name(instance or settings.instance or instance_name(), "leader.instance")
        self._session = session
        self._settings = settings
        self._own_session = own_session
        self._contest = Contest(store, scope, session, settings, self.instance, self._on_watch)
        self._timeout_s = settings.session_timeout_s
        self._taking = threading.Lock()
        # Held for a few instructions only: the driver's thread takes it when the connection is lost.
        self._lock = threading.Lock()
        self._poke = threading.Event()
        self._settled = threading.Event()
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._forked = False
        self._wanted = False
        self._generation = 0
        self._elected: Office | None = None
        self._office: Office | None = None
        self._until_s = 0.0
        self._looked_s = 0.0
        self._dirty = True
        """Something may have changed since the last full look began."""
        self._trouble = ""
        """Why this instance takes no part now; "" after a look that came to its end."""
        self._failing_s: float | None = None
        self._refusal = ""
        self.assignment: Assignment | None = None
        self.losses = 0
        self.refused = 0

    # -- what others ask

    @property
    def fence(self) -> Fence | None:
        """Also None once ZooKeeper has not answered for the session timeout: as after a pause of the whole process."""
        fence, office = self._fence, self._office
        if fence is None or office is None or fence.epoch != office.epoch or time.monotonic() >= self._until_s:
            return None
        return fence

    def try_lead(self) -> Fence | None:
        self.start()
        with self._taking:
            office, fence = self._office, self._fence
            if office is None or time.monotonic() >= self._until_s:
                return None
            if fence is not None and fence.epoch == office.epoch:
                return fence
            try:
                self._take_office(office.epoch)
            except StaleEpochError as exc:
                self.refused += 1
                if not self._refusal:
                    self._refusal = f"{exc}; where ZooKeeper lost its data, raise leader.epoch_base"
                    log.error(event_text("leadership_impossible", "%s cannot be led: %s"), self.scope, self._refusal)
                self._give_up("its epoch is refused")
                return None
            self._refusal = ""
            self.since_s = office.since_ms / 1000
            return self.fence

    def lead(self) -> Fence:
        """Waits, at most for the session timeout, until the contest has an answer. Raises LockHeldError,
        CoordinatorUnreachableError, CoordinatorError."""
        self.start()
        if not self._settled.wait(self._timeout_s):
            if self._session.connected:
                raise CoordinatorError(self._trouble or f"{self._session.address!r} has not answered in time")
            raise CoordinatorUnreachableError(self._session.absence())
        fence = self.try_lead()
        if fence is None and self._trouble and self._session.connected:
            raise CoordinatorError(self._trouble)
        return fence or super().lead()

    def start(self) -> None:
        with self._lock:
            if self._forked:
                raise ForkedHandleError("this candidate was made before fork(); make another in the child")
            if self._ended:
                raise ClosedError("this candidate was closed")
            if not self._wanted:
                self._wanted = True
                self._left.clear()
                self._settled.clear()
            if self._thread is None:
                forget_after_fork(self)
                self._session.listen(self._on_connection)
                self._thread = threading.Thread(
                    target=outlast, args=(log, self._run), name=f"ignis-leader-{self.scope}", daemon=True
                )
                try:
                    start_thread(self._thread)
                except BaseException:
                    self._thread = None
                    raise
        self._session.start()
        if self._session.connected and not self._settled.is_set():
            self._poke.set()

    def relinquish(self) -> None:
        """Waits a moment for ZooKeeper to hear of it, so that another can lead at once."""
        with self._lock:
            running, self._wanted = self._thread is not None and self._wanted, False
        if not running:
            return
        self._give_up("")
        if self._session.connected:
            self._left.wait(_LEAVE_S)

    def close(self) -> None:
        if self._forked:
            return
        self.relinquish()
        with self._lock:
            self._ended, thread = True, self._thread
        self._poke.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LEAVE_S)
        self._session.unlisten(self._on_connection)
        forget_after_fork(self, holds=False)
        if self._own_session:
            self._session.close()

    def forget(self) -> None:
        """In a child after ``fork``: threads and session are the parent's."""
        super().forget()
        self._lock = threading.Lock()
        self._forked, self._wanted, self._office, self._thread = True, False, None, None

    def stats(self) -> dict[str, Any]:
        """``available``: whether ZooKeeper answers and this instance can take part; ``trouble``: why not;
        ``unavailable_s``: for how long ZooKeeper has not answered."""
        away_s = 0.0 if self._session.connected else max(0.0, time.time() - self._session.since_s)
        return {
            **super().stats(),
            "instance": self.instance,
            "available": self._session.connected and not self._trouble,
            "trouble": self._refusal or self._trouble,
            "unavailable_s": round(away_s, 3),
            "losses": self.losses,
            "refused_epochs": self.refused,
            "members": len(self._contest.members),
            "partitions": len(self.assignment.partitions) if self.assignment is not None else 0,
        }

    def status(self) -> LeaderStatus:
        epoch = self._store.locks.epoch(self.scope)
        try:
            if not self._session.wait_connected(self._timeout_s):
                raise CoordinatorUnreachableError(self._session.absence())
            seen = self._contest.look()
        except CoordinatorError as exc:
            refused = not isinstance(exc, CoordinatorUnreachableError)
            return LeaderStatus(self.kind, self.scope, epoch=epoch, available=False, trouble=str(exc), refused=refused)
        return LeaderStatus(
            self.kind, self.scope, leader=seen.leader, sweeping=seen.active, since_ms=seen.since_ms,
            epoch=seen.epoch or epoch, members=seen.members, here=seen.leader == self.instance,
            trouble=self._refusal or self._trouble,
        )  # fmt: skip

    def may_take_part(self) -> bool:
        return self._contest.may_take_part()

    # -- the thread

    def _on_connection(self, connected: bool) -> None:
        """From the driver's thread."""
        if not connected:
            self._give_up("the connection to ZooKeeper is lost")
        self._poke.set()

    def _on_watch(self, event: object = None) -> None:
        self._dirty = True
        self._poke.set()

    def _give_up(self, why: str) -> None:
        """Ends the office at once, and has the place in the contest drawn anew. Asks nobody."""
        with self._lock:
            self._generation += 1
            self._settled.clear()
            held, self._office, self._elected = self._office is not None, None, None
            self._until_s = 0.0
            self._dirty = True
            if held or not self._wanted:
                self._contest.renew()
        if held and why:
            self.losses += 1
            log.warning(event_text("leadership_given_up", "leadership of %s is given up: %s"), self.scope, why)
        if held:
            self._changed()
        self._poke.set()

    def _run(self) -> None:
        pause_s = self._timeout_s
        while True:
            self._poke.wait(pause_s)
            self._poke.clear()
            if self._ended or self._forked:
                return
            pause_s = self._round()

    def _round(self) -> float:
        """One comparison; returns how long nothing needs to be done."""
        if not self._session.connected:
            if "nobody leads" not in self._trouble:
                self._set_trouble(
                    f"nobody leads {self.scope} from here: {self._session.absence()}; publishing and consuming go on"
                )
            return self.refresh_s
        try:
            if self._wanted:
                self._stand()
            else:
                self._contest.leave()
                self.assignment = None
                self._left.set()
                self._set_trouble("")
        except Exception as exc:
            return self._failed(exc)
        self._failing_s = None
        return min(self.refresh_s, self._timeout_s / 3) if self._office is not None else self.refresh_s

    def _failed(self, exc: Exception) -> float:
        """A look that did not come to its end. Returns when to look again."""
        self._dirty = True
        if self._session.connected:
            text = str(exc)
            if not isinstance(exc, CoordinatorError):
                text = f"the election of {self.scope} fails: {type(exc).__name__}: {exc}"
                if text != self._trouble:
                    log.error(event_text("zookeeper_broken", "unexpected, trying again"), exc_info=exc)
            self._set_trouble(text)
            if not (isinstance(exc, CoordinatorError) and exc.retryable):
                self._settled.set()  # an answer, if not the one that was hoped for
            if not self._wanted:
                self._left.set()  # what cannot be removed ends with the session
            self._step_aside()
        return min(_RETRY_S, self.refresh_s)

    def _step_aside(self) -> None:
        """Who cannot act must not hold the first place for ever: another may be able to."""
        now_s = time.monotonic()
        if self._failing_s is None:
            self._failing_s = now_s
        if self._wanted and now_s - self._failing_s >= self._timeout_s:
            self._failing_s = None
            held = self._office is not None
            self._give_up("it cannot be carried on")
            if not held:
                self._contest.renew()  # elected perhaps, and never in office
            self._settled.set()

    def _set_trouble(self, text: str) -> None:
        """Says it once."""
        if text and text != self._trouble:
            log.warning(event_text("zookeeper_trouble", "%s"), text)
        elif not text and self._trouble:
            log.info(event_text("zookeeper_in_order", "ZooKeeper is in order again for %s"), self.scope)
        self._trouble = text

    def _stand(self) -> None:
        """As a candidate, and as leader if it comes to that."""
        generation, began_s = self._generation, time.monotonic()
        office, recent = self._office, not self._dirty and began_s - self._looked_s < self.refresh_s
        if office is not None and recent and self._contest.is_first(office.epoch):
            with self._lock:
                if generation == self._generation:
                    self._until_s = began_s + self._timeout_s
            return
        self._dirty = False
        self._contest.clear_old()
        self._contest.join()
        epoch, elected = self._contest.take_place(), self._elected
        if not epoch:
            elected = None
        elif elected is None or elected.epoch != epoch:
            elected = Office(epoch, time.time_ns() // 1_000_000)
        if elected is not None:
            self._contest.assign(elected.epoch, elected.since_ms)
        assignment = self._contest.assignment()
        active = elected is not None and assignment is not None and assignment.balancer_id == self.instance
        active = active and elected is not None and assignment is not None and assignment.epoch == elected.epoch
        with self._lock:
            if generation != self._generation or not self._wanted:
                return
            self._elected, self.assignment = elected, assignment
            before, self._office = self._office, elected if active else None
            if active:
                self._until_s = began_s + self._timeout_s
            self._looked_s = began_s
            self._settled.set()
        self._set_trouble("")
        if before != self._office:
            if self._office is not None:
                log.info(
                    event_text("leadership_taken", "%s leads %s, epoch %d"),
                    self.instance,
                    self.scope,
                    self._office.epoch,
                )
            self._changed()
