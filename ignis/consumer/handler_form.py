"""What can be told of a function before it is called: how it may be called, and what it expects to get."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from ignis.config import shown
from ignis.errors import ConfigError

__all__ = ["HANDLER_FORMS", "check_callable", "check_expected", "check_handler", "check_kind", "takes_context"]

HANDLER_FORMS = ("message", "message, ctx")

_UNEVALUATED: dict[str, Any] = {}
"""How to ask for a signature without what its annotations name: since Python 3.14 these are evaluated when they are asked for."""
if sys.version_info >= (3, 14):
    import annotationlib

    _UNEVALUATED["annotation_format"] = annotationlib.Format.STRING

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_CONTEXT_NAMES = ("ctx", "context")
_NO_CLASSES = (object, typing.Any, typing.Union, types.UnionType)
"""What is a class, on some versions of Python, and does not say what a value is."""
_ALSO_TAKES: dict[Any, tuple[Any, ...]] = {float: (int,), complex: (int, float), bytes: (bytearray, memoryview)}
"""Classes that an annotation takes beside its own: numbers as type checkers have it, and what arrives as bytes."""


def check_callable(fn: object, what: str, *forms: str) -> None:
    """Raises ConfigError for what cannot be called, or in none of the ``forms`` (the arguments, as they are written). What
    Python cannot tell the arguments of is let through."""
    if not callable(fn):
        raise ConfigError(f"{what} is not callable: {shown(fn)}")
    signature = _signature(fn)
    if signature is None:
        return
    if forms and not any(_takes(signature, form.count(",") + 1) for form in forms):
        bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        signature = signature.replace(parameters=bare, return_annotation=signature.empty)
        raise ConfigError(
            f"{what}: {_name(fn)}{signature} cannot be called as {' or '.join(f'fn({one})' for one in forms)}"
        )


def check_handler(fn: object, what: str) -> None:
    """`check_callable` for a handler. Raises ConfigError."""
    check_callable(fn, what, *HANDLER_FORMS)
    plain = fn.func if isinstance(fn, functools.partial) else fn
    call = getattr(type(plain), "__call__", None)  # noqa: B004 - an object whose __call__ is a generator function
    for one in (plain, call):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigError(
                f"{what}: {_name(plain)} is a generator function: a call runs nothing of it; a handler is "
                f"{' or '.join(f'fn({one})' for one in HANDLER_FORMS)}, without yield"
            )


def check_expected(fn: Callable[..., Any], what: str, kind: Any, batched: bool, context: type) -> None:
    """Raises ConfigError where the annotation of the first or second argument contradicts what the handler will get.

    Only what can be told for certain is refused: an annotation that cannot be evaluated, or is more than the name of a class
    with its arguments, is let through, and so is another class than the queue's: see `check_kind`.

    Args:
        fn: the handler.
        what: what it is called.
        kind: the type of the queue's messages; None = any JSON value, which may be a list as well.
        batched: whether it gets lists, because of ``batch_size``.
        context: the class of the second argument.
    """
    expected = _annotation(fn, 0)
    name = f"{what}: {_name(fn)}"
    if expected is context:
        raise ConfigError(f"{name} takes the context first; the message comes first: fn({HANDLER_FORMS[1]})")
    if takes_context(fn) and not _may_be(context, second := _annotation(fn, 1)):
        raise ConfigError(
            f"{name} takes {_said(second)} second, but what comes second is the context: fn({HANDLER_FORMS[1]}); an argument of "
            "its own needs a default value, or functools.partial"
        )
    if batched:
        if not _may_be(list, expected):
            raise ConfigError(
                f"{name} takes {_said(expected)}, but with batch_size it gets a list of messages: annotate it as list[...], or "
                "leave batch_size out"
            )
    elif _is_list(expected) and kind is not None and not _may_be(kind, expected):
        raise ConfigError(
            f"{name} takes {_said(expected)}, but it gets one message ({_said(kind)}) at a time: give batch_size=..., or "
            "annotate it with the type of one message"
        )


def check_kind(fn: Callable[..., Any], what: str, kind: Any) -> None:
    """Raises ConfigError where the first argument is annotated with another class than ``kind``, that of the queue's messages
    (None = any JSON value), and no value is of both. For a handler without middleware, which might replace the body."""
    expected = _annotation(fn, 0)
    if kind is None or expected is None or _may_be(kind, expected):
        return
    if _class_of(kind) in _ALSO_TAKES.get(_class_of(expected), ()):
        return
    raise ConfigError(
        f"{what}: {_name(fn)} takes {_said(expected)}, but the queue's messages are {_said(kind)}: annotate it with that, give "
        "the queue the other type, or register the middleware that replaces the body first"
    )


def takes_context(fn: Callable[..., Any]) -> bool:
    """Whether a handler is called with the context as well. A second argument that has a default value is the handler's own,
    such as ``got=got`` of a closure, unless its name or its annotation says that it is the context."""
    signature = _signature(fn)
    if signature is None:
        return True
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    second = _positional(signature, 1)
    if second is None or second.default is second.empty:
        return second is not None
    return second.name in _CONTEXT_NAMES or "Context" in str(second.annotation)


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """The arguments that ``fn`` takes; None where Python cannot tell. What their annotations name need not exist."""
    try:
        return inspect.signature(fn, **_UNEVALUATED)
    except (TypeError, ValueError):
        return None


def _positional(signature: inspect.Signature, index: int) -> inspect.Parameter | None:
    found = [parameter for parameter in signature.parameters.values() if parameter.kind in _POSITIONAL]
    return found[index] if index < len(found) else None


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _annotation(fn: Callable[..., Any], index: int) -> Any:
    """What that positional argument is annotated with; None where it is with nothing, or with what cannot be evaluated now."""
    signature = _signature(fn)
    one = _positional(signature, index) if signature is not None else None
    if one is None or one.annotation is one.empty:
        return None
    plain: Any = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    if not hasattr(plain, "__globals__") and not hasattr(plain, "__func__"):
        plain = getattr(type(plain), "__call__", plain)  # noqa: B004 - what is evaluated is the class's function
    names = getattr(getattr(plain, "__func__", plain), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"one": one.annotation})
    try:
        return typing.get_type_hints(holder, names)["one"]
    except Exception:  # whatever the annotation names may not exist, or only for a type checker
        return None


def _class_of(annotation: Any) -> type | None:
    """The class that stands for it; None = not known, which every value may be."""
    if hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__  # of Annotated
    origin = typing.get_origin(annotation) or annotation
    if not isinstance(origin, type) or origin in _NO_CLASSES or getattr(origin, "_is_protocol", False):
        return None
    return origin


def _is_list(annotation: Any) -> bool:
    one = _class_of(annotation)
    return one is not None and not issubclass(one, (str, bytes)) and _is_subclass(list, one)


def _may_be(given: Any, expected: Any) -> bool:
    """Whether a value of the one type may be one of the other."""
    left, right = _class_of(given), _class_of(expected)
    if left is None or right is None:
        return True
    return _is_subclass(left, right) or _is_subclass(right, left)


def _is_subclass(one: type, other: type) -> bool:
    try:
        return issubclass(one, other)
    except TypeError:  # classes that do not want to be asked
        return True


def _name(fn: object) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def _said(annotation: Any) -> str:
    return (
        annotation.__qualname__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
    )
