"""Messages and contexts that no store has seen: for handlers and middleware that are called as functions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ignis.config import check_whole, shown
from ignis.consumer.handler import Context
from ignis.errors import ConfigError
from ignis.message import REASON_CRASH, BodyCodec, Message, encode_key, encode_meta, failed_record
from ignis.native import encode_record
from ignis.queue import Queue

__all__ = ["make_context", "make_message"]


def make_message(
    body: Any = b"",
    *,
    queue: Queue[Any] | None = None,
    key: str | bytes | None = None,
    headers: Mapping[str, Any] | None = None,
    id: str | None = None,
    enqueued_at: float | None = None,
    failures: int = 0,
    reason: str | None = None,
    error: str = "",
) -> Message:
    """A message as a handler sees it in ``ctx.message``, encoded as a queue would.

    Args:
        body: the message; how it is encoded is told by its type.
        queue: encodes it as this queue's, and checks that it fits. The queue's store is not opened.
        key, headers: as given to ``publish``.
        id: text of a UUID; None = a new one.
        enqueued_at: seconds since 1970; None = now.
        failures: deliveries that failed before.
        reason, error: of the last of them: one of the sideline's reasons, such as ``exception``; there was one then at least.

    Raises InvalidMessageError, MessageTooLargeError, ConfigError.
    """
    codec: BodyCodec[Any] = _codec_of(body) if queue is None else queue.codec
    failures = check_whole(failures, "failures", 0, 0xFFFF)
    data = encode_record(
        codec.encode_checked(body),
        flags=codec.flags,
        key=encode_key(key),
        meta=encode_meta(headers),
        id=None if id is None else _id_bytes(id),
        enqueued_at_us=None if enqueued_at is None else round(enqueued_at * 1e6),
        attempts=failures if reason is None else max(0, failures - 1),
    )
    if reason is not None:
        data = failed_record(data, reason, error, crashed=reason == REASON_CRASH)
    return Message.from_bytes(data)


def make_context(
    body: Any = b"",
    *,
    batch: bool = False,
    queue: Queue[Any] | str = "test",
    message: Message | None = None,
    attempt: int = 1,
    resources: Mapping[str, Any] | None = None,
    items: Mapping[str, Any] | None = None,
    cancelled: bool = False,
    stopping: bool = False,
    **envelope: Any,
) -> Context:
    """A context to call a handler or a middleware with.

    Args:
        body: what the handler would get: ``ctx.body``.
        batch: whether it is a list for a batch handler, of which each is a message.
        queue: its name, or the queue itself, which then encodes the message.
        message: the envelope; None = made of the body and ``envelope``.
        attempt, resources: as a handler would find them; without ``resources`` those of the queue's application.
        items: what outer middleware left in ``ctx.items``.
        cancelled: whether ``ctx.cancelled`` says that the handler should end.
        stopping: whether ``ctx.stopping`` says that the process is about to end.
        envelope: as for `make_message`: ``key``, ``headers``, ``failures``, ...

    Raises as `make_message`.
    """
    of, name = (queue, queue.name) if isinstance(queue, Queue) else (None, queue)
    if message is not None and (batch or envelope):
        raise ConfigError("give message, or what it is to be made of, not both")
    if batch and (not isinstance(body, Sequence) or isinstance(body, (str, bytes, bytearray))):
        raise ConfigError(f"body = {shown(body)} is no list of messages; leave batch out for a single one")
    bodies: Sequence[Any] = body if batch else [body]
    messages = [message] if message is not None else [make_message(one, queue=of, **envelope) for one in bodies]
    if resources is None:
        resources = {} if of is None else of.app.resources
    context = Context(messages, body, name, check_whole(attempt, "attempt", 1), resources)
    context.items.update(items or {})
    if cancelled:
        context._opened_work().asked = True
    if stopping:
        context._opened_work().stopping = True
    return context


def _codec_of(body: Any) -> BodyCodec[Any]:
    kind = type(body)
    plain = isinstance(body, (dict, list, tuple, set, frozenset, int, float)) or body is None
    return BodyCodec(None if plain else kind)


def _id_bytes(id: str) -> bytes:
    try:
        return uuid.UUID(id).bytes
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"id = {shown(id)} is not the text of a UUID") from None
