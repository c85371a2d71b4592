"""Reads one connection for any number of threads, without a thread of its own.

Whoever waits for an answer reads: if nobody reads, a waiting thread becomes the reader and gives every answer that
comes to whom it belongs; when its own is there it passes the reading on to another waiting thread. So a lone caller
pays no change of threads.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque

from ignis.broker.client.pending_acks import PendingAcks
from ignis.broker.client.reconnect import final_tls_error
from ignis.broker.client.slot import Slot
from ignis.broker.client.sync_transport import SLICE_S, open_transport
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.machine import Answer, ClientMachine, State
from ignis.errors import IgnisError, MalformedFrameError
from ignis.native.wire import CallGuard, ReadArea

__all__ = ["SharedReader"]

_CHUNK_BYTES = 256 * 1024
_WRITE_SLICE_S = 0.1


class SharedReader:
    """One connection, read by whoever waits at a slot, until it is lost. Thread-safe.

    Args:
        sock: connected; the connection owns it from now on.
        max_frame_bytes, max_pending: see `ClientMachine`.
    """

    def __init__(self, sock: socket.socket, max_frame_bytes: int, max_pending: int) -> None:
        self.machine = ClientMachine(ReadArea(_CHUNK_BYTES), max_frame_bytes, max_pending)
        self.heard_s = time.monotonic()
        self.pending_acks = PendingAcks()
        self.calling = CallGuard()
        """Held by each thread that is in a call: what a signal's handler calls would find its state half changed."""
        self._transport = open_transport(sock)
        self._sending = threading.Lock()  # taken before the next one, never after
        self._lock = threading.Lock()  # over the machine, the slots and the three below
        self._reader = 0
        """The thread that reads for all, or 0."""
        self._parked: deque[Slot] = deque()
        self._lost: str | None = None
        self.tls_error: ssl.SSLError | None = None
        """Why the other side ended the connection, if it was about TLS."""

    @property
    def alive(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._lost is None

    @property
    def usable(self) -> bool:
        """Whether new requests may be made on it."""
        return self._lost is None and not self.machine.draining

    @property
    def state(self) -> State:
        return self.machine.state

    def _glance(self) -> bool:
        """Looks at what has come, without waiting, unless another thread reads: the end of the connection, or a broker that
        is going, are to be known before a request is entrusted to it. Returns False when another one reads."""
        with self._lock:
            if self._lost is not None:
                return True
            if self._reader:
                return False
            self._reader = threading.get_ident()
        try:
            self._read_once(0)
        finally:
            with self._lock:
                self._pass_on()
        return True

    def _answer(self, slot: Slot, deadline: float) -> Answer | None:
        """The next answer in the slot; None when it is over or the time is up."""
        me = threading.get_ident()
        try:
            while True:
                with self._lock:
                    left_s = deadline - time.monotonic()
                    if slot.answers or slot.over or self._lost is not None or left_s <= 0:
                        if self._reader == me:
                            self._pass_on()
                        return slot.answers.popleft() if slot.answers else None
                    signal = None
                    if not self._reader:
                        self._reader = me
                    elif self._reader != me:
                        signal = slot.park()
                        self._parked.append(slot)
                if signal is None:
                    self._read_once(left_s)
                else:
                    self._park(slot, signal, left_s)
        except BaseException:
            if self._reader == me:  # nobody else can change that
                with self._lock:
                    self._pass_on()
            raise

    def _park(self, slot: Slot, signal: threading.Lock, timeout_s: float) -> None:
        woken = False
        try:
            woken = signal.acquire(timeout=timeout_s)
        finally:
            if not woken:
                with self._lock:
                    if slot.parked:
                        slot.parked = False
                    else:
                        # Woken just now: take the signal, and hand on what it may have been about.
                        signal.acquire(blocking=False)
                        self._wake_one()

    def _pass_on(self) -> None:
        """Reads no more; another one is to. Caller holds the lock."""
        self._reader = 0
        if self._lost is not None:
            self._transport.close()  # not before: its number must not be another's while somebody is inside with it
        if self._parked:
            self._wake_one()

    def _wake_one(self) -> None:
        """Wakes one waiting thread, which looks whether it is to read. Caller holds the lock."""
        while self._parked:
            slot = self._parked.popleft()
            if slot.parked:
                slot.wake()
                return

    def _read_once(self, timeout_s: float) -> None:
        """Waits for bytes, for a bounded time, and gives out what they answer. Only the reader calls this."""
        try:
            with self.machine.receive_buffer() as buffer:
                size = self._transport.receive(buffer, timeout_s)
            if size is not None:
                self._took(size)
        except (MalformedFrameError, IgnisError) as exc:
            self.lose(str(exc), exc)
        except (OSError, ValueError) as exc:
            self.tls_error = final_tls_error(exc)
            self.lose(f"receiving failed: {exc}")

    def _took(self, size: int) -> None:
        """Gives out what so many bytes answer. Only the reader calls this. Raises MalformedFrameError, ProtocolError."""
        if not size:
            self.lose("the broker closed the connection")
            return
        self.heard_s = time.monotonic()
        with self._lock:
            self._give_out(self.machine.received(size))
            failure, owes = self.machine.failure, self.machine.owes
        if owes:
            self._undo()
        if failure is not None:
            self.lose(str(failure), failure)

    def _is_waited_for(self, slot: Slot, request_id: int, payload: bytes) -> bool:
        """Whether a delivery is for who has read it. One that another thread has given up meanwhile, or interrupted, goes the way
        of all answers. Only the reader calls this."""
        self.heard_s = time.monotonic()
        with self._lock:
            if not slot.answers and self.machine.streams(request_id):
                return True
            self._give_out(self.machine.came(int(Command.DELIVER), request_id, payload))
            owes = self.machine.owes
        if owes:
            self._undo()
        return False

    @staticmethod
    def _give_out(answers: list[Answer]) -> None:
        """Caller holds the lock."""
        for answer in answers:
            if answer.token is not None:
                answer.token.put(answer)

    def _undo(self) -> None:
        """Gives back what late answers brought; if another thread is sending, or there is no room, the next request
        takes it along. The reader must not wait here: everybody waits for it."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            if self._transport.ready(select.POLLOUT, 0):
                with self._lock:
                    frames = self.machine.undo()
                self._push(frames, time.monotonic() + SLICE_S)
        finally:
            self._sending.release()

    # -- out

    def _push(self, frame: bytes | memoryview, deadline: float) -> None:
        """Caller is the one who sends."""
        view = memoryview(frame)
        try:
            while True:
                try:
                    sent = self._transport.send(view)
                    if sent == len(view):
                        return
                    view = view[sent:]
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        # Half a frame cannot be taken back: the connection is of no use any more.
                        self.lose("a request could not be sent in time")
                        return
                    self._await_writable()
        except (OSError, ValueError) as exc:
            self.lose(f"sending failed: {exc}")
        except BaseException:  # KeyboardInterrupt
            if len(view) != len(frame):
                self.lose("sending a request was interrupted half way")
            raise

    def _await_writable(self) -> None:
        """The broker may be waiting for us to read before it reads: so read what there is meanwhile."""
        found = self._transport.ready(select.POLLOUT | select.POLLIN, _WRITE_SLICE_S)
        if found & ~select.POLLOUT and not self._glance():
            time.sleep(0.001)  # another thread reads; it is at it

    # -- the end

    def give_notice(self) -> None:
        """No new requests on this one: the broker has said, by refusing one, that it is going."""
        with self._lock:
            self.machine.draining = True

    def lose(self, why: str, exc: IgnisError | None = None) -> None:
        """The connection is gone: everybody who waits is told. Idempotent."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = why
            turned_away = exc is not None and self.machine.broker is None
            for answer in self.machine.lost(why):
                if answer.token is not None:
                    # Of CONNECT: why it was turned away.
                    answer.token.put(answer._replace(error=exc) if turned_away else answer)
            while self._parked:
                self._wake_one()
            unread = self._reader in (0, threading.get_ident())
        self._transport.shut()
        if unread:
            self._transport.close()
