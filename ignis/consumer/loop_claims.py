"""Claims for coroutine handlers, made on their event loop.

Nothing here is a task: what a handler cancels, or the end of the loop, forgets no claimed message. A claim that the store makes
without waiting is made by the loop itself. What would wait goes to a shared thread, and comes back to the loop: a lock that is
held, expired records that must be retired, a store that has to ask somebody else. Where the store calls back after a load, no
thread waits at all.

A queue in use has a descriptor among those that its loop watches, and the load itself makes it readable: no thread stands
between. A queue that has been idle for a while gives it back, and is called by the store's own thread, one for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
import time
from typing import Any

from ignis.consumer.claims import RELOOK_S, Claims
from ignis.consumer.pools import Worker
from ignis.consumer.taking import NO_MEMORY_S
from ignis.errors import IgnisError
from ignis.log_format import event_text
from ignis.native import Alarm, Watch, set_spin
from ignis.native.store import Recall
from ignis.storage.base import FireResult
from ignis.upkeep import run_soon, timers_of

__all__ = ["LoopClaims"]

log = logging.getLogger("ignis.consumer")

_MOST_AT_ONCE = 1_024
_MOST_BYTES_AT_ONCE = 2 << 20
"""Of a claim by the event loop, which runs no handler meanwhile."""
_LOOKING_S = 100e-6
"""An alarm rings so much too early, and the loop looks for the rest: a core that sleeps takes its time to wake up."""
_OUT_OF_MEANS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


class LoopClaims(Claims):
    """Everything that begins with ``_step`` runs on the event loop, a claim at a time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ident = 0  # of the loop's thread
        self._planned = False  # a step is on its way
        self._over = False
        self._ended = threading.Event()
        self._away = False  # a shared thread claims
        self._waits_away = False  # and waits for a load first
        self._recall = Recall()  # ends that
        self._calls_back = self._magazines.calls_back
        self._later: asyncio.TimerHandle | None = None  # after the initial delay, or a claim that failed
        self._relook: asyncio.TimerHandle | None = None
        self._due: asyncio.TimerHandle | None = None  # a delayed message is, while the watch is armed
        self._alarm: Alarm | None = None  # in its place, where the system has one: the loop rounds up to a millisecond
        self._alarms = True
        self._due_s = 0.0  # when it is due, by the monotonic clock
        self._wish = 0  # the number of the latest call that the store was asked for
        self._cancel: Any = None
        self._spin_until_s = 0.0
        self._watch: Watch | None = None
        self._watchable = self._calls_back
        self._armed = False  # the watch tells of the next load
        self._quiet = True  # nothing was claimed for a while
        self._claimed = False  # since the last look at that
        self._look_at_quiet: asyncio.TimerHandle | None = None

    def attach(self, loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
        """The loop on which the handlers run, and its worker. It need not run yet."""
        self._loop = loop
        self._dispatcher.leader = worker
        self.poke()

    # -- from any thread

    def poke(self) -> None:
        if self._planned or self._loop is None:
            return
        self._planned = True
        try:
            if threading.get_ident() == self._ident:
                self._loop.call_soon(self._step)
            else:
                self._step_soon(self._loop)
        except MemoryError:
            self.again()

    def _step_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._step)

    def wake(self) -> None:
        self.poke()
        if self._waits_away:
            self._recall.set()
            super().wake()

    def returned(self) -> None:
        self.poke()
        if self._waits_away and not self.stopping.is_set():
            self._recall.set()
            super().wake()

    def fail(self) -> None:
        super().fail()
        self.wake()

    def begin_end(self) -> None:
        self.stopping.set()
        if self._loop is not None:
            self.wake()

    def end(self, timeout: float) -> bool:
        self.begin_end()
        if self._loop is None:
            return True
        return self._ended.wait(timeout)

    def _loaded(self, wish: int) -> None:
        if wish == self._wish:
            self._empty_at = None
            self.poke()

    # -- on the loop

    def _step(self) -> None:
        self._planned = False
        self._ident = threading.get_ident()
        if self._away or self._over:
            return  # a claim that comes back is followed by a step
        try:
            try:
                self._claim()
            except (IgnisError, MemoryError) as exc:
                self._passing(exc)
                if isinstance(exc, MemoryError):
                    self._empty_at = None
                self._step_later(self._settings.idle_poll_s)
        except MemoryError:
            self.again()
        except BaseException as exc:
            self._finish()
            self._on_error(exc)

    def again(self) -> None:
        """A call of the loop may have been lost for want of memory: the queue is looked at anew, by the timer of the upkeep."""
        self._planned = False
        self._empty_at = None
        while self._loop is not None and not self._loop.is_closed():
            try:
                timers_of(None).after(NO_MEMORY_S, self.poke)
                return
            except (MemoryError, RuntimeError):
                time.sleep(NO_MEMORY_S)

    def _claim(self) -> None:
        if self.stopping.is_set():
            self._finish()
            return
        if (early_s := self._claims_from_s - time.monotonic()) > 0:
            self._step_later(early_s)
            return
        self._after_trouble()
        if self._dispatcher.returned:
            self._dispatcher.hand_out_again()
        want = 0 if self._look_at_pauses() else self._dispatcher.wanted()
        if want <= 0:
            self._stop_listening()
            if self._idled:
                self._idled = False
                if not self._calls_back:
                    run_soon(self._rest)
        elif self._later is not None or ((self._armed or self._cancel is not None) and self._empty_at is not None):
            pass  # a claim has failed a moment ago; or the store calls when there is anything
        elif self._calls_back:
            self._claim_here(want)
        else:
            self._claim_away(want)

    def _claim_here(self, want: int) -> None:
        seen = self._magazines.wait(self._name, -1, 0) if self._empty_at is None else self._await(self._empty_at)
        if seen == self._empty_at:
            return
        result = self._magazines.try_fire(
            self._name, min(want, self._settings.max_claim, _MOST_AT_ONCE), self._owner,
            max_bytes=min(self._room_bytes(), _MOST_BYTES_AT_ONCE),
        )  # fmt: skip
        if result is None or (result.more and not result.claims):
            self._claim_away(want)
            return
        self._stop_listening()
        self._take(result, seen)
        self._spin_until_s = time.monotonic() + self._settings.spin_us / 1e6 if self._settings.spin_us else 0.0
        # The next claim, or the wait for it, in the next turn of the loop: what was claimed is handled first.
        if result.more or self._dispatcher.wanted() > 0:
            self.poke()

    def _take(self, result: FireResult, seen: int) -> None:
        if result.claims:
            self._claimed, self._quiet = True, False
        super()._take(result, seen)

    def _await(self, seen: int) -> int:
        """The sequence number: ``seen`` when the queue is empty, and the loop is told when it is not."""
        if self._spin_until_s and time.monotonic() < self._spin_until_s:
            self.poke()
            return self._magazines.wait(self._name, -1, 0)
        if self._quiet or (watch := self._open_watch()) is None:
            number = self._magazines.wait(self._name, -1, 0)
        else:
            armed = self._magazines.watch(self._name, seen, watch)
            if armed is not None:
                self._armed = armed == seen
                return self._reckon(armed) if self._armed else armed
            self._watchable = False
            self._close_watch()
            number = self._magazines.wait(self._name, -1, 0)
        if number == seen:
            self._listen(seen)
        return number

    def _reckon(self, seen: int) -> int:
        """The watch tells of loads, and not of what comes to be due: a timer does."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        due_in_s = self._magazines.due_in_s(self._name)
        if due_in_s is not None and self._loop is not None and not self._alarm_set(due_in_s):
            self._due = self._loop.call_later(due_in_s, self._come_due)
        return seen

    def _alarm_set(self, timeout_s: float) -> bool:
        """Whether there is an alarm for it. One that was set before, for what is not due any more, makes a look too many."""
        if self._alarm is None and self._alarms and self._loop is not None:
            try:
                alarm = Alarm()
            except OSError:
                self._alarms = False
                return False
            try:
                self._loop.add_reader(alarm.fileno(), self._rung)
            except (OSError, NotImplementedError):
                alarm.close()
                self._alarms = False
                return False
            self._alarm = alarm
        if self._alarm is None:
            return False
        self._due_s = time.monotonic() + timeout_s
        self._alarm.set(max(0.0, timeout_s - _LOOKING_S))
        return True

    def _rung(self) -> None:
        if self._alarm is not None and self._alarm.take():
            self._look_at_due()

    def _look_at_due(self) -> None:
        """In each turn of the loop until it is due; not where something else is next by now."""
        left_s = self._due_s - time.monotonic()
        if left_s <= 0:
            self._come_due()
        elif self._armed and left_s <= _LOOKING_S and self._loop is not None:
            self._loop.call_soon(self._look_at_due)

    def _come_due(self) -> None:
        self._due = None
        if self._armed:
            self._armed, self._empty_at = False, None
            self._step()

    def _open_watch(self) -> Watch | None:
        """None where the store or the system has none; or none left, then it is tried again when the queue was idle."""
        if self._watch is None and self._watchable and self._loop is not None:
            try:
                watch = Watch()
            except OSError as exc:
                self._watchable = exc.errno in _OUT_OF_MEANS
                self._quiet = True
                return None
            try:
                self._loop.add_reader(watch.fileno(), self._load_told)
            except (OSError, NotImplementedError):
                watch.close()
                self._watchable = False
                return None
            self._watch = watch
            self._look_at_quiet = self._loop.call_later(self._quiet_s(), self._look_whether_quiet)
        return self._watch

    def _quiet_s(self) -> float:
        return min(self._settings.idle_poll_s, RELOOK_S)

    def _load_told(self) -> None:
        if self._watch is not None and self._watch.take():
            self._armed = False
            self._step()

    def _look_whether_quiet(self) -> None:
        self._look_at_quiet = None
        if self._claimed and self._loop is not None:
            self._claimed = False
            self._look_at_quiet = self._loop.call_later(self._quiet_s(), self._look_whether_quiet)
            return
        self._quiet = True
        self._close_watch()
        self.poke()

    def _close_watch(self) -> None:
        watch, self._watch = self._watch, None
        self._armed = False
        if self._due is not None:
            self._due.cancel()
            self._due = None
        alarm, self._alarm = self._alarm, None
        if alarm is not None and self._loop is not None:
            self._loop.remove_reader(alarm.fileno())
            alarm.close()
        if self._look_at_quiet is not None:
            self._look_at_quiet.cancel()
            self._look_at_quiet = None
        if watch is not None and self._loop is not None:
            self._loop.remove_reader(watch.fileno())
            watch.close()

    def _listen(self, seen: int) -> None:
        """The queue is empty: the store calls when it is not."""
        if self._cancel is not None:
            return
        self._idled = True
        self._wish = wish = self._wish + 1
        self._cancel = self._magazines.on_load(self._name, seen, lambda: self._loaded(wish))
        if self._settings.idle_poll_s < RELOOK_S and self._loop is not None:
            self._relook = self._loop.call_later(self._settings.idle_poll_s, self._loaded, wish)

    def _stop_listening(self) -> None:
        self._wish += 1
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()
        if self._relook is not None:
            self._relook.cancel()
            self._relook = None

    def _step_later(self, delay_s: float) -> None:
        if self._later is None and self._loop is not None:
            self._later = self._loop.call_later(delay_s, self._step_now)

    def _step_now(self) -> None:
        self._later = None
        self._step()

    def _finish(self) -> None:
        self._over = True
        self._stop_listening()
        self._close_watch()
        if self._later is not None:
            self._later.cancel()
        if self._idled and not self._calls_back:
            run_soon(self._rest)
        with self._lock:
            self._parked = True
        self._ended.set()

    # -- in a shared thread

    def _claim_away(self, want: int) -> None:
        self._stop_listening()
        self._away = True
        empty_at, self._empty_at = self._empty_at, None
        if self._calls_back:
            empty_at = None
        self._recall.clear()  # what changes from now on sets it, and what had changed before is looked at
        self._waits_away = self._idled = empty_at is not None
        try:
            run_soon(lambda: self._fire_away(want, empty_at))
        except BaseException:
            self._away = self._waits_away = False
            raise

    def _fire_away(self, want: int, empty_at: int | None) -> None:
        seen, result, failed, still_empty = 0, None, None, None
        try:
            next_one = None if empty_at is None else self._wait_away(want, empty_at)
            if next_one is not None:
                seen, result = next_one
                still_empty = None if result is not None or empty_at is None else self._still_empty(empty_at, seen)
            elif empty_at is None or not self._has_other_work():
                seen = self._magazines.wait(self._name, -1, 0)
                result = self._magazines.fire(
                    self._name, min(want, self._settings.max_claim), self._owner, max_bytes=self._room_bytes()
                )
        except BaseException as exc:
            failed = exc
        assert self._loop is not None
        while True:
            try:
                self._loop.call_soon_threadsafe(self._step_back, seen, result, failed, still_empty)
                return
            except MemoryError:
                time.sleep(NO_MEMORY_S)
            except RuntimeError:  # the loop has ended
                self._give_back(result)
                return

    def _has_other_work(self) -> bool:
        return self.stopping.is_set() or bool(self._pauses or self._dispatcher.returned)

    def _wait_away(self, want: int, empty_at: int) -> tuple[int, FireResult | None] | None:
        """Waits for a load; what was claimed too, where the store does both in one call."""
        try:
            set_spin(self._settings.spin_us)
            if self._has_other_work():
                return None
            next_one = self._magazines.fire_next(
                self._name, min(want, self._settings.max_claim), self._owner, empty_at, self._patience_s(),
                self._recall, max_bytes=self._room_bytes(),
            )  # fmt: skip
            if next_one is None:
                self._magazines.idle(self._name, empty_at, self._settings.idle_poll_s)
            return next_one
        finally:
            set_spin(0)
            self._waits_away = False

    def _step_back(
        self, seen: int, result: FireResult | None, failed: BaseException | None, still_empty: int | None
    ) -> None:
        self._away = False
        if self._over:
            run_soon(lambda: self._give_back(result))
            return
        try:
            if isinstance(failed, (IgnisError, MemoryError)):
                self._passing(failed)
                self._step_later(self._settings.idle_poll_s)
            elif failed is not None:
                raise failed
            elif result is not None:
                self._take(result, seen)
            elif still_empty is not None:
                self._empty_at = still_empty
        except MemoryError as exc:
            self._passing(exc)  # what was not handed out is given back
        except BaseException as exc:
            self._finish()
            self._on_error(exc)
            return
        self._step()

    def _give_back(self, result: FireResult | None) -> None:
        """What was claimed and has nobody left to handle it goes back to the queue's tail."""
        pointers: dict[int, list[int]] = {}
        for claim in result.claims if result is not None else ():
            pointers.setdefault(claim.shard, []).extend(claim.pointers)
        if pointers:
            try:
                self._counts.reloaded += self._magazines.reload(self._name, pointers)
            except IgnisError as exc:
                log.warning(
                    event_text("messages_left_to_sweeper", "messages of %s are left to the sweeper: %s"),
                    self._name,
                    exc,
                )
