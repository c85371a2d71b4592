"""Who claims, and when: one thread at a time waits on the store and claims what the workers can finish soon.

Of worker threads it is the one that leads (``pools/leading.py``); for worker processes a thread of its own. Coroutines claim
on their event loop: ``loop_claims.py``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ignis.config import ConsumerSettings
from ignis.consumer.dispatcher import Dispatcher
from ignis.consumer.in_hand import InHand
from ignis.consumer.pools import Worker
from ignis.consumer.pools.leading import Leading, Tray
from ignis.consumer.taking import NO_MEMORY_S
from ignis.context import QueueContext
from ignis.errors import IgnisError
from ignis.figures import ConsumerFigures
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.native import ThreadBell, set_spin
from ignis.native.store import Recall
from ignis.stacks import start_thread
from ignis.storage.base import FireResult
from ignis.upkeep import Turn

__all__ = ["Claims", "ThreadClaims"]

log = logging.getLogger("ignis.consumer")

PASS_S = 0.5
_SLEEP_S = 60.0
RELOOK_S = 1.0
"""A store that calls back looks by itself so often for what nobody has announced."""


class Claims:
    """What both kinds share. Of one consumer.

    Args:
        queue: whose messages are claimed.
        settings: see ``ignis.config``.
        dispatcher, in_hand: where they go.
        counts: where it counts.
        on_error: called with what ends the claiming.
    """

    def __init__(
        self,
        queue: QueueContext[Any],
        settings: ConsumerSettings,
        dispatcher: Dispatcher,
        in_hand: InHand,
        counts: ConsumerFigures,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.stopping = threading.Event()
        self._settings = settings
        self._dispatcher = dispatcher
        self._in_hand = in_hand
        self._counts = counts
        self._on_error = on_error
        self._name = queue.main.name
        self._magazines = queue.main.store
        self._owner = queue.store.owner
        self._clock = queue.clock.now_s
        self._waits = queue.times.wait
        self._said = LimitedLog(log)
        self._lock = threading.Lock()  # over _pauses and _parked
        self._pauses: set[str] = set()  # who wants it paused
        self._parked = True  # nobody claims; only who claims makes this false
        self._claims_from_s = 0.0
        self._empty_at: int | None = None  # the sequence number at which the last claim left nothing behind
        self._idled = False  # waited for a load, and has made no claim since

    # -- from any thread

    def begin(self) -> None:
        """Claims may be made, after the initial delay."""
        self._claims_from_s = time.monotonic() + self._settings.initial_delay_s

    def poke(self) -> None:
        """There may be room for more. Cheap."""
        raise NotImplementedError

    def wake(self) -> None:
        """Who waits for a load looks round."""
        with contextlib.suppress(IgnisError):
            self._magazines.wake(self._name)

    def returned(self) -> None:
        """Workers gave something back: others may be free for it now."""
        raise NotImplementedError

    def begin_end(self) -> None:
        """Claims no more, and calls back who waits for a load; without waiting for who claims."""
        self.stopping.set()
        self.poke()
        self.wake()

    def end(self, timeout: float) -> bool:
        """Claims no more; whether nobody claims any more, after that many seconds at most."""
        raise NotImplementedError

    def fail(self) -> None:
        """Claims no more, without waiting for who claims."""
        self.stopping.set()
        self.poke()

    def pause(self, by: str) -> None:
        with self._lock:
            self._pauses.add(by)
        self.poke()

    def resume(self, by: str) -> None:
        with self._lock:
            self._pauses.discard(by)
        self.poke()

    @property
    def paused(self) -> bool:
        return bool(self._pauses)

    @property
    def parked(self) -> bool:
        """Paused, and nobody is at a claim."""
        with self._lock:
            return bool(self._pauses) and self._parked

    # -- for who claims

    def _look_at_pauses(self) -> bool:
        """Whether it is paused. What is claimed from now on a pause that comes later waits for."""
        with self._lock:
            self._parked = bool(self._pauses)
            return self._parked

    def _park(self) -> None:
        if self._idled:
            self._rest()
        self._parked = True  # without the lock: whoever looks may as well have looked before

    def _after_trouble(self) -> None:
        """What there were no means for is done now: claims that could not be handed out, upkeep that could not be begun."""
        self._dispatcher.give_back_undelivered(lambda pointers: self._magazines.reload(self._name, pointers))
        if self._in_hand.unwatched:
            self._in_hand.watch(self._in_hand.messages)

    def _room_bytes(self) -> int:
        return max(1, self._settings.max_in_flight_bytes - self._in_hand.nbytes)

    def _take(self, result: FireResult, seen: int) -> None:
        """Hands out what a claim brought. ``seen``: the sequence number before it."""
        self._idled = False
        if result.expired:
            self._counts.expired += result.expired
        claims = result.claims
        if claims:
            try:
                self._counts.claims += 1
                now_s = self._clock()
                for claim in claims:
                    self._waits.add_ages(claim.records, now_s)
            except MemoryError:
                pass  # what is counted, and not what is handed out
            if len(claims) != 1 or not self._dispatcher.give_leader(claims[0]):
                self._dispatcher.dispatch(claims)
        if not result.more:
            self._empty_at = seen

    def _patience_s(self) -> float:
        """How long one `fire_next` may wait."""
        return max(self._settings.idle_poll_s, self._magazines.holds_fires_s)

    def _still_empty(self, seen: int, number: int) -> int | None:
        """What `_empty_at` is behind a `fire_next` that claimed nothing. By itself a store is looked at anew."""
        return seen if number == seen and self._magazines.holds_fires_s else None

    def _rest(self) -> None:
        """No claim follows for now."""
        self._idled = False
        with contextlib.suppress(IgnisError):
            self._magazines.rest(self._name)

    def _passing(self, exc: IgnisError | MemoryError) -> None:
        """What may pass is counted; anything else is raised."""
        if isinstance(exc, IgnisError) and not exc.retryable:
            raise exc
        with contextlib.suppress(MemoryError):
            self._counts.fetch_errors += 1
            if self.stopping.is_set():
                return  # it is not tried again
            self._said.warning(
                event_text("claim_failed", "claim on %s failed, trying again: %s"), self._name, str(exc) or repr(exc)
            )


class ThreadClaims(Claims):
    """Claims made by threads: see `ignis.consumer.pools.leading.Feeder`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.leading = Leading()
        self._room = ThreadBell()
        self._bell = ThreadBell()
        self._recall = Recall()
        self._waiting_for_load = False
        self._fruitless = 0  # waits in a row in which nothing was loaded
        self._tray: Tray | None = None  # the leader's
        self._thread: threading.Thread | None = None

    def start_thread(self, name: str) -> None:
        """A thread of its own claims, where the workers do not."""
        self._thread = threading.Thread(target=self._fetch, name=name, daemon=True)
        start_thread(self._thread)

    def poke(self) -> None:
        self._room.ring()

    def wake(self) -> None:
        self._recall.set()
        self._bell.ring()
        if (tray := self._tray) is not None and tray.turn is not None:
            tray.ring()
        super().wake()

    def returned(self) -> None:
        self._room.ring()
        self.leading.pass_on()
        if self._waiting_for_load and not self.stopping.is_set():
            self.wake()

    def fail(self) -> None:
        self.leading.end(0)
        super().fail()

    def begin_end(self) -> None:
        # Before the leader is told: a thread that may still lead would be sent away, and come back, again and again.
        self.leading.end(0)
        super().begin_end()

    def end(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        self.begin_end()
        ended = self.leading.end(timeout)
        if self._thread is not None:
            self._thread.join(max(0.1, until - time.monotonic()))
            ended = ended and not self._thread.is_alive()
        return ended

    def lead(self, worker: Worker, tray: Tray, wait_s: float) -> float:
        """See `ignis.consumer.pools.leading.Feeder`."""
        until = time.monotonic() + wait_s
        self._dispatcher.leader, self._tray = worker, tray
        set_spin(self._settings.spin_us)
        try:
            parts = tray.parts
            while not parts:
                self._look_round()
                if parts or worker.going or self.stopping.is_set() or (left := until - time.monotonic()) <= 0:
                    break
                self._claim(left)
            return self._dispatcher.away_s(parts)
        except MemoryError as exc:
            self._wait_for_memory(exc)
        except BaseException as exc:
            self._on_error(exc)
        finally:
            self._dispatcher.leader = self._tray = None
            self._park()
        return 0.0

    def _fetch(self) -> None:
        set_spin(self._settings.spin_us)
        try:
            while True:
                try:
                    self._look_round()
                    if self.stopping.is_set():
                        break
                    self._claim(_SLEEP_S)
                except MemoryError as exc:
                    self._wait_for_memory(exc)
        except BaseException as exc:
            self._on_error(exc)
        finally:
            self._park()

    def _wait_for_memory(self, exc: MemoryError) -> None:
        """There was none for a moment: the queue is looked at anew, behind a pause."""
        self._empty_at = None
        self._passing(exc)
        time.sleep(NO_MEMORY_S)

    def _look_round(self) -> None:
        """Before it is looked at what may have changed: whatever changes from now on ends the next wait."""
        self._room.silence()
        self._bell.silence()
        self._recall.clear()

    def _claim(self, wait_s: float) -> None:
        """One claim, handed out; or one wait, of at most that long, until one may be made."""
        if (early_s := self._claims_from_s - time.monotonic()) > 0:
            self.stopping.wait(min(early_s, wait_s))
            return
        self._after_trouble()
        turn = self._tray.turn if self._tray is not None else None
        if turn is not None and not self._is_its_turn(turn, wait_s):
            return
        if self._dispatcher.returned:
            self._dispatcher.hand_out_again()
            if self._tray:
                return
        want = 0 if self._look_at_pauses() else self._dispatcher.wanted()
        if turn is not None and (want <= 0 or self._empty_at is not None):
            turn.give()
        if want <= 0:
            self._rest()
            self._room.wait(min(wait_s, PASS_S if self._in_hand else _SLEEP_S))
        elif self._empty_at is not None:
            self._await_load(want, self._empty_at, wait_s)
        else:
            self._fire(want)

    def _is_its_turn(self, turn: Turn, wait_s: float) -> bool:
        """False: somebody wants to be looked at first. Who has nothing to claim needs no turn."""
        if self.paused or not (self._empty_at is None or self._dispatcher.returned):
            return True
        return turn.take(wait_s) and not self.stopping.is_set()

    def _fire(self, want: int) -> None:
        try:
            seen = self._magazines.wait(self._name, -1, 0)
            result = self._magazines.fire(
                self._name, min(want, self._settings.max_claim), self._owner, max_bytes=self._room_bytes()
            )
        except IgnisError as exc:
            self._wait_after(exc)
            return
        if result.claims:
            self._fruitless = 0
        self._take(result, seen)

    def _await_load(self, want: int, seen: int, wait_s: float) -> None:
        self._empty_at = None
        self._waiting_for_load = self._idled = True
        try:
            if self._dispatcher.returned or self._sleep(seen, wait_s):
                return
            fired = None
            if self._tray is None or self._tray.turn is None:  # if not, it claims when it is its turn
                fired = self._magazines.fire_next(
                    self._name, min(want, self._settings.max_claim), self._owner, seen, min(wait_s, self._patience_s()),
                    self._recall, max_bytes=self._room_bytes(),
                )  # fmt: skip
            if fired is None:
                self._magazines.idle(self._name, seen, min(wait_s, self._settings.idle_poll_s))
            elif (result := fired[1]) is not None:
                if result.claims:
                    self._fruitless = 0
                    self._take(result, fired[0])
                    return
                self._take(result, fired[0])
            else:
                self._empty_at = self._still_empty(seen, fired[0])
            self._fruitless += 1
        except IgnisError as exc:
            self._wait_after(exc)
        finally:
            self._waiting_for_load = False

    def _sleep(self, seen: int, wait_s: float) -> bool:
        """Leaves it to the store's own thread to look, where a queue has been idle for a while. False where it cannot."""
        if not self._fruitless or self._settings.spin_us or self._settings.idle_poll_s < RELOOK_S:
            return False
        cancel = self._magazines.on_load(self._name, seen, self._bell.ring)
        if cancel is None:
            return False
        try:
            self._bell.wait(wait_s)
        finally:
            cancel()
        return True

    def _wait_after(self, exc: IgnisError) -> None:
        self._passing(exc)
        if self._tray is not None and self._tray.turn is not None:
            self._tray.turn.give()
        self.stopping.wait(self._settings.idle_poll_s)
