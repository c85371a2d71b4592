"""What one connection sends: SEND and SEND_BATCH, from the decoded frame to the acknowledgement. Runs on the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignis.broker.access import Anyone
from ignis.broker.commands import Command
from ignis.broker.inbox import Sent
from ignis.broker.payloads import pack_send_ack
from ignis.broker.permitting import check_queue
from ignis.broker.protocol import Request
from ignis.errors import BadRequestError, IgnisError
from ignis.native.wire import encode_send_acks

if TYPE_CHECKING:
    from ignis.broker.session import Session

__all__ = ["Sending"]


class Sending:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def take(self, request: Request) -> None:
        """Puts what was sent into its magazine's inbox; while that is full the connection is not read."""
        session = self._session
        name, ttl_ms, batches = request.payload
        assert session.application is not None
        try:
            magazine = name.decode()
            if type(session.principal) is not Anyone:
                check_queue(session, Command(request.command).name, magazine)
            inbox = session.application.inbox(magazine)
        except (UnicodeDecodeError, IgnisError) as exc:
            session.refuse_all(request, exc)
            return
        if request.command == Command.SEND:
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
            session.broker.messages_in += count
            session.answer_run(count, encode_send_acks(ids, shard, first))

    def _stored_batch(self, sent: Sent) -> None:
        session = self._session
        if sent.error is not None:
            session.refuse(sent.request_id, sent.error)
            return
        session.broker.messages_in += sum(one.messages for one in sent.placed)
        session.answer(Command.SEND_ACK, sent.request_id, pack_send_ack([one[:3] for one in sent.placed]))
