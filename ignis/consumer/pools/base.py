"""What the consumer and its workers say to each other.

The consumer hands a worker *chunks*: runs of claimed messages, encoded as frames and sent through the worker's inbox
channel (``ignis.native.Channel``, in heap for threads, mapped for processes). A message's request id is
``chunk id << 16 | index``. Workers answer through a :class:`Sink`, in runs of consecutive ids, so that the common case,
a whole chunk done, is one call.
"""

from __future__ import annotations

import abc
import bisect
import contextlib
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ignis.consumer.handler import Failure
from ignis.consumer.outcome import by_worker
from ignis.errors import ClosedError, NativeError
from ignis.native import Channel, decode_frames, encode_frames
from ignis.native.histogram import Histogram

__all__ = ["CHUNK_BYTES", "HELD_UP_S", "INDEX_BITS", "Call", "Chunk", "Part", "Pool", "Sink", "Worker", "inbox_classes"]

INDEX_BITS = 16
INDEX_MASK = (1 << INDEX_BITS) - 1
CHUNK_BYTES = 192 << 10
"""A chunk's records are cut here, so that one fits a size class of the inbox whatever their number."""

HELD_UP_S = 0.04
"""A worker whose call runs for longer is held up: what it has not begun goes to others."""

COMMAND_HANDLE = 1
COMMAND_DONE = 2
COMMAND_FAILED = 3
COMMAND_RETURNED = 4
COMMAND_STARTED = 5
COMMAND_START_FAILED = 6
COMMAND_SAID = 7
COMMAND_PROGRESS = 8
COMMAND_SAW_CANCEL = 9
COMMAND_LOGGED = 10
COMMAND_TRACED = 11
COMMAND_HANDED_OVER = 12
COMMAND_HEARD = 13

_FRAME_OVERHEAD = 64

Part = tuple[int, Sequence[bytes]]
"""(first request id, records): messages with consecutive ids, of one chunk."""
Call = tuple[int, int, "float | None"]
"""(first request id, messages, seconds so far if known)."""
_HOST = socket.gethostname()[:40]


def frames_of(message: bytes) -> list[tuple[int, int, bytes]]:
    """(command, request id, payload) of each frame in a message of a worker's channel. The channel has limited the message
    already, and no frame in it is larger: a limit of its own would refuse what the consumer took."""
    return decode_frames(message, len(message))[0]


class Chunk:
    """Messages given to one worker: where they are stored, and their records until they are accounted for.

    Args:
        chunk_id: its number, which its request ids begin with.
        places: where its messages are stored, in order: (shard, pointers), a shard perhaps several times.
        records: the messages.
        nbytes: the sum of their sizes.
    """

    __slots__ = ("_places", "_starts", "first_id", "left", "nbytes", "records")

    def __init__(
        self, chunk_id: int, places: Sequence[tuple[int, Sequence[int]]], records: Sequence[bytes], nbytes: int
    ) -> None:
        self.first_id = chunk_id << INDEX_BITS
        self.records = records
        self.nbytes = nbytes
        self.left = len(records)
        self._places = places
        if len(places) == 1:
            self._starts = [0, self.left]
        else:
            self._starts = [0, *itertools.accumulate(len(pointers) for _, pointers in places)]

    def part(self, start: int, stop: int) -> Part:
        """The messages ``start`` to ``stop`` as they are."""
        whole = start == 0 and stop == len(self.records)
        return self.first_id + start, self.records if whole else self.records[start:stop]

    def frames(self, start: int, stop: int) -> bytes:
        """The messages ``start`` to ``stop`` as frames."""
        return encode_frames(COMMAND_HANDLE, self.first_id + start, list(self.records[start:stop]))

    def place(self, index: int) -> tuple[int, int]:
        """(shard, pointer) of one message."""
        at = bisect.bisect_right(self._starts, index) - 1
        shard, pointers = self._places[at]
        return shard, pointers[index - self._starts[at]]

    def places(self, start: int, stop: int) -> list[tuple[int, Sequence[int]]]:
        """The messages ``start`` to ``stop`` as (shard, pointers), a shard perhaps several times."""
        found = []
        at = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            shard, pointers = self._places[at]
            offset = start - self._starts[at]
            some = (
                pointers if offset == 0 and len(pointers) <= stop - start else pointers[offset : offset + stop - start]
            )
            found.append((shard, some))
            start += len(some)
            at += 1
        return found


class Sink(Protocol):
    """Where workers report. Called from worker threads; ids are request ids."""

    @property
    def durations(self) -> Histogram:
        """Counts how long each message was in its handler."""

    def on_done(self, first_id: int, count: int) -> None:
        """Handled, or dropped by an ignorable exception. A run lies within one chunk."""

    def on_failed(self, request_id: int, failure: Failure) -> None:
        """To the sideline."""

    def giving_back(self) -> contextlib.AbstractContextManager[Any]:
        """While it lasts nothing is handed out: what is returned in it comes back at once. May be entered again by its thread."""

    def on_returned(self, first_id: int, count: int) -> None:
        """Not started; somebody else may."""

    def on_timing(self, messages: int, elapsed_s: float) -> None:
        """How long that many messages took one worker, for how many it is given at a time."""


class Worker(abc.ABC):
    """One consumer as the dispatcher sees it.

    A worker reports in the order in which it was given messages, so what it still owes is a queue of id ranges.
    ``submitted`` is written by the dispatcher alone and ``reported`` by the reporting side alone: neither needs a lock.
    """

    name = ""
    """For people."""

    def __init__(self, sink: Sink) -> None:
        self.submitted = 0
        self.reported = 0
        self._sink = sink
        self.durations = sink.durations
        self._owed: deque[list[int]] = deque()  # [next id, end id)
        self._looked_at: int | None = None  # the call that was in progress at the last look
        self._seen_since_s = 0.0
        self._held_up_at: int | None = None

    @property
    def outstanding(self) -> int:
        """Messages given to the worker and not accounted for yet."""
        return self.submitted - self.reported

    @property
    def label(self) -> str:
        """Host, process id and name: who ran a call, in the message's history."""
        return f"{_HOST}:{os.getpid()}/{self.name}"

    @property
    def going(self) -> bool:
        """Whether it is to end."""
        return False

    @property
    def returning(self) -> bool:
        """Whether it gives back what it has not begun, from now on."""
        return self.going

    @property
    def call(self) -> int | None:
        """A number that is another with each call that begins. None = there is none for which anything has to wait."""
        return None

    @property
    def held_up(self) -> bool:
        """Whether a call was found to take long, and goes on: the worker is to be given nothing meanwhile."""
        return self._held_up_at is not None and self._held_up_at == self.call and self.outstanding > 0

    def look(self, now_s: float, held_up_s: float = HELD_UP_S) -> float | None:
        """Looks whether the worker is held up, by a call that it was at when somebody looked before: so no call has to read a
        clock for it. Returns for how many seconds it has been at least; None = it is not."""
        if self.goes_on(now_s, held_up_s):
            return None
        self._held_up_at = self._looked_at
        return now_s - self._seen_since_s

    def goes_on(self, now_s: float, held_up_s: float = HELD_UP_S) -> bool:
        """`look`, for who does nothing about one that is held up: false, it is, or will be by the next `look`."""
        call = self.call
        if call is None or call != self._looked_at or not self.outstanding:
            self._looked_at, self._seen_since_s, self._held_up_at = call, now_s, None
            return True
        return now_s - self._seen_since_s < held_up_s

    def hand_over(self) -> None:
        """Reports as returned what the worker has and has not begun, as far as others can take it. From another thread than the
        worker's."""
        return

    @abc.abstractmethod
    def submit(self, chunk: Chunk, start: int, stop: int) -> bool:
        """Sends part of a chunk; False when the inbox has no room now or the worker is going away."""

    def take_own(self, chunk: Chunk) -> bool:
        """`submit` of a chunk of one message that the worker's own thread has claimed."""
        return self.submit(chunk, 0, 1)

    def _send(self, inbox: Channel, chunk: Chunk, start: int, stop: int) -> bool:
        """Sends to the inbox without waiting; False when it has no room or is closed. Raises MessageTooLargeError."""
        self._owe(chunk, start, stop)
        sent = False
        try:
            sent = inbox.try_send(chunk.frames(start, stop))
        except (ClosedError, NativeError):
            pass
        finally:
            if not sent:
                self._owed.pop()
                self.submitted -= stop - start
        return sent

    def _owe(self, chunk: Chunk, start: int, stop: int) -> None:
        """Before it is handed over: the worker may report it before that returns."""
        submitted = self.submitted + stop - start
        self._owed.append([chunk.first_id + start, chunk.first_id + stop])
        self.submitted = submitted

    def running(self) -> Call | None:
        """The call in progress; None when there is none, or more than one."""
        return None

    def calls(self) -> list[Call]:
        """All calls in progress."""
        running = self.running()
        return [] if running is None else [running]

    def cancel(self, request_id: int) -> None:
        """Somebody wants that message to end, as far as the worker is at it. What the handler sees in its context is told
        elsewhere. May be called again."""
        return

    def on_done(self, first_id: int, count: int) -> None:
        self._settle(first_id, count)
        self._sink.on_done(first_id, count)

    def on_failed(self, request_id: int, failure: Failure) -> None:
        self._settle(request_id, 1)
        self._sink.on_failed(request_id, by_worker(failure, self.label))

    def on_returned(self, first_id: int, count: int) -> None:
        self._settle(first_id, count)
        self._sink.on_returned(first_id, count)

    def giving_back(self) -> contextlib.AbstractContextManager[Any]:
        return self._sink.giving_back()

    def on_timing(self, messages: int, elapsed_s: float) -> None:
        self._sink.on_timing(messages, elapsed_s)

    def _disown(self, first_id: int, count: int) -> None:
        """`_settle` of what was taken from the worker: the end of what it owes of a chunk."""
        left, end_id = count, first_id + count
        for owed in self._owed:
            if first_id < owed[1] <= end_id and end_id > owed[0]:
                start = max(first_id, owed[0])
                left -= owed[1] - start
                owed[1] = start
        if left:
            raise RuntimeError(f"{count} from {first_id} were taken from a worker that does not owe {left} of them")
        self.reported += count

    def _skip_disowned(self) -> None:
        while self._owed and self._owed[0][0] == self._owed[0][1]:
            self._owed.popleft()

    def _settle(self, first_id: int, count: int) -> None:
        at, end_id = first_id, first_id + count
        while at < end_id:
            self._skip_disowned()
            head = self._owed[0]
            if head[0] != at:
                raise RuntimeError(f"worker reported {count} from {first_id}, but owes {head[0]} to {head[1]}")
            at = head[0] = min(end_id, head[1])
            if at == head[1]:
                self._owed.popleft()
        self.reported += count

    def owes(self, request_id: int) -> bool:
        """Whether that message was given to this worker and is not accounted for."""
        return any(start <= request_id < stop for start, stop in list(self._owed))

    def settle_lost(self, first_id: int, count: int, failure: Failure | None, *, give_back: bool = False) -> None:
        """Accounts for everything that a worker that is gone still owed.

        Messages before ``first_id`` were handled (a failure would have been reported at once); the ``count`` messages
        from there on are those it was at; the others were never started. When ``first_id`` is not owed, nothing was
        running. Without a ``failure`` what it was at stays claimed: that is the sweeper's. With ``give_back`` it goes back.
        """
        with self.giving_back():
            self._settle_lost(first_id, count, failure, give_back)

    def _settle_lost(self, first_id: int, count: int, failure: Failure | None, give_back: bool) -> None:
        before = count > 0 and self.owes(first_id)
        left = count if before else 0
        while True:
            self._skip_disowned()
            if not self._owed:
                return
            start, stop = self._owed[0]
            if before:
                if start <= first_id < stop:
                    before = False
                    if first_id > start:
                        self.on_done(start, first_id - start)
                        continue
                else:
                    self.on_done(start, stop - start)
                    continue
            if left and failure is not None:
                left -= 1
                self.on_failed(start, failure)
            elif left:
                taken = min(left, stop - start)
                left -= taken
                if give_back:
                    self.on_returned(start, taken)
                else:
                    self._settle(start, taken)
            else:
                self.on_returned(start, stop - start)


class Pool(abc.ABC):
    """The workers of one consumer."""

    name_of: Callable[[int, int], str] = staticmethod(lambda request_id, count: "a message")
    """Gives what the messages of a call are called in the log, from the first request id and their number."""
    overrun_follows: Callable[[int], bool] = staticmethod(lambda request_id: False)
    """Tells whether another attempt follows when the call of that message, the first of a batch, has run for too long."""
    on_ended: Callable[[], None] = staticmethod(lambda: None)
    """Called when a worker has ended that nobody told to: `check` sees to it."""
    unended: Sequence[Call] = ()
    """Calls that the last `drain` could not end: their messages stay claimed."""
    broken_off: Sequence[Call] = ()
    """Calls that it ended when its time was up: their messages were returned."""

    @property
    def to_be_checked(self) -> bool:
        """Whether `check` has something left to do, though nothing may be given to a worker."""
        return False

    @property
    def used_up(self) -> bool:
        """Whether no worker is left, and none can take the place of those that hang."""
        return False

    @property
    @abc.abstractmethod
    def workers(self) -> Sequence[Worker]:
        """Those that take messages now."""

    @property
    def holders(self) -> Sequence[Worker]:
        """Those that may have messages: also those that are told to end."""
        return self.workers

    @abc.abstractmethod
    def resize(self, count: int) -> None:
        """Adds workers, or asks some to finish what they run, return what they have not started, and end. One that is added while
        such a one still runs begins when it has ended."""

    def wait_started(self) -> None:
        """Returns when a worker runs, of those that `resize` made first. Raises WorkerStartError when none can."""

    def runs_here(self) -> bool:
        """Whether the calling thread is one of its workers, for whose end `drain` would wait."""
        return False

    @abc.abstractmethod
    def check(self, now_s: float) -> None:
        """Called several times a second while anything is with the workers, and when one has ended: enforces
        time-outs, replaces the dead. Raises WorkerStartError when none is left
        and none can start."""

    def begin_drain(self) -> None:
        """What was not begun is to be returned from now on, where that needs no waiting. `drain` follows."""

    @abc.abstractmethod
    def drain(self, timeout: float) -> bool:
        """Lets workers finish the message they are at and return the rest; True when all of it is accounted for. What still runs
        when the time is up is ended, where that can be done, and returned: see `broken_off` and `unended`."""

    @abc.abstractmethod
    def close(self, timeout: float) -> None:
        """Ends all workers; those that do not end in time are abandoned (threads) or killed (processes)."""

    def kill(self) -> None:
        """For a process that ends without `close`: what would outlive it is killed, what it was at stays claimed."""


def inbox_classes(max_message_bytes: int) -> tuple[tuple[int, int], ...]:
    """Size classes of a worker's inbox: (bytes, slots). Small, because a worker holds little at a time."""
    largest = max(CHUNK_BYTES, max_message_bytes) + (192 << 10)
    return ((4 << 10, 64), (32 << 10, 16), (CHUNK_BYTES + _FRAME_OVERHEAD * 1024, 8), (largest, 3))


INBOX_CAPACITY = 256


def make_inbox(max_message_bytes: int) -> Channel:
    """An inbox within this process."""
    classes = inbox_classes(max_message_bytes)
    return Channel.heap(capacity=INBOX_CAPACITY, size_classes=classes, max_message_bytes=classes[-1][0])
