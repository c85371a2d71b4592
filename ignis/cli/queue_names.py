"""Completing the names of queues: the tabulator after ``ignis stats``."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem

from ignis.cli.state import State
from ignis.stacks import start_thread

__all__ = ["complete_queue", "end_if_asked_in_vain"]

_WAIT_S = 1.0
"""A person waits for it: a store that cannot be opened in this time has no names."""
_MOST = 1_000
_asked: list[threading.Thread] = []


def complete_queue(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The store's queues, by the option on the line, the environment or the settings file. Says nothing and makes nothing; no
    names where the store cannot be opened, is not there, or takes longer than a second."""
    found: list[str] = []
    state = context.find_object(State) or State()
    taken = context.params.get(parameter.name or "")
    others = set(taken) if isinstance(taken, (list, tuple)) else set()

    def look() -> None:
        with contextlib.suppress(BaseException), state.store() as store:
            found.extend(sorted(one.name for one in store.queues.list()))

    thread = threading.Thread(target=look, name="ignis-complete", daemon=True)
    with _silent():
        start_thread(thread)
        thread.join(_WAIT_S)
    _asked.append(thread)
    return [CompletionItem(one) for one in list(found) if one.startswith(incomplete) and one not in others][:_MOST]


def end_if_asked_in_vain(code: int) -> None:
    """Ends the process where the store has not answered: its threads would keep the shell waiting."""
    if any(thread.is_alive() for thread in _asked):
        sys.stdout.flush()
        os._exit(code)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Nothing on standard error, whoever writes it: it would go into the line that is being typed."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        kept = os.dup(2)
    except OSError:
        kept = None
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        if kept is not None:
            os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 2)
            os.close(kept)
        os.close(nowhere)
        logging.disable(disabled)
