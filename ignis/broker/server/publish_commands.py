"""What one connection sends: SEND and SEND_BATCH, from what was received to the acknowledgement. Runs on the event loop."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from ignis.broker.auth.principal import Anyone
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.machine import Request
from ignis.broker.protocol.payloads import pack_send_ack
from ignis.broker.server.caller import Caller
from ignis.broker.server.permission_check import check_queue
from ignis.broker.server.publish_buffer import Placed, Sent
from ignis.errors import BadRequestError, IgnisError
from ignis.native.lone import LoneRequest
from ignis.native.wire import encode_send_acks

__all__ = ["PublishCommands"]

_SEND, _SEND_ACK = int(Command.SEND), int(Command.SEND_ACK)
_ACK = struct.Struct(">IhqHHQI")
"""A whole SEND_ACK of one run."""


class PublishCommands:
    """Carries out what one session sends, and acknowledges it."""

    def __init__(self, session: Caller) -> None:
        self._session = session
        self._state = session.context.state
        self._lone = session.context.lone

    # -- what came alone

    def take_received(self, size: int) -> bool:
        """Loads, on the spot, what the connection has just received, if that is one request to load and nothing else. False when
        nothing was done: it goes the way of all requests, which also says what is wrong with it."""
        session, lone = self._session, self._lone
        magazine = lone.look(session.arriving, size)
        if magazine is None:
            return False
        application = session.application
        assert application is not None
        inbox = application.known_inbox(magazine)
        if inbox is None:
            return False
        if type(session.principal) is not Anyone:
            try:
                check_queue(session.principal, self._state, "SEND_BATCH" if lone.is_batch else "SEND", magazine)
            except IgnisError as exc:
                self.lone_refused(lone, exc)
                return True
        return inbox.load_lone(lone, self)

    def lone_stored(self, lone: LoneRequest) -> None:
        """See `LoneSender`."""
        self._session.acknowledge(lone)
        self._state.messages_in += lone.count

    def lone_pending(self, lone: LoneRequest) -> Callable[[BaseException | None], None]:
        """See `LoneSender`."""
        session, request_id, count, ack = self._session, lone.request_id, lone.count, lone.answer()
        session.await_answer()

        def done(error: BaseException | None) -> None:
            if error is not None:
                session.refuse(request_id, error)
                return
            self._state.messages_in += count
            session.write_now(ack, 1)

        return done

    def lone_refused(self, lone: LoneRequest, exc: BaseException) -> None:
        """See `LoneSender`."""
        self._session.await_answer()
        self._session.refuse(lone.request_id, exc)

    # -- what came with others

    def take(self, request: Request) -> None:
        """Puts what was sent into its magazine's inbox; while that is full the connection is not read."""
        session = self._session
        name, ttl_ms, batches = request.payload
        application = session.application
        assert application is not None
        try:
            magazine = name.decode()
            if type(session.principal) is not Anyone:
                check_queue(session.principal, self._state, Command(request.command).name, magazine)
            inbox = application.inbox(magazine)
        except (UnicodeDecodeError, IgnisError) as exc:
            session.refuse_all(request, exc)
            return
        if request.command == _SEND:
            sent = Sent(batches, ttl_ms, self._stored_run)
        elif batches:
            several = [(shard, batch, None) for shard, batch in batches]
            sent = Sent(several, ttl_ms, self._stored_batch, request.request_id)
        else:
            session.refuse(request.request_id, BadRequestError("SEND_BATCH without a batch"))
            return
        inbox.put(sent)
        if inbox.full:
            session.pause(magazine)
            inbox.when_room(lambda: session.resume(magazine))

    def _stored_run(self, sent: Sent) -> None:
        session = self._session
        if sent.error is not None:
            for _, _, ids in sent.batches:
                for at in range(0, len(ids or b""), 8):
                    session.refuse(int.from_bytes((ids or b"")[at : at + 8], "big", signed=True), sent.error)
            return
        for shard, first, count, ids in sent.placed:
            assert ids is not None
            self._state.messages_in += count
            session.write_now(encode_send_acks(ids, shard, first), count)

    def _stored_batch(self, sent: Sent) -> None:
        session, placed = self._session, sent.placed
        if sent.error is not None:
            session.refuse(sent.request_id, sent.error)
            return
        self._state.messages_in += _messages(placed)
        if len(placed) == 1:
            shard, first, count, _ = placed[0]
            session.write_now(_ACK.pack(_ACK.size - 4, _SEND_ACK, sent.request_id, 1, shard, first, count), 1)
            return
        session.answer(_SEND_ACK, sent.request_id, pack_send_ack([one[:3] for one in placed]))


def _messages(placed: Sequence[Placed]) -> int:
    return sum(one.messages for one in placed)
