"""What a worker process runs. It never opens the store: chunks come in and outcomes go out over two mapped channels."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import logging
import mmap
import multiprocessing.process
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from typing import Any

import msgspec

from ignis.consumer.handler import Failure, failure_of
from ignis.consumer.handler_log import FailureTold, failure_told
from ignis.consumer.outcome import again_after, attempts_of
from ignis.consumer.pools.base import (
    COMMAND_DONE,
    COMMAND_FAILED,
    COMMAND_HANDED_OVER,
    COMMAND_LOGGED,
    COMMAND_PROGRESS,
    COMMAND_RETURNED,
    COMMAND_SAID,
    COMMAND_SAW_CANCEL,
    COMMAND_START_FAILED,
    COMMAND_STARTED,
    COMMAND_TRACED,
    HELD_UP_S,
)
from ignis.consumer.pools.child_log import ForwardedLog, LogLevels, packed
from ignis.consumer.pools.loop import FramesInbox, WorkLoop
from ignis.consumer.registered import Registered, registered
from ignis.consumer.work import Work, add_outlet
from ignis.errors import ClosedError, ConfigError, MainGuardError, PeerDiedError, UnreadableMessageError
from ignis.figures import HANDLING
from ignis.history import extended
from ignis.log_format import log_uncaught
from ignis.main_guard import running_again
from ignis.message import MAX_ERROR_CHARS, Message, as_utf8
from ignis.native import Channel, Record, encode_frame
from ignis.native.histogram import HISTOGRAM_BYTES, Histogram
from ignis.stacks import start_thread
from ignis.tracing.unsettled import report_to

__all__ = [
    "NOTE_CANCEL",
    "NOTE_COUNT",
    "NOTE_FIRST",
    "NOTE_RETURN",
    "NOTE_SINCE_US",
    "NOTE_STOP",
    "REPORT_BYTES",
    "ChildSpec",
    "entry",
    "launch",
    "shared_durations",
]

# Notes in the inbox's region: what the worker is at, readable by the parent even when the worker is dead ...
NOTE_FIRST = 0  # request id + 1 of the last message whose handling began, 0 = none yet
NOTE_COUNT = 1  # messages of the call: 1, or the size of the batch
NOTE_SINCE_US = 2  # CLOCK_MONOTONIC microseconds when the call began, 0 = it has ended
# ... and what the parent wants of it.
NOTE_RETURN = 3  # 1 = give back what is not started
NOTE_STOP = 4  # 1 = end
NOTE_CANCEL = 5  # request id + 1 of a message that is to end, 0 = none

REPORT_BYTES = 32 << 10
"""The largest report: a failure with its error and its last attempts, or a line for the log."""

_PARENT_CHECK_S = 0.2
_CALL_CHECK_S = 0.05
"""Between two looks while a call is in progress that may hold up what lies behind it."""
_REPORT_S = 5.0
_TELL_S = 0.5
"""Progress that looks the same is told to the parent again after so long."""
_MOST_WHY = 1_500
_MAIN_KEYS = ("init_main_from_name", "init_main_from_path")
# The parent coordinates stopping: a terminal's Ctrl-C and its end reach the whole process group. Ignored from the first line
# on. The paths come first, so that the package is found where the parent found it.
_PROGRAM = """\
import os, pickle, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
with os.fdopen({fd}, "rb") as pipe:
    sys.path[:], spec = pickle.load(pipe)
from ignis.consumer.pools.child import entry
entry(pickle.loads(spec))
"""
_encode = msgspec.msgpack.Encoder().encode


class ChildSpec(msgspec.Struct):
    """What a worker process is told at its start."""

    module: str
    name: str
    queue: str
    codec: str
    inbox: str
    outbox: str
    durations: str
    stacks: str
    parent_pid: int
    give_back_s: float
    preparation: dict[str, Any]
    tracker_fd: int
    log_levels: LogLevels


def launch(spec: ChildSpec) -> subprocess.Popen[bytes]:
    """Starts the process. The script that the parent runs is run again in it only when the handler stands there.

    Raises OSError.
    """
    tracker_fd = resource_tracker.getfd()
    assert tracker_fd is not None
    preparation = spawn.get_preparation_data(f"ignis-{spec.queue}")
    if spec.module != "__main__":
        for key in _MAIN_KEYS:
            preparation.pop(key, None)
    preparation["authkey"] = bytes(preparation["authkey"])
    spec = msgspec.structs.replace(spec, preparation=preparation, tracker_fd=tracker_fd)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        try:
            command = spawn.get_command_line()
            if "-c" not in command:
                raise ConfigError("pool='process' needs a Python interpreter; this program is frozen")
            command[command.index("-c") + 1] = _PROGRAM.format(fd=reading)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(reading, tracker_fd))
        finally:
            os.close(reading)
        with contextlib.suppress(BrokenPipeError):  # it has ended already, which its exit code tells
            pickle.dump((list(map(str, sys.path)), pickle.dumps(spec)), pipe)
            pipe.flush()
    return process


def entry(spec: ChildSpec) -> None:
    """Entry point of the process. Ends when told to, or when the parent is gone."""
    looks: list[Callable[[], bool]] = []
    start_thread(threading.Thread(target=_watch, args=(spec.parent_pid, looks), name="ignis-watch", daemon=True))
    # A worker's parent is asked by it for a dump, and it may reach the whole group. The file stays open for it.
    stacks = os.open(spec.stacks, os.O_WRONLY | os.O_APPEND)
    faulthandler.register(signal.SIGUSR1, file=stacks)
    durations = shared_durations(Path(spec.durations))  # before the channels: then the parent removes the files
    inbox = Channel.open(spec.inbox, role="consumer")
    outbox = Channel.open(spec.outbox, role="producer")
    sink = _ChildSink(outbox, durations)
    work_inbox = FramesInbox(inbox, sink)
    forwarded = ForwardedLog(sink.log, lambda: _fields(spec.queue, inbox, work_inbox))
    forwarded.install(spec.log_levels)
    log_uncaught()
    try:
        _prepare(spec)
        found = find_handler(spec.module, spec.name, spec.queue)
        runner, handler = found.make_runner(spec.codec), found.spec
        forwarded.take_over()
    except BaseException as exc:
        # Said in the parent's log, in its form: what stands on stderr beside it no collector of logs can read.
        said = (logging.ERROR, "start", f"worker process of {spec.queue} cannot start", failure_told(exc))
        outbox.send(encode_frame(COMMAND_SAID, 0, _encode(said)), timeout=_REPORT_S)
        outbox.send(encode_frame(COMMAND_START_FAILED, 0, _why(exc).encode("utf-8", "replace")), timeout=_REPORT_S)
        outbox.close()
        sys.exit(1)
    outbox.send(encode_frame(COMMAND_STARTED, 0, b""), timeout=_REPORT_S)
    handler.log.send = sink.say
    add_outlet(_ChildOutlet(inbox, sink))
    report_to(lambda id, traceparent: sink.send(COMMAND_TRACED, (id, traceparent)))

    set_note = inbox.set_note
    count_duration = sink.durations.add
    last_count = 0

    def on_start(first_id: int, count: int, took: tuple[float, int] | None) -> bool:
        nonlocal last_count
        if took is not None:
            count_duration(*took)
        if count:
            if count != last_count:
                set_note(NOTE_COUNT, count)
                last_count = count
            set_note(NOTE_SINCE_US, time.monotonic_ns() // 1000)
            set_note(NOTE_FIRST, first_id + 1)
        else:
            set_note(NOTE_SINCE_US, 0)
        # Not cleared afterwards: until the report of a message arrives the parent must know that it was started, and
        # after that the parent no longer counts it as owed.
        return True

    loop = WorkLoop(
        runner,
        handler,
        work_inbox,
        sink,
        should_return=lambda: inbox.get_note(NOTE_RETURN) == 1,
        should_stop=lambda: inbox.get_note(NOTE_STOP) == 1,
        on_start=on_start,
        give_back_s=spec.give_back_s,
    )
    looks.append(HandOver(loop, work_inbox, inbox, sink).look)
    try:
        loop.run()
    finally:
        found.close()
        inbox.close()
        outbox.close()
    sys.exit(0)


def _prepare(spec: ChildSpec) -> None:
    """As a process that `multiprocessing` spawns: paths, arguments, directory, and the parent's script where it is needed."""
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = spec.tracker_fd  # the parent's: what it shares in memory stays when this process ends
    this: Any = multiprocessing.process.current_process()
    this._inheriting = True  # a script without a guard that starts processes is told so by `multiprocessing`
    try:
        with running_again():
            spawn.prepare(spec.preparation)
    finally:
        del this._inheriting


def _fields(queue: str, inbox: Channel, given: FramesInbox) -> dict[str, Any]:
    """What the handler is at, for its lines in the log."""
    fields: dict[str, Any] = {"queue": queue}
    with contextlib.suppress(ClosedError):
        if not inbox.get_note(NOTE_SINCE_US) or inbox.get_note(NOTE_COUNT) != 1:
            return fields
        data = given.record(inbox.get_note(NOTE_FIRST) - 1)
        if data is not None:
            with contextlib.suppress(UnreadableMessageError):
                message = Message(Record(data))
                return fields | {"message_id": message.id, "attempt": message.attempt}
    return fields


def _why(exc: BaseException) -> str:
    """The error, and where in the user's files it was raised."""
    if isinstance(exc, MainGuardError):
        return str(exc)  # which names the line
    frames = traceback.extract_tb(exc.__traceback__)
    package = os.path.dirname(os.path.dirname(__file__)) + os.sep
    own = [one for one in frames if not one.filename.startswith((package, "<"))]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return failure_of(exc).error[:_MOST_WHY] + place


def _watch(parent_pid: int, looks: Sequence[Callable[[], bool]]) -> None:
    """Ends the process when its parent is gone, in the middle of a handler too: nobody will hear the outcome, and the
    sweeper gives the message to somebody else. Until then it calls ``looks``; one that returns true is called again soon."""
    while os.getppid() == parent_pid:
        soon = False
        with contextlib.suppress(ClosedError, PeerDiedError):
            for look in looks:
                soon = look() or soon
        time.sleep(_CALL_CHECK_S if soon else _PARENT_CHECK_S)
    os._exit(1)


class HandOver:
    """Gives back what lies behind a call that takes long, while it goes on."""

    def __init__(self, loop: WorkLoop, given: FramesInbox, inbox: Channel, sink: _ChildSink) -> None:
        self._loop = loop
        self._given = given
        self._inbox = inbox
        self._sink = sink

    def look(self) -> bool:
        """Whether it is to look again soon. Called by a thread of its own."""
        since_us = self._inbox.get_note(NOTE_SINCE_US)
        if not since_us:
            return False
        if time.monotonic_ns() // 1000 - since_us < HELD_UP_S * 1e6:
            return True
        for first_id, records in self._given.take_away(self._hand_over_rest):
            self._sink.hand_over(first_id, len(records))
        return False

    def _hand_over_rest(self) -> None:
        """Of the chunk that the loop is at: first, and before the loop can take the next one."""
        for first_id, count in self._loop.take_rest():
            self._sink.hand_over(first_id, count)


def find_handler(module: str, name: str, queue: str) -> Registered:
    """Imports the module that registered the handler, as the parent did, and looks the handler up by its own name:
    a name from a message is never imported."""
    target: Any = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    found = registered(target, queue)
    if found is None:
        raise ConfigError(f"{module}.{name} is not registered as the handler of queue {queue!r} when imported")
    return found


class _ChildOutlet:
    """What the call in progress tells the parent, and is asked by it. An `ignis.consumer.work.Outlet`."""

    def __init__(self, inbox: Channel, sink: _ChildSink) -> None:
        self._inbox = inbox
        self._sink = sink
        self._sent: tuple[bytes, int, str] | None = None
        self._sent_at_s = 0.0

    def tell(self, work: Work) -> None:
        """What changes nothing that can be seen is sent now and then only."""
        now_s = time.monotonic()
        shown = work.id, round(100 * (work.fraction or 0.0)), work.text
        if shown != self._sent or now_s - self._sent_at_s >= _TELL_S:
            self._sent, self._sent_at_s = shown, now_s
            self._sink.send(COMMAND_PROGRESS, (work.id, work.fraction, work.text))

    def is_asked(self) -> bool:
        asked = self._inbox.get_note(NOTE_CANCEL)
        return asked != 0 and asked == self._inbox.get_note(NOTE_FIRST)

    def saw(self, work: Work) -> None:
        self._sink.send(COMMAND_SAW_CANCEL, work.id)

    def is_stopping(self) -> bool:
        return self._inbox.get_note(NOTE_RETURN) == 1


def shared_durations(path: Path, *, create: bool = False) -> Histogram:
    """Counts in a file how long messages were in their handler, so that what a killed process has counted is known. Made by the
    parent, opened by the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
    try:
        if create:
            os.ftruncate(descriptor, HISTOGRAM_BYTES)
        memory = mmap.mmap(descriptor, HISTOGRAM_BYTES)
    finally:
        os.close(descriptor)
    return Histogram(HANDLING.bounds_s, memory)


class _ChildSink:
    """Sends outcomes to the parent."""

    def __init__(self, outbox: Channel, durations: Histogram) -> None:
        self._outbox = outbox
        self.durations = durations
        self._returning = threading.Lock()  # reports of what comes back are counted in the order in which they are sent
        self._returns = 0
        self._unheard: list[tuple[int, int]] = []  # their number, and the first request id
        self._timed = 0
        self._elapsed_s = 0.0

    def _send(self, frame: bytes) -> None:
        while True:
            try:
                self._outbox.send(frame, timeout=1.0)
                return
            except TimeoutError:
                if self._outbox.peer_alive() is False:
                    raise PeerDiedError("the parent of this worker process is gone") from None

    def on_done(self, first_id: int, count: int) -> None:
        payload = _encode((count, self._timed, self._elapsed_s))
        self._timed, self._elapsed_s = 0, 0.0
        self._send(encode_frame(COMMAND_DONE, first_id, payload))

    def on_failed(self, request_id: int, failure: Failure) -> None:
        self._send(
            encode_frame(
                COMMAND_FAILED,
                request_id,
                _encode(
                    (
                        as_utf8(failure.reason),
                        as_utf8(failure.error[:MAX_ERROR_CHARS])[:MAX_ERROR_CHARS],
                        extended(None, attempts_of(failure)),
                        again_after(failure),
                    )
                ),
            )
        )

    def send(self, command: int, payload: object) -> None:
        """Something about the call in progress."""
        self._send(encode_frame(command, 0, _encode(payload)))

    def say(self, level: int, key: str, text: str, failure: FailureTold | None) -> None:
        """What `HandlerLog` says, for that of the parent."""
        self._send(encode_frame(COMMAND_SAID, 0, _encode((level, key[:100], text, failure))))

    def log(self, told: dict[str, Any]) -> None:
        """A line of the log, for `relog` in the parent."""
        self._send(encode_frame(COMMAND_LOGGED, 0, packed(told)))

    def giving_back(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # it is the parent that hands out: see `refused`

    def on_returned(self, first_id: int, count: int) -> None:
        self._return(COMMAND_RETURNED, first_id, count)

    def hand_over(self, first_id: int, count: int) -> None:
        """`on_returned` of what lies behind the call in progress. From any thread."""
        self._return(COMMAND_HANDED_OVER, first_id, count)

    def _return(self, command: int, first_id: int, count: int) -> None:
        with self._returning:
            self._returns += 1
            self._unheard.append((self._returns, first_id))
            self._send(encode_frame(command, first_id, _encode(count)))

    # What the parent sent before it heard of a return may have been claimed after what is on its way back, and would be handled
    # before it: the order of a single worker. An id says what was claimed first. What comes before all that is on its way is
    # taken, else two parts could be refused for each other's sake for ever.

    def heard(self, count: int) -> None:
        with self._returning:
            self._unheard = [one for one in self._unheard if one[0] > count]

    def refused(self, first_id: int, count: int) -> bool:
        with self._returning:
            overtakes = any(first_id > returned for _, returned in self._unheard)
        if overtakes:
            self.hand_over(first_id, count)
        return overtakes

    def on_timing(self, messages: int, elapsed_s: float) -> None:
        # Rides with the next report: not worth a message of its own.
        self._timed += messages
        self._elapsed_s += elapsed_s
