"""Both sides of a connection as state machines that know bytes and states, and no event loop, socket or clock.

A shell reads into `receive_buffer`, says how much came with `received`, and writes what the machine gives it. The
machines are for one connection and one thread at a time; shells with several threads lock around them.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from ignis.broker.protocol.commands import ANSWERS, PRE_AUTH_FRAME_BYTES, Command
from ignis.broker.protocol.encoding import pack, pack_connect, unpack, unpack_connect
from ignis.broker.protocol.errors import failure_of, to_exception
from ignis.broker.protocol.payloads import Connect, Connected, Failure
from ignis.broker.protocol.row_count import ROWS
from ignis.broker.protocol.screening import HEAD_BYTES, SCREENED_BYTES, Unfit, name_at_head, refusal
from ignis.broker.protocol.table import LARGE, WHOLE
from ignis.errors import (
    BadRequestError,
    ConnectionLostError,
    IgnisError,
    ProtocolError,
    TooManyRequestsError,
)
from ignis.native import encode_frame
from ignis.native.wire import FrameReader, ReadArea

__all__ = ["Answer", "BrokerMachine", "ClientMachine", "Request", "State"]

_ERROR, _RESULT = int(Command.ERROR), int(Command.RESULT)
_SEND, _SEND_BATCH, _DELIVER = int(Command.SEND), int(Command.SEND_BATCH), int(Command.DELIVER)
_STREAMED = (_DELIVER, _RESULT)
_MOST_UNDONE = 16
"""So few fit into what a socket that can be written to takes at once."""
_KNOWN = frozenset(int(one) for one in Command) - {int(one) for one in ANSWERS}


class State(enum.Enum):
    """How far a connection has come, on either side."""

    NEW = "new"
    """Nothing but CONNECT and PING is allowed."""
    GREETED = "greeted"
    """CONNECT was sent (received), its answer is not there (not given) yet."""
    READY = "ready"
    CLOSED = "closed"


class Request(NamedTuple):
    """What a client asks for. ``payload`` of SEND and SEND_BATCH is taken apart already, see `FrameReader.received`;
    it is an exception where it broke the rules."""

    command: int
    request_id: int
    payload: Any


Screen = Callable[[int, str], BaseException | None]
"""(command, name of the queue) of a large request -> why it is refused, or None."""


class BrokerMachine:
    """The broker's side.

    Args:
        area: memory to read into, shared with the other connections of the thread.
        max_frame_bytes, max_pending: limits once the client is known; before, 8 KiB and one request.
    """

    def __init__(self, area: ReadArea, max_frame_bytes: int, max_pending: int) -> None:
        self.state = State.NEW
        self.max_frame_bytes = max_frame_bytes
        self.max_pending = max_pending
        self.pending = 0
        self.refused = 0
        self.arriving = FrameReader(area, PRE_AUTH_FRAME_BYTES, sends=True)
        """Where what is read gathers until it is a frame."""
        self.screen: Screen | None = None
        """Asked about each large frame when its first bytes have come; see `screening`."""
        self._screened = False
        """The frame that arrives may come to its end."""

    # -- in

    def receive_buffer(self) -> memoryview:
        """Where the next bytes go. Release the view before the next call."""
        return self.arriving.get_buffer()

    def received(self, size: int) -> tuple[list[Request], bytes]:
        """The requests that are complete by now, and frames to send at once (PONG, refusals).

        Raises ProtocolError, MalformedFrameError: the connection must be closed after `fatal` was sent.
        """
        return self._screen(self._sort(self.arriving.received(size)))

    def arrived(self, size: int) -> bytes:
        """What has just been read, and `received` was not told of: it may be fed later."""
        return self.arriving.arrived(size)

    def feed(self, data: bytes) -> tuple[list[Request], bytes]:
        """`received`, for bytes that lie elsewhere."""
        return self._screen(self._sort(self.arriving.feed(data)))

    def _screen(self, found: tuple[list[Request], bytes]) -> tuple[list[Request], bytes]:
        """Adds the refusal of the frame that arrives, if it need not come to its end."""
        requests, at_once = found
        if requests or at_once:
            self._screened = False  # what arrives now is another one
        arriving = self.arriving
        if self.screen is None or self._screened or arriving.frame_bytes <= SCREENED_BYTES or arriving.lost is not None:
            return found
        try:
            known = name_at_head(arriving.head(HEAD_BYTES), arriving.frame_bytes)
            if known is None:
                return found
            command, request_id, name = known
            reason = self.screen(command, name) if command in LARGE else None
        except Unfit as exc:
            request_id, reason = exc.request_id, exc.reason
        if reason is None:
            self._screened = True
            return found
        arriving.skip()
        self.refused += 1
        return requests, at_once + self.error_frame(request_id, reason)

    def _sort(self, items: list[tuple[int, int, Any]]) -> tuple[list[Request], bytes]:
        requests: list[Request] = []
        at_once: list[bytes] = []
        for command, request_id, payload in items:
            if command == Command.PING:
                at_once.append(encode_frame(Command.PONG, request_id, payload))
            elif self.state is not State.READY:
                requests.append(self._first(command, request_id, payload))
            elif command not in _KNOWN or command == Command.CONNECT:
                if command in (*ANSWERS, Command.CONNECT):
                    raise ProtocolError(f"{Command(command).name} is not for a client to send now")
                self.refused += 1
                at_once.append(self.error_frame(request_id, BadRequestError(f"unknown command {command}")))
            elif (command not in WHOLE or command in ROWS) and (refused := refusal(command, payload)) is not None:
                self.refused += 1
                at_once.append(self.error_frame(request_id, refused))
            else:
                # Neighbouring SENDs are one item and count as one each below, when the batch is known.
                count = sum(batch.count for _, batch, _ in payload[2]) if _is_run(command, payload) else 1
                if self.pending + count > self.max_pending and self.pending:
                    self.refused += count
                    exc = TooManyRequestsError(self.pending + count, self.max_pending)
                    at_once += (self.error_frame(one, exc) for one in ids_of(command, request_id, payload))
                    continue
                self.pending += count
                requests.append(Request(command, request_id, payload))
        return requests, b"".join(at_once)

    def _first(self, command: int, request_id: int, payload: Any) -> Request:
        if command != Command.CONNECT:
            name = Command(command).name if command in (*_KNOWN, *ANSWERS) else str(command)
            raise ProtocolError(f"{name} before CONNECT was answered")
        if self.state is State.GREETED:
            raise ProtocolError("a second CONNECT")
        head, _, _ = unpack_connect(payload, Connect)
        self.state = State.GREETED
        self.pending += 1
        return Request(command, request_id, head)

    # -- out

    def welcome(self, request_id: int, head: Connected) -> bytes:
        """The answer to CONNECT; from here on everything is allowed."""
        self.state = State.READY
        self.arriving.max_frame_bytes = self.max_frame_bytes
        self.pending -= 1
        return encode_frame(_RESULT, request_id, pack_connect(head))

    def answer(self, command: int, request_id: int, payload: bytes, count: int = 1) -> bytes:
        """An answer; ``count`` requests are no longer pending."""
        self.pending -= count
        return encode_frame(command, request_id, payload)

    def result(self, request_id: int, value: Any) -> bytes:
        """RESULT with a value."""
        self.pending -= 1
        return encode_frame(_RESULT, request_id, pack(value))

    def error(self, request_id: int, exc: BaseException) -> bytes:
        """ERROR for one request that was pending."""
        self.pending -= 1
        return self.error_frame(request_id, exc)

    @staticmethod
    def error_frame(request_id: int, exc: BaseException, *, fatal: bool = False) -> bytes:
        """ERROR that is the end of no pending request."""
        return encode_frame(_ERROR, request_id, pack(failure_of(exc, fatal=fatal)))

    def fatal(self, exc: BaseException) -> bytes:
        """The last frame before the broker closes the connection: ERROR with request id 0."""
        self.state = State.CLOSED
        return self.error_frame(0, exc, fatal=True)


def _is_run(command: int, payload: Any) -> bool:
    return command == _SEND and type(payload) is tuple


def ids_of(command: int, request_id: int, payload: Any) -> list[int]:
    """The request ids that one item stands for."""
    if not _is_run(command, payload):
        return [request_id]
    packed = b"".join(ids for _, _, ids in payload[2])
    return [int.from_bytes(packed[at : at + 8], "big", signed=True) for at in range(0, len(packed), 8)]


class Answer(NamedTuple):
    """What came for a request: ``token`` is what the shell gave with it. Exactly one of payload and error is set.

    ``last`` is False for deliveries of a subscription, whose request goes on.
    """

    token: Any
    command: int
    payload: bytes
    error: IgnisError | None
    last: bool = True


class Asking(Protocol):
    """What is sent: see `ignis.broker.client.client_request.ClientRequest`."""

    @property
    def command(self) -> Command: ...
    @property
    def payload(self) -> bytes: ...


Undo = Callable[[int, int, bytes], "Asking | None"]
"""(request id, command, payload) of an answer that nobody takes any more -> the request that undoes it, or None."""


class _Waiting:
    __slots__ = ("cancelled", "late", "sent", "streams", "token", "undo")

    def __init__(self, token: Any, streams: bool, sent: bool) -> None:
        self.token = token
        self.streams = streams
        self.sent = sent
        self.cancelled = False
        self.late = True
        """Once it is cancelled: its answer counts as one that came too late."""
        self.undo: Undo | None = None


class ClientMachine:
    """The client's side: request ids, and which answer belongs to which request.

    An id is never used again on a connection. One whose caller gave up stays reserved until its answer came, which
    is then dropped and counted; so an answer can never reach another caller.

    Args:
        area: memory to read into.
        max_frame_bytes: largest frame that is accepted.
        max_pending: requests that may be waiting; the broker may set a lower limit when it answers CONNECT.
    """

    def __init__(self, area: ReadArea, max_frame_bytes: int, max_pending: int) -> None:
        self.state = State.NEW
        self.max_pending = max_pending
        self.broker: Connected | None = None
        self.draining = False
        self.failure: IgnisError | None = None
        """Why the broker closes the connection, once it said so; nothing more comes."""
        self.late_answers = 0
        self.unknown_answers = 0
        self.reader = FrameReader(area, max_frame_bytes)
        """What takes frames out of the bytes that come."""
        self._ids = itertools.count(1)
        self.reserve = self._ids.__next__
        """Gives the id of a request that a shell sends by itself while this is `free`. It must `adopt` it, unless its answer
        comes alone and the shell has taken it."""
        self._waiting: dict[int, _Waiting] = {}
        self._connect_id = 0
        self._undoing: deque[tuple[Asking, int]] = deque()

    @property
    def pending(self) -> int:
        """Requests that wait for their answer, given up ones included."""
        return len(self._waiting)

    # -- out

    def connect(self, head: Connect, token: Any = None) -> bytes:
        """CONNECT: the first frame. Its answer comes as any other."""
        if self.state is not State.NEW:
            raise ProtocolError(f"CONNECT on a connection that is {self.state.value}")
        self.state = State.GREETED
        self._connect_id = next(self._ids)
        self._waiting[self._connect_id] = _Waiting(token, False, False)
        return encode_frame(Command.CONNECT, self._connect_id, pack_connect(head))

    def request(
        self, command: int, payload: bytes, token: Any, *, streams: bool = False, sent: bool = False
    ) -> tuple[int, bytes]:
        """(request id, frame) of a new request.

        Args:
            token: given back with the answer.
            streams: the request may get several answers (SUBSCRIBE).
            sent: see `sent`, for a shell that hands the frame to the network right away.

        Raises TooManyRequestsError, ConnectionLostError (not connected; nothing was sent).
        """
        if self.state is not State.READY:
            raise ConnectionLostError(f"the connection is {self.state.value}", sent=False)
        if len(self._waiting) >= self.max_pending:
            raise TooManyRequestsError(len(self._waiting), self.max_pending, "client.max_pending")
        request_id = next(self._ids)
        frame = encode_frame(command, request_id, payload)
        self._waiting[request_id] = _Waiting(token, streams, sent)
        return request_id, frame

    @property
    def free(self) -> bool:
        """Whether a request may be made, and nothing else is to be sent first."""
        return (
            self.state is State.READY
            and not self.draining
            and not self._undoing
            and len(self._waiting) < self.max_pending
        )

    def adopt(self, request_id: int, token: Any) -> None:
        """From now on this is a request like others, which may have been carried out."""
        self._waiting[request_id] = _Waiting(token, False, True)

    def sent(self, request_id: int) -> None:
        """The frame was handed to the network, at least in part: from now on the request is in doubt until answered."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            waiting.sent = True

    def forget(self, request_id: int) -> None:
        """The request was not sent and will not be."""
        self._waiting.pop(request_id, None)

    def cancel(self, request_id: int, undo: Undo | None = None, unseen: Iterable[Answer] = ()) -> None:
        """Nobody waits for the answer any more. The id stays reserved, and counts as pending, until it came; what it
        brought is undone with the request that ``undo`` makes of it, see `undo`.

        Args:
            unseen: answers that have come already, and that nobody has looked at.
        """
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            waiting.cancelled = True
            waiting.token = None
            waiting.undo = undo
        for answer in unseen:
            if answer.error is None and answer.command:
                self.late_answers += 1
                self._plan_undo(undo, request_id, answer.command, answer.payload)

    def undo(self) -> bytes:
        """Requests that give back what late answers brought, to be sent, a few at a time; b"" when there are none, or no
        more requests may be open. Call it after `received` while `owes`. Their own answers are of no interest."""
        frames: list[bytes] = []
        while self._undoing and len(frames) < _MOST_UNDONE and len(self._waiting) < self.max_pending:
            if self.state is not State.READY:
                break
            ask, stream = self._undoing.popleft()
            request_id, frame = self.request(ask.command, ask.payload, None, sent=True)
            waiting = self._waiting[request_id]
            waiting.cancelled, waiting.late = True, False
            if stream:
                waiting.undo = functools.partial(self._stream_ended, stream)
            frames.append(frame)
        return b"".join(frames)

    @property
    def owes(self) -> bool:
        """Whether `undo` has something."""
        return bool(self._undoing)

    def _stream_ended(self, stream: int, *_: object) -> None:
        """A subscription that was given up is no more."""
        self.end_stream(stream)

    def streams(self, request_id: int) -> bool:
        """Whether that is a subscription whose deliveries somebody waits for."""
        waiting = self._waiting.get(request_id)
        return waiting is not None and waiting.streams and not waiting.cancelled

    def came(self, command: int, request_id: int, payload: bytes) -> list[Answer]:
        """`received` of one frame that a shell has read by itself."""
        return self._sort([(command, request_id, payload)])

    def end_stream(self, request_id: int) -> None:
        """A subscription that has ended: what is still on its way for it is dropped and counted."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            waiting.token = None

    # -- in

    def receive_buffer(self) -> memoryview:
        """Where the next bytes go. Release the view before the next call."""
        return self.reader.get_buffer()

    def received(self, size: int) -> list[Answer]:
        """The answers that are complete by now. Raises ProtocolError, MalformedFrameError: close the connection."""
        return self._sort(self.reader.received(size))

    def feed(self, data: bytes) -> list[Answer]:
        """`received`, for bytes that lie elsewhere."""
        return self._sort(self.reader.feed(data))

    def _sort(self, items: list[tuple[int, int, Any]]) -> list[Answer]:
        answers: list[Answer] = []
        for command, request_id, payload in items:
            waiting = self._waiting.get(request_id)
            if waiting is None:
                self._unasked(command, request_id, payload)
                continue
            keeps = waiting.streams and command in _STREAMED
            if not keeps:
                del self._waiting[request_id]
            if waiting.cancelled:
                self.late_answers += waiting.late
                self._plan_undo(waiting.undo, request_id, command, payload)
                continue
            if command == _ERROR:
                answers.append(Answer(waiting.token, command, b"", to_exception(unpack(payload, Failure)[0])))
                continue
            if command not in ANSWERS:
                raise ProtocolError(f"command {command} is not for a broker to send")
            if request_id == self._connect_id:
                self._welcomed(payload)
            answers.append(Answer(waiting.token, command, payload, None, not keeps))
        return answers

    def _plan_undo(self, undo: Undo | None, request_id: int, command: int, payload: bytes) -> None:
        if undo is None or command == _ERROR:
            return
        try:
            ask = undo(request_id, command, payload)
        except IgnisError:
            return  # an answer that cannot be read brought nothing
        if ask is not None:
            waiting = self._waiting.get(request_id)
            self._undoing.append((ask, request_id if waiting is not None and command == _RESULT else 0))

    def _unasked(self, command: int, request_id: int, payload: bytes) -> None:
        if command == Command.ERROR and request_id == 0:
            failure = unpack(payload, Failure)[0]
            if failure.fatal:
                self.failure = to_exception(failure)
        elif command == Command.DISCONNECT:
            self.draining = True
        elif command not in ANSWERS:
            raise ProtocolError(f"command {command} is not for a broker to send")
        else:
            # Of a subscription that has ended, or an answer to a request that this side never made.
            self.unknown_answers += 1

    def _welcomed(self, payload: bytes) -> None:
        head, _, _ = unpack_connect(payload, Connected)
        self.broker = head
        self.max_pending = min(self.max_pending, head.max_pending)
        self.state = State.READY

    def lost(self, why: str) -> list[Answer]:
        """The connection is gone: every pending request fails, each with what is known of it."""
        self.state = State.CLOSED
        gone, self._waiting = self._waiting, {}
        return [
            Answer(one.token, Command.ERROR, b"", ConnectionLostError(why, one.sent))
            for one in gone.values()
            if not one.cancelled
        ]
