"""A script that defines a handler for worker processes is run again in each of them, to find the handler.

What such a run may do is define: were it to publish or to start, every worker process would do so once more. A script
says what is for its first run alone by ``if __name__ == "__main__":``. The same line keeps ``app.run()`` out of the module
that ``ignis worker`` imports: it would run there in place of the command, which would know nothing of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ignis.errors import MainGuardError

__all__ = ["check_first_run", "check_start", "imported_by_worker", "running_again"]

_PACKAGE = os.path.dirname(__file__) + os.sep
_again = [False]
_imported = [False]


@contextmanager
def running_again() -> Iterator[None]:
    """While it lasts `check_first_run` refuses. For a worker process at its start, which has one thread."""
    _again[0] = True
    try:
        yield
    finally:
        _again[0] = False


def check_first_run(call: str) -> None:
    """Raises MainGuardError in a script that a worker process runs again. ``call`` names what was asked for."""
    if _again[0]:
        raise MainGuardError(f"{call} at {_users_line()}")


@contextmanager
def imported_by_worker() -> Iterator[None]:
    """While it lasts `check_start` refuses. For the import of an application by a command that will run it."""
    _imported[0] = True
    try:
        yield
    finally:
        _imported[0] = False


def check_start(call: str) -> None:
    """`check_first_run`, and MainGuardError in a module that ``ignis worker`` imports."""
    check_first_run(call)
    if _imported[0]:
        raise MainGuardError(f"{call} at {_users_line()}", MainGuardError.IMPORTED)


def _users_line() -> str:
    """Where the call stands in the user's own file: the innermost line that is not ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
