"""The spans of handlers whose messages are not accounted for yet: who stores a failure, or logs it, links it with its call.

A process that does not trace never writes here. A worker process tells its parent, which stores what became of the message.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["forget", "look", "note", "note_failed", "report_to"]

_MOST = 100_000
"""A consumer has fewer messages in hand. Beyond, such as of calls whose outcome nobody stores, the oldest go."""

_Report = Callable[[str, str], object]

_spans: OrderedDict[tuple[str, str], str] = OrderedDict()
_lock = threading.Lock()
_reports: list[_Report] = []
"""That of a worker process; elsewhere there is none."""


def note(queue: str, id: str, traceparent: str) -> None:
    """The last call for that message has this span. Nothing in a worker process, where a call is told when it has failed."""
    if _reports:
        return
    with _lock:
        _spans[queue, id] = traceparent
        _spans.move_to_end((queue, id))
        if len(_spans) > _MOST:
            _spans.popitem(last=False)


def note_failed(queue: str, id: str, traceparent: str, *, noted: bool) -> None:
    """The call has failed. ``noted``: that was said when it began, so that only a worker process has to tell. A call that ends
    late, when the next one for its message has begun, changes nothing of that one."""
    for report in _reports:
        report(id, traceparent)
    if not noted:
        note(queue, id, traceparent)


def look(queue: str, id: str) -> str | None:
    """The span of the last call for that message, as a ``traceparent``; None where nobody traced it."""
    return _spans.get((queue, id))


def forget(queue: str, id: str, traceparent: str) -> None:
    """What became of this call is stored. The next call for the message may have begun before that was known here: it stays."""
    with _lock:
        if _spans.get((queue, id)) == traceparent:
            del _spans[queue, id]


def report_to(report: _Report) -> None:
    """This process is a worker process: ``report(id, traceparent)`` tells the parent."""
    _reports.append(report)
