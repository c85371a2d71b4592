"""Acknowledgements that came alone: retired where they were read, and answered from there. Runs on the event loop.

An ACK is of what was delivered, and nobody holds that any more from when it is carried out. A DELETE is of what the client has
claimed, or was delivered: it is held until that is gone for good, as by every other way a DELETE goes.
"""

from __future__ import annotations

from ignis.broker.auth.principal import Anyone
from ignis.broker.protocol.in_flight import PointerRange
from ignis.broker.server.caller import Caller
from ignis.broker.server.permission_check import check_queue
from ignis.native.lone import LoneAck
from ignis.storage.write_batch import PendingSync

__all__ = ["LoneAcks"]


class LoneAcks:
    """Carries out what one session acknowledges by itself. `ConsumerCommands` carries out every other ACK, `RequestQueue` every
    other DELETE."""

    def __init__(self, session: Caller) -> None:
        self._session = session
        self._state = session.context.state
        self._lone = session.context.lone_ack

    def take_received(self, size: int) -> bool:
        """Retires, on the spot, what the connection has just received, if that is one ACK or DELETE of messages that it holds and
        nothing else. False when nothing was done: it goes the way of all requests, which also says what is wrong with it."""
        session, lone = self._session, self._lone
        magazine = lone.look(session.arriving, size)
        if magazine is None or not session.held.holds(magazine, runs := lone.runs):
            return False
        application = session.application
        assert application is not None
        try:
            if type(session.principal) is not Anyone:
                check_queue(session.principal, self._state, "DELETE" if lone.deletes else "ACK", magazine)
            deleted = application.store.magazines.try_delete_lone(magazine, lone)
        except Exception as exc:
            session.await_answer()
            session.refuse(lone.request_id, exc)
            return True
        if deleted is False:
            return False
        application.turns.at_once += 1
        if deleted is True or not lone.deletes:
            session.claims.take(magazine, runs)
        if deleted is True:
            session.acknowledge(lone)
            application.has_room(magazine)
        else:
            self._flush(lone, deleted, magazine, runs)
        return True

    def _flush(self, lone: LoneAck, unflushed: PendingSync, magazine: str, runs: list[PointerRange]) -> None:
        """They are retired, and for good with the next flush. Of an ACK nobody holds them until then, and when it fails the
        connection does again."""
        session, application = self._session, self._session.application
        request_id, answer, deletes = lone.request_id, lone.answer(), lone.deletes
        assert application is not None
        session.await_answer()

        def flushed(error: BaseException | None) -> None:
            if error is None:
                if deletes:
                    session.claims.take(magazine, runs)
                if not session.closed:
                    session.write_now(answer, 1)
                application.has_room(magazine)
                return
            if not deletes:
                session.claims.hold(magazine, runs)
            if not session.closed:
                session.refuse(request_id, error)

        # Behind handlers a thread of their own waits for it.
        may_wait = deletes or not session.held.count_of(magazine)
        application.turns.deleted(unflushed, flushed, may_wait=may_wait)
