"""Messages and contexts that were made: as a handler would find them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import ignis
from ignis.errors import ConfigError, InvalidMessageError
from ignis.testing import drain, make_context, make_message


class Order(msgspec.Struct):
    id: int


@pytest.mark.parametrize(
    ("body", "codec", "stored"),
    [
        (b"x", "raw", b"x"),
        ("text", "raw", b"text"),
        ({"a": 1}, "json", b'{"a":1}'),
        ([1, 2], "json", b"[1,2]"),
        (None, "json", b"null"),
        (Order(7), "json", b'{"id":7}'),
    ],
    ids=["bytes", "text", "dict", "list", "none", "struct"],
)
def test_a_body_is_encoded_by_its_type(body: Any, codec: str, stored: bytes) -> None:
    message = make_message(body)
    assert (message.codec, message.body) == (codec, stored)
    assert uuid.UUID(message.id).version == 7
    assert (message.key, message.headers, message.failures, message.reason) == (None, {}, 0, None)


def test_an_envelope_is_as_given() -> None:
    id = str(uuid.uuid4())
    message = make_message(b"", key="k", headers={"h": [1]}, id=id, enqueued_at=1.5, failures=3)
    assert (message.id, message.key, message.headers) == (id, "k", {"h": [1]})
    assert (message.enqueued_at_us, message.failures, message.crashes) == (1_500_000, 3, 0)


def test_a_message_that_has_failed() -> None:
    message = make_message(1, failures=2, reason="crash", error="signal 9")
    assert (message.reason, message.error, message.failures, message.crashes) == ("crash", "signal 9", 2, 1)
    assert make_message(1, reason="timeout").failures == 1


def test_a_queue_encodes_and_checks() -> None:
    queue = ignis.Ignis().queue("orders", Order, codec="msgpack")
    message = make_message(Order(1), queue=queue)
    assert (message.codec, message.body) == ("msgpack", msgspec.msgpack.encode({"id": 1}))
    with pytest.raises(InvalidMessageError, match="a dict was published to a queue of Order"):
        make_message({"id": 1}, queue=queue)


def test_a_context_is_what_a_handler_gets(new_app: Callable[..., ignis.Ignis]) -> None:
    queue = new_app("memory://", resources={"db": object()}).queue("orders", Order)
    found: list[ignis.Context] = []
    queue.handler(lambda order, ctx: found.append(ctx))
    queue.publish(Order(1), key="k", headers={"h": 1})
    drain(queue)
    (real,) = found
    made = make_context(Order(1), queue=queue, key="k", headers={"h": 1}, id=real.message.id)
    for name in ("body", "queue", "attempt", "resources", "items"):
        assert getattr(made, name) == getattr(real, name), name
    for name in ("id", "key", "headers", "body", "codec", "failures"):
        assert getattr(made.message, name) == getattr(real.message, name), name


def test_a_context_for_middleware_and_batches() -> None:
    context = make_context([1, 2], batch=True, attempt=2, resources={"db": 1}, items={"user": "ada"}, key="k")
    assert context.body == [1, 2]
    assert [one.body for one in context.messages] == [b"1", b"2"]
    assert {one.key for one in context.messages} == {"k"}
    assert (context.queue, context.attempt, context.resources, context.items) == ("test", 2, {"db": 1}, {"user": "ada"})
    assert make_context([1, 2]).message.body == b"[1,2]"
    message = make_message("x")
    assert make_context("x", message=message).message is message


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="id = 'x' is not the text of a UUID"):
        make_message(1, id="x")
    with pytest.raises(ConfigError, match="failures = -1"):
        make_message(1, failures=-1)
    with pytest.raises(ConfigError, match="body = 'ab' is no list"):
        make_context("ab", batch=True)
    with pytest.raises(ConfigError, match="not both"):
        make_context(1, message=make_message(1), key="k")
    with pytest.raises(ConfigError, match="attempt = 0"):
        make_context(1, attempt=0)
