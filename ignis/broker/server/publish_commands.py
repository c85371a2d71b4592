"""What one connection sends: SEND and SEND_BATCH, from the decoded frame to the acknowledgement. Runs on the event loop."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial

from ignis.broker.auth.principal import Anyone
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.machine import Request
from ignis.broker.protocol.payloads import pack_send_ack
from ignis.broker.server.caller import Caller
from ignis.broker.server.permission_check import check_queue
from ignis.broker.server.publish_buffer import Placed, Sent
from ignis.errors import BadRequestError, IgnisError
from ignis.native import PackedBatch
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

    def take(self, request: Request, alone: bool) -> None:
        """Puts what was sent into its magazine's inbox; while that is full the connection is not read.

        ``alone``: nothing else came with it, so that it may be stored on the spot.
        """
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
            if alone and inbox.load_alone(batches, ttl_ms, _size(batches), self._run_stored):
                return
            sent = Sent(batches, ttl_ms, self._stored_run)
        elif batches:
            several = [(shard, batch, None) for shard, batch in batches]
            done = partial(self._batch_stored, request.request_id)
            if alone and inbox.load_alone(several, ttl_ms, _size(several), done):
                return
            sent = Sent(several, ttl_ms, self._stored_batch, request.request_id)
        else:
            session.refuse(request.request_id, BadRequestError("SEND_BATCH without a batch"))
            return
        inbox.put(sent)
        if inbox.full:
            session.pause(magazine)
            inbox.when_room(lambda: session.resume(magazine))

    def _stored_run(self, sent: Sent) -> None:
        placed = sent.placed if sent.error is None else [Placed(0, 0, 0, ids) for _, _, ids in sent.batches]
        self._run_stored(placed, sent.error)

    def _run_stored(self, placed: Sequence[Placed], error: BaseException | None) -> None:
        session = self._session
        if error is not None:
            for _, _, _, ids in placed:
                for at in range(0, len(ids or b""), 8):
                    session.refuse(int.from_bytes((ids or b"")[at : at + 8], "big", signed=True), error)
            return
        for shard, first, count, ids in placed:
            assert ids is not None
            self._state.messages_in += count
            session.write_now(encode_send_acks(ids, shard, first), count)

    def _stored_batch(self, sent: Sent) -> None:
        self._batch_stored(sent.request_id, sent.placed, sent.error)

    def _batch_stored(self, request_id: int, placed: Sequence[Placed], error: BaseException | None) -> None:
        session = self._session
        if error is not None:
            session.refuse(request_id, error)
            return
        if len(placed) == 1:
            shard, first, count, _ = placed[0]
            self._state.messages_in += count
            session.write_now(_ACK.pack(_ACK.size - 4, _SEND_ACK, request_id, 1, shard, first, count), 1)
            return
        for one in placed:
            self._state.messages_in += one.messages
        session.answer(_SEND_ACK, request_id, pack_send_ack([one[:3] for one in placed]))


def _size(batches: Sequence[tuple[int, PackedBatch, bytes | None]]) -> int:
    return batches[0][1].nbytes if len(batches) == 1 else sum(batch.nbytes for _, batch, _ in batches)
