"""Messages that go back to their queue: those that a client gave up, and those that a lost connection held.

Of the latter one may be what killed its client. Each counts one crash more, in its envelope, so that the count survives the
broker and is the same at every broker of a cluster. A message that was held by too many lost connections goes to its queue's
sideline, reason ``crash``: else it would kill one client after the other. One whose envelope cannot be read goes there too,
reason ``unreadable``. The others are pending again, at their shards' tails.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from typing import NamedTuple

from ignis.broker.protocol.in_flight import InFlight, PointerRange, as_pointers
from ignis.broker.server.context import ApplicationContext
from ignis.broker.server.setting_aside import SettingAside
from ignis.errors import IgnisError, QueueNotFoundError, UnreadableMessageError
from ignis.log_format import event_text
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_CRASH, failed_record, is_readable
from ignis.native import Record
from ignis.storage.base import Transfer
from ignis.storage.parts import transfer_all

__all__ = ["Redelivery"]

log = logging.getLogger("ignis.broker")

_BATCH = 128
"""Messages rewritten in one transaction: each may have the size of the largest."""
_AGAIN_S = 1.0
_MOST_LOOKED_AT = 65_536
"""Claims of one client in one shard. What it has beyond them is left to the sweeper."""


class _Delayed(NamedTuple):
    """What a client gave up, to be given back at its time."""

    timer: asyncio.TimerHandle
    magazine: str
    runs: list[PointerRange]
    user: str


class Redelivery:
    """Gives messages of one application back to their queues. Belongs to the event loop, but for `count_crash`."""

    def __init__(self, context: ApplicationContext) -> None:
        self.closed = False
        """The application ends: what the store refuses now is left to the sweeper."""
        self._context = context
        self._magazines = context.magazines
        self._threads = context.broker.threads
        self._numbers = itertools.count()
        self._returning = 0
        self._delayed: dict[int, _Delayed] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way back, or will be later."""
        return not (self._returning or self._delayed)

    def delayed(self) -> dict[str, list[PointerRange]]:
        """Returns what the broker itself keeps until its time comes, by magazine."""
        found: dict[str, list[PointerRange]] = {}
        for one in self._delayed.values():
            found.setdefault(one.magazine, []).extend(one.runs)
        return found

    def give_back(self, magazine: str, runs: list[PointerRange], crashed: bool = False) -> None:
        """Puts claimed messages back at their shards' tails; after their client was lost (``crashed``) see `count_crash`.
        Those that the store refuses now are tried again later."""
        if runs:
            self._returning += 1
            self._threads.call(self._reload, self._reloaded, (magazine, runs, crashed))

    def give_back_unless_renewed(self, magazine: str, runs: list[PointerRange], owner: str, since_ms: int) -> None:
        """`give_back` of what a lost client claimed, without what it has renewed since: it is at another broker of the store, and
        goes on with that there."""

        def still_lost(_: None) -> list[PointerRange]:
            found = InFlight()
            for shard in sorted({shard for shard, _, _ in runs}):
                for one in self._magazines.abandoned(magazine, shard, since_ms, _MOST_LOOKED_AT, owner=owner):
                    if one.fired_at_ms <= since_ms:
                        found.add(magazine, [(shard, one.pointer, one.pointer + 1)])
            return found.take(magazine, runs)

        def looked(lost: list[PointerRange]) -> None:
            self._returning -= 1
            self._context.broker.state.redelivered += sum(stop - start for _, start, stop in lost)
            if lost:
                log.info(
                    event_text(
                        "lost_client_gives_back",
                        "%d run(s) of %s, claimed by a client whose connection was lost, go back",
                    ),
                    len(lost),
                    magazine,
                )
            self.give_back(magazine, lost, crashed=True)

        def failed(exc: BaseException) -> None:
            self._returning -= 1
            if isinstance(exc, QueueNotFoundError):
                return
            self._context.said.warning(
                event_text(
                    "lost_claims_unseen", "what a lost client holds of %s cannot be looked at, all of it goes back: %s"
                ),
                magazine,
                exc,
                about=magazine,
            )
            self.give_back(magazine, runs, crashed=True)

        self._returning += 1
        self._threads.call(still_lost, looked, None, failed)

    def give_back_later(self, magazine: str, runs: list[PointerRange], delay_s: float, owner: str, user: str) -> None:
        """The same after a while; until then they are claimed by this broker, in the store too: ``owner``, who gave them up,
        may end meanwhile. They count among what waits for the ``user``. Raises TooManyRequestsError."""
        number, broker = next(self._numbers), self._context.broker
        broker.waiting.begin(user, len(runs))

        def hand_over(_: None) -> None:
            self._magazines.renew_claims(magazine, as_pointers(runs), owner, to_owner=broker.owner)

        self._threads.call(hand_over, lambda _: None, None)

        def now() -> None:
            self._give_back_delayed(self._delayed.pop(number))

        self._delayed[number] = _Delayed(broker.loop.call_later(delay_s, now), magazine, runs, user)

    def give_back_delayed(self) -> None:
        """All of them now: the broker ends."""
        delayed, self._delayed = self._delayed, {}
        for one in delayed.values():
            one.timer.cancel()
            self._give_back_delayed(one)

    def _give_back_delayed(self, one: _Delayed) -> None:
        self._context.broker.waiting.end(one.user, len(one.runs))
        self.give_back(one.magazine, one.runs)

    def _reload(
        self, what: tuple[str, list[PointerRange], bool]
    ) -> tuple[str, list[PointerRange], bool, int, BaseException | None]:
        magazine, runs, crashed = what
        aside = 0
        try:
            if crashed:
                aside = self.count_crash(magazine, runs)
            else:
                self._magazines.reload(magazine, as_pointers(runs))
        except QueueNotFoundError:
            pass  # dropped, with all that was in it
        except IgnisError as exc:
            return magazine, runs, crashed, aside, exc
        except Exception as exc:
            # Nothing that is known. The messages come back all the same, if need be without being counted.
            self._context.said.error(
                event_text("give_back_broken", "messages of %s could not be given back"),
                magazine,
                about=magazine,
                exc_info=exc,
            )
            return self._reload((magazine, runs, False)) if crashed else (magazine, runs, crashed, aside, exc)
        return magazine, runs, crashed, aside, None

    def _reloaded(self, result: tuple[str, list[PointerRange], bool, int, BaseException | None]) -> None:
        self._returning -= 1
        magazine, runs, crashed, aside, error = result
        said, broker = self._context.said, self._context.broker
        if aside:
            said.warning(
                event_text("crashed_too_often", "%d message(s) of %s were held by too many lost connections: sideline"),
                aside,
                magazine,
                about=magazine,
            )
        if error is None:
            self._context.poke(magazine)
        elif self.closed or broker.state.draining:
            log.error(
                event_text("give_back_left", "messages of %s could not be given back and are left to the sweeper: %s"),
                magazine,
                error,
            )
        else:
            said.warning(
                event_text("give_back_failed", "messages of %s could not be given back, trying again: %s"),
                magazine,
                error,
                about=magazine,
            )
            self._returning += 1
            broker.loop.call_later(_AGAIN_S, self._give_back_again, magazine, runs, crashed)

    def _give_back_again(self, magazine: str, runs: list[PointerRange], crashed: bool) -> None:
        self._returning -= 1
        self.give_back(magazine, runs, crashed)

    def count_crash(self, magazine: str, runs: list[PointerRange]) -> int:
        """Gives the runs back with one crash more each, or sets them aside; returns how many were set aside. In a thread of the
        store's; durable as the queue is. What was moved by an earlier try that failed half way is left alone.

        A time to live goes on, as with every move to a sideline.

        Args:
            magazine: claimed from. One that belongs to no queue, and a sideline, have nowhere to set aside to: there
                everything is only given back.
            runs: claimed by this broker, and no longer held by anybody.

        Raises:
            QueueNotFoundError: the magazine was dropped. StoreError.
        """
        magazines = self._magazines
        limit = self._context.broker.settings.max_crashes
        record = None if magazine.endswith(SIDELINE_SUFFIX) else self._context.facts.record(magazine)
        if not limit or record is None:
            magazines.reload(magazine, as_pointers(runs))
            return 0
        set_aside = 0
        for part in _parts(runs):
            back: list[Transfer] = []
            aside = SettingAside(magazines, magazine, self._context.broker.state.sidelined)
            for shard, many in magazines.peek(magazine, as_pointers(part)).items():
                for pointer, data in many.items():
                    crashes = limit if data is None else _crashes(data) + 1
                    why = f"held by {crashes} connection(s) that were lost"
                    # Whoever cannot read its envelope cannot count either: it does not come back for ever.
                    if data is None or crashes >= limit or not is_readable(data):
                        aside.add(shard, pointer, data, REASON_CRASH, why, crashed=True)
                    else:
                        fresh = failed_record(data, REASON_CRASH, why, crashed=True)
                        back.append(Transfer(shard, pointer, fresh, shard))
            if back:
                transfer_all(back, lambda some: magazines.transfer(magazine, magazine, some))
            set_aside += aside.move()
        return set_aside


def _crashes(data: bytes) -> int:
    try:
        return Record(data).crashes
    except UnreadableMessageError:
        return 0


def _parts(runs: list[PointerRange]) -> Iterator[list[PointerRange]]:
    """The runs in pieces of at most `_BATCH` pointers."""
    part: list[PointerRange] = []
    room = _BATCH
    for shard, start, stop in runs:
        low = start
        while low < stop:
            high = min(stop, low + room)
            part.append((shard, low, high))
            room -= high - low
            low = high
            if not room:
                yield part
                part, room = [], _BATCH
    if part:
        yield part
