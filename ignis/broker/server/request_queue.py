"""Requests of one connection that are one call of the store each, from the queue before it to their answers.

Everything but `RequestQueue._call` runs on the event loop.
"""

from __future__ import annotations

from collections import deque

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import unpack
from ignis.broker.protocol.machine import Request
from ignis.broker.protocol.payloads import AnyNamed
from ignis.broker.protocol.table import BULKY, LOOKS, TABLE
from ignis.broker.server.application import Application
from ignis.broker.server.caller import Caller
from ignis.broker.server.calls import Asked, Reply, over_frame
from ignis.broker.server.claim_commands import BegunFire, finish_fire, try_fire
from ignis.broker.server.command_table import CALLS
from ignis.errors import BadRequestError, ClosedError
from ignis.native.wire import count_runs, unpack_runs

__all__ = ["RequestQueue"]

_MOST_CALLS = 32
"""Requests of one connection that are carried out at a time; its others wait."""
_MOST_BULKY = 4
_MOST_RUNS = 64
"""Of a DELETE that shares the transaction of a turn."""
_AT_ONCE = frozenset({int(Command.FIRE), int(Command.DELETE)})
_MOST_LOOKS = 2
"""Requests of one connection that read what may be much, at a time. They take turns with those of others."""
_MAY_BE_LARGE = BULKY | {
    int(Command.METADATA), int(Command.HELD), int(Command.CLAIM), int(Command.QUEUE_GET), int(Command.QUEUE_INFO),
    int(Command.QUEUE_REPLACE), int(Command.CREATE_QUEUE),
}  # fmt: skip
"""Not given to a user who is held back. Those that are named are asked for often, and small as a rule: no room is kept for them.
A queue's record is up to 64 KiB (`extra`)."""
_PAGE_BYTES = dict.fromkeys((int(Command.QUEUE_LIST), int(Command.LIST_QUEUES), int(Command.NAMES)), 1 << 20)
"""Room that is kept for one answer. Every client lists the queues now and then: with more for each they would be a crowd."""
_ANSWER_ALONE = frozenset(number for number, row in TABLE.items() if row.repeats)
"""What changes nothing, or may be done again: an answer that fits into no frame may be refused."""
_FOR_READERS = LOOKS | {int(Command.ARRAY_DEQUEUE)}
"""Not carried out when the connection is gone: what ARRAY_DEQUEUE removes is in its answer alone."""
_LISTS = frozenset({
    int(Command.RENEW_CLAIMS), int(Command.RESUME), int(Command.RELOAD), int(Command.DELETE), int(Command.DELETE_WAITING),
    int(Command.TRANSFER), int(Command.DEFER), int(Command.RUN_NOW), int(Command.CANCEL_LATER),
})  # fmt: skip
_LONG_BYTES = 1 << 20
"""Of a request with a list of runs or moves: such are carried out one after another. They take twenty times as much meanwhile."""
_CROWDED_BYTES = 65_536
"""Bytes of one connection's requests, while those of all of them take more than ``max_receive_bytes``."""
_REASON = "backlog"
_PUT_OFF = Exception()
"""Stands for the reply to a request for which what its user has not read leaves no room yet. Nobody is sent it."""


class RequestQueue:
    """Makes the store calls that one session asks for, and answers them."""

    def __init__(self, session: Caller) -> None:
        self._session = session
        self._settings = session.context.settings
        self._receiving = session.context.receiving
        self._threads = session.context.threads
        self._unread = session.context.unread
        self._waiting: deque[Request] = deque()
        self._bytes = 0
        """Bytes of requests that wait for the store or are at it."""
        self._running = 0
        self._bulky = 0
        self._looks = 0

    @property
    def waiting(self) -> bool:
        """Whether any request is not at the store yet."""
        return bool(self._waiting)

    def put(self, request: Request) -> None:
        """Its turn comes; while too much waits the connection is not read."""
        if not self._waiting and self._at_once(request):
            return
        self._waiting.append(request)
        self._count(len(request.payload))
        if self._bytes > self._allowed_bytes():
            self._session.pause(_REASON)
        self.run()

    def _at_once(self, request: Request) -> bool:
        """Carries out, on the event loop, what a handler asks for each message: a change of threads takes longer than that. False
        when nothing was done."""
        session, unread = self._session, self._unread
        application = session.application
        assert application is not None
        if request.command not in _AT_ONCE or not application.store.magazines.quick or unread.crowded:
            return False
        if request.command == Command.DELETE:
            return self._delete(application, request)
        if session.over_outbound():
            return False
        room, reply = unread.begin(), None
        asked = Asked(application, session.principal, session.owner, request.payload, room)
        try:
            reply = try_fire(asked)
        except Exception as exc:
            session.refuse(request.request_id, exc)
            return True
        finally:
            if not isinstance(reply, BegunFire):
                unread.made(room, 0 if reply is None else reply.nbytes)
        if reply is None:
            return False
        if isinstance(reply, BegunFire):
            self._finish(request, asked, reply)
            return True
        self._answer(request.request_id, reply)
        session.flush()
        return True

    def _finish(self, request: Request, asked: Asked, begun: BegunFire) -> None:
        """What the event loop began is ended by a thread."""

        def call(request: Request) -> tuple[Request, int, Reply | BaseException]:
            try:
                reply = finish_fire(asked, begun)
                self._unread.made_in_thread(reply.nbytes)
                return request, asked.bound, reply
            except Exception as exc:
                return request, asked.bound, exc

        self._count(len(request.payload))
        self._running += 1
        self._bulky += request.command in BULKY
        self._count_call(1)
        self._threads.call(call, self._called, request, line=self._session.shares_with)

    def _delete(self, application: Application, request: Request) -> bool:
        """`DELETE` with what others write in this turn."""
        session = self._session
        head, at = unpack(request.payload, AnyNamed)
        if count_runs(request.payload, at) > _MOST_RUNS:
            return False
        runs = unpack_runs(request.payload, at)

        def deleted(count: int) -> None:
            session.claims.let_go(head.name, runs)
            if not session.closed:
                session.result(request.request_id, count)

        def failed(exc: BaseException) -> None:
            if not session.closed:
                session.refuse(request.request_id, exc)

        # Behind handlers a thread of their own waits for it: it may share the flush of a load.
        application.turns.delete(head.name, runs, deleted, failed, may_wait=True)
        return True

    def end(self) -> None:
        """The connection is gone: what is not at the store yet is forgotten."""
        self._count(-sum(len(one.payload) for one in self._waiting))
        self._waiting.clear()

    def run(self) -> None:
        """Gives the store as many as it may have now."""
        session, unread = self._session, self._unread
        while self._waiting and self._running < _MOST_CALLS and not session.over_outbound():
            command = self._waiting[0].command
            bulky, looks = command in BULKY, command in LOOKS
            if bulky and self._bulky >= (1 if unread.crowded else _MOST_BULKY):
                return
            if command in _MAY_BE_LARGE and session.held_back:
                return
            if looks and self._looks >= _MOST_LOOKS:
                return
            request = self._waiting.popleft()
            self._running += 1
            self._bulky += bulky
            self._looks += looks
            room = unread.begin(_PAGE_BYTES.get(command, 1 << 62)) if bulky else 0
            self._count_call(1)
            long = command in _LISTS and len(request.payload) > _LONG_BYTES
            self._threads.call(
                self._call, self._called, (request, room), looks=looks, long=long, line=session.shares_with
            )

    def _count_call(self, by: int) -> None:
        """What a call has claimed for a connection that is gone meanwhile goes back through its application."""
        if self._session.application is not None:
            self._session.application.calls += by

    def _count(self, size: int) -> None:
        self._bytes += size
        self._receiving.count_backlog(size)

    def _allowed_bytes(self) -> int:
        most = self._settings.max_outbound_bytes
        return min(_CROWDED_BYTES, most) if self._receiving.crowded else most

    def _call(self, asked: tuple[Request, int]) -> tuple[Request, int, Reply | BaseException]:
        """Carries out the request, in a thread of the store's. ``room``: bytes that a large answer may take."""
        request, room = asked
        session = self._session
        application = session.application
        assert application is not None
        try:
            if request.command in _MAY_BE_LARGE and (session.held_back or self._unread.behind):
                return request, room, _PUT_OFF  # it was not so when it was given to the threads
            if session.closed and request.command in _FOR_READERS:
                raise ClosedError("the connection is gone")  # nobody reads the answer
            call = CALLS.get(request.command)
            if call is None:
                raise BadRequestError(f"command {request.command} is not served")
            asked_for = Asked(application, session.principal, session.owner, request.payload, room)
            reply = call(asked_for)
            if request.command in _ANSWER_ALONE and reply.nbytes > asked_for.most_bytes:
                raise over_frame(asked_for, request.command)
            self._unread.made_in_thread(reply.nbytes)
            return request, room, reply
        except Exception as exc:
            return request, room, exc

    def _called(self, done: tuple[Request, int, Reply | BaseException]) -> None:
        request, room, reply = done
        session = self._session
        self._running -= 1
        self._count_call(-1)
        self._bulky -= request.command in BULKY
        self._looks -= request.command in LOOKS
        if reply is _PUT_OFF and not session.closed:
            self._unread.made(room, 0)
            self._waiting.appendleft(request)
            self.run()
            return
        self._count(-len(request.payload))
        if self._bytes <= self._allowed_bytes() // 2:
            session.resume(_REASON)
        self._unread.made(room, 0 if isinstance(reply, BaseException) else reply.nbytes, in_thread=True)
        if isinstance(reply, BaseException):
            session.refuse(request.request_id, reply)
        else:
            self._answer(request.request_id, reply)
        self.run()

    def _answer(self, request_id: int, reply: Reply) -> None:
        session = self._session
        if reply.after is not None:
            reply.after(session)
        if reply.claims is None:
            session.answer(reply.command, request_id, reply.payload)
        else:
            session.answer_run(1, reply.claims.frame(reply.command, request_id, reply.payload))
