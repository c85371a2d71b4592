"""The relay: one process that carries what producers left in their channels into the store.

A turn holds what lies in the channels, loads it in one transaction per queue, and only then takes it from the channels.
So a relay that dies leaves to the next one whatever is not known to be stored, and the messages of at most one turn twice:
their ids are the same.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ignis.app import Ignis
from ignis.config import RelaySettings, resolve
from ignis.errors import (
    ClosedError,
    ConfigError,
    ForkedHandleError,
    IgnisError,
    NativeError,
    QueueNotFoundError,
    RegionBusyError,
    RegionIOError,
    StoreFailedError,
    UnreadableMessageError,
)
from ignis.magazine import Magazine
from ignis.native import Bell, Intake, pack, process_start_time
from ignis.relay.directory import RelayDirectory
from ignis.relay.inlet import Inlet, Target
from ignis.relay.label import settings_of

__all__ = ["Relay"]

log = logging.getLogger("ignis.relay")

_PARALLEL_LOADS = 4
"""Queues whose loads are handed to the store at the same time: they share its commits."""
_LARGE = 128
"""Messages of a turn that shows producers at full speed."""
_NAPS = 20
"""Pauses without a message before the relay goes to sleep and has to be woken."""


class Load:
    """What one load takes: the inlets that hold messages for it, and the magazine they go to."""

    def __init__(self, magazine: Magazine[Any]) -> None:
        self.magazine = magazine
        self.inlets: list[Inlet] = []
        self.messages = 0
        self.bytes = 0

    def only(self, inlet: Inlet) -> Load:
        """The part of it that one inlet holds."""
        part = Load(self.magazine)
        part.inlets, part.messages = [inlet], inlet.intake.held
        return part


Outcome = tuple[Load, "Exception | None"]


def _is_final(exc: Exception) -> bool:
    """An error of what was to be stored, which trying again does not change; not one of the store or of a file."""
    return (
        isinstance(exc, IgnisError)
        and not exc.retryable
        and not isinstance(exc, (ClosedError, ForkedHandleError, NativeError, QueueNotFoundError, StoreFailedError))
    )


class Relay:
    """Collects from one directory into one application's store.

    Args:
        app: an application on the store; the relay does not close it.
        directory: that the producers name, absolute.
        settings: any of ``[relay]`` in ``docs/settings.md``.

    `run` blocks, in one thread; `request_stop` may be called from any thread or a signal handler. Not usable after ``fork``.
    """

    def __init__(self, app: Ignis, directory: str | os.PathLike[str], **settings: Any) -> None:
        self.app = app
        self.directory = RelayDirectory(directory)
        self.settings = resolve(RelaySettings, settings, app.file)
        self.inlets: dict[Path, Inlet] = {}
        self._ignored: dict[Path, str] = {}
        self._bell: Bell | None = None
        self._stopping = False
        self._running = False
        self._turns = 0
        self._last_turn = 0
        self._next_scan = 0.0
        self._next_catalogue = 0.0
        self._failing = ""
        self._backoff_s = 0.0
        self._resume_at = 0.0
        self._figures = dict.fromkeys(
            ("messages", "bytes", "loads", "taken_up", "finished", "refused", "store_errors"), 0
        )

    # -- life

    def run(self) -> None:
        """Relays until `request_stop`, then stores what lies in the channels at that moment, and returns.

        Raises:
            LockHeldError: another relay runs on the directory. StoreUnreachableError, StoreFormatError: no store.
            StoreFailedError: the store must be opened anew; what it does not have waits in the channels.
        """
        if str(self.app.url).startswith("relay:"):
            raise ConfigError(
                f"the relay's own store cannot be {self.app.url}: give it the store that keeps the messages"
            )
        lock = self.directory.lock()
        try:
            self.app.store.queues.list()  # opens it: without a store there is no relay
            self._bell = self._open_bell()
            self._write_state()
            self._running = True
            log.info("relaying %s to %s", self.directory.path, self.app.url)
            with ThreadPoolExecutor(_PARALLEL_LOADS, "ignis-relay-load") as pool:
                while not self._stopping:
                    if not self._turn(pool):
                        self._rest()
                self._scan()
                until = time.monotonic() + self.settings.stop_timeout_s
                while self._turn(pool) and time.monotonic() < until:
                    pass
        finally:
            self._running = False
            for inlet in self.inlets.values():
                inlet.intake.close()
            self.inlets.clear()
            if self._bell is not None:
                self._bell.close()
            os.close(lock)
            log.info("relay stopped after %d messages", self._figures["messages"])

    def request_stop(self) -> None:
        """Makes `run` return."""
        self._stopping = True
        if self._bell is not None:
            with contextlib.suppress(NativeError, IgnisError):
                self._bell.ring()

    @property
    def running(self) -> bool:
        """True from the moment that channels are looked at."""
        return self._running

    def stats(self) -> dict[str, int | str]:
        """Messages, bytes and loads since the start; channels taken up, finished and refused; channels now; the store's
        last error while it lasts."""
        return {**self._figures, "channels": len(self.inlets), "failing": self._failing}

    def _open_bell(self) -> Bell:
        try:
            return Bell(self.directory.bell)
        except NativeError as exc:
            # Producers that have the old one ring in vain; the scan finds their messages.
            log.warning("%s is set aside: %s", self.directory.bell, exc)
            self.directory.set_aside(self.directory.bell, str(exc))
            return Bell(self.directory.bell)

    # -- waiting

    def _rest(self) -> None:
        """Nothing was there. Short pauses first: a producer that sends every now and then need not wake us each time."""
        for _ in range(_NAPS if self.settings.nap_s else 0):
            time.sleep(self.settings.nap_s)
            if self._stopping or any(map(self._depth, self.inlets.values())):
                return
        timeout_s = max(0.0, min(self._next_scan, self._next_catalogue) - time.monotonic())
        assert self._bell is not None
        try:
            if self._bell.wait([inlet.intake for inlet in self.inlets.values()], timeout_s):
                self._next_scan = min(self._next_scan, time.monotonic())  # somebody rang: perhaps for a new channel
        except NativeError as exc:
            log.warning("cannot be woken, looking every %g s: %s", self.settings.scan_s, exc)
            time.sleep(self.settings.scan_s)
            self._next_scan = 0.0

    @staticmethod
    def _depth(inlet: Inlet) -> int:
        try:
            return inlet.intake.depth()
        except NativeError:
            return 1  # the turn will see what it is

    # -- channels come and go

    def _scan(self) -> None:
        """Takes up new channels, and lets go of those whose producers are gone."""
        self._next_scan = time.monotonic() + self.settings.scan_s
        for inlet in list(self.inlets.values()):
            try:
                if inlet.finished():
                    self._finish(inlet)
            except NativeError as exc:
                self._refuse(inlet.path, inlet.intake, exc)
        present = self.directory.channel_files()
        for path in present:
            if path not in self.inlets and len(self.inlets) < self.settings.max_channels:
                self._take_up(path)
        for path in self._ignored.keys() - set(present):
            del self._ignored[path]

    def _take_up(self, path: Path) -> None:
        try:
            intake = Intake.open(path)
        except (RegionBusyError, RegionIOError, MemoryError) as exc:
            if self._ignored.get(path) != str(exc):  # once, not at every scan
                log.warning("channel %s cannot be taken up now: %s", path.name, exc)
                self._ignored[path] = str(exc)
            return
        except NativeError as exc:
            self._set_aside(path, exc)
            return
        try:
            self.inlets[path] = Inlet.of(path, intake, self.app.client_id, self.app.farm_id)
        except (NativeError, ConfigError) as exc:
            self._refuse(path, intake, exc)
        else:
            self._figures["taken_up"] += 1
            log.debug("channel %s taken up", path.name)

    def _finish(self, inlet: Inlet) -> None:
        del self.inlets[inlet.path]
        inlet.intake.close()
        inlet.path.unlink(missing_ok=True)
        self._figures["finished"] += 1
        log.debug("channel %s is finished", inlet.path.name)

    def _refuse(self, path: Path, intake: Intake, why: Exception) -> None:
        """Takes no more from this channel: the file is set aside, then its producer is told."""
        self.inlets.pop(path, None)
        intake.let_go()
        self._set_aside(path, why)
        with contextlib.suppress(NativeError):
            intake.refuse()
        intake.close()

    def _set_aside(self, path: Path, why: Exception) -> None:
        self._figures["refused"] += 1
        log.error("channel %s is set aside: %s", path.name, why)
        try:
            self.directory.set_aside(path, f"{type(why).__name__}: {why}")
        except OSError as exc:
            log.error("channel %s cannot be set aside: %s", path.name, exc)

    # -- messages

    def _turn(self, pool: ThreadPoolExecutor) -> int:
        """One round over all channels; returns how many messages were stored."""
        now = time.monotonic()
        if now >= self._next_scan:
            self._scan()
        if now >= self._next_catalogue:
            self._write_state()
        if now < self._resume_at:
            time.sleep(min(self._resume_at - now, self.settings.scan_s))
            return 1  # not idle: the next turn is due by the clock, and no message needs to wake us for it
        self._turns += 1
        self._let_gather()
        loads = self._hold()
        if not loads:
            return 0
        self._last_turn = sum(load.messages for load in loads)
        done = [self._store(loads[0])] if len(loads) == 1 else list(pool.map(self._store, loads))
        outcomes = [outcome for outcomes in done for outcome in outcomes]
        self._note_failures([exc for load, exc in outcomes if exc is not None and not self._give_up(load, exc)])
        return sum(load.messages for load, exc in outcomes if exc is None)

    def _let_gather(self) -> None:
        """Right after a large turn the producers that waited for room have only begun again. A load of what they have
        by now would cost as much as one of what they have a moment later."""
        if self._last_turn >= _LARGE and sum(map(self._depth, self.inlets.values())) < self._last_turn // 2:
            time.sleep(self.settings.nap_s)
        self._last_turn = 0

    def _hold(self) -> list[Load]:
        """Looks at what every channel has, in an order that rotates, up to the bounds of a load."""
        loads: dict[Target, Load] = {}
        inlets = list(self.inlets.values())
        start = self._turns % len(inlets) if inlets else 0
        for inlet in inlets[start:] + inlets[:start]:
            try:
                if inlet.intake.depth() == 0:
                    continue
                magazine = inlet.magazine(self.app)
                load = loads.get(Inlet.target_of(magazine)) or Load(magazine)
                room = self.settings.max_batch - load.messages
                room_bytes = self.settings.max_batch_bytes - load.bytes
                if room <= 0 or room_bytes <= 0:
                    continue
                before = inlet.intake.bytes_taken
                held = inlet.intake.hold(room, room_bytes, magazine.shards, inlet.codec)
            except (NativeError, UnreadableMessageError, ConfigError) as exc:
                self._refuse(inlet.path, inlet.intake, exc)
                continue
            except IgnisError as exc:
                self._note_failures([exc])
                continue
            if held:
                load.inlets.append(inlet)
                load.messages += held
                load.bytes += inlet.intake.bytes_taken - before
                loads[Inlet.target_of(magazine)] = load
        return list(loads.values())

    def _store(self, load: Load) -> list[Outcome]:
        """Loads, then takes; says for each channel, or for all together, why the store does not have its messages."""
        try:
            shards = load.magazine.shards
            batches = pack([inlet.intake for inlet in load.inlets], self._turns % shards, shards)
            load.magazine.load_batches(batches)
        except Exception as exc:
            if _is_final(exc) and len(load.inlets) > 1:
                # Each by itself: one channel's message that no store would take must not hold up the others.
                return [outcome for inlet in load.inlets for outcome in self._store(load.only(inlet))]
            for inlet in load.inlets:
                inlet.intake.let_go()  # stays where it is
            return [(load, exc)]
        self._acknowledge(load)
        return [(load, None)]

    def _give_up(self, load: Load, exc: Exception) -> bool:
        """Whether the failure is dealt with; otherwise the messages are offered to the store again."""
        if isinstance(exc, QueueNotFoundError):
            for inlet in load.inlets:
                inlet.forget_magazine()
        if not _is_final(exc):
            return isinstance(exc, NativeError)  # a file was cut under us; the next look at it finds out which
        for inlet in load.inlets:
            self._refuse(inlet.path, inlet.intake, exc)
        return True

    def _acknowledge(self, load: Load) -> None:
        for inlet in load.inlets:
            # A file that was cut in the meantime: its messages are stored, and there is nobody to tell.
            with contextlib.suppress(NativeError):
                inlet.intake.acknowledge()
        self._figures["messages"] += load.messages
        self._figures["bytes"] += load.bytes
        self._figures["loads"] += 1

    def _note_failures(self, failures: Sequence[Exception]) -> None:
        """Says once that the store refuses, and sets the pause before it is asked again."""
        if not failures:
            if self._failing:
                log.warning("the store takes messages again")
            self._failing, self._backoff_s, self._resume_at = "", 0.0, 0.0
            return
        self._figures["store_errors"] += len(failures)
        for exc in failures:
            if isinstance(exc, StoreFailedError) or not isinstance(exc, IgnisError):
                raise exc
        if self._failing != str(failures[0]):
            log.error("the store refuses, messages wait in their channels: %s", failures[0])
        self._failing = str(failures[0])
        self._backoff_s = min(max(self.settings.retry_s, self._backoff_s * 2), self.settings.max_retry_s)
        self._resume_at = time.monotonic() + self._backoff_s

    # -- what producers want to know

    def _write_state(self) -> None:
        self._next_catalogue = time.monotonic() + self.settings.catalogue_s
        try:
            queues = {
                record.name: {**settings_of(record), "codec": record.codec} for record in self.app.store.queues.list()
            }
        except IgnisError as exc:
            log.warning("the queues' settings cannot be read: %s", exc)
            return
        pid = os.getpid()
        self.directory.write_state(
            {
                "version": 1,
                "pid": pid,
                "start_time": process_start_time(pid),
                "client_id": self.app.client_id,
                "farm_id": self.app.farm_id,
                "queues": queues,
            }
        )
