"""Handlers: what a user registers, and the context it is called with.

What its answers mean is in `ignis.consumer.outcome`, and who calls it in `ignis.consumer.runner`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ignis.config import ConsumerSettings, check_number, check_whole, shown
from ignis.consumer.handler_form import check_expected, check_handler
from ignis.consumer.handler_log import HandlerLog
from ignis.consumer.middleware import check_layers, is_coroutine_function
from ignis.consumer.outcome import DROPPED, Failure, Outcome, failure_of
from ignis.consumer.work import Work, is_stopping, open_work
from ignis.errors import ConfigError, ConsumerLimitError, UnreadableMessageError
from ignis.message import Message, as_utf8
from ignis.native import Record
from ignis.native.handling import Delivery
from ignis.near_names import elsewhere_or_meant
from ignis.retries import RetryRules, retry_rules

__all__ = [
    "DROPPED",
    "Context",
    "Envelopes",
    "Failure",
    "HandlerSpec",
    "Middleware",
    "Outcome",
    "check_consumers",
    "failure_of",
    "make_spec",
]

POOLS = ("thread", "async", "process")
_MOST = 1 << 62
MAX_TEXT_CHARS = 200
"""Of what a handler says of its progress."""
BATCH_SIZE_RANGE = (2, 200_000)
BATCH_WAIT_RANGE_S = (1.0, 300.0)

_OPTIONS = ("attempts", "batch_size", "batch_wait_s", "concurrency", "ignore", "pool", "retry", "timeout_s")
_MAY_BE_NONE = ("timeout_s", "batch_size", "batch_wait_s", "retry")

Middleware = Callable[["Context", Callable[["Context"], Any]], Any]
"""``middleware(ctx, call_next)``: does something around ``call_next(ctx)`` and returns its answer (or another)."""


class Envelopes:
    """The stored messages of a batch, of which nobody has asked for the envelopes yet.

    Args:
        records: as they are stored, and readable.
    """

    __slots__ = ("records",)

    def __init__(self, records: Sequence[bytes]) -> None:
        self.records = records


class Context(Delivery):
    """What a handler and its middleware know about the delivery. One object per call, passed down explicitly.

    It belongs to the thread or task that handles the message.

    >>> from ignis.testing import make_context
    >>> def handler(order: dict, ctx: Context) -> None:
    ...     print(ctx.queue, ctx.message.key, ctx.attempt, order)
    >>> context = make_context({"id": 1}, queue="orders", key="customer-7")
    >>> handler(context.body, context)
    orders customer-7 1 {'id': 1}

    Attributes:
        message: the envelope (`ignis.Message`); for a batch handler the first one.
        messages: all envelopes of this call, in the order of the bodies.
        body: the decoded message; for a batch handler the list of them.
        queue: the queue's name.
        attempt: 1 on the first call, counting up with each one that the handler's ``retry`` or ``attempts`` lets follow; for a
            batch handler that of the first message, and ``message.attempt`` of each tells its own.
        last_error: what the attempt before this one failed with, as text; None when none did.
        resources: what the application put into ``Ignis(resources=...)``, shared by all handlers of the process.
        items: a dict of this call alone, for middleware to hand things down.
        cancelled: whether somebody has cancelled the message: see `ignis.Queue.cancel`.
        stopping: whether the consumer is about to end, and waits for the handler.
    """

    __slots__ = ()

    _messages: Sequence[Message] | Record | Envelopes
    _work: Work | None

    @property
    def attempt(self) -> int:
        """1 on the first call, counting up with each that follows a failed one."""
        if self._attempt is None:  # counted in the envelope, at which most handlers do not look
            self._attempt = self.message.attempt
        return self._attempt

    @attempt.setter
    def attempt(self, attempt: int) -> None:
        self._attempt = attempt

    @property
    def last_error(self) -> str | None:
        """What the attempt before this one failed with, the exception's type and its text; None when none did. Of a message that
        comes back from the sideline, what sent it there."""
        if self._last_error is None:
            try:
                return self.message.error
            except UnreadableMessageError:
                return None
        return self._last_error

    @property
    def messages(self) -> Sequence[Message]:
        """All envelopes of this call, in the order of the bodies."""
        messages = self._messages
        if isinstance(messages, Record):
            # Most handlers never look at the envelope: it is made for those that do.
            messages = self._messages = (Message(messages),)
        elif isinstance(messages, Envelopes):
            messages = self._messages = [Message(Record(data)) for data in messages.records]
        return messages

    @property
    def message(self) -> Message:
        """The envelope; for a batch handler that of the first message."""
        return self.messages[0]

    @property
    def items(self) -> dict[str, Any]:
        """A dict of this call alone, for middleware to hand things down."""
        if self._items is None:
            self._items = {}
        return self._items

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled the message, and the handler should end: a handler that takes long looks now and then.
        Once it has been told, the message ends in the sideline as ``cancelled``, whatever the handler answers. Always False in a
        batch."""
        return self._opened_work().look()

    @property
    def stopping(self) -> bool:
        """Whether the process, or its consumer of this queue, is about to end. It waits for what runs, for at most
        ``consumer.stop_timeout_s``. A handler that takes long looks now and then, keeps what it has, and answers
        ``ignis.RetryLater(0)`` to go on elsewhere. Cheap."""
        work = self._work
        return (work is not None and work.stopping) or is_stopping(self.queue, self.resources)

    def progress(self, fraction: float, text: str = "") -> None:
        """Says how far it has come, for people who look: ``ignis workers``, the metrics. Cheap; stored now and then.

        Args:
            fraction: 0 to 1.
            text: what it is at; 200 characters of it are kept.

        Raises ConfigError.
        """
        check_number(fraction, "fraction", 0, 1)
        if not isinstance(text, str):
            raise ConfigError(f"text = {shown(text)} is not text")
        self._opened_work().tell(float(fraction), as_utf8(text[:MAX_TEXT_CHARS]))

    def _opened_work(self) -> Work:
        if self._work is None:
            self._work = open_work(self.queue, self._first_record().id)
        return self._work

    def _first_record(self) -> Record:
        """The message, or the first of a batch, as it is stored."""
        messages = self._messages
        if isinstance(messages, Record):
            return messages
        return Record(messages.records[0]) if isinstance(messages, Envelopes) else messages[0]._record

    def __reduce__(self) -> tuple[Any, ...]:
        messages = self._messages if isinstance(self._messages, Record) else self.messages
        parts = (messages, self.body, self.queue, self.attempt, self.resources)
        # What copies it sets attributes from the second.
        return type(self), parts, (None, {"_items": self._items, "_last_error": self._last_error})


@dataclass
class HandlerSpec:
    """A registered handler and how it is to be run."""

    fn: Callable[..., Any]
    queue: str
    concurrency: int = 1
    pool: str = ""
    ignore: tuple[type[Exception], ...] = ()
    timeout_s: float | None = None
    attempts: int = 1
    batch_size: int | None = None
    batch_wait_s: float = 1.0
    middleware: list[Middleware] = field(default_factory=list)
    max_consumers: int = 100
    max_coroutines: int = 1_000
    retry: RetryRules | None = None
    declared: int | None = None
    """The concurrency that the code asks for; `concurrency` is the one in force."""
    log: HandlerLog = field(init=False, repr=False, compare=False)
    """What its failures say, for all its workers."""

    def __post_init__(self) -> None:
        check_handler(self.fn, f"handler of queue {self.queue!r}")
        self.log = HandlerLog(self.queue, self.name)
        if not isinstance(self.pool, str):
            raise ConfigError(f"pool = {shown(self.pool)} is not one of {', '.join(POOLS)}")
        is_async = is_coroutine_function(self.fn)
        if not self.pool:
            self.pool = "async" if is_async else "thread"
        if self.pool not in POOLS:
            raise ConfigError(f"pool = {shown(self.pool)} is not one of {', '.join(POOLS)}")
        if is_async != (self.pool == "async"):
            kind = "a coroutine function" if is_async else "a plain function"
            raise ConfigError(f"handler {self.name} is {kind}: pool={self.pool!r} cannot run it")
        self.concurrency = check_consumers(self.concurrency, *self.limit)
        self.declared = self.concurrency if self.declared is None else self.declared
        self.attempts = check_whole(self.attempts, "attempts", 1)
        if self.retry is not None and self.attempts > 1:
            raise ConfigError(
                f"attempts = {self.attempts} are calls one right after the other, and with retry each has its own delivery: give "
                f"retry=ignis.Retry(attempts={self.attempts}), and base=0 for no wait"
            )
        if self.timeout_s is not None:
            check_number(self.timeout_s, "timeout_s", above=True)
        ignored: object = self.ignore
        if isinstance(ignored, str):
            raise ConfigError(f"ignore = {shown(ignored)} is not an exception class, nor several")
        for kind_ in cast("tuple[object, ...]", self.ignore):
            if not (isinstance(kind_, type) and issubclass(kind_, Exception)):
                if isinstance(kind_, type) and issubclass(kind_, BaseException):
                    raise ConfigError(
                        f"ignore holds {kind_.__qualname__}, which is no subclass of Exception: give Exception, or narrower ones"
                    )
                raise ConfigError(f"ignore holds {shown(kind_)}, which is not an exception class")
        if self.batch_size is not None:
            self.batch_size = check_whole(self.batch_size, "batch_size", *BATCH_SIZE_RANGE)
            check_number(self.batch_wait_s, "batch_wait_s", *BATCH_WAIT_RANGE_S)
        if self.pool == "process":
            self.import_path()  # fail at registration, not in the child
        self.check_middleware(self.middleware)

    def check_middleware(self, layers: Sequence[Middleware]) -> None:
        """Raises ConfigError for layers, the outermost first, within which the handler would not run."""
        check_layers(layers, f"{self.name} of queue {self.queue!r}", self.pool == "async")

    @property
    def limit(self) -> tuple[int, str]:
        """Most workers in this process, and the setting that says so."""
        if self.pool == "async":
            return self.max_coroutines, "consumer.max_coroutines"
        return self.max_consumers, "consumer.max_consumers"

    @property
    def name(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__qualname__)

    def import_path(self) -> tuple[str, str]:
        """Module and qualified name under which a worker process finds the handler. Raises ConfigError."""
        module, name = getattr(self.fn, "__module__", None), self.name
        if not module or "<" in name or not hasattr(self.fn, "__qualname__"):
            raise ConfigError(
                f"handler {name} cannot be imported by a worker process: "
                "pool='process' needs a function at module level"
            )
        if module == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
            raise ConfigError(
                f"handler {name} cannot be imported by a worker process: it was typed into an interpreter; pool='process' needs "
                "a function of a module, which is a file"
            )
        return module, name


def check_consumers(count: int, limit: int, setting: str) -> int:
    """Returns the number of consumers, or raises ConfigError, ConsumerLimitError (over the ``limit`` that the setting has)."""
    count = check_whole(count, "concurrency", -_MOST)
    if count < 0:
        raise ConfigError(f"concurrency = {count} is below 0 (0 = publish only)")
    if count > limit:
        raise ConsumerLimitError(count, limit, setting)
    return count


def make_spec(
    fn: Callable[..., Any],
    queue: str,
    kind: Any,
    options: Mapping[str, Any],
    most: ConsumerSettings,
    file: Mapping[str, Any],
) -> HandlerSpec:
    """A handler's registration as it is written by a user.

    Args:
        fn: the handler.
        queue: the name of the queue.
        kind: the type of its messages; None = any.
        options: of ``queue.handler``; None stands for one that was left out.
        most: says how many workers there may be.
        file: the parsed settings file, for the names of policies.

    Raises ConfigError for options that contradict each other or the handler, ConsumerLimitError.
    """
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(
                f"handler of queue {queue!r}: unknown option {shown(name)}; {elsewhere_or_meant(name, _OPTIONS)}"
                f"known: {', '.join(_OPTIONS)}"
            )
    options = {name: value for name, value in options.items() if value is not None or name not in _MAY_BE_NONE}
    if "batch_wait_s" in options and "batch_size" not in options:
        raise ConfigError(
            f"handler of queue {queue!r}: batch_wait_s = {shown(options['batch_wait_s'])} is for batches; give batch_size too, "
            "or leave it out"
        )
    if "timeout_s" in options:
        options["timeout_s"] = check_number(options["timeout_s"], "timeout_s")
    if "retry" in options:
        options["retry"] = retry_rules(options["retry"], file)
    ignore = options.pop("ignore", ())
    ignore = tuple(ignore) if isinstance(ignore, Iterable) else (ignore,)
    spec = HandlerSpec(
        fn, queue, ignore=ignore, max_consumers=most.max_consumers, max_coroutines=most.max_coroutines, **options
    )
    check_expected(fn, f"handler of queue {queue!r}", kind, spec.batch_size is not None, Context)
    return spec
