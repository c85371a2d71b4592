"""What an error of ignis is over HTTP: its stable code, and the status that goes with it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from ignis.errors import IgnisError
from ignis.urls import masked

__all__ = ["STATUS", "RefusedError", "document_of", "status_of"]

STATUS: dict[str, int] = {
    "bad_request": 400,
    "config": 400,
    "invalid_message": 400,
    "invalid_name": 400,
    "unreadable": 400,
    "unauthenticated": 401,
    "origin": 403,
    "permission_denied": 403,
    "job_not_found": 404,
    "message_not_found": 404,
    "not_found": 404,
    "queue_not_found": 404,
    "queue_removed": 404,
    "schedule_not_found": 404,
    "method_not_allowed": 405,
    "body_too_slow": 408,
    "conflict": 409,
    "delay_not_supported": 409,
    "held": 409,
    "job_too_long": 409,
    "not_confirmed": 409,
    "publish_only": 409,
    "queue_mismatch": 409,
    "queue_not_empty": 409,
    "length_required": 411,
    "body_too_large": 413,
    "message_too_large": 413,
    "record_too_large": 413,
    "unsupported_media_type": 415,
    "misdirected": 421,
    "too_many_requests": 429,
    "head_too_large": 431,
    "CONNECTION_ERROR": 503,
    "RETRIES_EXHAUSTED": 503,
    "connection_lost": 503,
    "coordinator": 503,
    "coordinator_unreachable": 503,
    "device_overload": 503,
    "draining": 503,
    "hot_key": 503,
    "store_busy": 503,
    "store_failed": 503,
    "store_full": 503,
    "store_timeout": 503,
    "store_unreachable": 503,
    "timeout": 503,
    "too_many_connections": 503,
}
"""The HTTP status of each code; 500 for one that is not here. Codes are those of `ignis.errors`, and the console's own."""

_RETRYABLE = frozenset({"too_many_connections", "too_many_requests"})


class RefusedError(IgnisError):
    """A request that the console itself refuses. Attributes: ``code`` (a key of `STATUS`), ``headers`` of the answer."""

    def __init__(self, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = code in _RETRYABLE
        self.headers = headers or {}


def status_of(exc: BaseException) -> int:
    """The status that an error is answered with."""
    return STATUS.get(exc.code, 500) if isinstance(exc, IgnisError) else 500


def document_of(exc: BaseException) -> dict[str, Any]:
    """What is answered: code, text, and whether the same request may succeed later. An error that nobody foresaw says
    nothing of itself: it is in the log."""
    if isinstance(exc, IgnisError):
        code, message, retryable = exc.code, masked(str(exc)), exc.retryable
    else:
        code, message, retryable = "internal", HTTPStatus.INTERNAL_SERVER_ERROR.phrase, False
    return {"error": {"code": code, "message": message, "retryable": retryable}}
