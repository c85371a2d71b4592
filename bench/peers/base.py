"""The two interfaces behind which every peer is measured.

A :class:`Peer` is a durable queue (or what people use as one). Its own object owns the server or the files; each
process opens a :class:`Session` on it. A :class:`ChannelPeer` moves messages from one process to another and keeps
nothing. Objects of both kinds are pickled into the measuring processes, so they hold addresses, never connections.
"""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Handle = Callable[[bytes], object]

# What an acknowledged publish survives. A table never mixes two of them.
SYNC = "sync"  # a power cut
INTERVAL = "interval"  # kill -9; in a power cut at most the last interval is lost
NONE = "none"  # kill -9 at most; the operating system decides about the rest
DURABILITIES = (SYNC, INTERVAL, NONE)
PROMISES = {
    SYNC: "acknowledged = survives a power cut",
    INTERVAL: "acknowledged = survives kill -9; a power cut loses at most an interval",
    NONE: "acknowledged = handed to the operating system, which decides what a power cut loses",
}
INSTALL = "bench/install_peers.sh"


class MissingError(Exception):
    """The peer is not installed. The text names what is missing and the command that installs it."""


def require_module(name: str, package: str) -> None:
    """Raises MissingError unless ``import name`` would find something."""
    if importlib.util.find_spec(name) is None:
        raise MissingError(f"MISSING: no Python module {name}; run: pip install '{package}' (or {INSTALL})")


def require_program(name: str, package: str, folders: Sequence[str] = ()) -> str:
    """The program's path, from PATH or the folders (glob patterns allowed). Raises MissingError."""
    found = shutil.which(name)
    if found:
        return found
    for folder in folders:
        root = Path(folder)
        matches = sorted(Path(root.anchor).glob(f"{root.relative_to(root.anchor)}/{name}"))
        if matches:
            return str(matches[-1])
    raise MissingError(f"MISSING: no program {name}; run: apt-get install {package} (or {INSTALL})")


class Session:
    """One process's connection to a peer. Used by one thread."""

    def publish(self, body: bytes) -> None:
        """One message; on return as durable as the peer's class says."""
        raise NotImplementedError

    def publish_later(self, body: bytes, delay_s: float) -> None:
        """`publish` of a message that is handed out after so long. Only where `Peer.can_delay`."""
        raise NotImplementedError

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        """Many messages in the peer's fastest documented way; durable on return, or at the latest after `flush`."""
        for body in bodies:
            self.publish(body)

    def flush(self) -> None:
        """Returns when everything published is durable. Belongs to the time of what was published before it."""

    def drain(self, limit: int, handle: Handle) -> int:
        """Takes up to ``limit`` waiting messages, calls ``handle`` for each, acknowledges them; returns how many."""
        raise NotImplementedError

    def drain_all(self, count: int, batch: int, handle: Handle, deadline: float) -> int:
        """Drains until ``count`` messages were acknowledged, none is left, or ``deadline`` (monotonic) has come;
        returns how many were acknowledged."""
        done = 0
        while done < count and time.monotonic() < deadline:
            got = self.drain(min(batch, count - done), handle)
            if not got:
                break
            done += got
        return done

    def receive(self, handle: Handle, timeout_s: float) -> int:
        """Waits in the peer (no polling), handles and acknowledges what came; returns how many; 0 after the timeout."""
        raise NotImplementedError

    def listen(self, count: int, handle: Handle, deadline: float) -> int:
        """Receives until ``count`` messages were handled or ``deadline`` (monotonic); returns how many."""
        done = 0
        while done < count and time.monotonic() < deadline:
            done += self.receive(handle, 1.0)
        return done

    def announce(self) -> None:
        """Says that somebody listens, for peers whose publisher must do something to wake listeners."""

    def close(self) -> None:
        """Lets go of the connection."""


class Peer:
    """A durable queue.

    ``name`` heads its row; ``durability`` is its class; ``how_publish``, ``how_batch`` and ``how_drain`` say in words
    what is called and what the acknowledgement is. ``can_*`` say in which tables it has a place.
    """

    name: str
    durability: str
    how_publish = ""
    how_batch = ""
    how_drain = ""
    how_listen = ""
    can_batch = True
    can_drain = True
    can_listen = False
    can_delay = False
    how_delay = ""

    def require(self) -> None:
        """Raises MissingError when something is not installed."""

    def start(self, directory: Path) -> None:
        """Makes an empty queue in ``directory``, starting a server when the peer has one."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stops the server. The directory is removed by the caller."""

    def session(self) -> Session:
        """Connects, in the process that calls it."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """What a measuring process gets: everything but the server, which stays with the parent."""
        return {key: value for key, value in self.__dict__.items() if key != "_server"}

    @property
    def title(self) -> str:
        return self.name


@dataclass
class Sender:
    """The producing end. The callables are the peer's own bound methods wherever it can be, so that a loop over them
    times the peer and not a wrapper. ``send_many`` is None for peers without a bulk call."""

    send: Callable[[bytes], object]
    send_many: Callable[[list[bytes]], object] | None = None
    close: Callable[[], object] = lambda: None


@dataclass
class Receiver:
    """The consuming end. ``recv_many(n)`` returns at least one and at most n messages."""

    recv: Callable[[], bytes]
    recv_many: Callable[[int], Sequence[bytes]] | None = None
    close: Callable[[], object] = lambda: None


class ChannelPeer:
    """One direction between two processes: one producer, one consumer, nothing kept."""

    name: str
    how = ""
    how_bulk = ""
    has_bulk = False

    def require(self) -> None:
        """Raises MissingError when something is not installed."""

    def link(self, directory: Path, max_message_bytes: int) -> Any:
        """Makes one direction and returns what both ends need, picklable into a new process."""
        raise NotImplementedError

    def sender(self, link: Any) -> Sender:
        """Opens the producing end, in the producer's process."""
        raise NotImplementedError

    def receiver(self, link: Any) -> Receiver:
        """Opens the consuming end, in the consumer's process."""
        raise NotImplementedError
