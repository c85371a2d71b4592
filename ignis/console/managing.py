"""Changes what is stored of queues and schedules: how many consumers and shards; schedules made, changed and removed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ignis.config import check_queue_name
from ignis.console.call import Call
from ignis.console.gateway import decoded_body
from ignis.console.reading import schedule_document, schedule_of, seen_by
from ignis.console.refusals import RefusedError
from ignis.console.roles import ADMIN
from ignis.errors import BadRequestError, ScheduleNotFoundError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.safe_msgpack import decode
from ignis.schedules.book import Schedule
from ignis.storage.base import QueueRecord

__all__ = ["PutSchedule", "Scale", "put_schedule", "remove_schedule", "scale"]

_MOST_SHARDS = 65_535
_MOST_CONSUMERS = 10_000


class Scale(msgspec.Struct, forbid_unknown_fields=True):
    """How many consumers each process has, how many shards the queue has. What is not given stays. ``confirm`` is the queue's
    name."""

    confirm: Annotated[str, Meta(max_length=128)]
    consumers: Annotated[int, Meta(ge=1, le=_MOST_CONSUMERS)] | None = None
    shards: Annotated[int, Meta(ge=1, le=_MOST_SHARDS)] | None = None


class PutSchedule(msgspec.Struct, forbid_unknown_fields=True):
    """A schedule. For one that is there what is not given stays."""

    queue: Annotated[str, Meta(max_length=128)] | None = None
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body_text: str | msgspec.UnsetType = msgspec.UNSET
    cron: Annotated[str, Meta(max_length=200)] | None = None
    timezone: Annotated[str, Meta(max_length=64)] | None = None
    every: Annotated[float, Meta(ge=0.1, le=3e9)] | Annotated[str, Meta(max_length=40)] | None = None
    missed: Literal["skip", "once", "all"] | None = None


def scale(call: Call) -> dict[str, Any]:
    """Changes how many consumers each process of the fleet has, and how many shards the queue has. Processes follow at their
    refresher's next pass."""
    asked: Scale = call.body
    record = call.record()
    if asked.confirm != record.name:
        raise RefusedError("not_confirmed", "confirm must be the queue's name")
    if asked.consumers is None and asked.shards is None:
        raise BadRequestError("give consumers, shards or both")
    if asked.consumers is not None and not record.concurrency:
        raise RefusedError("conflict", "no process is to consume this queue: its handler says so, or there is none")
    before = {"consumers": record.concurrency, "shards": record.shards}
    if asked.shards is not None:
        if asked.shards < record.shards:
            raise RefusedError(
                "conflict", "a queue takes more shards while it runs, not fewer: drain it, then ignis queue create"
            )
        for magazine in (record.name, record.name + SIDELINE_SUFFIX):
            call.store.magazines.declare(magazine, asked.shards, record.durability)

    def change(stored: QueueRecord) -> None:
        stored.concurrency = asked.consumers or stored.concurrency
        stored.shards = max(stored.shards, asked.shards or 0)

    call.store.queues.update(record.name, change)
    now = call.record()
    return {"queue": record.name, "before": before, "now": {"consumers": now.concurrency, "shards": now.shards}}


# -- schedules


def put_schedule(call: Call) -> dict[str, Any]:
    """Makes a schedule, or changes the one of that name; durable when it answers. Its figures stay, and whether it is paused."""
    asked: PutSchedule = call.body
    schedules = call.services.app.schedules
    name = call.path["schedule"]
    try:
        known: Schedule | None = schedules.get(name, queue=asked.queue, sees=seen_by(call))
    except ScheduleNotFoundError:
        known = None
    if known is not None:
        call.visitor.require(ADMIN, known.queue)
    target = asked.queue if asked.queue is not None else None if known is None else known.queue
    if target is None:
        raise BadRequestError("a new schedule needs a queue")
    call.visitor.require(ADMIN, check_queue_name(target))
    call.audited.update(queue=target)
    queue = call.services.app.queue(call.record_of(target).name)  # none is made by this
    queue.open()
    timing: dict[str, Any] = {"cron": asked.cron, "every": asked.every}
    if asked.cron is None and asked.every is None:
        if known is None:
            raise BadRequestError("a new schedule needs cron or every")
        timing = {"cron": known.cron or None, "every": None if known.cron else known.every_s}
    if timing["cron"] is not None:
        timing["timezone"] = asked.timezone or (known.timezone if known is not None and known.cron else "UTC")
    elif asked.timezone:
        raise BadRequestError("timezone goes with cron: every so often is the same everywhere")
    made = schedules.add(
        name,
        queue=target,
        message=_message(asked, known, queue.codec.name),
        missed=asked.missed or ("once" if known is None else known.missed),
        sees=seen_by(call),
        **timing,
    )
    return {**schedule_document(made), "made": known is None}


def _message(asked: PutSchedule, known: Schedule | None, codec: str) -> Any:
    """What the schedule publishes, as the queue's codec takes it. Raises BadRequestError, InvalidMessageError."""
    if asked.body is msgspec.UNSET and asked.body_text is msgspec.UNSET:
        if known is None:
            raise BadRequestError("a new schedule needs body, or body_text for a queue of codec raw")
        if known.codec == "raw":
            return known.message
        return (msgspec.json.decode if known.codec == "json" else decode)(known.message)
    return decoded_body(asked.body, asked.body_text, msgspec.UNSET, codec)


def remove_schedule(call: Call) -> dict[str, Any]:
    """Removes a schedule. What it has published stays."""
    name, queue = schedule_of(call, ADMIN, call.query.queue)
    call.services.app.schedules.remove(name, queue=queue)
    return {"schedule": name, "queue": queue, "removed": True}
