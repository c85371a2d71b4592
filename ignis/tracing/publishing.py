"""Publishing that is traced: a queue's and a publisher's own calls, with a span around them and its context in the headers.

The calls of an object are replaced where tracing is on, so that nobody else pays for a look whether it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ignis.errors import ChannelFullError
from ignis.tracing.envelope import carrier_of, fits

if TYPE_CHECKING:
    from ignis.tracing.otel import Operation, Tracing

__all__ = ["Sending", "traced_publish", "traced_publish_many", "traced_send"]


class Sending:
    """A publish call: its span, and the headers that its messages get.

    Who gives a ``traceparent`` himself keeps it: then the message belongs to that trace, and the span is linked with it.

    Args:
        tracing: of the application.
        queue: where the messages go.
        headers: the publisher's own; what is no mapping is left as it is, for the call to refuse.
        limit_bytes: the queue's ``max_headers_bytes``. Where there is no room for the context the message goes without it.
    """

    __slots__ = ("headers", "operation")

    def __init__(self, tracing: Tracing, queue: str, headers: Any, limit_bytes: int) -> None:
        given = carrier_of(headers)
        self.operation: Operation = tracing.start(
            "publish", queue, tracing.PRODUCER, links=[(given, {})] if given else ()
        )
        self.headers = headers
        if given or not (headers is None or isinstance(headers, Mapping)):
            return
        context = self.operation.carrier()
        if context:
            filled = {**(headers or {}), **context}
            if fits(filled, headers, limit_bytes):
                self.headers = filled
            else:
                self.operation.set("ignis.context.left_out", True)

    def end_with(self, exc: BaseException) -> None:
        """It was refused."""
        self.operation.raised(exc)
        self.operation.end()

    def end_stored(self, id: str | None) -> None:
        """It is durable, as the queue promises. ``id``: of the message, where it is one."""
        if id is not None:
            self.operation.set("messaging.message.id", id)
        self.operation.end()


def traced_publish(tracing: Tracing, queue: str, limit_bytes: Callable[[], int], plain: Callable[..., Any]) -> Any:
    """`Queue.publish` in a span, which ends when the message is durable. One that waits for its time goes through
    `Queue.publish_many`, which has its own.

    Args:
        tracing: of the application.
        queue: the queue's name.
        limit_bytes: gives its ``max_headers_bytes``.
        plain: the call as it is.
    """

    def publish(message: Any, *, headers: Any = None, **options: Any) -> Any:
        if options.get("delay") is not None or options.get("at") is not None:
            return plain(message, headers=headers, **options)
        sending = Sending(tracing, queue, headers, limit_bytes())
        with sending.operation.current():
            try:
                published = plain(message, headers=sending.headers, **options)
            except BaseException as exc:
                sending.end_with(exc)
                raise
        sending.end_stored(published.id)
        return published

    return publish


def traced_publish_many(tracing: Tracing, queue: str, limit_bytes: Callable[[], int], plain: Callable[..., Any]) -> Any:
    """`Queue.publish_many` in one span, whose context all its messages carry. Arguments as for `traced_publish`."""

    def publish_many(messages: Any, *, headers: Any = None, **options: Any) -> Any:
        sending = Sending(tracing, queue, headers, limit_bytes())
        with sending.operation.current():
            try:
                ids = plain(messages, headers=sending.headers, **options)
            except BaseException as exc:
                sending.end_with(exc)
                raise
        sending.operation.set("messaging.batch.message_count", len(ids))
        sending.end_stored(ids[0] if len(ids) == 1 else None)
        return ids

    return publish_many


def traced_send(
    tracing: Tracing, queue: str, limit_bytes: Callable[[], int], plain: Callable[..., Any], *, waits: bool
) -> Any:
    """`Publisher.send` in a span.

    Arguments as for `traced_publish`. ``waits``: the span ends when the message is durable; else when it was handed over, which
    is all that a relay's publisher can tell without a thread for it.
    """

    def send(message: Any, *, headers: Any = None, **options: Any) -> Any:
        sending = Sending(tracing, queue, headers, limit_bytes())
        try:
            receipt = plain(message, headers=sending.headers, **options)
        except ChannelFullError:
            raise  # nothing was handed over, and whoever asks without waiting asks again: no span
        except BaseException as exc:
            sending.end_with(exc)
            raise
        if waits and sending.operation.recording:
            receipt.add_done_callback(lambda done: _end(sending, done))
        else:
            sending.end_stored(receipt.id)
        return receipt

    return send


def _end(sending: Sending, receipt: Any) -> None:
    try:
        sending.end_stored(receipt.result(0))
    except Exception as exc:
        sending.end_with(exc)
