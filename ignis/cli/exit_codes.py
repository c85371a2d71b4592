"""Exit codes of the command line, and which error ends in which. Scripts rely on these numbers."""

from __future__ import annotations

from ignis.errors import (
    AddressInUseError,
    ConfigError,
    CoordinatorUnreachableError,
    IgnisError,
    InvalidMessageError,
    LockHeldError,
    QueueNotFoundError,
    ScheduleNotFoundError,
    StaleEpochError,
    StoreBusyError,
    StoreUnreachableError,
)

__all__ = ["ERROR", "HELD", "INTERRUPTED", "NOTHING", "OK", "PIPE", "UNREACHABLE", "USAGE", "Nothing", "code_of"]

OK = 0
ERROR = 1
USAGE = 2
"""A wrong option, argument or setting: the same call will fail again."""
UNREACHABLE = 3
"""There is no store at the URL, or it cannot be opened; or ZooKeeper does not answer."""
HELD = 4
"""Another process holds the leadership, the store's write lock or the address to listen at."""
NOTHING = 5
"""The queue does not exist, or holds nothing of what was asked for."""
INTERRUPTED = 130
PIPE = 141
"""Whoever read the output closed it before its end: 128 + SIGPIPE, what a shell shows for any other program."""


class Nothing(IgnisError, LookupError):
    """The queue exists and holds nothing of what was asked for."""

    code = "nothing"


def code_of(exc: BaseException) -> int:
    """The exit code for an exception that reached the top."""
    if isinstance(exc, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(exc, (QueueNotFoundError, ScheduleNotFoundError, Nothing)):
        return NOTHING
    if isinstance(exc, (StoreUnreachableError, CoordinatorUnreachableError)):
        return UNREACHABLE
    if isinstance(exc, (AddressInUseError, LockHeldError, StaleEpochError, StoreBusyError)):
        return HELD
    if isinstance(exc, ConfigError) and not isinstance(exc, InvalidMessageError):
        return USAGE
    return ERROR
