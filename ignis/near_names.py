"""What somebody meant who wrote a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["elsewhere_or_meant", "meant", "near_name"]

CELERYS = frozenset({
    # of a task
    "acks_late", "autoretry_for", "bind", "default_retry_delay", "dont_autoretry_for", "expires", "ignore_result",
    "max_retries", "name", "priority", "queue", "rate_limit", "reject_on_worker_lost", "retry_backoff", "retry_backoff_max",
    "retry_jitter", "serializer", "soft_time_limit", "throws", "time_limit",
    # of a call
    "add_to_parent", "args", "compression", "connection", "countdown", "eta", "exchange", "kwargs", "link", "link_error",
    "producer", "retry", "retry_policy", "routing_key", "shadow", "task_id",
})  # fmt: skip
"""Options of Celery that are something else here, or nothing."""


def near_name(name: str, known: Iterable[str], common: str = "") -> str | None:
    """The known name that is close to a misspelt one; None where none is.

    ``common``: what all of them begin with. It makes short names alike, so the rest must be close as well.
    """
    near = next(iter(difflib.get_close_matches(name, sorted(known), 1, 0.8)), None)
    if near is None or not common:
        return near
    # In a short rest one mistake is a larger part: URL and RUL.
    rests = difflib.get_close_matches(name.removeprefix(common), [near.removeprefix(common)], 1, 0.6)
    return near if rests else None


def meant(name: object, known: Iterable[str]) -> str:
    """For an error, before the list of what is known: ``is X meant? ``, or nothing."""
    near = near_name(name, known) if isinstance(name, str) else None
    return f"is {near} meant? " if near is not None else ""


def elsewhere_or_meant(name: object, known: Iterable[str]) -> str:
    """As `meant`; of an option of Celery's it says which page has what is here for it."""
    return "docs/coming-from-celery.md says what is here for it; " if name in CELERYS else meant(name, known)
