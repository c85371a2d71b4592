"""What a request is to those who answer it: checked values, who asks, and the parts of the console."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ignis.app import Ignis
from ignis.config import check_queue_name
from ignis.console.access import Access, Asked, Visitor
from ignis.console.audit import AuditLog
from ignis.console.body_room import BodyRoom, Share
from ignis.console.jobs import Jobs
from ignis.console.leases import Leases
from ignis.console.snapshot import Snapshot
from ignis.errors import QueueNotFoundError
from ignis.storage.base import QueueRecord, Store

__all__ = ["Answer", "Call", "Services"]


@dataclass
class Services:
    """The parts of one console. ``closing`` is set when it ends, so that whoever waits stops waiting."""

    app: Ignis
    owned: bool
    access: Access
    audit: AuditLog
    snapshot: Snapshot
    jobs: Jobs
    leases: Leases
    closing: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        """Ends what runs, gives back what programs have leased, and closes the application where it is the console's own."""
        self.closing.set()
        self.jobs.close()
        self.leases.close()
        self.audit.close()
        if self.owned:
            self.app.close()


@dataclass
class Answer:
    """What is answered, where that is more than 200 and a value. ``cookie``: a new one; empty = it is taken back."""

    value: Any
    status: int = 200
    cookie: str | None = None


@dataclass
class Call:
    """One request. ``query`` and ``body`` are what its route says, checked; ``gone`` is set when its client has left."""

    services: Services
    visitor: Visitor
    asked: Asked
    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    room: Share = field(default_factory=lambda: BodyRoom().of(None, 0))
    """The memory that it takes: of its body, of messages that it reads, and of its answer."""
    gone: threading.Event = field(default_factory=threading.Event)
    enough: threading.Event = field(default_factory=threading.Event)
    """Set when another user needs its place: it is answered now, with what there is."""
    admitted: bool = False
    """Whether its visitor may make it."""
    audited: dict[str, Any] = field(default_factory=dict)
    """What the audit log is to say of it, beside what every line has."""

    def check_again(self, needs: str) -> None:
        """Raises what refuses it now: while it waited its user may have been removed, or lost a right."""
        self.visitor = self.services.access.visitor(self.asked)
        self.visitor.require(needs, self.path.get("queue"))

    def kept(self, found: dict[str, Any]) -> msgspec.Raw:
        """A part of the answer, encoded: so it is known what it takes. Raises RefusedError (``too_many_requests``)."""
        made = msgspec.json.encode(found)
        self.room.take(len(made))
        return msgspec.Raw(made)

    @property
    def store(self) -> Store:
        """The store. Raises StoreUnreachableError."""
        return self.services.app.store

    @property
    def queue(self) -> str:
        """The queue in its path. Raises InvalidNameError."""
        return check_queue_name(self.path["queue"])

    def record(self) -> QueueRecord:
        """That queue, as it is stored. Raises QueueNotFoundError, InvalidNameError."""
        return self.record_of(self.queue)

    def record_of(self, name: str) -> QueueRecord:
        """A stored queue. Raises QueueNotFoundError, InvalidNameError."""
        found = self.store.queues.get(check_queue_name(name))
        if found is None:
            raise QueueNotFoundError(f"queue {name!r} does not exist")
        return found
