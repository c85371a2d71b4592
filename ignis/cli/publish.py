"""``ignis publish``: lines of stdin into a queue."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime
from multiprocessing.connection import wait
from typing import Any, BinaryIO

import click
import msgspec

from ignis.cli import exit_codes, output
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, pass_state, queue_record
from ignis.config import check_name, parse_duration_s
from ignis.errors import (
    ConfigError,
    IgnisError,
    InvalidMessageError,
    PublishError,
    QueueNotFoundError,
    StoreUnreachableError,
)
from ignis.progress import make_progress
from ignis.queue import Queue

__all__ = ["publish"]

_STEP = 1_024
"""Messages between two looks at the clock and the progress bar."""

_decode = msgspec.json.Decoder().decode

_RATE_FROM = 1_000
"""Messages."""


@click.command(short_help="Publishes the lines of stdin.")
@click.argument("queue_name", metavar="QUEUE", shell_complete=complete_queue)
@click.option(
    "--key", "key_field", metavar="FIELD", help="The field whose value is the message's key; a.b goes into objects."
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(["json", "raw"]),
    help="json: one JSON value a line; raw: each line as it stands.  [default: what the queue has]",
)
@click.option(
    "--delay", metavar="DURATION", help="Nobody gets the messages before so long from now: 90, 500ms, 5m, 2d."
)
@click.option(
    "--at",
    metavar="TIME",
    help="... or before that time, with its time zone: 2030-01-31T08:00+01:00, 2030-01-31T07:00Z.",
)
@click.option(
    "--expires-in",
    metavar="DURATION",
    help="No handler begins with a message after so long from when it was read: 90s, 10m.",
)
@click.option("--expires-at", metavar="TIME", help="... or after that time, with its time zone.")
@click.option("--create", is_flag=True, help="Make the queue, and the store, when they do not exist.")
@click.option("--skip-bad", is_flag=True, help="Count lines that are not JSON, and go on.")
@common_options
@pass_state
def publish(
    state: State,
    queue_name: str,
    key_field: str | None,
    kind: str | None,
    delay: str | None,
    at: str | None,
    expires_in: str | None,
    expires_at: str | None,
    create: bool,
    skip_bad: bool,
) -> int:
    """Publishes the lines of stdin; when it ends with 0, all of them are durable.

    Empty lines are passed over. At a line that cannot be published it stops: what came before it is stored.
    """
    state.log_to_stderr("error")
    if key_field and kind == "raw":
        raise click.UsageError("--key looks into JSON: it cannot go with --type raw")
    check_name(queue_name)
    when = _times("delay", delay, "at", at) | _times("expires_in", expires_in, "expires_at", expires_at)
    counts = _Counts(queue_name)
    with state.app(create=create) as app:
        if not create:
            _check_store(app)
        queue = _open_queue(app, queue_name, kind, create)
        counts.raw = queue.codec.name == "raw"
        read = _reader(queue, kind, key_field)
        with _bar(state) as show:
            failure = _send_all(queue, read, when, skip_bad, counts, show)
    counts.report(state)
    if failure is not None:
        raise failure
    return exit_codes.OK


def _times(name: str, duration: str | None, moment_name: str, moment: str | None) -> dict[str, Any]:
    """What `Publisher.send` is told about a time, given as one of the two. Raises UsageError, ConfigError."""
    option, other = (f"--{one.replace('_', '-')}" for one in (name, moment_name))
    if duration is not None and moment is not None:
        raise click.UsageError(f"{option} and {other}: give one of them")
    if duration is not None:
        return {name: parse_duration_s(duration, option)}
    if moment is None:
        return {}
    return {moment_name: _moment(moment, other)}


_ZONE = re.compile(r"(?:[Zz]|[+-]\d\d(?::?\d\d)?)\Z")


def _moment(text: str, option: str) -> datetime:
    """Raises UsageError; what that recommends is accepted."""
    whole = _whole_day(text)
    # First: a zone right behind the day would be read as a time of day.
    if whole:
        raise click.UsageError(f"{option} {text}: a day without a time of day; write {' or '.join(whole)}")
    try:
        at = _read_moment(text)
    except ValueError as exc:
        raise click.UsageError(f"{option}: {exc}; give a time such as 2030-01-31T08:00+01:00") from None
    if at.utcoffset() is None:
        # As Python writes it: the text's own form may be one that takes no zone.
        said = at.isoformat(timespec="auto" if at.second or at.microsecond else "minutes")
        raise click.UsageError(
            f"{option} {text}: without a time zone nobody can tell when it is; write {said}Z or {said}+01:00"
        )
    return at


def _read_moment(text: str) -> datetime:
    # Python 3.10 does not know the Z.
    return datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)


def _whole_day(text: str) -> list[str]:
    """How the beginning of the day is written that the text names, with a zone or without one; nothing for any other text."""
    for zone in ("", *_ZONE.findall(text)):
        with contextlib.suppress(ValueError):
            day = date.fromisoformat(text.removesuffix(zone)).isoformat()
            # With a colon and minutes: Python 3.10 does not know the shorter forms.
            exact = f"{zone[:3]}:{zone[-2:] if zone[3:] else '00'}" if zone[1:] else zone.upper()
            written = [f"{day}T00:00{one}" for one in ([exact] if exact else ["Z", "+01:00"])]
            for one in written:
                _read_moment(one)
            return written
    return []


def _check_store(app: Any) -> None:
    """Raises StoreUnreachableError, which says how a store is made where there is none."""
    try:
        _ = app.store
    except StoreUnreachableError as exc:
        if not exc.missing:
            raise
        raise StoreUnreachableError(f"{exc} (--create makes it)") from None


def _open_queue(app: Any, name: str, kind: str | None, create: bool) -> Queue[Any]:
    if create and app.store.queues.get(name) is None:
        queue: Queue[Any] = app.queue(name, bytes if kind == "raw" else None)
    else:
        try:
            queue_record(app.store, name)
        except QueueNotFoundError as exc:
            raise QueueNotFoundError(f"{exc} (--create makes it)") from None
        queue = app.queue(name)
    queue.open()
    if kind == "raw" and queue.codec.name != "raw":
        raise ConfigError(f"--type raw: queue {name!r} has the codec {queue.codec.name}")
    return queue


_JSON_BEGINS = (b"{", b"[", b'"')
"""A line that begins so was meant as JSON."""

Reader = Callable[[bytes], "tuple[Any, str | None]"]
Show = Callable[[BinaryIO, int], None]


def _reader(queue: Queue[Any], kind: str | None, key_field: str | None) -> Reader:
    """From a line to (message as the queue's codec takes it, key). It raises InvalidMessageError or ValueError."""
    codec = queue.codec.name
    if codec == "raw" and kind != "json" and key_field is None:
        return lambda line: (line, None)
    path = key_field.split(".") if key_field else []
    other = (
        "--type raw without --key takes lines as they stand"
        if codec == "raw"
        else "a new queue takes lines as they stand with --create --type raw"
    )

    def read(line: bytes) -> tuple[Any, str | None]:
        try:
            value = _decode(line)
        except ValueError as exc:
            if line.lstrip()[:1] in _JSON_BEGINS:
                raise
            raise InvalidMessageError(f"{exc}; {output.TEXT_AS_JSON}; {other}") from None
        key = _key_of(value, path) if path else None
        if codec == "json":
            return msgspec.Raw(line), key  # as it was written: numbers and spacing of the sender
        return (line if codec == "raw" else value), key

    return read


class _NoFieldError(InvalidMessageError):
    """The message has no such field as ``--key`` names."""


def _key_of(value: Any, path: list[str]) -> str | None:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            raise _NoFieldError(
                f"--key names the field whose value is the key: there is no field {'.'.join(path)} in it"
            )
        value = value[name]
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (dict, list)):
        raise InvalidMessageError(f"field {'.'.join(path)} is no text or number")
    return msgspec.json.encode(value).decode()


class _Counts:
    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.raw = False
        self.published = self.skipped = self.failed = 0
        self.started = time.monotonic()

    def report(self, state: State) -> None:
        seconds = time.monotonic() - self.started
        if state.json:
            output.document(
                {
                    "queue": self.queue,
                    "published": self.published,
                    "skipped": self.skipped,
                    "failed": self.failed,
                    "seconds": round(seconds, 6),
                }
            )
            return
        extra = "".join(
            f", {count:,} {what}" for count, what in ((self.skipped, "skipped"), (self.failed, "not stored")) if count
        )
        # Of a few messages it would be the time that a command takes to begin.
        rate = f" ({output.rate(self.published, seconds)})" if self.published >= _RATE_FROM else ""
        # Otherwise nobody would see that the quotes of a JSON text are stored as well.
        how = " as raw (each line as it stands)" if self.raw else ""
        output.line(
            f"published {self.published:,} message(s) to {self.queue}{how} in {output.age(seconds)}{rate}{extra}"
        )


def _send_all(
    queue: Queue[Any], read: Reader, when: dict[str, Any], skip_bad: bool, counts: _Counts, show: Show | None
) -> BaseException | None:
    """Sends every line and waits until all are durable; returns what stopped it, after counting what is stored."""
    failure: BaseException | None = None
    publisher = queue.publisher()
    source = sys.stdin.buffer
    try:
        for number, line in enumerate(_lines(source), 1):
            if not line:
                continue
            try:
                message, key = read(line)
                publisher.send(message, key=key, **when)
            except (ValueError, RecursionError, InvalidMessageError) as exc:
                if not skip_bad:
                    # A field that not even the first message has is a wrong --key, and no bad line.
                    wrong_key = isinstance(exc, _NoFieldError) and not publisher.sent
                    advice = "" if wrong_key else " (--skip-bad counts such lines and goes on)"
                    failure = InvalidMessageError(f"line {number}: {exc}{advice}")
                    break
                counts.skipped += 1
            if show is not None and number % _STEP == 0:
                show(source, publisher.sent)
    except (IgnisError, OSError, KeyboardInterrupt) as exc:
        failure = exc
    try:
        try:
            publisher.flush()
        except KeyboardInterrupt as exc:
            # What was sent is worth the short wait; another interrupt ends it.
            failure = failure or exc
            publisher.flush()
        publisher.close()
    except PublishError as exc:
        failure = failure or exc
    except BaseException:
        counts.published = publisher.sent - publisher.pending - publisher.failed
        raise
    counts.failed = publisher.failed
    counts.published = publisher.sent - publisher.failed
    return failure


_LOOK_S = 0.5


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """The lines, without their ends. Waits for input in steps: a signal that comes right before a read does not end it."""
    held = b""
    while True:
        while not _has_input(source):
            pass
        data = source.read1(1 << 16) if isinstance(source, io.BufferedReader) else source.read(1 << 16)
        if not data:
            break
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
    if held:
        yield held.rstrip(b"\r")


def _has_input(source: BinaryIO) -> bool:
    try:
        return bool(wait([source.fileno()], _LOOK_S))
    except (OSError, ValueError):  # not a file of the system's: reading it does not wait
        return True


@contextlib.contextmanager
def _bar(state: State) -> Iterator[Show | None]:
    """The bar, on a terminal: bytes of the file that stdin is, or a plain count when it is a pipe."""
    if state.json or not sys.stderr.isatty():
        yield None
        return
    total = _file_bytes()
    with make_progress(quiet=False) as progress, progress.bar("publishing", total) as phase:

        def show(source: BinaryIO, sent: int) -> None:
            phase.done(0 if total is None else source.tell(), says=f"{sent:,} published")

        yield show


def _file_bytes() -> int | None:
    """The size of the file behind stdin; None when it is not one."""
    try:
        found = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
