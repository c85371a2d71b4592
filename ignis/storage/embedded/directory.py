"""A store's directory as one process has it open: lock, format, recovery, environments, shared by all its users.

LMDB forbids opening an environment twice in a process, so every store that a process opens on a directory uses the same
`Directory`. After ``fork`` the child has none: it opens its own.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from ignis.errors import (
    ClosedError,
    ConfigError,
    IgnisError,
    StoreBusyError,
    StoreFormatError,
    StoreUnreachableError,
    WaitTimeoutError,
)
from ignis.native import EventBoard, ProcessMutex
from ignis.storage.checks import DURABILITIES
from ignis.storage.embedded import catalogue, claims, segments, steady
from ignis.storage.embedded.clock import open_clock
from ignis.storage.embedded.committer import Committer, Operation
from ignis.storage.embedded.environment import DATA_RESERVE_BYTES, DRAIN_RESERVE_BYTES, Environment, Pin
from ignis.storage.embedded.files import read_or_none, remove, sync_directory, write_whole
from ignis.storage.embedded.gate import Gate
from ignis.storage.embedded.journal import Journal
from ignis.storage.embedded.options import StoreOptions
from ignis.storage.embedded.owner import Identity, this_process
from ignis.storage.embedded.steady import Steady
from ignis.storage.os_errors import store_error, store_errors

__all__ = ["Data", "Directory", "fork_generation", "open_directory", "release_directory"]

log = logging.getLogger("ignis.storage")

FORMAT_VERSION = 1
_CLAIMS_MAP_BYTES = 64 << 20
_POLL_S = 0.02
_GARBAGE_KEYS = 2_000
_FORK_WAIT_S = 2.0
_REPLAY_PAGES = 24
"""Address space for what one replayed transaction copies of the B-tree and of LMDB's list of free pages."""
_CHECKPOINT_S = 1.0
"""How often the ``sync`` environment is made steady, which bounds what recovery has to run again."""
_MINE_BEFORE_FORMAT = {"lost+found"}


class Data:
    """One durability class: its environment, its write queue, and what makes it steady."""

    def __init__(self, env: Environment, committer: Committer, steadied: Steady | None) -> None:
        self.env = env
        self.committer = committer
        self.steady = steadied


class Directory:
    """See the module. Make it with `open_directory`, end it with `release`. Thread-safe."""

    def __init__(self, path: Path, options: StoreOptions) -> None:
        self.path = path
        self.options = options
        self.users = 0
        self.events = options.events
        self.gates: set[Gate] = set()
        self.announce: Callable[[list[Operation]], None] = lambda operations: None
        self.settle: Callable[[list[Operation]], None] = lambda operations: None
        self._mutex = threading.Lock()
        self._data: dict[str, Data] = {}
        self._closed = False
        self._power_was_cut = False
        with store_errors("/proc"):
            self.here: Identity = this_process()
        self._lock_fd = self._open_lock()
        try:
            alone = self._lock()
            if alone:
                self._recover_files()
            self._check_format()
            self.clock = open_clock(path, self.here.boot)
            # One word more than the magazines use: the catalogue's.
            self.board = EventBoard(path / "events", self.events + 1)
            self.claims = self._environment("claims")
            self.claims.reserve()
            self.owners = claims.Owners(self.here)
            self.data("sync")
            if alone:
                self._recover_claims()
                self._collect_garbage()
                self._mark_boot()
                # Not atomic, but whoever gets in between finds everything recovered.
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
                self._lock_shared()
        except BaseException as exc:
            self._close_all(1.0)
            if isinstance(exc, OSError):
                raise store_error(str(path), exc) from exc
            raise

    @property
    def catalogue_event(self) -> int:
        return self.events

    # -- parts

    def data(self, durability: str) -> Data:
        """The environment of a durability class, opened on first use."""
        found = self._data.get(durability)
        if found is not None:
            return found
        with self._mutex:
            found = self._data.get(durability)
            if found is None:
                if self._closed:
                    raise ClosedError("store is closed")
                with store_errors(str(self.path / durability)):
                    found = self._data[durability] = self._open_data(durability)
            return found

    def opened(self) -> dict[str, Data]:
        """The classes opened so far."""
        return dict(self._data)

    def existing(self) -> list[str]:
        """The classes that the directory has."""
        return [name for name in DURABILITIES if (self.path / name / "data.mdb").exists()]

    def _open_data(self, durability: str) -> Data:
        if durability == "none":
            # Before the first commit: from here on a power cut may leave anything.
            marker = self.path / "none" / "clean"
            if marker.exists():
                remove(marker)
                sync_directory(marker.parent)
        env = self._environment(durability)
        steadied = None
        if durability != "none":
            try:
                steadied = self._keep_steady(env, durability)
            except BaseException as exc:
                # LMDB refuses an environment that this process has open; the next try must find it closed.
                env.close(1.0)
                if isinstance(exc, OSError) and not isinstance(exc, IgnisError):
                    raise store_error(f"{durability} cannot be opened", exc) from exc
                raise
        return Data(env, Committer(env, self._announced, self._settled, self.options.write_timeout_s), steadied)

    def _keep_steady(self, env: Environment, durability: str) -> Steady:
        mutex = ProcessMutex(self.path / f"steady-{durability}.mutex")
        interval_s = self.options.sync_interval_ms / 1000
        if durability == "interval":
            return Steady(env, mutex, interval_s, self.options.write_timeout_s)
        journal = Journal(env.path)
        try:
            pin = self._replay(journal, env) if self._power_was_cut else None
            interval_s = min(interval_s, _CHECKPOINT_S)
            steadied = Steady(env, mutex, interval_s, self.options.write_timeout_s, journal)
        except BaseException:
            journal.close()
            raise
        if pin is not None:
            pin.drop()
        return steadied

    def _replay(self, journal: Journal, env: Environment) -> Pin:
        """Runs the journal again after a power cut. The pin returned keeps the pages of the steady state from being used
        again until a newer state is steady: when we die before that, recovery begins anew from the same state."""
        with env.writer():
            steady_txnid = env.last_txnid()
        count, size = journal.outstanding(steady_txnid)
        env.ensure_room(2 * size + count * _REPLAY_PAGES * env.page_bytes)
        with env.writer():
            pin = env.pin()
        if journal.replay(env, steady_txnid):
            log.warning("store: %s: %d transaction(s) of the journal run again after a power cut", env.path, count)
        return pin

    def _announced(self, operations: list[Operation]) -> None:
        self.announce(operations)

    def _settled(self, operations: list[Operation]) -> None:
        self.settle(operations)

    def _environment(self, name: str) -> Environment:
        options = self.options
        new = not (self.path / name / "data.mdb").exists()
        env = Environment(
            self.path / name,
            name,
            durable=False,
            map_bytes=min(options.map_size_bytes, _CLAIMS_MAP_BYTES) if name == "claims" else options.map_size_bytes,
            max_bytes=options.max_store_bytes,
            timeout_s=options.write_timeout_s,
            mutex=ProcessMutex(self.path / f"write-{name}.mutex"),
            reserve_bytes=DRAIN_RESERVE_BYTES if name == "claims" else DATA_RESERVE_BYTES,
        )
        if new:
            sync_directory(self.path / name)
            sync_directory(self.path)
        return env

    # -- the lock

    def _open_lock(self) -> int:
        try:
            if not self.path.is_dir() or not (self.path / "FORMAT").exists():
                if not self.options.create:
                    raise StoreUnreachableError(f"no store at {self.path}")
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_directory(self.path.parent)
                strangers = {
                    name
                    for name in os.listdir(self.path)
                    if name not in _MINE_BEFORE_FORMAT and not (name.startswith("FORMAT.") and name.endswith(".new"))
                }
                if strangers and not (self.path / "FORMAT").exists():
                    raise StoreFormatError(f"{self.path} is not a store and not empty: it has {min(strangers)!r}")
            self._check_private()
            # The directory itself: a file in it can be deleted, and whoever comes next would believe to be alone.
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise store_error(f"directory {self.path}", exc) from exc

    def _check_private(self) -> None:
        """Raises ConfigError for a directory in which others could replace files, or put links to what is not theirs."""
        found, here = os.stat(self.path), os.geteuid()
        if found.st_uid != here:
            raise ConfigError(
                f"store directory {self.path} belongs to user {found.st_uid}, this process is user {here}: its owner could "
                f"replace files. Run as that user, or name a directory in it that is made now, such as {self.path}/store"
            )
        if found.st_mode & 0o022:
            raise ConfigError(
                f"store directory {self.path} has mode {found.st_mode & 0o7777:o}: others could replace files. chmod go-w it, "
                f"or name a directory in it that is made now, such as {self.path}/store"
            )

    def _try_lock(self, how: int) -> bool:
        try:
            fcntl.flock(self._lock_fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as exc:
            raise StoreUnreachableError(f"store directory {self.path}: lock: {exc.strerror}") from exc
        return True

    def _lock(self) -> bool:
        """True = alone, exclusive, to recover; False = others are at work and everything is recovered."""
        deadline = time.monotonic() + self.options.write_timeout_s
        while True:
            if self._try_lock(fcntl.LOCK_EX):
                return True
            if self._try_lock(fcntl.LOCK_SH):
                if (self.path / "FORMAT").exists() and self._boot_known():
                    return False
                # Whoever was to recover died at it.
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
            if time.monotonic() > deadline:
                raise StoreBusyError(
                    f"store {self.path}: another process is recovering it for over {self.options.write_timeout_s:g} s"
                )
            time.sleep(_POLL_S)

    def _lock_shared(self) -> None:
        deadline = time.monotonic() + self.options.write_timeout_s
        while not self._try_lock(fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                raise StoreBusyError(f"store {self.path}: another process holds it exclusively")
            time.sleep(_POLL_S)

    def _check_format(self) -> None:
        text = read_or_none(self.path / "FORMAT")
        try:
            found = json.loads(text or b"")
            version, events = int(found["format"]), int(found["events"])
        except (ValueError, KeyError, TypeError):
            raise StoreFormatError(f"{self.path}/FORMAT is not the format file of a store") from None
        if version != FORMAT_VERSION:
            raise StoreFormatError(
                f"{self.path} holds a store of format {version}, this version reads {FORMAT_VERSION}"
            )
        # Part of the directory, whatever the options say: all processes map the same file.
        self.events = events

    # -- recovery, by whoever is alone

    def _boot_known(self) -> bool:
        return read_or_none(self.path / "boot") == self.here.boot.encode()

    def _mark_boot(self) -> None:
        """Written once a boot, and as a whole: who found it empty would take a death for a power cut, and go back to what
        was last made steady."""
        if not self._boot_known():
            write_whole(self.path / "boot", self.here.boot.encode())

    def _recover_files(self) -> None:
        """Makes a new store, or after another boot puts right what a power cut may have left."""
        if not (self.path / "FORMAT").exists():
            content = {"format": FORMAT_VERSION, "events": self.options.events}
            write_whole(self.path / "FORMAT", json.dumps(content).encode())
        if self._boot_known():
            return
        shutil.rmtree(self.path / "claims", ignore_errors=True)
        for leftover in ("events", *(entry.name for entry in self.path.glob("*.mutex"))):
            remove(self.path / leftover)
        self._power_was_cut = True
        for name in ("sync", "interval"):
            directory = self.path / name
            if directory.exists() and not steady.restore(directory):
                self._set_aside(directory)
        none = self.path / "none"
        if none.exists() and not (none / "clean").exists():
            self._set_aside(none)

    def _set_aside(self, directory: Path) -> None:
        aside = directory.with_name(f"{directory.name}.unclean-{int(time.time() * 1000)}")
        directory.rename(aside)
        sync_directory(self.path)
        log.error(
            "store: %s was not closed before the machine restarted; it is now %s and starts empty", directory, aside
        )

    def _recover_claims(self) -> None:
        """Throws away the claims and fire pointers of magazines where they do not fit the records."""
        magazines, damaged = catalogue.read_all(self.data("sync").env)
        known = {info.id: info for info in magazines}
        with self.claims.reading() as txn:
            ids = claims.magazine_ids(txn)
            wrong = set(ids)
            for magazine_id in ids:
                info = known.get(magazine_id)
                if info is None and damaged:
                    wrong.discard(magazine_id)  # it may be of a magazine whose entry is damaged
                if info is not None and info.durability in self.existing():
                    with self.data(info.durability).env.reading() as data:
                        if claims.sound(txn, data, magazine_id, info.shards):
                            wrong.discard(magazine_id)
        for magazine_id in wrong:
            if magazine_id in known:
                log.warning("store: claims of %s do not fit its records; they are fired again", known[magazine_id].name)
            self.claims.transact(lambda txn: claims.forget_magazine(txn, magazine_id))  # noqa: B023 - called at once
        self.claims.transact(lambda txn: claims.forget_idle_owners(txn, ids))

    def _collect_garbage(self) -> None:
        for magazine_id in catalogue.read_dropped(self.data("sync").env):
            self.forget_records(magazine_id)

    def forget_records(self, magazine_id: int) -> None:
        """Removes what a dropped magazine left: records in steps, then the note that there is something to remove."""
        for durability in self.existing():
            env = self.data(durability).env
            while env.transact(lambda txn: segments.forget_magazine(txn, magazine_id, _GARBAGE_KEYS)):
                pass
        self.claims.transact(lambda txn: claims.forget_magazine(txn, magazine_id))
        self.data("sync").env.transact(lambda txn: catalogue.forget_dropped(txn, magazine_id))

    # -- the end

    def abandon(self) -> None:
        """In the child of a fork: lets go of everything without touching what is the parent's. The lock's descriptor must
        go as well, or the child's life would keep the directory locked after its parent's death."""
        for data in self._data.values():
            if data.steady is not None:
                data.steady.abandon()
            data.env.abandon()
        self.claims.abandon()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def at_rest(self, stack: ExitStack) -> None:
        """Keeps all calls out, those of the background included, until ``stack`` is unwound. Raises WaitTimeoutError."""
        for gate in list(self.gates):
            stack.enter_context(gate.shut(_FORK_WAIT_S))
        for data in self._data.values():
            if data.steady is not None and data.steady.at_work.acquire(timeout=_FORK_WAIT_S):
                stack.callback(data.steady.at_work.release)

    def close(self, timeout: float) -> None:
        """Everything must be at rest. Raises WaitTimeoutError, and may then be called again."""
        with self._mutex:
            self._closed = True
        self._close_all(timeout)

    def _close_all(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        failures: list[IgnisError] = []
        none = self._data.get("none")
        for data in self._data.values():
            if data.steady is not None:
                data.steady.close(max(0.1, deadline - time.monotonic()))
        alone = False
        if self._lock_fd >= 0:
            with suppress(OSError):
                alone = self._try_lock(fcntl.LOCK_EX)
        if none is not None and alone:
            # The last one out: nothing can follow this flush.
            with suppress(IgnisError, OSError):
                none.env.flush()
                write_whole(self.path / "none" / "clean", b"")
        for env in [*(data.env for data in self._data.values()), getattr(self, "claims", None)]:
            if env is not None:
                try:
                    env.close(max(0.1, deadline - time.monotonic()))
                except WaitTimeoutError as exc:
                    failures.append(exc)
        board = getattr(self, "board", None)
        if board is not None:
            board.close(max(0.1, deadline - time.monotonic()))
        if failures:
            raise failures[0]
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


# -- one per directory and process


class _Process:
    """What this process has open. Replaced in the child of a fork."""

    def __init__(self, generation: int = 0) -> None:
        self.generation = generation
        self.lock = threading.Lock()
        self.opened: dict[Path, Directory] = {}
        self.forking = ExitStack()


_process = [_Process()]


def fork_generation() -> int:
    """Rises in the child of every fork: handles compare it with what it was when they were made."""
    return _process[0].generation


def open_directory(path: Path, options: StoreOptions) -> Directory:
    """The process's `Directory` of that path, opened when it was not. Pair with `release_directory`."""
    key = path.resolve()
    process = _process[0]
    with process.lock:
        directory = process.opened.get(key)
        if directory is None:
            directory = process.opened[key] = Directory(key, options)
        elif directory.options != options and options != StoreOptions(create=options.create):
            log.warning("store: %s is open in this process with other options; those hold", key)
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
    """Lets the calls of all threads end, so that no frame of a thread that the child does not have holds a transaction: the
    child could not let go of it, and LMDB would refuse to open the directory there. A call that takes too long, or the
    forking thread's own, is not waited for."""
    process = _process[0]
    if not process.lock.acquire(timeout=_FORK_WAIT_S):
        return
    stack = ExitStack()
    stack.callback(process.lock.release)
    for directory in process.opened.values():
        try:
            directory.at_rest(stack)
        except (ClosedError, WaitTimeoutError):
            log.warning("store: fork() while calls on %s are in flight", directory.path)
    process.forking = stack


def _in_parent() -> None:
    process = _process[0]
    stack, process.forking = process.forking, ExitStack()
    stack.close()


def _in_child() -> None:
    before = _process[0]
    _process[0] = _Process(before.generation + 1)
    for directory in before.opened.values():
        directory.abandon()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
