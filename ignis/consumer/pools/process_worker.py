"""A worker that is a process, fed and heard over mapped channels: what a killed worker had reported is known."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Protocol

from ignis.consumer.handler import Failure, HandlerSpec
from ignis.consumer.handler_log import message_id_in
from ignis.consumer.outcome import Failed
from ignis.consumer.pools import child
from ignis.consumer.pools.base import (
    COMMAND_DONE,
    COMMAND_FAILED,
    COMMAND_HANDED_OVER,
    COMMAND_HEARD,
    COMMAND_LOGGED,
    COMMAND_PROGRESS,
    COMMAND_RETURNED,
    COMMAND_SAID,
    COMMAND_SAW_CANCEL,
    COMMAND_START_FAILED,
    COMMAND_STARTED,
    COMMAND_TRACED,
    INBOX_CAPACITY,
    Chunk,
    Sink,
    Worker,
    frames_of,
    inbox_classes,
)
from ignis.consumer.pools.child_log import log_levels, relog
from ignis.consumer.work import Work, note_seen, open_work
from ignis.errors import ClosedError, NativeError, PeerDiedError, WorkerStartError
from ignis.exit_status import ending
from ignis.history import parsed
from ignis.log_format import event_text
from ignis.message import REASON_CANCELLED, REASON_CRASH
from ignis.native import Channel, encode_frame
from ignis.retries import Backoff
from ignis.safe_msgpack import ANY_NUMBER, decoder
from ignis.stack_file import StackFile
from ignis.stacks import start_thread
from ignis.tracing import unsettled

__all__ = ["ProcessWorker"]

log = logging.getLogger("ignis.workers")

_OUTBOX_CLASSES = ((256, 1024), (4 << 10, 64), (child.REPORT_BYTES, 16))
_POLL_S = 0.1
_decode = decoder(max_integers=ANY_NUMBER)


class WorkerOwner(Protocol):
    """What a worker needs of its pool."""

    spec: HandlerSpec
    sink: Sink
    codec: str
    max_record_bytes: int
    give_back_s: float
    directory: Path

    def name_of(self, first_id: int, count: int) -> str: ...

    def overrun_follows(self, first_id: int) -> bool: ...

    def on_ready(self) -> None: ...

    def on_death(self, worker: ProcessWorker) -> None: ...


class ProcessWorker(Worker):
    """One worker process, and the thread that hears it."""

    def __init__(self, pool: WorkerOwner, number: int) -> None:
        super().__init__(pool.sink)
        self._pool = pool
        self.name = f"ignis-{pool.spec.queue}-{number}"
        self.leaving = False
        self.started_at = time.monotonic()
        self._kill_reason: Failure | None = None
        self._kill_of: int | None = None  # what it was at when it was to be killed, where that counts
        self._cancelled: tuple[int, float] | None = None  # request id, since when
        self._work: Work | None = None  # of the call in progress, where it has told anything
        self._abandoned = self._give_back = False
        self.gave_back = False
        """Whether what it was at went back, because it was killed for that and has ended."""
        self._attached = False
        self.ready = False
        """The process has imported the handler's module and opened its channels."""
        self.start_error: str | None = None
        self._lock = threading.Lock()  # between handing over and taking back
        # Reports of what comes back, and how many of them the process knows to be heard.
        self._heard = self._told_heard = 0
        inbox, outbox = pool.directory / f"{number}.in", pool.directory / f"{number}.out"
        classes = inbox_classes(pool.max_record_bytes)
        self.inbox = Channel.create(
            inbox, role="producer", capacity=INBOX_CAPACITY, size_classes=classes, max_message_bytes=classes[-1][0]
        )
        self._outbox = Channel.create(
            outbox, role="consumer", capacity=1024, size_classes=_OUTBOX_CLASSES, max_message_bytes=child.REPORT_BYTES
        )
        times = pool.directory / f"{number}.times"
        self._counted = child.shared_durations(times, create=True)
        stacks = pool.directory / f"{number}.stacks"
        self._stacks = StackFile(stacks)
        self._files = (inbox, outbox, times, stacks)
        module, name = pool.spec.import_path()
        spec = child.ChildSpec(
            module,
            name,
            pool.spec.queue,
            pool.codec,
            str(inbox),
            str(outbox),
            str(times),
            str(stacks),
            os.getpid(),
            pool.give_back_s,
            {},
            -1,
            log_levels(),
        )
        try:
            self.process = child.launch(spec)
        except OSError as exc:
            self.close()
            limit = " (ulimit -n)" if exc.errno in (errno.EMFILE, errno.ENFILE) else ""
            raise WorkerStartError(pool.spec.name, pool.spec.queue, f"no process: {exc.strerror}{limit}") from exc
        self.thread = threading.Thread(target=self._hear, name=self.name, daemon=True)
        start_thread(self.thread)

    @property
    def label(self) -> str:
        return super().label.replace(f":{os.getpid()}/", f":{self.process.pid}/", 1)

    @property
    def call(self) -> int | None:
        """The process itself gives back what it has not begun (`child.HandOver`): here it is only kept from getting more."""
        try:
            return self.inbox.get_note(child.NOTE_FIRST) if self.inbox.get_note(child.NOTE_SINCE_US) else None
        except ClosedError:  # accounted for meanwhile
            return None

    def submit(self, chunk: Chunk, start: int, stop: int) -> bool:
        with self._lock:
            # One that has died and is not accounted for yet still owes what it gets here, and gives it back then: asking the
            # system for its life would cost more than the sending.
            return not self.leaving and self._tell_heard() and self._send(self.inbox, chunk, start, stop)

    def _tell_heard(self) -> bool:
        """So that the process knows what was sent before, see `loop.Returns`. False when the inbox has no room."""
        if self._told_heard == self._heard:
            return True
        try:
            if not self.inbox.try_send(encode_frame(COMMAND_HEARD, self._heard, b"")):
                return False
        except (ClosedError, NativeError):
            return False
        self._told_heard = self._heard
        return True

    def _hear_return(self) -> None:
        """What was reported waits for a worker now, and nothing passes it."""
        with self._lock:
            self._heard += 1

    def leave(self, stop: bool) -> None:
        """Asks the process to give back what it has not started, and with ``stop`` to end."""
        self.leaving = True
        try:
            self.inbox.set_note(child.NOTE_RETURN, 1)
            if stop:
                self.inbox.set_note(child.NOTE_STOP, 1)
        except ClosedError:
            return

    def running(self) -> tuple[int, int, float | None] | None:
        """(first request id, count, seconds so far) of the call in progress; None seconds when it has just ended."""
        try:
            first = self.inbox.get_note(child.NOTE_FIRST)
            if not first or not self.owes(first - 1):
                return None
            since_us = self.inbox.get_note(child.NOTE_SINCE_US)
            seconds = time.monotonic() - since_us / 1e6 if since_us else None
            return first - 1, self.inbox.get_note(child.NOTE_COUNT), seconds
        except ClosedError:  # accounted for meanwhile
            return None

    def name_of(self, first_id: int, count: int) -> str:
        """What it is at, for the log: it may be reported meanwhile."""
        try:
            return self._pool.name_of(first_id, count)
        except LookupError:
            return "a message that is reported by now"

    def overrun_follows(self, first_id: int) -> bool:
        """As that of the pool."""
        try:
            return self._pool.overrun_follows(first_id)
        except LookupError:  # as in `name_of`
            return False

    def cancel(self, request_id: int) -> None:
        running = self.running()
        if running is None or running[0] != request_id:
            return  # it is asked again
        if self._cancelled is None or self._cancelled[0] != request_id:
            self._cancelled = request_id, time.monotonic()
        try:
            self.inbox.set_note(child.NOTE_CANCEL, request_id + 1)
        except ClosedError:
            return

    def kill_cancelled(self, now_s: float, grace_s: float) -> None:
        """Kills it when it goes on for too long with a message that was cancelled."""
        cancelled = self._cancelled
        if cancelled is None:
            return
        running = self.running()
        if running is None or running[0] != cancelled[0]:
            self._cancelled = None
        elif now_s - cancelled[1] > grace_s:
            self._cancelled = None
            log.warning(
                event_text(
                    "worker_process_ignores_cancel",
                    "worker process %d (%s) went on with %s for %g s after it was cancelled, and is killed"),
                self.process.pid, self.name, (named := self.name_of(running[0], running[1])), grace_s,
                extra={"queue": self._pool.spec.queue, "message_id": message_id_in(named)},
            )  # fmt: skip
            self._kill_of = cancelled[0]
            self.kill(Failure(REASON_CANCELLED, f"its process was killed {grace_s:g} s after it was told"))

    def kill(self, reason: Failure | None, *, give_back: bool = False) -> None:
        """SIGKILL; what was running goes to the sideline for ``reason``, or without one stays claimed, or with ``give_back`` goes
        back."""
        self._kill_reason = reason
        self._give_back = give_back
        self._abandoned = reason is None
        self.process.kill()

    def _hear(self) -> None:
        try:
            while True:
                try:
                    messages = self._outbox.recv_many(256, _POLL_S)
                except PeerDiedError:
                    break
                self._take(messages)
                self._stacks.log_new(log, self.process.pid)
                if not self._attached and self._outbox.peer_alive() is not None:
                    self._attached = True
                    self._unlink()
                if not messages and self.process.poll() is not None:
                    self._take(self._outbox.recv_many(1 << 20, 0))
                    break
        except PeerDiedError:
            pass
        except ClosedError:
            if self._outbox.closed:
                return
            # The other side closed it: the process is at its end.
        except Exception:
            log.exception(event_text("worker_broken", "reader of %s failed"), self.name)
            self.process.kill()
        self._account()

    def _take(self, messages: list[bytes]) -> None:
        if messages:
            self.durations.take(self._counted)
        for message in messages:
            for command, request_id, payload in frames_of(message):
                if command in (COMMAND_DONE, COMMAND_FAILED, COMMAND_RETURNED):
                    self._work = None  # a call that tells anything has ended with the next report
                if command == COMMAND_DONE:
                    count, timed, elapsed_s = _decode(payload)
                    self.on_done(request_id, count)
                    if timed:
                        self.on_timing(timed, elapsed_s)
                elif command == COMMAND_FAILED:
                    reason, error, attempts, again = _decode(payload)
                    after = None if again is None else Backoff(*again)
                    self.on_failed(request_id, Failed.of(reason, error, parsed(attempts), again=after))
                elif command == COMMAND_RETURNED:
                    self.on_returned(request_id, _decode(payload))
                    self._hear_return()
                elif command == COMMAND_HANDED_OVER:  # from behind the call that it goes on with
                    count = _decode(payload)
                    with self._lock:
                        self._disown(request_id, count)
                    self._sink.on_returned(request_id, count)
                    self._hear_return()
                elif command == COMMAND_STARTED:
                    self.ready = True
                    self._pool.on_ready()
                elif command == COMMAND_START_FAILED:
                    self.start_error = payload.decode("utf-8", "replace")
                else:
                    self._hear_said(command, payload)

    def _hear_said(self, command: int, payload: bytes) -> None:
        """What the process says beside its outcomes."""
        if command == COMMAND_PROGRESS:
            id, fraction, text = _decode(payload)
            if self._work is None or self._work.id != id:
                self._work = open_work(self._pool.spec.queue, id)
            self._work.tell(fraction, text)
        elif command == COMMAND_SAW_CANCEL:
            note_seen(self._pool.spec.queue, _decode(payload))
        elif command == COMMAND_SAID:
            self._pool.spec.log.forwarded(*_decode(payload))
        elif command == COMMAND_LOGGED:
            relog(_decode(payload))
        elif command == COMMAND_TRACED:
            unsettled.note(self._pool.spec.queue, *_decode(payload))

    def _account(self) -> None:
        """The process is gone: account for what it was at and hand the rest back."""
        if not self.ended(5.0):
            self.process.kill()
            self.ended(5.0)
        with self._lock:
            self.leaving = True
        code = self.process.returncode
        if not self.ready and self.start_error is None:
            self.start_error = f"the process ended with {ending(code)} before it was ready"
        running = self.running()
        self.durations.take(self._counted)
        if running is not None and running[2] is not None and not self._abandoned:
            self.durations.add(running[2], running[1])
        self._work = None
        if not self._give_back and (self.outstanding or (code and self._kill_reason is None)):
            at = f", at {self.name_of(running[0], running[1])}" if running else ""
            log.warning(
                event_text("worker_process_died", "worker process %d (%s) of queue %s ended with %s and %d message(s) in hand%s"),
                self.process.pid, self.name, self._pool.spec.queue, ending(code), self.outstanding, at,
                extra={"queue": self._pool.spec.queue, "message_id": message_id_in(at)},
            )  # fmt: skip
        failure = self._kill_reason
        if self._kill_of is not None and (running is None or running[0] != self._kill_of):
            failure = None  # it had come to its end, and the kill met the next one
        if failure is None and not self._abandoned:
            failure = Failure(REASON_CRASH, f"worker process ended with {ending(code)}")
        first, count = (running[0], running[1]) if running else (0, 0)
        give_back = self._give_back and failure is None and self.process.returncode is not None
        self.settle_lost(first, count, failure, give_back=give_back)
        self.gave_back = give_back
        self._pool.on_death(self)

    def ended(self, timeout: float) -> bool:
        """Waits for the end of the process, at most so many seconds."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _unlink(self) -> None:
        # Both sides have them mapped: nothing of a killed process stays behind in the file system.
        for path in self._files:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        self.inbox.close()
        self._outbox.close()
        self._stacks.close()
        self._unlink()
