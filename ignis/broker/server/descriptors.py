"""Descriptors of open files: enough for the connections that the settings allow, and a reserve for the store."""

from __future__ import annotations

import logging
import os
import resource

from ignis.errors import ConfigError, TooManyRequestsError
from ignis.log_format import event_text

__all__ = ["check_descriptor", "room_for_connections"]

log = logging.getLogger("ignis.broker")

_LEAST = 16
"""Connections; a broker with fewer is of no use to anybody."""
_HAND = 64
"""Descriptors of connections that are being refused or are closed and not gone yet."""


def room_for_connections(wanted: int, reserved: int) -> int:
    """Raises the process's soft limit of open files as far as ``wanted`` connections need, and the hard limit lets it.

    Returns how many connections there is room for, ``wanted`` at most; says so in the log when it is fewer.

    Args:
        wanted: ``broker.max_connections``.
        reserved: ``broker.reserved_files``: descriptors that connections never get.

    Raises ConfigError when hardly any connection would be left.
    """
    taken = _open_files() + reserved + _HAND
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = taken + wanted
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError) as exc:  # such as macOS, whose kernel has a limit of its own
            log.info(event_text("open_files_limit_kept", "the limit of open files stays at %d: %s"), soft, exc)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    room = soft - taken
    if room < _LEAST:
        raise ConfigError(
            f"{soft} open files are allowed (ulimit -n), {taken} are taken or reserved: {max(0, room)} connections are too "
            f"few; allow more files or lower broker.reserved_files = {reserved}"
        )
    log.warning(
        event_text(
            "open_files_short",
            "%d open files are allowed (ulimit -n): %d connections at a time instead of broker.max_connections = %d"),
        soft, room, wanted,
    )  # fmt: skip
    return room


def check_descriptor(descriptor: int, reserved: int) -> None:
    """Raises TooManyRequestsError for a connection whose descriptor is one of the last ``reserved``. The system gives the
    lowest that is free, so this holds whatever else the process has opened and however its limit has changed."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and descriptor >= soft - reserved:
        raise TooManyRequestsError(descriptor + 1, max(0, soft - reserved), "open files less broker.reserved_files")


def _open_files() -> int:
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 64
