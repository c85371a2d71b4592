"""Middleware: layers round a handler, each of which decides whether and with what the next one is called.

A layer is ``layer(ctx, call_next)``, a function or a coroutine function. A coroutine function fits round every handler:
``await call_next(ctx)`` gives a plain handler's answer as well. A plain function fits only round what is plain: it would
get a coroutine for an answer and the handler would never run, so that is refused.

A layer that returns ``None`` and never called the next one has forgotten it: that fails the message, with HandlerNotCalledError,
for nobody has handled it. One that returns ``None`` and has called it has forgotten ``return``: the answer of its last call
counts, for a failure must not pass as done. A layer that means to answer in the handler's place returns ``True``
or ``False``.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ignis.errors import ConfigError, HandlerNotCalledError

__all__ = ["Completed", "check_layers", "is_coroutine_function", "wrapped"]

Call = Callable[[Any], Any]


def is_coroutine_function(fn: Any) -> bool:
    """Whether calling it gives a coroutine: a coroutine function, bound, partial, or an object whose call is one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    call = getattr(type(fn), "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def check_layers(layers: Sequence[Any], handler: str, is_async: bool) -> None:
    """Raises ConfigError where a plain layer stands round something that is awaited.

    Args:
        layers: the outermost first.
        handler: what the handler is called.
        is_async: whether it is a coroutine function.
    """
    awaited = f"handler {handler}" if is_async else ""
    for layer in reversed(layers):
        if is_coroutine_function(layer):
            awaited = f"middleware {_name(layer)}"
        elif awaited:
            raise ConfigError(
                f"middleware {_name(layer)} is a plain function round {awaited}, a coroutine function: it would get a "
                "coroutine and nothing would run; make it 'async def' and await call_next(ctx), which fits round plain "
                "handlers too"
            )


def wrapped(innermost: Call, layers: Sequence[Any], is_async: bool) -> Call:
    """The handler's call within its layers, the first outermost. What it returns is to be awaited when ``is_async``; for a
    plain handler it is the answer, though layers may be coroutine functions.

    Args:
        innermost: calls the handler.
        layers: as `check_layers` takes them.
        is_async: whether the handler is a coroutine function.
    """
    call, awaited = innermost, is_async
    for layer in reversed(layers):
        if is_coroutine_function(layer):
            call, awaited = _wrap_awaited(layer, call if awaited else _awaitable(call)), True
        else:
            call = _wrap(layer, call)
    return Completed(call) if awaited and not is_async else call


def _wrap(layer: Callable[[Any, Call], Any], inner: Call) -> Call:
    def call(context: Any) -> Any:
        called, given = False, None

        def call_next(context: Any) -> Any:
            nonlocal called, given
            called, given = True, None
            given = inner(context)
            return given

        answer = layer(context, call_next)
        if answer is not None:
            return answer
        if not called:
            raise HandlerNotCalledError(_name(layer), awaited=False)
        return given

    return call


def _wrap_awaited(layer: Callable[[Any, Call], Awaitable[Any]], inner: Call) -> Call:
    async def call(context: Any) -> Any:
        called, given = False, None

        async def call_next(context: Any) -> Any:
            # Not before it is awaited: a coroutine that is only made runs nothing.
            nonlocal called, given
            called, given = True, None
            given = await inner(context)
            return given

        answer = await layer(context, call_next)
        if answer is not None:
            return answer
        if not called:
            raise HandlerNotCalledError(_name(layer), awaited=True)
        return given

    return call


def _awaitable(call: Call) -> Call:
    async def answer(context: Any) -> Any:
        return call(context)

    return answer


class Completed:
    """Runs the layers that are coroutine functions to their end, on an event loop of this worker's own: a plain handler runs
    in a thread or a process that has none. Not shared between workers.

    Args:
        call: the layers and the handler, to be awaited.
    """

    def __init__(self, call: Callable[[Any], Awaitable[Any]]) -> None:
        self.call = call
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, context: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)
        return self._loop.run_until_complete(self.call(context))


def _name(layer: Any) -> str:
    return str(getattr(layer, "__qualname__", type(layer).__qualname__))
