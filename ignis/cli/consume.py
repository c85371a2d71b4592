"""``ignis consume``: messages as lines, acknowledged when whoever reads them has them."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import signal
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from types import FrameType

import click

from ignis.cli import exit_codes, output
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, pass_state, queue_record
from ignis.control.inspection import message_dict
from ignis.errors import ConfigError, IgnisError, PermissionDeniedError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import corrupt_record
from ignis.pausing import PAUSED
from ignis.stop_signals import stop_signals
from ignis.storage.base import MOST_FRUITLESS, QueueRecord, Store, Transfer, renewal_period_s
from ignis.storage.records import group_pointers

__all__ = ["consume"]

_CHUNK = 100
"""Messages claimed at a time, and so the most that are printed twice when this process is killed."""
_PAGE = 1_000
_WAIT_S = 1.0
_SHORTEST_NAP_S, _LONGEST_NAP_S = 0.0001, 0.02
_LAST_READ_S = 1.0
"""So long a reader may take, after a signal asked to stop, for the line that it is at: what it reads later is there twice."""
_INT = struct.Struct("i")


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.option("-f", "--follow", is_flag=True, help="Wait for more instead of ending; Ctrl-C ends it.")
@click.option("--no-ack", is_flag=True, help="Leave every message where it is: only look, and claim nothing.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="End after so many messages.")
@common_options
@pass_state
def consume(state: State, queue: str, follow: bool, no_ack: bool, limit: int | None) -> int:
    """Takes messages from QUEUE and prints each as a line of JSON.

    A message is acknowledged when its line was written, and, into a pipe, read: after Ctrl-C or in front of `head` nothing is
    lost, and what was not printed goes back. With --no-ack what workers take meanwhile may be missed. Ends with 5 when there
    was nothing.
    """
    if state.output_closed and not no_ack:
        raise ConfigError(
            "standard output is closed: nobody could read what is taken, and nothing was; '> /dev/null' throws it away on purpose"
        )
    with state.store() as store, _Stopping() as stopping:
        record = queue_record(store, queue)
        if PAUSED in record.extra and not no_ack:
            output.remark(f"queue {queue} is paused: its consumers take nothing, this command does")
        work = _Look(store, record, stopping) if no_ack else _Take(store, record, stopping)
        printed = work.run(follow, limit)
        if stopping.asked() and not follow:
            return exit_codes.INTERRUPTED
    if not printed and not follow:
        output.remark(f"no message is waiting in {queue}")
        return exit_codes.NOTHING
    return exit_codes.OK


class _Stopping:
    """Remembers that a signal asked to stop, so that no step is left half done; the second one interrupts."""

    def __init__(self) -> None:
        self._asked = False
        self._before: list[tuple[int, object]] = []

    def asked(self) -> bool:
        """Whether to end."""
        return self._asked

    def __enter__(self) -> _Stopping:
        with contextlib.suppress(ValueError):  # not in the main thread: nothing can be installed there
            self._before = [(number, signal.signal(number, self._on_signal)) for number in stop_signals()]
        return self

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before:
            signal.signal(number, before)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


class _Lines:
    """Standard output, line by line, each whole or not at all."""

    def __init__(self, stopping: _Stopping) -> None:
        self._stopping = stopping
        self._fd = -1
        self._pipe = False
        with contextlib.suppress(OSError, ValueError):
            self._fd = sys.stdout.fileno()
            self._pipe = stat.S_ISFIFO(os.fstat(self._fd).st_mode)

    def write(self, line: str, meanwhile: Callable[[], None]) -> bool:
        """Writes; into a pipe, until it was read. False when it was not, for a while after somebody asked to stop. Raises
        BrokenPipeError when the reader is gone."""
        if self._fd < 0:  # no file: somebody catches what is printed
            sys.stdout.write(line + "\n")
            return True
        sys.stdout.flush()
        left = memoryview((line + "\n").encode())
        until_s = math.inf
        nap_s = _SHORTEST_NAP_S
        poll = select.poll()
        poll.register(self._fd, 0)
        while left or (self._pipe and self._unread()):
            if left and (wrote := self._write(left)):
                left = left[wrote:]
                nap_s = _SHORTEST_NAP_S
                continue
            if poll.poll(0):
                raise BrokenPipeError  # it ended with this in the pipe
            if until_s == math.inf and self._stopping.asked():
                until_s = time.monotonic() + _LAST_READ_S
            if time.monotonic() >= until_s:
                return False
            meanwhile()
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
        return True

    def _write(self, data: memoryview) -> int:
        """Returns how much went out. Not through `sys.stdout`: without buffers (``PYTHONUNBUFFERED``) it drops what a write that
        was cut short has left."""
        if self._pipe:  # a write of more than this may wait for the reader, and no signal would end it
            if not _writable(self._fd):
                return 0
            data = data[: select.PIPE_BUF]
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0

    def _unread(self) -> int:
        try:
            found: int = _INT.unpack(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(_INT.size)))[0]
            return found
        except OSError:
            return 0  # a system that does not tell


def _writable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(events & select.POLLOUT for _, events in poll.poll(0))


class _Take:
    """Claims, prints and acknowledges."""

    def __init__(self, store: Store, record: QueueRecord, stopping: _Stopping) -> None:
        self._store = store
        self._record = record
        self._stopping = stopping
        self._lines = _Lines(stopping)
        self._renewed_s = time.monotonic()

    def run(self, follow: bool, limit: int | None) -> int:
        """Returns how many messages were printed."""
        magazines, name = self._store.magazines, self._record.name
        printed = fruitless = 0
        while not self._stopping.asked() and (limit is None or printed < limit):
            seen = magazines.wait(name, -1, 0)
            size = _CHUNK if limit is None else min(_CHUNK, limit - printed)
            found = magazines.fire(name, size, self._store.owner)
            rows = [
                (claim.shard, pointer, record)
                for claim in found.claims
                for pointer, record in zip(claim.pointers, claim.records, strict=True)
            ]
            if rows:
                fruitless = 0
                printed += self._print(rows)
                continue
            fruitless += 1
            if found.more and fruitless <= MOST_FRUITLESS:
                continue
            if not follow:
                break
            magazines.wait(name, seen, _WAIT_S)
        return printed

    def _print(self, rows: list[tuple[int, int, bytes | None]]) -> int:
        """Whatever happens, what was written is acknowledged and the rest goes back."""
        done: list[tuple[int, int]] = []
        corrupt = [(shard, pointer) for shard, pointer, record in rows if record is None]
        left = [row for row in rows if row[2] is not None]
        self._renewed_s = time.monotonic()
        try:
            for at, (shard, pointer, record) in enumerate(left):
                line = output.to_json(message_dict(shard, pointer, record))
                if self._stopping.asked() or not self._lines.write(line, lambda at=at: self._renew(left[at:])):  # type: ignore[misc]
                    break
                done.append((shard, pointer))
        finally:
            self._settle(done, [(shard, pointer) for shard, pointer, _ in left[len(done) :]], corrupt)
        return len(done)

    def _renew(self, rows: list[tuple[int, int, bytes | None]]) -> None:
        """The reader takes its time: what waits for it must not be taken for abandoned."""
        if time.monotonic() - self._renewed_s < renewal_period_s(self._record.stuck_after_s):
            return
        self._renewed_s = time.monotonic()
        pointers = group_pointers((shard, pointer) for shard, pointer, _ in rows)
        with contextlib.suppress(IgnisError):  # tried again
            self._store.magazines.renew_claims(self._record.name, pointers, self._store.owner)

    def _settle(self, done: list[tuple[int, int]], back: list[tuple[int, int]], corrupt: list[tuple[int, int]]) -> None:
        magazines, name = self._store.magazines, self._record.name
        try:
            if done:
                magazines.delete(name, group_pointers(done))
        finally:
            if back:
                magazines.reload(name, group_pointers(back))
            if corrupt:
                # As every consumer does: it has no body to print.
                items = [Transfer(shard, at, corrupt_record(name, shard, at), shard) for shard, at in corrupt]
                magazines.transfer(name, name + SIDELINE_SUFFIX, items)
                output.warning(f"{len(corrupt)} corrupt message(s) went to the sideline")


class _Look:
    """Prints what waits, and claims nothing."""

    def __init__(self, store: Store, record: QueueRecord, stopping: _Stopping) -> None:
        self._magazines = store.magazines
        self._name = record.name
        self._stopping = stopping
        self._lines = _Lines(stopping)
        self._after: dict[int, int] = {}

    def run(self, follow: bool, limit: int | None) -> int:
        """Returns how many messages were printed."""
        printed = 0
        while not self._stopping.asked():
            seen = self._wait(-1, 0) if follow else 0
            for shard, pointer, record in self._pages():
                if limit is not None and printed == limit:
                    return printed
                if self._stopping.asked():
                    break
                if not self._lines.write(output.to_json(message_dict(shard, pointer, record)), lambda: None):
                    break
                printed += 1
            if not follow or printed == limit:
                break
            self._wait(seen, _WAIT_S)
        return printed

    def _wait(self, seen: int, timeout_s: float) -> int:
        """For a load; a while where a broker lets this user only look, which keeps none of its threads."""
        try:
            return self._magazines.wait(self._name, seen, timeout_s)
        except PermissionDeniedError:
            time.sleep(timeout_s)
            return seen

    def _pages(self) -> Iterator[tuple[int, int, bytes | None]]:
        """What waits behind what was printed."""
        while page := self._magazines.scan(self._name, after=self._after, limit=_PAGE, pending_only=True):
            for row in page:
                self._after[row[0]] = row[1]
                yield row
