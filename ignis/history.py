"""The last attempts at a message, as its envelope keeps them.

In the envelope's map they stand under ``history``: an array, oldest first, of at most `MOST_ATTEMPTS` arrays
``[at_ms, reason, error, trace, worker, took_ms]``. Readers ignore what follows in such an array and take what is missing
for unknown. A message that never failed has no such entry. Bounded: an attempt takes at most `MOST_ATTEMPT_BYTES`, so that
all of them take at most 12 KiB.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

__all__ = [
    "MAX_HISTORY_BYTES",
    "MOST_ATTEMPTS",
    "Attempt",
    "extended",
    "parsed",
    "trace_of",
    "type_name",
    "without_callers",
]

MOST_ATTEMPTS = 8
MOST_ERROR_BYTES = 300
MOST_TRACE_BYTES = 1_000
MOST_WORKER_BYTES = 100
MOST_REASON_BYTES = 64
MOST_ATTEMPT_BYTES = MOST_ERROR_BYTES + MOST_TRACE_BYTES + MOST_WORKER_BYTES + MOST_REASON_BYTES + 36
"""With the numbers and the lengths of its texts."""
MAX_HISTORY_BYTES = 12 << 10
_MOST_FRAMES = 6
_MOST_WALKED = 60
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_STANDARD = os.path.dirname(os.__file__)
_CALLERS = (
    *(os.path.join(_STANDARD, *names) for names in (("asyncio", ""), ("concurrent", "futures", ""), ("threading.py",))),
    os.path.join(_PACKAGE, ""),
    "ignis/native/",  # compiled: under no root
)
"""Where what stands between a worker and the user's code is from."""
_USERS = os.path.join(_PACKAGE, "demo", "")
"""Its handlers are as anybody's."""
_BETWEEN = (
    os.path.join(_PACKAGE, "consumer", ""),
    *(os.path.join(_STANDARD, "asyncio", name) for name in ("tasks.py", "base_events.py", "runners.py")),
)
"""What stands between two frames of the user's: each middleware has several of ours."""
_MOST_MS = (1 << 63) - 1


class Attempt(NamedTuple):
    """One call that failed, or one claim that was never finished.

    Attributes:
        at_ms: when it failed, in milliseconds since 1970.
        reason: why, see ``ignis.message.REASONS``.
        error: the exception and its text; at most 300 bytes.
        trace: the last lines of the traceback, innermost last; at most 1,000 bytes; empty where nothing was raised.
        worker: host, process id and name of what ran it.
        took_ms: how long it ran, in milliseconds; None = not known.
    """

    at_ms: int
    reason: str
    error: str = ""
    trace: str = ""
    worker: str = ""
    took_ms: int | None = None

    def bounded(self) -> Attempt:
        """With every text as it is stored."""
        return Attempt(
            self.at_ms,
            _cut(self.reason, MOST_REASON_BYTES),
            _cut(self.error, MOST_ERROR_BYTES),
            _end(self.trace, MOST_TRACE_BYTES),
            _cut(self.worker, MOST_WORKER_BYTES),
            self.took_ms,
        )


def extended(stored: object, attempts: Sequence[Attempt]) -> list[list[Any]]:
    """What is to be stored: the attempts behind those that stand there, the last eight of all."""
    every = [*parsed(stored), *attempts][-MOST_ATTEMPTS:]
    return [list(one.bounded()) for one in every]


def parsed(stored: object) -> tuple[Attempt, ...]:
    """The attempts that an envelope holds, oldest first. Never raises: whoever may publish chooses an envelope's bytes, and
    what is no attempt is left out."""
    if not isinstance(stored, list):
        return ()
    return tuple(one for entry in stored[-MOST_ATTEMPTS:] if (one := _parse(entry)) is not None)


def _parse(entry: object) -> Attempt | None:
    if not isinstance(entry, list) or len(entry) < 2:
        return None
    at_ms, reason, error, trace, worker, took_ms = (*entry[:6], *("", "", "", None)[len(entry) - 2 :])[:6]
    if not _is_ms(at_ms) or not all(isinstance(text, str) for text in (reason, error, trace, worker)):
        return None
    return Attempt(at_ms, reason, error, trace, worker, took_ms if _is_ms(took_ms) else None)


def _is_ms(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_MS


def trace_of(exc: BaseException) -> str:
    """The last frames of the exception's traceback, two lines each, without those that only call the handler. Never raises."""
    try:
        walked = traceback.walk_tb(exc.__traceback__)
        frames = traceback.StackSummary.extract(walked, limit=-_MOST_WALKED, lookup_lines=False)
        # First without ours, of which each middleware has several, and then the last of them.
        begins = next((n for n, frame in enumerate(frames) if not _is_caller(frame.filename)), len(frames))
        theirs = [frame for frame in frames[begins:] if not frame.filename.startswith(_BETWEEN)] or frames
        lines: list[str] = []
        for frame in theirs[-_MOST_FRAMES:]:
            lines.append(f'File "{frame.filename}", line {frame.lineno}, in {frame.name}')
            if frame.line:
                lines.append(f"  {frame.line}")
        return _end("\n".join(lines), MOST_TRACE_BYTES)
    except BaseException:  # the source lines are asked of whatever has loaded the user's module
        return ""


def without_callers(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the user's code on; all of it where there is none."""
    found = trace
    while found is not None and _is_caller(found.tb_frame.f_code.co_filename):
        found = found.tb_next
    return found or trace


def _is_caller(file: str) -> bool:
    return file.startswith(_CALLERS) and not file.startswith(_USERS)


def type_name(value: object) -> str:
    """What the type of an exception or an answer is called. Never raises: a metaclass is not asked."""
    name: str = type.__dict__["__qualname__"].__get__(type(value))
    return name


def _cut(text: str, most: int) -> str:
    data = text.encode("utf-8", "backslashreplace")
    return data[:most].decode("utf-8", "ignore")


def _end(text: str, most: int) -> str:
    """The end of a text, from the beginning of a line on where there is one."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode("utf-8")
    tail = data[-most:].decode("utf-8", "ignore")
    first, _, rest = tail.partition("\n")
    return rest or first
