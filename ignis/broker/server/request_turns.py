"""Who is served when more is asked than one pass of the event loop should carry out.

One read may bring thousands of small requests, and hundreds of connections may be read in one pass: each would wait for all that
the others have sent. So a pass spends some milliseconds on requests. What is left over waits in a line, and its connection
is not read meanwhile. In the next passes the users take turns (without users the addresses), and the connections of each. While
anybody is in the line, reads are small, and only a few connections are read again in each pass.

Who sends a few requests at a time while nobody is in the line notices nothing of this. Bytes that no message comes of, such as
those of refused frames, count by what it costs to read them: they may be many, and no request. Thousands of connections may be
read in one pass, and a few requests of each are many: once a pass has taken `_MOST_PASS_S`, what it reads is put by unread, and
taken apart when it is its connection's turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ignis.broker.protocol.machine import Request
from ignis.broker.server.receive_limits import ReceiveLimits

__all__ = ["RequestTurns", "TakesTurns"]

_PASS_S = 0.005
"""What a pass of the event loop spends on requests, answers of its threads apart."""
_MOST_PASS_S = 0.02
"""After so long nothing more that was read in the same pass is looked at."""
_NOTED_S = 0.00125
"""So much time of few requests is counted together."""
_SLICE = 16
"""Requests of one connection in one of its turns."""
_FEW = 8
"""So many are always carried out at once while nobody is in the line."""
_FEW_BYTES = 1_024
"""Of answers to what needs no carrying out."""
_MOST_RESUMED = 8
"""Connections that are read again in one pass: each may bring as much as it did."""
_BYTE_S = 2e-9
"""What a byte costs that is read for nothing. Three times of what it was measured to take: nobody needs to send such."""
_REASON = "turn"


class TakesTurns(Protocol):
    """A connection whose requests are carried out."""

    @property
    def shares_with(self) -> str:
        """Whose turn it has."""

    def carry_out(self, request: Request) -> None:
        """A request was read, and it is its turn."""

    def read_deferred(self, data: bytes) -> None:
        """Its turn has come: bytes that were read and not looked at are taken apart, and `RequestTurns.take` is called."""

    def refuse(self, request_id: int, exc: BaseException) -> None: ...
    def pause(self, reason: str) -> None: ...
    def resume(self, reason: str) -> None: ...


class RequestTurns:
    """Gives connections their turns. Belongs to the event loop.

    Args:
        loop: the event loop.
        receiving: where what waits here counts, and who makes reads small.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, receiving: ReceiveLimits) -> None:
        self.passes = 0
        """In which somebody was in the line."""
        self._loop = loop
        self._receiving = receiving
        self._left: dict[TakesTurns, deque[Request]] = {}
        """Who is in the line, with what is left of its requests; nothing when it only waits to be read again."""
        self._line: dict[str, deque[TakesTurns]] = {}
        """By user, in order."""
        self._deferred: dict[TakesTurns, bytes] = {}
        """What was read of who is in the line, and not looked at."""
        self._ends: dict[TakesTurns, Callable[[], None]] = {}
        """What follows the last request of who is in the line, in place of reading on."""
        self._spent_s = 0.0
        """In this pass."""
        self._few_s = 0.0
        """Of few requests, not counted there yet."""
        self._planned = False

    @property
    def waiting(self) -> int:
        """Connections in the line."""
        return len(self._left)

    def waits(self, session: TakesTurns) -> bool:
        """Whether what comes now of this one has others of its own before it."""
        return session in self._left

    def defers(self, session: TakesTurns) -> bool:
        """Whether what the connection has just read is to be put by (`defer`)."""
        return self._spent_s >= _MOST_PASS_S or session in self._deferred

    def defer(self, session: TakesTurns, data: bytes) -> None:
        """The connection has read this, and is read no more until it has its turn."""
        self._plan()
        self._receiving.count_backlog(len(data))
        self._deferred[session] = self._deferred.get(session, b"") + data
        self._enter(session, [])

    def take(
        self,
        session: TakesTurns,
        requests: list[Request],
        answered: int,
        began_s: float,
        then: Callable[[], None] | None = None,
    ) -> None:
        """A connection has read these: carries them out, as far as the pass allows.

        Args:
            answered: bytes of answers to what need not be carried out.
            began_s: when the bytes were looked at, by `time.perf_counter`.
            then: called behind the last of them, after which nothing more is read. None = the connection goes on.
        """
        if not self._left and len(requests) <= _FEW and answered <= _FEW_BYTES:
            for request in requests:
                session.carry_out(request)
            if then is not None:
                then()
            self._few_s += time.perf_counter() - began_s
            if self._few_s >= _NOTED_S:
                self._plan()
                self._spent_s += self._few_s
                self._few_s = 0.0
            return
        self._plan()
        done, spent_s = 0, self._spent_s
        if not self._left:
            while done < len(requests) and (self._spent_s < _PASS_S or (done < _FEW and self._spent_s < _MOST_PASS_S)):
                session.carry_out(requests[done])
                done += 1
                self._spent_s = spent_s + time.perf_counter() - began_s
        self._spent_s = spent_s + time.perf_counter() - began_s
        if done < len(requests) or session in self._left or (then is None and self._spent_s >= _PASS_S):
            if then is not None:
                self._ends[session] = then
            self._enter(session, requests[done:])
        elif then is not None:
            then()

    def charge(self, session: TakesTurns, nbytes: int) -> None:
        """A connection has read so many bytes that no message comes of. Once the pass is over it has to wait for its turn."""
        self._plan()
        self._spent_s += nbytes * _BYTE_S
        if self._spent_s >= _PASS_S and session not in self._left:
            self._enter(session, [])

    def left(self, session: TakesTurns) -> None:
        """A connection is gone: what it asked for is forgotten."""
        self._ends.pop(session, None)
        self._receiving.count_backlog(-len(self._deferred.pop(session, b"")))
        waiting = self._left.get(session)
        if waiting is not None:
            self._receiving.count_backlog(-_bytes_of(waiting))
            waiting.clear()

    def _enter(self, session: TakesTurns, requests: list[Request]) -> None:
        self._receiving.count_backlog(_bytes_of(requests))
        waiting = self._left.get(session)
        if waiting is not None:
            waiting += requests
            return
        if not self._left:
            self._receiving.hurry(True)
        self._left[session] = deque(requests)
        self._line.setdefault(session.shares_with, deque()).append(session)
        session.pause(_REASON)

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        self._planned = False
        # What was spent on reading counts, but each pass gets on.
        until_s = time.perf_counter() + max(_PASS_S - self._spent_s, _PASS_S / 4)
        self._spent_s = 0.0
        if not self._left:
            return
        self.passes += 1
        resumed = 0
        while self._line and resumed < _MOST_RESUMED:
            user, sessions = next(iter(self._line.items()))
            del self._line[user]
            session = sessions.popleft()
            if self._turn(session, until_s):
                resumed += 1
            else:
                sessions.append(session)
            if sessions:
                self._line[user] = sessions  # behind the others
            if time.perf_counter() >= until_s:
                break
        if self._left:
            self._plan()
        else:
            self._receiving.hurry(False)

    def _turn(self, session: TakesTurns, until_s: float) -> bool:
        """Whether it has come to its end, and is read again."""
        waiting = self._left[session]
        data = self._deferred.pop(session, None)
        if data is not None:
            self._receiving.count_backlog(-len(data))
            session.read_deferred(data)
        now: list[Request] = []
        while waiting and len(now) < _SLICE:
            request = waiting.popleft()
            now.append(request)
            try:
                session.carry_out(request)
            except Exception as exc:  # nobody else is to lose the turn by it
                session.refuse(request.request_id, exc)
            if time.perf_counter() >= until_s:
                break
        # Only now: who carries it out has counted it by then, and between the two its memory would be promised to others.
        self._receiving.count_backlog(-_bytes_of(now))
        if waiting:
            return False
        del self._left[session]
        then = self._ends.pop(session, None)
        if then is None:
            session.resume(_REASON)
        else:
            then()
        return True


def _bytes_of(requests: list[Request] | deque[Request]) -> int:
    total = 0
    for request in requests:
        payload = request.payload
        if type(payload) is bytes:
            total += len(payload)
        elif type(payload) is tuple:
            total += sum(one[1].nbytes for one in payload[2])
    return total
