"""The relay: one process that carries what producers left in their channels into the store.

What lies in the channels is copied, loaded in one transaction per queue, and only then taken from the channels; while the
store is at work the next load is copied, and it sets off when the one before it was taken. So a relay that dies leaves to
the next one whatever is not known to be stored, and twice the messages of at most one load per queue: their ids are the
same.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any

from ignis.app import Ignis
from ignis.config import RelaySettings, resolve
from ignis.errors import (
    ClosedError,
    ConfigError,
    ForkedHandleError,
    IgnisError,
    LockHeldError,
    NativeError,
    QueueNotFoundError,
    RegionIOError,
    StoreError,
    StoreFailedError,
    UnreadableMessageError,
)
from ignis.file_lock import FileLock, identity_of
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.native import Bell, process_start_time
from ignis.relay.channel_label import settings_of
from ignis.relay.channel_reader import Inlet, Target
from ignis.relay.channel_registry import Roster
from ignis.relay.directory import RelayDirectory
from ignis.relay.forwarder import Carrier, Load, Outcome
from ignis.urls import redacted

__all__ = ["Relay"]

log = logging.getLogger("ignis.relay")

_PARALLEL_LOADS = 4
"""Queues whose loads are handed to the store at the same time: they share its commits."""
_LARGE = 128
"""Messages of a load that shows producers at full speed."""
_LARGE_BYTES = 256 << 10
"""Bytes of a load that is worth another thread, so that the next one is gathered meanwhile."""
_WORTHWHILE = 64
"""Messages that are copied while the store is at work; fewer wait, since each such copy makes batches of its own."""
_LONGEST_PAUSE_S = 0.05
"""Between two looks at the channels while the store is at work; its answer ends the pause."""
_NAPS = 20
"""Pauses without a message before the relay goes to sleep and has to be woken."""


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
        self.roster = Roster(self.directory, app, self.settings.max_channels)
        self._bell: Bell | None = None
        self._bell_identity: tuple[int, int] | None = None
        self._lock: FileLock
        self._stopping = False
        self._running = False
        self._turns = 0
        self._said = LimitedLog(log)
        self._last_turn = 0
        self._carrier = Carrier(_PARALLEL_LOADS)
        self._flight: dict[Target, Load] = {}
        self._next: dict[Target, Load] = {}
        self._pause_s = 0.0
        self._next_scan = 0.0
        self._next_catalogue = 0.0
        self._listed: set[str] = set()  # queues that producers can find
        self._failing = ""
        self._unwritten = ""
        self._backoff_s = 0.0
        self._resume_at = 0.0
        self._figures = dict.fromkeys(("messages", "bytes", "loads", "store_errors"), 0)

    # -- life

    def run(self) -> None:
        """Relays until `request_stop`, then stores what lies in the channels at that moment, and returns.

        Raises:
            LockHeldError: another relay runs on the directory. StoreUnreachableError, StoreFormatError: no store.
        LockHeldError later: the lock's file was deleted or replaced, and another relay has begun meanwhile. What lay in the
        channels of this one is stored.
        """
        if str(self.app.url).startswith("relay:"):
            raise ConfigError(
                f"the relay's own store cannot be {redacted(self.app.url)}: give it the store that keeps the messages"
            )
        self._lock = self.directory.lock()
        try:
            self.app.store.queues.list()  # opens it: without a store there is no relay
            self._bell = self._open_bell()
            self._write_state()
            self._carrier = Carrier(_PARALLEL_LOADS)
            self._running = True
            log.info(event_text("relay_started", "relaying %s to %s"), self.directory.path, redacted(self.app.url))
            try:
                while not self._stopping:
                    if not self._turn():
                        self._rest()
                self._scan()
            except LockHeldError:
                # The other relay does not see our channels where their directory was replaced.
                self._next_scan = self._next_catalogue = math.inf
                self._drain()
                raise
            self._drain()
        finally:
            self._running = False
            if not self._carrier.close(self.settings.stop_timeout_s):
                log.warning(
                    event_text(
                        "relay_store_silent",
                        "the store has not answered: what it was given may be stored, and waits in its channels too",
                    )
                )
            self.roster.close()
            if self._bell is not None:
                self._bell.close()
            self._lock.close()
            log.info(event_text("relay_stopped", "relay stopped after %d messages"), self._figures["messages"])

    def _drain(self) -> None:
        """Stores what lies in the channels, as far as ``relay.stop_timeout_s`` lasts."""
        until = time.monotonic() + self.settings.stop_timeout_s
        while self._turn() and time.monotonic() < until:
            pass

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

    @property
    def stopping(self) -> bool:
        """Whether it has begun to stop."""
        return self._stopping

    def stats(self) -> dict[str, int | str]:
        """Messages, bytes and loads since the start; channels taken up, finished and refused; channels now; the store's
        last error while it lasts."""
        return {**self._figures, **self.roster.figures, "channels": len(self.roster), "failing": self._failing}

    def _open_bell(self) -> Bell:
        bell = self._bell_there()
        self._bell_identity = identity_of(self.directory.bell)
        return bell

    def _bell_there(self) -> Bell:
        try:
            return Bell(self.directory.bell)
        except RegionIOError:
            raise  # no room or no permission: another file would have none either
        except NativeError as exc:
            # Producers that have the old one ring in vain; the scan finds their messages.
            log.warning(event_text("relay_state_set_aside", "%s is set aside: %s"), self.directory.bell, exc)
            self.directory.set_aside(self.directory.bell, str(exc))
            return Bell(self.directory.bell)

    # -- waiting

    def _rest(self) -> None:
        """Nothing was there. Short pauses first: a producer that sends every now and then need not wake us each time."""
        for _ in range(_NAPS if self.settings.nap_s else 0):
            time.sleep(self.settings.nap_s)
            if self._stopping or self.roster.waiting():
                return
        timeout_s = max(0.0, min(self._next_scan, self._next_catalogue) - time.monotonic())
        assert self._bell is not None
        try:
            if self._bell.wait([inlet.intake for inlet in self.roster], timeout_s):
                self._next_scan = min(self._next_scan, time.monotonic())  # somebody rang: perhaps for a new channel
        except NativeError as exc:
            self._said.warning(
                event_text("relay_not_woken", "cannot be woken, looking every %g s: %s"), self.settings.scan_s, exc
            )
            time.sleep(self.settings.scan_s)
            self._next_scan = 0.0

    def _scan(self) -> None:
        self._next_scan = time.monotonic() + self.settings.scan_s
        self._keep_the_directory()
        self.roster.scan()

    def _keep_the_directory(self) -> None:
        """The lock of a file without its name keeps no other relay away, and no producer sees it. What is in a channel is
        safe meanwhile: it belongs to the relay that has taken it up, whatever became of the channel's name.

        A directory that was removed or moved is made anew: producers whose channels went with it look there for us."""
        if self._lock.valid and self.directory.whole:
            return
        try:
            self.directory.make()
            if self._lock.valid:
                return
            found = self.directory.lock(0)
        except (StoreError, ConfigError) as exc:
            self._said.warning(
                event_text("relay_directory_gone", "%s is gone and cannot be made: %s"), self._lock.path, exc
            )
            return
        log.warning(
            event_text("relay_lock_replaced", "%s was deleted, moved or replaced; it is locked anew"), self._lock.path
        )
        self._lock.close()
        self._lock = found
        self._next_catalogue = 0.0  # producers read it there
        self._renew_bell()

    def _renew_bell(self) -> None:
        """Producers ring the bell that they find in the directory. Those that have the one before are found by the scan."""
        assert self._bell is not None
        if identity_of(self.directory.bell) == self._bell_identity:
            return
        try:
            bell = self._open_bell()
        except NativeError as exc:
            self._said.warning(
                event_text("relay_not_woken", "cannot be woken, looking every %g s: %s"), self.settings.scan_s, exc
            )
            return
        before, self._bell = self._bell, bell
        before.close()

    # -- messages

    def _turn(self) -> bool:
        """Some of the way from the channels to the store; false when there was nothing to do."""
        now = time.monotonic()
        if now >= self._next_scan:
            self._scan()
        if now >= self._next_catalogue:
            self._write_state()
        if self._flight:
            return self._while_under_way()
        if now < self._resume_at:
            time.sleep(min(self._resume_at - now, self.settings.scan_s))
            return True  # not idle: the next turn is due by the clock, and no message needs to wake us for it
        self._let_gather()
        self._gather()
        if not self._next:
            return False
        self._set_off()
        return True

    def _while_under_way(self) -> bool:
        """The store is at work. What comes in meanwhile is copied, when it is worth it, so that it can follow at once."""
        began = time.monotonic()
        if self.roster.waiting() >= _WORTHWHILE:
            self._gather()
            self._pause_s = self.settings.nap_s
        # A look at thousands of channels is not to take the processor from the threads that store.
        outcomes = self._carrier.wait(max(self._pause_s or _LONGEST_PAUSE_S, 4 * (time.monotonic() - began)))
        if outcomes is None:
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        else:
            self._flight = {}
            self._arrived(outcomes)
        return True

    def _set_off(self) -> None:
        """Hands what was gathered to the store."""
        loads = list(self._next.values())
        self._flight, self._next = self._next, {}
        self._last_turn = sum(load.messages for load in loads)
        if len(loads) == 1 and self._last_turn < _LARGE and loads[0].bytes < _LARGE_BYTES:
            # Not worth another thread: whoever waits for its receipt has it sooner this way.
            outcomes = [(loads[0], loads[0].store())]
            self._flight = {}
            self._arrived(outcomes)
        else:
            self._pause_s = self.settings.nap_s
            self._carrier.send(loads)

    def _let_gather(self) -> None:
        """Right after a large turn the producers that waited for room have only begun again. A load of what they have
        by now would cost as much as one of what they have a moment later."""
        gathered = sum(load.messages for load in self._next.values())
        if self._last_turn >= _LARGE and gathered + self.roster.waiting() < self._last_turn // 2:
            time.sleep(self.settings.nap_s)
        self._last_turn = 0

    def _gather(self) -> None:
        """Holds and copies what every channel has, in an order that rotates, up to the bounds of a load."""
        self._turns += 1
        inlets = list(self.roster)
        start = self._turns % len(inlets) if inlets else 0
        for inlet in inlets[start:] + inlets[:start]:
            try:
                if inlet.intake.waiting == 0:
                    continue
                magazine = inlet.magazine(self.app)
                later = self.app.store if inlet.delayed else None
                load = self._next.get(Inlet.target_of(magazine, inlet.delayed)) or Load(magazine, later)
                if load.hold(inlet, self.settings.max_batch, self.settings.max_batch_bytes):
                    self._next[load.target] = load
            except (NativeError, UnreadableMessageError, ConfigError) as exc:
                if not inlet.intake.held:  # otherwise what is good and on its way comes first
                    self.roster.refuse(inlet, exc)
            except IgnisError as exc:
                self._note_failures([exc])
        for load in list(self._next.values()):
            try:
                load.pack(self._turns)
            except NativeError as exc:
                log.debug(
                    event_text("channel_cut", "a channel was cut while it was read: %s"), exc
                )  # the next look at it finds out which
                self._drop(load.target)

    def _arrived(self, outcomes: Sequence[Outcome]) -> None:
        """Takes from the channels what is stored; what is not is offered again, or refused."""
        failures = []
        for load, exc in outcomes:
            if exc is None:
                self._acknowledge(load)
                continue
            # What was to follow goes back as well: it must not overtake.
            self._drop(load.target)
            for inlet in load.held:
                inlet.intake.let_go()
            if _is_final(exc) and len(load.held) > 1:
                failures += self._one_by_one(load)
            elif not self._give_up(load, exc):
                failures.append(exc)
        self._note_failures(failures)

    def _drop(self, target: Target) -> None:
        """What was gathered and has not set off goes back."""
        load, flight = self._next.pop(target, None), self._flight.get(target)
        for inlet in load.held if load else ():
            inlet.intake.let_go(flight.held.get(inlet, 0) if flight else 0)

    def _one_by_one(self, load: Load) -> list[Exception]:
        """Each channel by itself: one channel's message that no store would take must not hold up the others."""
        failures = []
        for inlet in load.held:
            part = Load(load.magazine, load.later)
            try:
                part.hold(inlet, self.settings.max_batch, self.settings.max_batch_bytes)
                part.pack(self._turns)
                exc = part.store()
            except (NativeError, UnreadableMessageError) as why:
                exc = why
            if exc is None:
                self._acknowledge(part)
                continue
            inlet.intake.let_go()
            if not self._give_up(part, exc):
                failures.append(exc)
        return failures

    def _give_up(self, load: Load, exc: Exception) -> bool:
        """Whether the failure is dealt with; otherwise the messages are offered to the store again."""
        if isinstance(exc, QueueNotFoundError):
            for inlet in load.held:
                inlet.forget_magazine()
        if not _is_final(exc):
            return isinstance(exc, NativeError)  # a file was cut under us; the next look at it finds out which
        for inlet in load.held:
            self.roster.refuse(inlet, exc)
        return True

    def _acknowledge(self, load: Load) -> None:
        if load.magazine.name not in self._listed:
            # Whose first message is stored finds the queue at once, and not only when the settings are written the next time.
            self._write_state()
            self._listed.add(load.magazine.name)  # also where its record cannot be read: once, and not for each load
        for inlet, count in load.held.items():
            # A file that was cut in the meantime: its messages are stored, and there is nobody to tell.
            with contextlib.suppress(NativeError, ClosedError):
                inlet.intake.acknowledge(count)
        self._figures["messages"] += load.messages
        self._figures["bytes"] += load.bytes
        self._figures["loads"] += 1

    def _note_failures(self, failures: Sequence[Exception]) -> None:
        """Says once that the store refuses, and sets the pause before it is asked again."""
        if not failures:
            if self._failing:
                self._said.warning(event_text("relay_store_back", "the store takes messages again"))
            self._failing, self._backoff_s, self._resume_at = "", 0.0, 0.0
            return
        self._figures["store_errors"] += len(failures)
        for exc in failures:
            if not isinstance(exc, IgnisError):
                raise exc
        if self._failing != str(failures[0]):
            self._said.error(
                event_text("relay_store_refuses", "the store refuses, messages wait in their channels: %s"), failures[0]
            )
        self._failing = str(failures[0])
        self._backoff_s = min(max(self.settings.retry_s, self._backoff_s * 2), self.settings.max_retry_s)
        self._resume_at = time.monotonic() + self._backoff_s

    # -- what producers want to know

    def _write_state(self) -> None:
        self._next_catalogue = time.monotonic() + self.settings.catalogue_s
        if not self._lock.valid:
            return  # the words there are another relay's; the scan takes the lock anew
        try:
            queues = {
                record.name: {**settings_of(record), "codec": record.codec} for record in self.app.store.queues.list()
            }
        except IgnisError as exc:
            self._said.warning(event_text("relay_settings_not_read", "the queues' settings cannot be read: %s"), exc)
            return
        self._listed = set(queues)
        pid = os.getpid()
        state = {
            "version": 1,
            "pid": pid,
            "start_time": process_start_time(pid),
            "client_id": self.app.client_id,
            "farm_id": self.app.farm_id,
            "keeps_later": self.app.store.magazines.keeps_later,
            "queues": queues,
        }
        problem = ""
        try:
            self.directory.write_state(state)
        except OSError as exc:
            # Shared memory is full, most likely of channels, and nobody but us empties them.
            problem = f"{self.directory.path}: {exc.strerror}"
        if problem and problem != self._unwritten:
            log.warning(
                event_text(
                    "relay_state_not_written",
                    "what producers may want to know of the queues cannot be written down: %s",
                ),
                problem,
            )
        self._unwritten = problem
