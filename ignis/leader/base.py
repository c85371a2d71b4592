"""What every decider promises, and how it is shown."""

from __future__ import annotations

import abc
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ignis.errors import LockHeldError
from ignis.process_hooks import on_fork
from ignis.storage.base import Fence, Store

__all__ = ["LeaderStatus", "Leadership", "SoleLeader", "forget_after_fork"]

REFRESH_S = 30.0


@dataclass(frozen=True)
class LeaderStatus:
    """Who leads one scope, as far as this instance can tell.

    Attributes:
        kind: ``file``, ``lease``, ``sole`` or ``zookeeper``.
        scope: what is led.
        leader: its name, "" = nobody.
        sweeping: the instance that may act at this moment, "" = none. Another name than the leader's only between an
            election and its activation.
        since_ms: when it took office, in milliseconds since 1970; None = not known.
        epoch: of the current office, or the last one that the store has seen.
        members: the instances that are there, None = this kind does not know them.
        here: whether it is this instance.
        available: whether the decider answers.
        trouble: why it does not, or what is wrong with the election.
        refused: whether it answers and refuses: a login or a permission is wrong. ``available`` is False then, too.
    """

    kind: str
    scope: str
    leader: str = ""
    sweeping: str = ""
    since_ms: int | None = None
    epoch: int = 0
    members: tuple[str, ...] | None = None
    here: bool = False
    available: bool = True
    trouble: str = ""
    refused: bool = False

    def text(self) -> str:
        """One line for logs and errors."""
        if not self.available:
            return self.trouble or "unknown"
        return f"{self.leader} epoch {self.epoch}" if self.leader else "nobody"


class Leadership(abc.ABC):
    """One candidate for one scope. Thread-safe.

    In a child after ``fork`` it leads nothing; the child makes a candidate of its own.

    Args:
        store: hands out the epoch, or is told it, and checks it in every control-plane write.
        scope: what is led.
        refresh_s: how often a schedule should ask again when nothing told it to, in seconds.
    """

    kind: ClassVar[str]

    def __init__(self, store: Store, scope: str, refresh_s: float = REFRESH_S) -> None:
        self._store = store
        self.scope = scope
        self.refresh_s = refresh_s
        self._fence: Fence | None = None
        self._changed: Callable[[], None] = _nothing
        self.since_s: float | None = None
        self.offices = 0

    @abc.abstractmethod
    def try_lead(self) -> Fence | None:
        """The fence to write under when this instance leads or becomes leader now; None when another leads, or when
        nobody can tell. Does not wait for anybody's turn. Raises what the store raises when it cannot be asked."""

    @abc.abstractmethod
    def relinquish(self) -> None:
        """Gives the leadership up, if held, and leaves the contest until the next `start` or `try_lead`. Idempotent."""

    @abc.abstractmethod
    def status(self) -> LeaderStatus:
        """Who leads. Asks whoever decides; never raises for its being away."""

    def may_take_part(self) -> bool:
        """Whether permissions let this instance lead, as far as they can be seen without trying. Raises CoordinatorError."""
        return True

    def start(self) -> None:
        """Enters the contest where that takes something, and returns at once. Idempotent."""

    def close(self) -> None:
        """`relinquish`, and frees what the decider holds. Idempotent; bounded."""
        self.relinquish()

    def on_change(self, call: Callable[[], None]) -> None:
        """``call()``, from any thread, when this instance may have become leader or ceased to be. Deciders that are not
        told of changes never call: ask `try_lead` every ``refresh_s``."""
        self._changed = call

    @property
    def fence(self) -> Fence | None:
        """The current authority, or None when not leading. Asks nobody: to be looked at before each small step."""
        return self._fence

    def confirm(self, fence: Fence) -> bool:
        """Whether the store has seen no later office than the one under ``fence``. For what acts outside of the store, where
        nothing checks the epoch. When it has seen one, this instance has been replaced without noticing: it gives the lead
        up, and `try_lead` stands anew. Raises what the store raises."""
        if self.fence == fence and self._store.locks.epoch(self.scope) <= fence.epoch:
            return True
        self.relinquish()
        return False

    def lead(self) -> Fence:
        """`try_lead`, or LockHeldError that names who leads."""
        fence = self.try_lead()
        if fence is None:
            raise LockHeldError(f"another instance leads {self.scope}: {self.describe()}")
        return fence

    def describe(self) -> str:
        """Who leads, in one line."""
        return self.status().text()

    def stats(self) -> dict[str, Any]:
        """Figures of this candidate. Asks nobody."""
        fence = self.fence
        return {
            "kind": self.kind,
            "leading": fence is not None,
            "epoch": 0 if fence is None else fence.epoch,
            "since_s": self.since_s if fence is not None else None,
            "offices": self.offices,
            "available": True,
        }

    def _take_office(self, epoch: int | None = None) -> Fence:
        """Under an epoch counted elsewhere, or the store's next."""
        if epoch is None:
            epoch = self._store.locks.next_epoch(self.scope)
        else:
            self._store.locks.raise_epoch(self.scope, epoch)
        self._fence = Fence(self.scope, epoch)
        self.since_s = time.time()
        self.offices += 1
        return self._fence

    def forget(self) -> None:
        """In a child after ``fork``: what is held is the parent's."""
        self._fence, self.since_s, self._changed = None, None, _nothing


class SoleLeader(Leadership):
    """For a store that only this process can see: the only candidate always leads."""

    kind = "sole"

    def __init__(self, store: Store, scope: str, refresh_s: float = REFRESH_S) -> None:
        super().__init__(store, scope, refresh_s)
        self._lock = threading.Lock()

    def try_lead(self) -> Fence | None:
        with self._lock:
            return self._fence or self._take_office()

    def relinquish(self) -> None:
        self._fence = None

    def status(self) -> LeaderStatus:
        fence, since_s, name = self._fence, self.since_s, self._store.owner
        return LeaderStatus(
            self.kind,
            self.scope,
            leader=name,
            sweeping=name if fence is not None else "",
            since_ms=None if fence is None or since_s is None else int(since_s * 1000),
            epoch=self._store.locks.epoch(self.scope),
            members=(name,),
            here=fence is not None,
        )


def _nothing() -> None:
    pass


_holders: weakref.WeakSet[Leadership] = weakref.WeakSet()


def forget_after_fork(leader: Leadership, holds: bool = True) -> None:
    """Whether a child has to be told that what this one holds is not the child's."""
    if holds:
        on_fork(in_child=_in_child)
        _holders.add(leader)
    else:
        _holders.discard(leader)


def _in_child() -> None:
    for leader in list(_holders):
        leader.forget()
    _holders.clear()
