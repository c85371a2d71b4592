"""Carries the requests of any number of threads over one connection, without a thread of its own."""

from __future__ import annotations

import threading
import time

from ignis.broker.client.address import refusal_of
from ignis.broker.client.pending_acks import MAX_PENDING, PendingAcks
from ignis.broker.client.shared_reader import SharedReader
from ignis.broker.client.slot import Slot
from ignis.broker.client.sync_transport import SLICE_S
from ignis.broker.protocol.commands import ANSWERS, Command
from ignis.broker.protocol.machine import Answer, Undo
from ignis.broker.protocol.payloads import Connect
from ignis.broker.protocol.table import FINISHING
from ignis.errors import (
    ClosedError,
    ConnectionLostError,
    IgnisError,
    MalformedFrameError,
    StoreTimeoutError,
)
from ignis.native.wire import QUIET_CONNECTION_S, Outgoing, exchange_lone, receive_answer

__all__ = ["SyncConnection"]

_FINISHING = frozenset(int(one) for one in FINISHING)
_SEND_BATCH = int(Command.SEND_BATCH)
_DELIVERED = frozenset({int(Command.DELIVER)})
_TAKEN = frozenset(int(one) for one in ANSWERS) - {int(Command.ERROR)}


class SyncConnection(SharedReader):
    """Carries requests and their answers over one connection: whoever waits for an answer reads for all. Thread-safe.

    The arguments are those of `SharedReader`.
    """

    def greet(self, head: Connect, timeout_s: float) -> None:
        """CONNECT. Raises what the broker answers, ConnectionLostError, StoreTimeoutError."""
        slot, deadline = Slot(), time.monotonic() + timeout_s
        with self._sending:
            with self._lock:
                frame = self.machine.connect(head, slot)
            self._push(frame, deadline)
        answer = self._answer(slot, deadline)
        if self.tls_error is not None:
            raise self.tls_error
        if answer is None:
            raise StoreTimeoutError("CONNECT", int(timeout_s * 1000), "client.connect_timeout_s")
        if answer.error is not None:
            raise refusal_of(head, answer.error)

    def look(self) -> bool:
        """Whether the connection stands, after a look at what has come; does not wait."""
        if time.monotonic() - self.heard_s > QUIET_CONNECTION_S:
            self._glance()
        return self.alive

    def exchange(self, command: int, payload: bytes, timeout_s: float, undo: Undo | None = None) -> bytes:
        """The payload of the answer. Raises what the broker answers; ConnectionLostError, TooManyRequestsError;
        StoreTimeoutError: whether it was done is open, and the answer is dropped, and undone, when it comes. NestedCallError."""
        with self.calling:
            found = None
            if timeout_s >= SLICE_S:
                found = exchange_lone(self, Outgoing(command, payload), timeout_s, _TAKEN, undo)
            if isinstance(found, bytes):
                return found
            if found is None:
                slot, deadline = Slot(), time.monotonic() + timeout_s
                request_id = self.begin(command, payload, slot, deadline)
            else:
                request_id, slot, deadline = found
            return self._answer_to(command, request_id, slot, deadline, timeout_s, undo)

    def exchange_alone(self, outgoing: Outgoing, timeout_s: float) -> bytes | None:
        """`exchange` of a request that can be sent at once, nobody else waiting on the connection; None when it cannot, and
        nothing was sent."""
        broker = self.machine.broker
        if broker is None or outgoing.nbytes > broker.max_frame_bytes or timeout_s < SLICE_S:
            return None
        with self.calling:
            found = exchange_lone(self, outgoing, timeout_s, _TAKEN, None)
            if found is None or isinstance(found, bytes):
                return found
            request_id, slot, deadline = found
            return self._answer_to(_SEND_BATCH, request_id, slot, deadline, timeout_s, None)

    def _answer_to(
        self, command: int, request_id: int, slot: Slot, deadline: float, timeout_s: float, undo: Undo | None
    ) -> bytes:
        """Waits for the answer to a request that was sent. Raises as `exchange`."""
        try:
            answer = self._answer(slot, deadline)
        except BaseException:  # KeyboardInterrupt: the id must stay reserved
            self.cancel(request_id, slot, undo)
            raise
        if answer is None:
            self.cancel(request_id, slot, undo)
            raise StoreTimeoutError(f"{Command(command).name} to the broker", int(timeout_s * 1000), "client.timeout_s")
        if answer.error is not None:
            raise answer.error
        return answer.payload

    def _adopt(self, request_id: int) -> Slot:
        """Returns the slot that gets the answer of a request which was sent by itself, when it comes."""
        slot = Slot()
        with self._lock:
            if self._lost is None:
                self.machine.adopt(request_id, slot)
            elif not slot.over:
                slot.put(Answer(slot, 0, b"", ConnectionLostError(self._lost, sent=True)))
        return slot

    def begin(
        self, command: int, payload: bytes, slot: Slot | PendingAcks, deadline: float, *, streams: bool = False
    ) -> int:
        """Sends a request whose answers go into the slot; returns its id."""
        if time.monotonic() - self.heard_s > QUIET_CONNECTION_S:
            self._glance()
        # Others may be sending for as long as the peer does not read; then nothing of this request has left.
        if not self._sending.acquire(blocking=False) and not self._sending.acquire(
            timeout=max(0.0, deadline - time.monotonic())
        ):
            raise ConnectionLostError("other threads' requests could not be sent in time", sent=False)
        try:
            with self._lock:
                if self._lost is not None:
                    raise ConnectionLostError(self._lost, sent=False)
                if self.machine.draining and command not in _FINISHING:
                    raise ConnectionLostError("the broker is shutting down", sent=False)
                request_id, frame = self.machine.request(command, payload, slot, streams=streams, sent=True)
                if slot is self.pending_acks:
                    self.pending_acks.count += 1
                if self.machine.owes:
                    frame = self.machine.undo() + frame
            self._push(frame, deadline)
        finally:
            self._sending.release()
        return request_id

    def next_answer(self, slot: Slot, timeout_s: float) -> Answer | None:
        """The next answer in the slot, or None when none came in time. Raises ClosedError after the last."""
        with self.calling:
            answer = self._answer(slot, time.monotonic() + timeout_s)
        if answer is None and slot.over:
            raise ClosedError("the subscription has ended")
        return answer

    def delivery_alone(self, slot: Slot, request_id: int, deadline: float) -> bytes | None:
        """The payload of what is delivered next to the subscription of that number, if it comes alone while this thread reads for
        all. None when something else came, or nothing for a moment: `next_answer` has it then, or waits on."""
        with self.calling:
            return self._delivery_alone(slot, request_id, deadline)

    def _delivery_alone(self, slot: Slot, request_id: int, deadline: float) -> bytes | None:
        fd, machine = self._transport.bare_fd, self.machine
        if fd < 0:
            return None
        with self._lock:
            if slot.settled() or self._reader or self._lost is not None:
                return None
            self._reader = threading.get_ident()
        try:
            while deadline - time.monotonic() >= SLICE_S:
                got = receive_answer(machine.reader, fd, request_id, _DELIVERED)
                if isinstance(got, tuple):
                    return got[1] if self._is_waited_for(slot, request_id, got[1]) else None
                if got is None:
                    return None
                self._took(got)
                if slot.settled() or not self.alive:
                    return None
        except (OSError, MalformedFrameError, IgnisError) as exc:
            self.lose(str(exc), exc if isinstance(exc, IgnisError) else None)
        finally:
            with self._lock:
                self._pass_on()
        return None

    def tell(self, command: int, payload: bytes, timeout_s: float) -> None:
        """Sends a request whose answer nobody waits for, see `wait_acks`; waits when too many have none yet. Raises what an
        earlier one was answered; then this one was not sent."""
        deadline = time.monotonic() + timeout_s
        with self.calling:
            if self.pending_acks.count >= MAX_PENDING:
                self._await_open(MAX_PENDING // 2, deadline)
            with self._lock:
                error = self.pending_acks.take_error()
            if error is not None:
                raise error
            self.begin(command, payload, self.pending_acks, deadline)

    def wait_acks(self, timeout_s: float) -> int:
        """Waits until everything that was told is answered; returns how many messages that retired since the last
        call. Raises the first refusal."""
        with self.calling:
            self._await_open(0, time.monotonic() + timeout_s)
            with self._lock:
                error = self.pending_acks.take_error()
                retired = 0 if error is not None else self.pending_acks.take_retired()
        if error is not None:
            raise error
        return retired

    def _await_open(self, most: int, deadline: float) -> None:
        slot, left_s = Slot(), deadline - time.monotonic()
        with self._lock:
            if self.pending_acks.count <= most:
                return
            self.pending_acks.when_down_to(most, slot.put)
        if self._answer(slot, deadline) is None:
            raise StoreTimeoutError("acknowledgements", int(left_s * 1000), "client.timeout_s")

    def cancel(self, request_id: int, slot: Slot, undo: Undo | None = None) -> None:
        """Nobody waits at the slot any more; see `ClientMachine.cancel`."""
        with self._lock:
            self.machine.cancel(request_id, undo, slot.answers)
            owes = self.machine.owes
        if owes:
            self._undo()

    def end_stream(self, request_id: int, slot: Slot) -> None:
        """A subscription is over; what was delivered and not looked at is forgotten."""
        with self._lock:
            self.machine.end_stream(request_id)
            slot.answers.clear()
            slot.over = True
            slot.wake()

    def interrupt(self, slot: Slot, exc: IgnisError) -> None:
        """The thread that waits at the slot gets the exception."""
        with self._lock:
            slot.put(Answer(None, 0, b"", exc))
