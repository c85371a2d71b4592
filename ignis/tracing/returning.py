"""The span of a shovel: messages come back from the sideline, and each is linked with what happened to it before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ignis.errors import UnreadableMessageError
from ignis.message import Message
from ignis.storage.records import Transfer
from ignis.tracing.envelope import TRACEPARENT, headers_of, last_traceparent_of, with_last_traceparent

if TYPE_CHECKING:
    from ignis.tracing.otel import Tracing

__all__ = ["returning"]


@contextmanager
def returning(tracing: Tracing, queue: str, moving: Sequence[Transfer]) -> Iterator[list[Transfer]]:
    """Messages that go back together, with the context of the span, which is open meanwhile.

    Args:
        tracing: of the application.
        queue: its name.
        moving: what goes back.
    """
    links: list[tuple[dict[str, str], dict[str, Any]]] = []
    for item in moving:
        try:
            message = Message.from_bytes(item.record)
        except UnreadableMessageError:
            continue
        said = {"messaging.message.id": message.id}
        last = last_traceparent_of(message)
        links += [(headers_of(message), said), ({} if last is None else {TRACEPARENT: last}, said)]
    operation = tracing.start(
        "shovel",
        queue,
        tracing.CLIENT,
        links=links,
        attributes={"messaging.batch.message_count": len(moving)},
    )
    traceparent = operation.traceparent
    try:
        with operation.current():
            yield [
                item if traceparent is None else item._replace(record=with_last_traceparent(item.record, traceparent))
                for item in moving
            ]
    except BaseException as exc:
        operation.raised(exc)
        raise
    finally:
        operation.end()
