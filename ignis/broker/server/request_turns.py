"""Who is served when more is asked than one pass of the event loop should carry out.

One read may bring thousands of small requests, and hundreds of connections may be read in one pass: each would wait for all that
the others have sent. So a pass spends some milliseconds on requests. What is left over waits in a line, and its connection
is not read meanwhile. In the next passes the users take turns (without users the addresses), and the connections of each. While
anybody is in the line, reads are small, and only a few connections are read again in each pass.

Who sends a few requests at a time while nobody is in the line notices nothing of this. Bytes that no message comes of, such as
those of refused frames, count by what it costs to read them: they may be many, and no request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

from ignis.broker.protocol.machine import Request
from ignis.broker.server.receive_limits import ReceiveLimits

__all__ = ["RequestTurns", "TakesTurns"]

_PASS_S = 0.005
"""What a pass of the event loop spends on requests, answers of its threads apart."""
_SLICE = 16
"""Requests of one connection between two looks at the clock, and in one of its turns."""
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
        self._spent_s = 0.0
        """In this pass."""
        self._planned = False

    @property
    def waiting(self) -> int:
        """Connections in the line."""
        return len(self._left)

    def waits(self, session: TakesTurns) -> bool:
        """Whether what comes now of this one has others of its own before it."""
        return session in self._left

    def take(self, session: TakesTurns, requests: list[Request], answered: int, began_s: float) -> None:
        """A connection has read these: carries them out, as far as the pass allows.

        Args:
            answered: bytes of answers to what need not be carried out.
            began_s: when the bytes were looked at, by `time.perf_counter`.
        """
        if not self._left and len(requests) <= _FEW and answered <= _FEW_BYTES:
            for request in requests:
                session.carry_out(request)
            return
        self._plan()
        done, spent_s = 0, self._spent_s
        if not self._left:
            while done < len(requests) and self._spent_s < _PASS_S:
                for request in requests[done : done + _SLICE]:
                    session.carry_out(request)
                done += _SLICE
                self._spent_s = spent_s + time.perf_counter() - began_s
        self._spent_s = spent_s + time.perf_counter() - began_s
        if done < len(requests) or self._spent_s >= _PASS_S:
            self._enter(session, requests[done:])

    def charge(self, session: TakesTurns, nbytes: int) -> None:
        """A connection has read so many bytes that no message comes of. Once the pass is over it has to wait for its turn."""
        self._plan()
        self._spent_s += nbytes * _BYTE_S
        if self._spent_s >= _PASS_S and session not in self._left:
            self._enter(session, [])

    def carry_out_all(self, session: TakesTurns, requests: list[Request]) -> None:
        """The connection is about to end behind these."""
        waiting = self._left.get(session)
        nbytes = 0
        if waiting is not None:
            nbytes = _bytes_of(waiting)
            requests = [*waiting, *requests]
            waiting.clear()
        try:
            for request in requests:
                session.carry_out(request)
        finally:
            self._receiving.count_backlog(-nbytes)

    def left(self, session: TakesTurns) -> None:
        """A connection is gone: what it asked for is forgotten."""
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
            if self._turn(session):
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

    def _turn(self, session: TakesTurns) -> bool:
        """Whether it has come to its end, and is read again."""
        waiting = self._left[session]
        now = [waiting.popleft() for _ in range(min(_SLICE, len(waiting)))]
        for request in now:
            try:
                session.carry_out(request)
            except Exception as exc:  # nobody else is to lose the turn by it
                session.refuse(request.request_id, exc)
        # Only now: who carries it out has counted it by then, and between the two its memory would be promised to others.
        self._receiving.count_backlog(-_bytes_of(now))
        if waiting:
            return False
        del self._left[session]
        session.resume(_REASON)
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
