"""One instance's part in an election: its place, its membership, what it assigns and what it was assigned.

The steps of `ignis.leader.zookeeper`, each of which may be done again at any time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ignis.config import LeaderSettings
from ignis.errors import CoordinatorError
from ignis.leader.zookeeper_paths import Assignment, Member, Paths, deal, new_prefix, sequence_of, shown
from ignis.leader.zookeeper_session import Session
from ignis.log_format import event_text
from ignis.storage.base import Store

__all__ = ["Contest", "Seen"]

log = logging.getLogger("ignis.leader")

_MOST_SHOWN = 10


class Seen(NamedTuple):
    """An election as anybody sees it."""

    leader: str
    active: str
    since_ms: int | None
    epoch: int
    members: tuple[str, ...]


class Contest:
    """For one thread, but for `renew` and `look`. All raise CoordinatorError.

    Args:
        store, scope: whose application, and what is led.
        session: with ZooKeeper.
        settings: see ``ignis.config``.
        instance: this instance's name.
        watch: called, from the driver's thread, when something that was looked at has changed.
    """

    def __init__(
        self,
        store: Store,
        scope: str,
        session: Session,
        settings: LeaderSettings,
        instance: str,
        watch: Callable[..., None],
    ) -> None:
        self._session = session
        self._settings = settings
        self._paths = Paths.of(store.client_id, scope)
        self._owner = store.owner
        self._farm_id = store.farm_id
        self._instance = instance
        self._watch = watch
        self._lock = threading.Lock()
        self._prefix = new_prefix()
        self._old_prefixes: set[str] = set()
        self._assigned: set[str] = set()
        self._strangers: tuple[str, ...] = ()
        self._not_ours: set[str] = set()
        """Below the communicator, with children: no assignments, and not to be removed."""
        self._untold: set[str] = set()
        """Members whose assignment cannot be written."""
        self.members: tuple[str, ...] = ()
        """As the leader saw them last."""

    # -- the place

    def renew(self) -> None:
        """The present place is given up, and removed by `clear_old`; the next one is another. Asks nobody."""
        with self._lock:
            self._old_prefixes.add(self._prefix)
            self._prefix = new_prefix()

    def is_first(self, epoch: int) -> bool:
        """A look that costs little, whether we still hold the first place under this epoch."""
        return any(name.startswith(self._prefix) and self._epoch_of(name) == epoch for name in self._places()[:1])

    def take_place(self) -> int:
        """Enters where that is to be done. Returns the epoch if ours is the first place, else 0."""
        prefix = self._prefix
        names = self._places()
        mine = next((name for name in names if name.startswith(prefix)), None)
        if mine is None:
            self._session.create(self._paths.contender(prefix), self._instance.encode(), sequence=True)
            names = self._places()
            mine = next((name for name in names if name.startswith(prefix)), None)
        epoch = 0 if mine is None else self._epoch_of(mine)
        if mine is None or not epoch:
            # Of a session that has ended since: its node goes, and another comes.
            self.renew()
            self._watch()
            return 0
        # Only the one before us matters: no crowd is woken when a leader goes. What ends with no session is no instance's.
        for name in reversed(names[: names.index(mine)]):
            before = self._session.exists(self._paths.contender(name), self._watch)
            if before is None:
                self._watch()
                return 0
            if not before.lasting:
                return 0
        return epoch

    def _places(self) -> list[str]:
        """The leader's first."""
        names = self._session.children(self._paths.contest)
        return sorted(names, key=lambda name: (sequence_of(name), name))

    def _epoch_of(self, name: str) -> int:
        """Of a place of this session; 0 for any other."""
        node = self._session.exists(self._paths.contender(name))
        return node.czxid + self._settings.epoch_base if node is not None and node.mine else 0

    # -- membership

    def join(self) -> None:
        """Makes this instance a member."""
        path = self._paths.member(self._instance)
        node = self._session.exists(path, self._watch)
        if node is not None and node.lasting:
            # No instance's, and it would never end. One with children stays: the name is listed all the same.
            if not self._session.delete(path):
                return
            node = None
        if node is None:
            mine = Member(self._owner, self._farm_id, time.time_ns() // 1_000_000)
            self._session.create(path, mine.encode())
        elif not node.mine:
            # Ours from before, whose session has not run out yet; or another that goes by the same name.
            raise CoordinatorError(f"another instance goes by the name {self._instance!r} (leader.instance)")

    def leave(self) -> None:
        """Out of the contest, and no member any more."""
        self.renew()
        self.clear_old()
        path = self._paths.member(self._instance)
        node = self._session.exists(path)
        if node is not None and node.mine:
            self._session.delete(path)
        self.members = ()

    def clear_old(self) -> None:
        """Removes what places that were given up have left: first the assignments made from there, so that none of a
        next leader is taken for ours."""
        with self._lock:
            old = tuple(self._old_prefixes)
        if not old:
            return
        for name in list(self._assigned):
            path = self._paths.assigned(name)
            found = self._session.get(path)
            if found is not None and found.mine:
                self._session.delete(path)
            self._assigned.discard(name)
        for name in self._places():
            if name.startswith(old):
                self._session.delete(self._paths.contender(name))
        with self._lock:
            self._old_prefixes.difference_update(old)

    # -- assignments

    def assign(self, epoch: int, since_ms: int) -> None:
        """As leader: tells every member who leads, and its share."""
        members = sorted(self._session.children(self._paths.members, self._watch))
        self.members = tuple(members)
        shares = deal(self._settings.partitions, [self._instance, *(one for one in members if one != self._instance)])
        there = self._session.children(self._paths.communicator)
        self._not_ours.intersection_update(there)
        for name in there:
            if name not in shares and name not in self._not_ours:
                if not self._session.delete(self._paths.assigned(name)):
                    self._not_ours.add(name)
                self._assigned.discard(name)
        # The own last: who becomes active finds the others told.
        for name in reversed(list(shares)):
            self._tell(name, Assignment(self._instance, epoch, shares[name], since_ms))
        self._check_farms(members)

    def _tell(self, name: str, given: Assignment) -> None:
        """One member that cannot be told keeps nobody else from being told."""
        try:
            self._put(self._paths.assigned(name), given)
        except CoordinatorError as exc:
            if exc.retryable or name == self._instance:
                raise
            if name not in self._untold:
                log.warning(event_text("share_not_told", "%s is not told its share: %s"), shown(name), exc)
            self._untold.add(name)
        else:
            self._untold.discard(name)
            self._assigned.add(name)

    def _put(self, path: str, wanted: Assignment) -> None:
        found = self._session.get(path)
        # Of an earlier leader: it would end with that one's session. One with children can only be written over.
        if found is not None and not found.mine and self._session.delete(path):
            found = None
        if found is None:
            self._session.create(path, wanted.encode())
        elif Assignment.decode(found.data) != wanted:
            self._session.set(path, wanted.encode())

    def _check_farms(self, members: list[str]) -> None:
        farms = {self._farm_id, ""}
        for name in members:
            found = self._session.get(self._paths.member(name))
            farms.add(Member.decode(found.data).farm_id if found is not None else "")
        strangers = tuple(sorted(farms - {self._farm_id, ""}))
        if strangers and strangers != self._strangers:
            log.error(
                event_text(
                    "farms_in_one_election",
                    "instances of farm %s are in one election with those of %s, and only one of the farms is swept: "
                "give each a chroot of its own (leader.zookeeper)"),
                ", ".join(map(shown, strangers[:_MOST_SHOWN])), self._farm_id,
            )  # fmt: skip
        self._strangers = strangers

    def assignment(self) -> Assignment | None:
        """What the leader assigned to this instance."""
        path = self._paths.assigned(self._instance)
        # A look at a node tells of its coming too; reading it does not.
        if self._session.exists(path, self._watch) is None:
            return None
        found = self._session.get(path)
        return None if found is None else Assignment.decode(found.data)

    # -- looking

    def may_take_part(self) -> bool:
        """Whether the permissions let this instance stand and be a member."""
        return all(self._session.may_create_below(path) for path in (self._paths.members, self._paths.contest))

    def look(self) -> Seen:
        """Takes no part."""
        members = tuple(sorted(self._session.children(self._paths.members)))
        active, since_ms = "", None
        for one in members:
            found = self._session.get(self._paths.assigned(one))
            given = Assignment.decode(found.data) if found is not None else None
            if given is not None and given.balancer_id == one:
                active, since_ms = one, given.began_ms
        for name in self._places():
            first = self._session.get(self._paths.contender(name))
            if first is not None and not first.lasting:
                epoch = first.czxid + self._settings.epoch_base
                return Seen(shown(first.data.decode("utf-8", "replace")), active, since_ms, epoch, members)
        return Seen("", active, since_ms, 0, members)
