"""Answers what is looked at as a whole: the overview, a queue, its shards and workers, schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ignis._version import __version__
from ignis.console.call import Call
from ignis.console.roles import READ
from ignis.console.snapshot import COLUMNS, FIGURES
from ignis.control.inspection import claim_owners, queue_settings
from ignis.control.queue_depths import queue_depths, shard_states
from ignis.magazine import SIDELINE_SUFFIX
from ignis.schedules.book import Schedule
from ignis.told_progress import progress_of
from ignis.urls import redacted

__all__ = [
    "OfQueue", "health", "overview", "queue", "schedule_document", "schedule_of", "schedules", "seen_by", "shards", "workers",
]  # fmt: skip

_PREVIEW_CHARS = 1_024
_MOST_MESSAGES = 20
"""Of one worker."""
_CLAIMED_BYTES = 16 << 20
"""Of what is claimed in one shard, which is read to see who has it."""


def health(call: Call) -> dict[str, Any]:
    """That the console answers. The store is not asked."""
    return {"status": "ok", "version": __version__}


def overview(call: Call) -> dict[str, Any]:
    """All queues that the visitor may look at, with figures, rates and points for charts, as of the last look. What each figure
    means, and whose it is, stands under `figures`. `trouble` says since when the store gives no answer, and why; else null."""
    found = call.services.snapshot.get()
    trouble = call.services.snapshot.trouble()
    names = [name for name in found.queues if call.visitor.may(READ, name)]
    return {
        "at_s": round(found.at_s, 3),
        "took_s": round(found.took_s, 4),
        "trouble": None if trouble is None else {"since_s": round(trouble.since_s, 3), "message": trouble.message},
        "store": redacted(call.services.app.url or ""),
        "queues": [{**found.queues[name], "roles": call.visitor.roles(name)} for name in names],
        "history": {name: found.history[name] for name in names},
        "history_columns": COLUMNS,
        "figures": FIGURES,
    }


def queue(call: Call) -> dict[str, Any]:
    """One queue: its figures now, its settings, and what the visitor may do to it."""
    record = call.record()
    return {
        **queue_depths(call.store, record),
        "settings": queue_settings(record),
        "roles": call.visitor.roles(record.name),
        "scope": "fleet",
    }


def shards(call: Call) -> dict[str, Any]:
    """The shards of the queue and of its sideline."""
    name = call.record().name
    return {
        "queue": name,
        "scope": "fleet",
        "shards": [_shard(one) for one in shard_states(call.store, name)],
        "sideline_shards": [_shard(one) for one in shard_states(call.store, name + SIDELINE_SUFFIX)],
    }


def _shard(state: Any) -> dict[str, Any]:
    return {**vars(state), "pending": state.pending}


class OfQueue(msgspec.Struct, forbid_unknown_fields=True):
    """Whose schedule it is, where several queues have one of that name."""

    queue: Annotated[str, Meta(max_length=128)] | None = None


def schedule_of(call: Call, needs: str, queue: str | None) -> tuple[str, str]:
    """The name and queue of the schedule in the path. The role counts for that queue. To a visitor who may not look at the queue
    there is none.

    Raises ScheduleNotFoundError, PermissionDeniedError, ConfigError: several queues that the visitor sees have one of that name.
    """
    found = call.services.app.schedules.get(call.path["schedule"], queue=queue, sees=seen_by(call))
    call.visitor.require(needs, found.queue)
    call.audited.update(queue=found.queue)
    return found.name, found.queue


def seen_by(call: Call) -> Callable[[str], bool]:
    """Whether the visitor may look at a queue."""
    return lambda queue: call.visitor.may(READ, queue)


def schedules(call: Call) -> dict[str, Any]:
    """The schedules whose queues the visitor may look at."""
    sees = seen_by(call)
    found = [schedule_document(one) for one in call.services.app.schedules.list() if sees(one.queue)]
    return {"schedules": [{**one, "roles": call.visitor.roles(one["queue"])} for one in found], "scope": "fleet"}


def schedule_document(one: Schedule) -> dict[str, Any]:
    """What is answered about a schedule."""
    return {
        "schedule": one.name, "queue": one.queue, "cron": one.cron or None, "timezone": one.timezone if one.cron else None,
        "every_s": one.every_s, "missed": one.missed, "paused": one.paused,
        "next_at": None if one.next_at is None else one.next_at.isoformat(),
        "last_at": None if one.last_at is None else one.last_at.isoformat(),
        "last_lag_s": one.last_lag_s, "fired": one.fired, "missed_ticks": one.missed_ticks,
        "body_text": one.message.decode("utf-8", "replace")[:_PREVIEW_CHARS], "codec": one.codec,
    }  # fmt: skip


def workers(call: Call) -> dict[str, Any]:
    """Who has claimed messages of the queue and of its sideline, which ones, and how far their handlers say they are. Of each
    worker the messages that it has had longest are listed, twenty at most; `claimed_s` counts from its last renewal. Of each
    shard the first 16 MiB of what is claimed are looked at."""
    record = call.record()
    told = progress_of(record)
    by_id = {one.id: {"fraction": one.fraction, "text": one.text} for one in told}
    found: list[dict[str, Any]] = []
    for name in (record.name, record.name + SIDELINE_SUFFIX):
        with call.room.reading():
            found += claim_owners(call.store, name, _MOST_MESSAGES, max_bytes=_CLAIMED_BYTES)
    for one in found:
        one["messages"] = [{**each, **by_id.get(each["id"], {})} for each in one["messages"]]
    return {
        "queue": record.name, "scope": "fleet", "workers": found, "progress": [one._asdict() for one in told],
    }  # fmt: skip
