"""Exceptions on their way through the wire: code and arguments there, the same class again here. No I/O."""

from __future__ import annotations

from ignis import errors
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.payloads import Failure
from ignis.broker.protocol.permission_words import words_for
from ignis.errors import BadRequestError, BrokerError, IgnisError, PermissionDeniedError
from ignis.message import as_utf8

__all__ = ["failure_of", "to_exception"]

_PLAIN = (str, int, float, bool, type(None))

_by_code: dict[str, type[IgnisError]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, IgnisError)
}


def failure_of(exc: BaseException, *, fatal: bool = False) -> Failure:
    """What the other side is told. Of an error that is not ours it learns that there was one; the log has the rest."""
    if isinstance(exc, IgnisError):
        own = any("__init__" in vars(kind) for kind in type(exc).__mro__ if issubclass(kind, IgnisError))
        arguments = list(exc.__reduce__()[1]) if own else []
        plain = [list(one) if isinstance(one, tuple) else _text(one) for one in arguments]
        return Failure(exc.code, as_utf8(str(exc)), exc.retryable, fatal, plain if _all_plain(plain) else [])
    if isinstance(exc, (ValueError, TypeError, OverflowError)):
        return Failure(BadRequestError.code, as_utf8(f"{exc}"), False, fatal)
    return Failure(BrokerError.code, f"internal error ({type(exc).__name__}); the broker's log says more", False, fatal)


def to_exception(failure: Failure) -> IgnisError:
    """The exception that the failure names; a BrokerError with its text where this side does not know the code."""
    made = _made_of(failure)
    if isinstance(made, PermissionDeniedError) and made.command in Command.__members__:
        made.tell_words(words_for(made.command))
    return made


def _made_of(failure: Failure) -> IgnisError:
    kind = _by_code.get(failure.code)
    if kind is None:
        unknown = BrokerError(f"{failure.code}: {failure.message}")
        unknown.retryable = failure.retryable
        return unknown
    if failure.arguments:
        try:
            return kind(*(tuple(one) if isinstance(one, list) else one for one in failure.arguments))
        except TypeError:
            pass  # of another release, whose class has other arguments
    try:
        return kind(failure.message)
    except TypeError:
        return BrokerError(f"{failure.code}: {failure.message}")


def _text(value: object) -> object:
    return as_utf8(value) if isinstance(value, str) else value


def _all_plain(values: list[object]) -> bool:
    return all(isinstance(one, _PLAIN) or (isinstance(one, list) and _all_plain(one)) for one in values)
