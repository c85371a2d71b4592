"""One connection of the sync client, shared by any number of threads, without a thread of its own.

Whoever waits for an answer reads: if nobody reads, a waiting thread becomes the reader and gives every answer that
comes to whom it belongs; when its own is there it passes the reading on to another waiting thread. So a lone caller
pays no change of threads.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections import deque

from ignis.broker.commands import FINISHING
from ignis.broker.payloads import Connect
from ignis.broker.protocol import Answer, ClientMachine, State
from ignis.errors import (
    ClosedError,
    ConnectionLostError,
    IgnisError,
    MalformedFrameError,
    StoreTimeoutError,
)
from ignis.native.wire import ReadArea

__all__ = ["Link", "Slot"]

_CHUNK_BYTES = 256 * 1024
_SLICE_S = 0.5
_QUIET_S = 0.02


class Slot:
    """Where one thread waits: for one answer, or for those of a subscription. Guarded by the link's lock."""

    __slots__ = ("answers", "over", "parked", "signal")

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.over = False
        """No further answer comes."""
        self.parked = False
        self.signal = threading.Lock()
        self.signal.acquire()

    def wake(self) -> None:
        """The thread looks again. Caller holds the link's lock."""
        if self.parked:
            self.parked = False
            self.signal.release()


class Link:
    """See the module. Thread-safe.

    Args:
        sock: connected; the link owns it from now on.
        max_frame_bytes, max_pending: see `ClientMachine`.
    """

    def __init__(self, sock: socket.socket, max_frame_bytes: int, max_pending: int) -> None:
        sock.setblocking(False)
        self.machine = ClientMachine(ReadArea(_CHUNK_BYTES), max_frame_bytes, max_pending)
        self.heard_s = time.monotonic()
        self._sock = sock
        self._fd = sock.fileno()
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._io = threading.Lock()  # TLS: one call on the socket at a time
        self._lock = threading.Lock()  # over the machine, the slots and the two below
        self._sending = threading.Lock()
        self._reading = False
        self._parked: deque[Slot] = deque()
        self._lost: str | None = None

    @property
    def alive(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._lost is None

    @property
    def usable(self) -> bool:
        """Whether new requests may be made on it."""
        return self._lost is None and not self.machine.draining

    # -- requests

    def greet(self, head: Connect, timeout_s: float) -> None:
        """CONNECT. Raises what the broker answers, ConnectionLostError, StoreTimeoutError."""
        slot = Slot()
        with self._lock:
            frame = self.machine.connect(head, slot)
        self._send(frame, 0, time.monotonic() + timeout_s)
        self._await(slot, time.monotonic() + timeout_s)
        answer = self._take(slot)
        if answer is None:
            raise StoreTimeoutError("CONNECT", int(timeout_s * 1000), "client.connect_timeout_s")
        if answer.error is not None:
            raise answer.error

    def exchange(self, command: int, payload: bytes, timeout_s: float) -> bytes:
        """The payload of the answer. Raises what the broker answers; ConnectionLostError, TooManyRequestsError;
        StoreTimeoutError: whether it was done is open, and the answer is dropped when it comes."""
        slot = Slot()
        deadline = time.monotonic() + timeout_s
        request_id = self.begin(command, payload, slot, deadline)
        try:
            self._await(slot, deadline)
        except BaseException:  # KeyboardInterrupt: the id must stay reserved
            self.cancel(request_id)
            raise
        answer = self._take(slot)
        if answer is None:
            self.cancel(request_id)
            raise StoreTimeoutError(f"request {command} to the broker", int(timeout_s * 1000), "client.timeout_s")
        if answer.error is not None:
            raise answer.error
        return answer.payload

    def begin(self, command: int, payload: bytes, slot: Slot, deadline: float, *, streams: bool = False) -> int:
        """Sends a request whose answers go into the slot; returns its id."""
        if time.monotonic() - self.heard_s > _QUIET_S:
            self._glance()
        with self._lock:
            if self._lost is not None:
                raise ConnectionLostError(self._lost, sent=False)
            if self.machine.draining and command not in FINISHING:
                raise ConnectionLostError("the broker is shutting down", sent=False)
            request_id, frame = self.machine.request(command, payload, slot, streams=streams)
        self._send(frame, request_id, deadline)
        return request_id

    def _glance(self) -> None:
        """Nobody may have read for a while: what came meanwhile (the end, or a broker that is going) is looked at before a
        request is entrusted to the connection."""
        with self._lock:
            if self._reading or self._lost is not None:
                return
            self._reading = True
        try:
            self._read_once(0)
        finally:
            self._pass_on()

    def next_answer(self, slot: Slot, timeout_s: float) -> Answer | None:
        """The next answer in the slot, or None when none came in time. Raises ClosedError after the last."""
        self._await(slot, time.monotonic() + timeout_s)
        answer = self._take(slot)
        if answer is None and slot.over:
            raise ClosedError("the subscription has ended")
        return answer

    def cancel(self, request_id: int) -> None:
        """Nobody waits for this one any more."""
        with self._lock:
            self.machine.cancel(request_id)

    def end_stream(self, request_id: int, slot: Slot) -> None:
        """A subscription is over; what was delivered and not looked at is forgotten."""
        with self._lock:
            self.machine.end_stream(request_id)
            slot.over = True
            slot.wake()

    def interrupt(self, slot: Slot, exc: IgnisError) -> None:
        """The thread that waits at the slot gets the exception."""
        with self._lock:
            slot.answers.append(Answer(None, 0, b"", exc))
            slot.over = True
            slot.wake()

    def _take(self, slot: Slot) -> Answer | None:
        with self._lock:
            return slot.answers.popleft() if slot.answers else None

    # -- out

    def _send(self, frame: bytes, request_id: int, deadline: float) -> None:
        view = memoryview(frame)
        # Others may be sending for as long as the peer does not read; then nothing of this frame has left.
        if not self._sending.acquire(timeout=max(0.0, deadline - time.monotonic())):
            with self._lock:
                self.machine.forget(request_id)
            raise ConnectionLostError("other threads' requests could not be sent in time", sent=False)
        try:
            with self._lock:
                self.machine.sent(request_id)
            while view:
                try:
                    sent = self._write(view[:_CHUNK_BYTES] if self._tls else view)
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    if time.monotonic() >= deadline:
                        # Half a frame cannot be taken back: the connection is of no use any more.
                        self.lose("a request could not be sent in time")
                        return
                    self._await_writable()
                    continue
                except InterruptedError:
                    continue
                except (OSError, ValueError) as exc:
                    self.lose(f"sending failed: {exc}")
                    return
                view = view[sent:]
        finally:
            self._sending.release()

    def _write(self, view: memoryview) -> int:
        if self._tls:
            with self._io:
                return self._sock.send(view)
        return self._sock.send(view)

    def _await_writable(self) -> None:
        """The broker may be waiting for us to read before it reads: so read what there is meanwhile."""
        poller = select.poll()
        try:
            poller.register(self._fd, select.POLLOUT | select.POLLIN)
            ready = poller.poll(100)
        except (OSError, ValueError):
            return
        if any(event & ~select.POLLOUT for _, event in ready):
            with self._lock:
                lead = not self._reading and self._lost is None
                self._reading = self._reading or lead
            if lead:
                try:
                    self._read_once(0)
                finally:
                    self._pass_on()
            else:
                time.sleep(0.001)

    # -- in

    def _await(self, slot: Slot, deadline: float) -> None:
        """Until the slot has an answer, is over, or the time is up."""
        while True:
            with self._lock:
                if self._settled(slot):
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                lead = not self._reading
                if lead:
                    self._reading = True
                else:
                    slot.parked = True
                    self._parked.append(slot)
            if not lead:
                self._park(slot, left)
                continue
            try:
                while not self._settled(slot):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        break
                    self._read_once(min(left, _SLICE_S))
            finally:
                self._pass_on()

    def _settled(self, slot: Slot) -> bool:
        return bool(slot.answers) or slot.over or self._lost is not None

    def _park(self, slot: Slot, timeout_s: float) -> None:
        woken = False
        try:
            woken = slot.signal.acquire(timeout=timeout_s)
        finally:
            if not woken:
                with self._lock:
                    if slot.parked:
                        slot.parked = False
                    else:
                        # Woken just now: take the signal, and hand on what it may have been about.
                        slot.signal.acquire(blocking=False)
                        self._wake_one()

    def _pass_on(self) -> None:
        with self._lock:
            self._reading = False
            self._wake_one()

    def _wake_one(self) -> None:
        """One waiting thread looks whether it is to read. Caller holds the lock."""
        while self._parked:
            slot = self._parked.popleft()
            if slot.parked:
                slot.wake()
                return

    def _read_once(self, timeout_s: float) -> None:
        """Waits for bytes and gives out what they answer. Only the reader calls this."""
        try:
            if not self._tls and not self._readable(timeout_s):
                return
            buffer = self.machine.receive_buffer()
            try:
                size = self._receive(buffer)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                buffer.release()
                if self._tls:
                    self._readable(timeout_s)
                return
            finally:
                buffer.release()
            if not size:
                self.lose("the broker closed the connection")
                return
            self.heard_s = time.monotonic()
            with self._lock:
                answers = self.machine.received(size)
                for answer in answers:
                    self._give(answer)
            if self.machine.failure is not None:
                self.lose(str(self.machine.failure), self.machine.failure)
        except InterruptedError:
            return
        except (MalformedFrameError, IgnisError) as exc:
            self.lose(str(exc), exc)
        except (OSError, ValueError) as exc:
            self.lose(f"receiving failed: {exc}")

    def _receive(self, buffer: memoryview) -> int:
        if self._tls:
            with self._io:
                return self._sock.recv_into(buffer)
        return self._sock.recv_into(buffer)

    def _readable(self, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def _give(self, answer: Answer) -> None:
        slot = answer.token
        if isinstance(slot, Slot):
            slot.answers.append(answer)
            if answer.last:
                slot.over = True
            slot.wake()

    # -- the end

    def lose(self, why: str, exc: IgnisError | None = None) -> None:
        """The connection is gone: everybody who waits is told. Idempotent."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = why
            answers = self.machine.lost(why)
            for answer in answers:
                # Of CONNECT: why it was turned away.
                refused = exc is not None and self.machine.broker is None
                self._give(answer._replace(error=exc) if refused else answer)
            while self._parked:
                self._wake_one()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for bytes
        self._sock.close()

    @property
    def state(self) -> State:
        return self.machine.state
