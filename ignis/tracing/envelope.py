"""Where a trace's context stands in a message: in the headers that it was published with, and behind a failure.

The context of the publishing span is in the headers ``traceparent`` and ``tracestate``, as W3C Trace Context names them: what
reads headers, in whatever language, finds it, and nobody changes it on the way. What happened to the message last, a failed
attempt or a shovel, stands beside the headers under ``last_traceparent``; readers that do not know it skip it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ignis.errors import MessageTooLargeError, UnreadableMessageError
from ignis.message import LAST_TRACEPARENT, Message, encode_meta, with_last_traceparent

__all__ = [
    "TRACEPARENT",
    "TRACESTATE",
    "carrier_of",
    "fits",
    "headers_of",
    "last_traceparent_of",
    "with_last_traceparent",
]

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_LONGEST_CONTEXT_BYTES = 700
"""A context with the longest ``tracestate`` there may be, 512 characters, in the envelope."""


def carrier_of(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """The headers that hold a context; empty where none do. Whoever may publish chooses them: what is no text is none."""
    if not isinstance(headers, Mapping):
        return {}
    found = ((name, headers.get(name)) for name in (TRACEPARENT, TRACESTATE))
    return {name: value for name, value in found if isinstance(value, str)}


def headers_of(message: Message) -> dict[str, str]:
    """`carrier_of` for a stored message; empty where its envelope cannot be read."""
    try:
        return carrier_of(message.headers)
    except UnreadableMessageError:
        return {}


def last_traceparent_of(message: Message) -> str | None:
    """The context of what happened to the message last; None where nothing did, or nobody traced it."""
    try:
        value = message.meta.get(LAST_TRACEPARENT)
    except UnreadableMessageError:
        return None
    return value if isinstance(value, str) else None


def fits(headers: Mapping[str, Any], own: Mapping[str, Any] | None, limit_bytes: int) -> bool:
    """Whether headers with a context are within the limit. ``own``: the publisher's, without it."""
    if not own and limit_bytes >= _LONGEST_CONTEXT_BYTES:
        return True
    try:
        encode_meta(headers, limit_bytes)
    except MessageTooLargeError:
        return False
    except Exception:  # they cannot be encoded with it or without it, which the publisher is told
        return True
    return True
