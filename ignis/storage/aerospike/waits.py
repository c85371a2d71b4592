"""Waiting for loads. The server notifies nobody: who waits asks it, ever less often while nothing comes.

A load of a process of this machine raises a word (`wake_words`) on which the waiters sleep meanwhile. The word is read before
the look at the server, so that no wake is lost between the two.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ignis.errors import ClosedError
from ignis.storage.aerospike.wake_words import WakeWords

__all__ = ["WHOLE", "Look", "Waits"]

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 1.0
LOOK_MS, MOST_LOOK_MS = 3.7, 7.4
"""From one look of a consumer to the next, at a thousand messages a second and at few: as often as 0.3 and 1.5 calls a message
allow, a tenth of them for calls that are not looks."""
_SLOWER = 8
"""The pause is this fraction of the time since something last came: 1 ms right after, a second after eight."""
_TRUSTED = 32
"""So many claims in a row were all announced by the words of their shards: then the words are trusted."""
_GAPS, _LONGEST_TRUST_S = 3, 0.05
"""Where they are, nobody looks without a wake for so many gaps between two messages, nor into shards that were not announced
for so long. A load of another machine waits no longer than this."""
_LATE_S = 0.02
"""So long after its claim a message may still be announced: its producer was held up."""
_DAMPED_S = 0.0005
"""After a wake that brought nothing; doubled with each more."""
_MOST_DAMPED = 12


class Look(NamedTuple):
    """What a consumer is going to look at.

    Attributes:
        shards: those that were announced; None: all.
        expected: where messages are expected; None: everywhere.
        silent: of those that are looked at, where the word says nothing new, and what it says.
    """

    shards: list[int] | None
    expected: list[int] | None
    silent: dict[int, int]


WHOLE = Look(None, None, {})
"""Where nobody was announced and nothing follows from what is found."""


class _Bell:
    """One magazine's. Guarded by its condition.

    Args:
        word: its index among the shared words.
    """

    def __init__(self, word: int = 0) -> None:
        self.changed = threading.Condition()
        self.word = word
        self.shard_words: list[int] = []
        self.here = 0  # raised where only this process is to know
        self.urgent = 0
        self.sleepers = 0
        self.asking = False
        self.quiet_since = self.claimed_at = time.monotonic()
        self.gap_s = 0.0
        self.woken = False  # the look that follows was wanted by the word
        self.fruitless = 0  # such looks in a row that brought nothing
        self.known: list[int] = []  # what the words of the shards said before the last look into each
        self.whole_at = 0.0  # when all shards were looked at
        self.told = 0  # claims in a row that were announced
        self.backlog = False  # the last look has left something behind
        # Shards of messages that were claimed before they were announced, if they are: what the word said, and since when.
        self.doubts: dict[int, tuple[int, float]] = {}

    def look(self, words: list[int], whole: bool) -> Look:
        """What to look at, when the words of the shards say this."""
        with self.changed:
            now = time.monotonic()
            if len(self.known) != len(words):
                self.known, whole = [-1] * len(words), True
            moved = [shard for shard, word in enumerate(words) if word != self.known[shard]]
            trusted = self.told >= _TRUSTED
            if whole or not (trusted and self.woken and moved) or now >= self.whole_at + _LONGEST_TRUST_S:
                silent = {shard: word for shard, word in enumerate(words) if word == self.known[shard]}
                if self.backlog:
                    silent = {}  # what is there may have been announced before
                self.known, self.whole_at = words, now
                return Look(None, moved if trusted and not self.backlog else None, silent)
            for shard in moved:
                self.known[shard] = words[shard]
            return Look(moved, None, {})

    def came(self, count: int, unannounced: dict[int, int], backlog: bool = False) -> None:
        """Messages were claimed: the time between two follows. ``unannounced``: shards, with their words."""
        with self.changed:
            now = time.monotonic()
            gap_s = (now - self.claimed_at) / count
            self.gap_s += (gap_s - self.gap_s) / 8
            self.quiet_since = self.claimed_at = now
            self.woken, self.fruitless = False, 0
            self.backlog = backlog
            # A message can be claimed before its producer has raised the words: he gets a moment for that.
            self.doubts |= {shard: (word, now) for shard, word in unannounced.items() if shard not in self.doubts}
            self.told += not unannounced

    def missed(self, backlog: bool = False) -> None:
        """A look brought nothing."""
        with self.changed:
            self.backlog = backlog
            self.fruitless = self.fruitless + 1 if self.woken else 0
            self.woken = False

    def waited(self, woken: bool, words: list[int]) -> None:
        """A wait before a look is over; the words of the shards say this."""
        with self.changed:
            self.woken = woken
            late = time.monotonic() - _LATE_S
            for shard, (word, since) in list(self.doubts.items()):
                if shard < len(words) and word != words[shard]:
                    del self.doubts[shard]
                    self.told += 1
                elif since <= late:
                    del self.doubts[shard]
                    self.told = 0

    def look_pause_s(self) -> float:
        """From one look that claims to the next that nobody asked for: the shorter the more comes, so that a look brings
        several messages where many come, and seldom none where few do."""
        quiet_s = time.monotonic() - self.quiet_since
        return min(LONGEST_PAUSE_S, max(self._look_ms() / 1_000, quiet_s / _SLOWER))

    def _look_ms(self) -> float:
        return min(LOOK_MS * math.pow(self._gap_ms(), 1 / 3), MOST_LOOK_MS)

    def _gap_ms(self) -> float:
        return max(0.01, self.gap_s * 1_000)

    def spacing_s(self) -> float:
        """From one look to the next after a wake: none where few come, because each look brings one then; as without a wake
        where many come, or where wakes bring nothing."""
        look_ms, gap_ms = self._look_ms(), self._gap_ms()
        spacing_s = math.sqrt(look_ms**2 - gap_ms**4 / look_ms**2) / 1_000 if gap_ms < look_ms else 0.0
        if self.fruitless:
            damped_s = _DAMPED_S * 2 ** min(self.fruitless, _MOST_DAMPED)
            spacing_s = max(spacing_s, min(damped_s, self.look_pause_s()))
        return spacing_s

    def trusted_until(self) -> float:
        """Until then nothing is expected that the word does not announce."""
        if self.told < _TRUSTED:
            return 0.0
        return self.claimed_at + min(_GAPS * self.gap_s, _LONGEST_TRUST_S)

    def ring(self) -> None:
        """Who waits in this process looks round."""
        with self.changed:
            self.quiet_since = time.monotonic()
            self.changed.notify_all()

    def pause_s(self) -> float:
        quiet = time.monotonic() - self.quiet_since
        return min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, quiet / _SLOWER))


class Waits:
    """The bells of one store. Thread-safe.

    Args:
        pending: asks the server whether a magazine has something to claim; called without any lock held.
        words: what other processes raise.
        due_in_s: when something is due in a magazine, as far as is known here; None = not known. Asks nobody.
    """

    def __init__(
        self,
        pending: Callable[[str], bool],
        words: WakeWords,
        due_in_s: Callable[[str], float | None] = lambda name: None,
    ) -> None:
        self.words = words
        self._pending = pending
        self._due_in_s = due_in_s
        self._lock = threading.Lock()
        self._bells: dict[str, _Bell] = {}
        self._closed = False

    def _bell(self, name: str) -> _Bell:
        bell = self._bells.get(name)
        if bell is None:
            with self._lock:
                bell = self._bells.setdefault(name, _Bell(self.words.index(name)))
        return bell

    def _sequence(self, bell: _Bell) -> int:
        return self.words.sequence(bell.word) + bell.here

    def ring(self, name: str, shards: Iterable[int]) -> None:
        """Something was loaded into these shards: whoever waits on this machine wakes up."""
        bell = self._bell(name)
        wanted = list(shards)
        words = self._shard_words(bell, name, max(wanted, default=-1) + 1)
        # The magazine's last: who sees it raised sees those of the shards.
        self.words.notify(*(words[shard] for shard in wanted), bell.word)
        bell.ring()

    def _shard_words(self, bell: _Bell, name: str, shards: int) -> list[int]:
        if len(bell.shard_words) < shards:
            bell.shard_words = self.words.shard_indices(name, shards)
        return bell.shard_words

    def wake(self, name: str) -> None:
        """Every wait of this process ends now."""
        bell = self._bell(name)
        with bell.changed:
            bell.urgent += 1
        self.ring(name, ())

    def close(self) -> None:
        """Every wait ends with ClosedError."""
        with self._lock:
            self._closed = True
            bells = list(self._bells.values())
        for bell in bells:
            with bell.changed:
                asleep = bell.sleepers
            if asleep:
                self.words.notify(bell.word)
            bell.ring()

    def look(self, name: str, shards: int, *, whole: bool) -> Look:
        """Right before a claim, for `fired`: where to look, in all shards if ``whole``."""
        bell = self._bell(name)
        return bell.look(self.words.sequences(self._shard_words(bell, name, shards)[:shards]), whole)

    def fired(self, name: str, claimed: Mapping[int, int], look: Look, *, more: bool) -> None:
        """A look at the server brought so many messages of these shards. ``more``: it left some."""
        bell = self._bell(name)
        count = sum(claimed.values())
        if count:
            silent = {shard: look.silent[shard] for shard, some in claimed.items() if some and shard in look.silent}
            bell.came(count, silent, more)
        else:
            bell.missed(more)

    def _sleep(self, bell: _Bell, seen: int, until: float) -> int:
        """Until somebody raises the word or the time is over; returns the sequence number. Raises ClosedError."""
        with bell.changed:
            self._check()
            bell.sleepers += 1
        try:
            # What was raised here alone makes the two differ, and the wait end at once.
            self.words.wait(bell.word, seen - bell.here, until - time.monotonic())
        finally:
            with bell.changed:
                bell.sleepers -= 1
        self._check()
        return self._sequence(bell)

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("store is closed")

    def idle(self, name: str, seen: int, timeout_s: float, looked_at: float) -> int:
        """See `MagazineStore.idle`: until a load of this machine, or until the next look is due, counted from the beginning
        of the last. Raises ClosedError."""
        bell = self._bell(name)
        now = time.monotonic()
        end = now + timeout_s
        with bell.changed:
            urgent = bell.urgent
            paced = min(end, looked_at + bell.spacing_s())
            # Before the sleep and not behind it: where many come nobody need be woken, and no producer pays for that.
            while bell.urgent == urgent and not self._closed and (left := paced - time.monotonic()) > 0:
                bell.changed.wait(left)
            due = max(looked_at + bell.look_pause_s(), bell.trusted_until(), now + FIRST_PAUSE_S)
        sequence = self._sleep(bell, seen, min(end, due))
        bell.waited(sequence != seen, self.words.sequences(bell.shard_words) if bell.doubts else [])
        return sequence

    def wait(self, name: str, seen: int, timeout_s: float) -> int:
        """See `MagazineStore.wait`. Raises ClosedError, and what asking the server raises."""
        bell = self._bell(name)
        deadline = time.monotonic() + timeout_s
        while True:
            due_in_s = self._due_in_s(name)
            with bell.changed:
                self._check()
                sequence, left = self._sequence(bell), deadline - time.monotonic()
                if sequence != seen or left <= 0:
                    return sequence
                if bell.asking:
                    # Another thread asks for all of us; when it leaves, one of us takes over.
                    bell.changed.wait(left)
                    continue
                bell.asking = True
                pause_s = bell.pause_s() if due_in_s is None else min(bell.pause_s(), due_in_s)
                until = time.monotonic() + min(left, pause_s)
            try:
                if self._sleep(bell, seen, until) == seen and self._pending(name):
                    with bell.changed:
                        bell.here += 1
                    bell.ring()
            finally:
                with bell.changed:
                    bell.asking = False
                    # All: the word may have been raised, which only the one who slept on it has noticed.
                    bell.changed.notify_all()
