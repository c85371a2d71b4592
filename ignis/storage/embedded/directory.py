"""A store's directory as one process has it open: format, logs, clock and the threads that tend them, shared by its stores.

After ``fork`` the child has none of it: it opens its own.
"""

from __future__ import annotations

import dataclasses
import logging
import mmap
import resource
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from ignis.errors import ClosedError, ConfigError, IgnisError, StoreBusyError, StoreFullError, WaitTimeoutError
from ignis.log_format import event_text
from ignis.native.store import Interval, Log
from ignis.private_files import make_directory
from ignis.process_hooks import at_exit, on_fork
from ignis.storage.checks import DURABILITIES
from ignis.storage.embedded.atomic_files import sync_directory
from ignis.storage.embedded.clock import open_clock
from ignis.storage.embedded.format import check_private, look_at_segments, prepare
from ignis.storage.embedded.keys import Keys
from ignis.storage.embedded.listening import Listener
from ignis.storage.embedded.maintenance import IntervalFlusher, Maintenance
from ignis.storage.embedded.options import StoreOptions
from ignis.storage.embedded.owners import Owners
from ignis.storage.embedded.room import SMALLEST_SEGMENT_BYTES, RefusedLoads, segment_bytes
from ignis.storage.in_flight import Gate
from ignis.storage.os_errors import store_error, store_errors, without_means
from ignis.storage.private_directory import check_way
from ignis.storage.process_identity import Identity, this_process

__all__ = ["Directory", "open_directory", "release_directory"]

log = logging.getLogger("ignis.storage")

_FORK_WAIT_S = 2.0
_LOG_ADDRESSES = 64 << 30
"""Of the index of one log: it grows in place, and each process reserves the addresses when it opens the log."""


class Directory:
    """Made by `open_directory`, ended by `release_directory`. Thread-safe."""

    def __init__(self, path: Path, options: StoreOptions) -> None:
        self.path = path
        self.options = options
        self.users = 0
        self.refused_loads = RefusedLoads(path)
        self.gates: set[Gate] = set()
        self.opening = threading.Lock()
        self._logs: dict[str, Log] = {}
        self._unread: set[str] = set()
        self._listeners: dict[str, Listener] = {}
        self._flusher: IntervalFlusher | None = None
        self._maintenance: Maintenance | None = None
        self._closed = False
        with store_errors("/proc"):
            self.here: Identity = this_process()
        prepare(path, options.create)
        try:
            self.owners = Owners(path, self.here)
            with self.owners.opening() as alone:
                self.clock, self.boot = open_clock(path, self.here.boot, alone=alone)
                # Before the logs: who wants to be alone with the directory is told that it is open.
                self.owners.begin()
            self.keys = Keys(self.log("sync"), options.write_timeout_s)
            with without_means("store: maintenance"):
                self._maintenance = Maintenance(lambda: list(self._logs.values()), self._look_round)
        except BaseException as exc:
            with suppress(WaitTimeoutError):
                self._close_all(1.0)
            if isinstance(exc, OSError) and not isinstance(exc, IgnisError):
                raise store_error(str(path), exc) from exc
            raise

    # -- the logs

    def log(self, durability: str) -> Log:
        """The log of a durability class, opened on first use."""
        found = self._logs.get(durability)
        if found is not None:
            return found
        with self.opening:
            found = self._logs.get(durability)
            if found is None:
                if self._closed:
                    raise ClosedError("store is closed")
                found = self._logs[durability] = self._open_log(durability)
            return found

    def listener(self, durability: str) -> Listener:
        """Who tells of loads into magazines of that class."""
        found = self._listeners.get(durability)
        return (
            self._listeners.setdefault(durability, Listener(self.log(durability), self.clock))
            if found is None
            else found
        )

    def changing(self, durability: str) -> Log:
        """`log`, for a call that changes something: it is told when what calls before it left could not be flushed.

        Raises StoreFailedError, StoreFullError; the call after it goes on.
        """
        found = self.log(durability)
        if durability == "interval" and self._flusher is not None:
            self._flusher.check()
        return found

    def opened(self) -> dict[str, Log]:
        """The logs opened so far."""
        return dict(self._logs)

    def existing(self) -> list[str]:
        """The durability classes that the directory has."""
        return [name for name in DURABILITIES if (self.path / name).is_dir()]

    @property
    def interval(self) -> Interval | None:
        """What flushes the log of durability ``interval``, once that is open."""
        return None if self._flusher is None else self._flusher.interval

    def _open_log(self, durability: str) -> Log:
        path = self.path / durability
        with store_errors(str(path)):
            if not path.is_dir():
                make_directory(path)
                sync_directory(self.path)
            check_private(path)
            look_at_segments(path, self.path)
            try:
                opened = self._new_log(path, segment_bytes(self.path, self.options.max_store_bytes))
            except StoreFullError:
                # Who comes to make room must get in.
                opened = self._new_log(path, SMALLEST_SEGMENT_BYTES)
        self._tell_damage(path, opened)
        if durability == "interval":
            try:
                with without_means("store: interval"):
                    self._flusher = IntervalFlusher(opened, self.options.sync_interval_ms)
            except BaseException:
                opened.close()
                raise
        return opened

    def _new_log(self, path: Path, segment_bytes: int) -> Log:
        try:
            return Log(
                str(path),
                max_bytes=self.options.max_store_bytes,
                busy_after_s=self.options.write_timeout_s,
                segment_bytes=segment_bytes,
            )
        except StoreBusyError as exc:
            _check_addresses(path, exc)
            raise

    def _tell_damage(self, path: Path, opened: Log) -> None:
        figures = opened.figures()
        if figures["damaged_bytes"]:
            log.error(
                event_text(
                    "log_damaged",
                    "store: %s: %d bytes of the log are damaged and were passed over, but for %d messages in them that can be "
                    "read (%d cannot); stop what uses the store, then see what 'ignis doctor %s' says",
                ),
                path,
                figures["damaged_bytes"],
                figures["salvaged_records"],
                figures["damaged_records"],
                self.path,
            )

    def _look_round(self) -> None:
        """What nobody was told of while it happened."""
        self._tell_unread()
        if self._flusher is not None:
            self._flusher.tell()

    def _tell_unread(self) -> None:
        """Once for each log: who reads the messages gets them as damaged, and puts them aside."""
        for durability, opened in list(self._logs.items()):
            if durability not in self._unread:
                with suppress(ClosedError):
                    if opened.unread():
                        self._unread.add(durability)
                        log.error(
                            event_text(
                                "log_unreadable",
                                "store: %s: the disk refuses to read parts of the log, or they are gone; messages in them come "
                                "out as damaged, and the files stay as damaged-log-*; stop what uses the store, copy it, then "
                                "see what 'ignis doctor %s' says",
                            ),
                            self.path / durability,
                            self.path,
                        )

    # -- fork

    def at_rest(self, stack: ExitStack) -> None:
        """Keeps all calls out, those of the background included, until ``stack`` is unwound. Raises WaitTimeoutError."""
        for gate in list(self.gates):
            stack.enter_context(gate.shut(_FORK_WAIT_S))
        for thread in (self._maintenance, self._flusher):
            if thread is not None:
                stack.enter_context(thread.resting(_FORK_WAIT_S))
        # Nothing is opened meanwhile that the child would not know of.
        if not self.opening.acquire(timeout=_FORK_WAIT_S):
            raise WaitTimeoutError(f"store: {self.path} is being opened for over {_FORK_WAIT_S:g} s")
        stack.callback(self.opening.release)

    def abandon(self) -> None:
        """In the child of a fork: lets go of every descriptor and mapping. A lock that the kernel keeps with a descriptor would
        otherwise hold as long as the child lives."""
        self._closed = True
        for one in self._logs.values():
            one.abandon()
        owners = getattr(self, "owners", None)
        if owners is not None:
            owners.abandon()

    # -- the end

    def flush_interval(self) -> None:
        """For the end of a process that closed nothing: nobody flushes what it acknowledged in the last interval after it."""
        found = self._logs.get("interval")
        if found is not None:
            with suppress(IgnisError, OSError):
                found.flush(refuse=False)

    def close(self, timeout: float) -> None:
        """Everything must be at rest. Raises WaitTimeoutError, and may then be called again."""
        with self.opening:
            self._closed = True
        self._close_all(timeout)

    def _close_all(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for thread in (self._maintenance, self._flusher):
            if thread is not None:
                thread.close(max(0.1, deadline - time.monotonic()))
        for listener in list(self._listeners.values()):
            listener.close(max(0.1, deadline - time.monotonic()))
        for durability, one in self._logs.items():
            try:
                one.flush(refuse=False)
            except ClosedError:
                continue
            except (IgnisError, OSError) as exc:
                if durability != "sync":  # there everything that was acknowledged is on the disk
                    log.error(
                        event_text("flush_at_close_failed", "store: %s could not be flushed when it was closed: %s"),
                        self.path / durability,
                        exc,
                    )
            one.close()
        owners = getattr(self, "owners", None)
        if owners is not None:
            owners.close()


# -- one per directory and process


class _Process:
    """What this process has open. Replaced in the child of a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened: dict[Path, Directory] = {}
        self.forking = ExitStack()


_process = [_Process()]


def open_directory(path: Path, options: StoreOptions) -> Directory:
    """The process's `Directory` of that path, opened when it was not. Pair with `release_directory`.

    The way is checked as it is given, before its links are resolved: whose link it is shows only there.
    """
    with store_errors(f"directory {path}"):
        check_way(path, "store directory")
        key = path.resolve()
    on_fork(before=_before_fork, in_parent=_in_parent, in_child=_in_child)
    at_exit(_at_exit)
    process = _process[0]
    with process.lock:
        directory = process.opened.get(key)
        if directory is None:
            directory = process.opened[key] = Directory(key, options)
        elif directory.options != options and options != StoreOptions(create=options.create):
            log.warning(
                event_text(
                    "other_store_options", "store: %s is open in this process with other options, and those hold: %s"
                ),
                key,
                ", ".join(
                    f"{one.name} = {getattr(directory.options, one.name)} and not {getattr(options, one.name)}"
                    for one in dataclasses.fields(options)
                    if one.name != "create" and getattr(directory.options, one.name) != getattr(options, one.name)
                ),
            )
        directory.users += 1
        return directory


def release_directory(directory: Directory, timeout: float) -> None:
    """The last user closes it. Raises WaitTimeoutError: then it is still open."""
    process = _process[0]
    with process.lock:
        if directory.users == 1:
            directory.close(timeout)
            process.opened.pop(directory.path, None)
        directory.users -= 1


def _before_fork() -> None:
    """Lets the calls of all threads end, and nothing be opened, so that the child knows of every descriptor that it has to
    close. A call that takes too long, or the forking thread's own, is not waited for."""
    process = _process[0]
    if not process.lock.acquire(timeout=_FORK_WAIT_S):
        return
    stack = ExitStack()
    stack.callback(process.lock.release)
    for directory in process.opened.values():
        try:
            directory.at_rest(stack)
        except (ClosedError, WaitTimeoutError):
            log.warning(
                event_text("fork_during_calls", "store: fork() while calls on %s are in flight"), directory.path
            )
    process.forking = stack


def _in_parent() -> None:
    process = _process[0]
    stack, process.forking = process.forking, ExitStack()
    stack.close()


def _in_child() -> None:
    before = _process[0]
    _process[0] = _Process()
    for directory in before.opened.values():
        directory.abandon()


def _at_exit() -> None:
    for directory in list(_process[0].opened.values()):
        directory.flush_interval()


def _check_addresses(path: Path, exc: StoreBusyError) -> None:
    """Raises ConfigError where the process may not have the addresses of a log. That does not pass, as a lack of memory does."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    try:
        mmap.mmap(-1, _LOG_ADDRESSES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ).close()
    except OSError:
        raise ConfigError(
            f"store: {path}: this process may have {limit >> 20:,} MiB of addresses (ulimit -v, RLIMIT_AS); a log of the store "
            f"takes {_LOG_ADDRESSES >> 30} GiB of them, though hardly any memory: set ulimit -v unlimited, and limit the memory "
            "by the control group (MemoryMax= of systemd, --memory of a container)"
        ) from exc
