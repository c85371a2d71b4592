"""A handler's calls, and what becomes of their failures, as spans of OpenTelemetry. See `ignis.tracing`.

A call is a ``process`` span: a layer of middleware outside all others, so that it is the current span of the handler, in a
thread, a coroutine or a worker process. It is a child of the span that published the message, and linked with it and with what
happened to the message last; that of a batch is linked with all that it has.

A failure is stored later, by another thread: that is a span of its own, ``retry`` or ``sideline``, a child of the call's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ignis.consumer.middleware import is_coroutine_function
from ignis.consumer.outcome import Failure, is_retry_later
from ignis.consumer.retrying import Decision
from ignis.errors import UnreadableMessageError
from ignis.message import Message
from ignis.retries import RetryLater, is_kind
from ignis.storage.base import Transfer
from ignis.tracing import unsettled
from ignis.tracing.envelope import TRACEPARENT, headers_of, last_traceparent_of, with_last_traceparent

if TYPE_CHECKING:
    from ignis.consumer.handler import Context, HandlerSpec, Middleware
    from ignis.tracing.otel import Link, Operation, Tracing

__all__ = ["FailureSpans", "tracing_layer"]

_ATTEMPT = "ignis.message.attempt"
_OUTCOME = "ignis.outcome"


def tracing_layer(tracing: Tracing, spec: HandlerSpec, inner: Sequence[Middleware]) -> Middleware:
    """The outermost layer of a handler whose application traces.

    Args:
        tracing: of the application.
        spec: the handler.
        inner: the layers within this one, the outermost first.
    """
    awaited = spec.pool == "async" or any(map(is_coroutine_function, inner))

    def traced(ctx: Context, call_next: Callable[[Context], Any]) -> Any:
        call = _Call(tracing, spec, ctx)
        with call.operation.current():
            try:
                answer = call_next(ctx)
            except BaseException as exc:
                call.raised(exc)
                raise
            call.answered(answer)
        return answer

    async def traced_async(ctx: Context, call_next: Callable[[Context], Any]) -> Any:
        call = _Call(tracing, spec, ctx)
        with call.operation.current():
            try:
                answer = await call_next(ctx)
            except BaseException as exc:
                call.raised(exc)
                raise
            call.answered(answer)
        return answer

    return traced_async if awaited else traced


class _Call:
    """One call of a handler."""

    __slots__ = ("_messages", "_spec", "operation")

    def __init__(self, tracing: Tracing, spec: HandlerSpec, ctx: Context) -> None:
        self._spec = spec
        self._messages = messages = ctx.messages
        attributes: dict[str, Any] = {"code.function.name": _name_of(spec.fn)}
        if spec.batch_size is None:
            parent = headers_of(messages[0])
            attributes |= {"messaging.message.id": messages[0].id, _ATTEMPT: ctx.attempt}
        else:
            parent = {}  # messages of many traces: it is a trace of its own
            attributes["messaging.batch.message_count"] = len(messages)
        links = [link for message in messages for link in _links_of(message)]
        self.operation: Operation = tracing.start(
            "process", ctx.queue, tracing.CONSUMER, parent=parent, links=links, attributes=attributes
        )
        if spec.batch_size is None:  # of a call that is given up it is known; of a batch's only once it has failed
            self._note()

    def raised(self, exc: BaseException) -> None:
        operation = self.operation
        if is_retry_later(exc):
            self._asked_again(exc)
        elif is_kind(type(exc), *self._spec.ignore):
            operation.raised(exc, is_error=False)
            operation.set(_OUTCOME, "dropped")
            self._forget()
        else:
            operation.raised(exc)
            self._note_failed()
        operation.end()

    def answered(self, answer: object) -> None:
        operation = self.operation
        if answer is None or answer is True:
            self._forget()
        elif is_retry_later(answer):
            self._asked_again(answer)
        elif answer is False:
            operation.failed("rejected", "the handler returned False")
            self._note_failed()
        elif type(answer) is Failure:
            operation.failed(str(answer.reason), str(answer.error))
            self._note_failed()
        else:  # one of a batch, or what says nothing
            if self._spec.batch_size is not None and isinstance(answer, (list, tuple)):
                operation.set("ignis.batch.failed_count", sum(map(_is_failure, answer)))
            self._note_failed()
        operation.end()

    def _asked_again(self, asked: RetryLater) -> None:
        at = None if asked.at is None else asked.at.isoformat()
        self.operation.event("ignis.retry.asked", {"delay_s": asked.delay_s, "at": at, "why": asked.why or None})
        self._note_failed()

    def _note(self) -> None:
        traceparent = self.operation.traceparent
        if traceparent is not None:
            unsettled.note(self._spec.queue, self._messages[0].id, traceparent)

    def _note_failed(self) -> None:
        traceparent = self.operation.traceparent
        if traceparent is not None:
            noted = self._spec.batch_size is None
            for message in self._messages:
                unsettled.note_failed(self._spec.queue, message.id, traceparent, noted=noted)

    def _forget(self) -> None:
        traceparent = self.operation.traceparent
        if traceparent is not None and self._spec.batch_size is None:
            unsettled.forget(self._spec.queue, self._messages[0].id, traceparent)


class FailureSpans:
    """The spans of one round of failures: begun before they are stored, for their context goes into the messages, and ended when
    the store has answered. For one thread.

    Args:
        tracing: of the application.
        queue: its name.
    """

    def __init__(self, tracing: Tracing, queue: str) -> None:
        self._tracing = tracing
        self._queue = queue
        self._begun: dict[tuple[int, int], tuple[Operation, str, str | None, str, dict[str, Any]]] = {}

    def begin(self, item: Transfer, failure: Failure, decision: Decision) -> Transfer:
        """The failed message with the context of its span, which begins."""
        try:
            message = Message.from_bytes(item.record)
        except UnreadableMessageError:
            return item
        published = headers_of(message)
        call = unsettled.look(self._queue, message.id)
        again = decision.due_ms is not None
        operation = self._tracing.start(
            "retry" if again else "sideline",
            self._queue,
            self._tracing.CLIENT,
            parent=published if call is None else {TRACEPARENT: call},
            links=[(published, {})],
            attributes={
                "messaging.message.id": message.id,
                "ignis.failure.reason": failure.reason,
                _ATTEMPT: decision.tried or message.failures,
            },
        )
        said: dict[str, Any] = {"reason": failure.reason, "error": failure.error}
        if decision.due_ms is not None:
            due = datetime.fromtimestamp(decision.due_ms / 1000, timezone.utc)
            said |= {"next_attempt": (decision.tried or 0) + 1, "due": due.isoformat()}
        else:
            said["given_up"] = decision.given_up
            operation.set("error.type", failure.reason)
        self._begun[item.shard, item.pointer] = operation, message.id, call, "scheduled" if again else "stored", said
        traceparent = operation.traceparent
        if traceparent is None:
            return item
        return item._replace(record=with_last_traceparent(item.record, traceparent))

    def end(self, left: Collection[tuple[int, int]]) -> None:
        """Ends them. ``left``: (shard, pointer) of those that the store has not taken, for which there will be another round."""
        for place, (operation, id, call, what, said) in self._begun.items():
            if place in left:
                operation.failed("not_stored", "the store did not take it; it is tried again")
            else:
                name = "ignis.retry.scheduled" if what == "scheduled" else "ignis.sidelined"
                operation.event(name, said)
                if call is not None:
                    unsettled.forget(self._queue, id, call)
            operation.end()


def _links_of(message: Message) -> Iterator[Link]:
    yield headers_of(message), {"messaging.message.id": message.id}
    last = last_traceparent_of(message)
    if last is not None:
        yield {TRACEPARENT: last}, {"messaging.message.id": message.id, "ignis.link": "last_failure_or_return"}


def _is_failure(answer: object) -> bool:
    return answer is False or type(answer) is Failure or is_retry_later(answer)


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    module = getattr(fn, "__module__", None)
    return f"{module}.{name}" if module else str(name)
