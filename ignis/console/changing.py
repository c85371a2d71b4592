"""Carries out what an operator asks for: bring back, drop, pause, resume, purge, cancel, run now."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ignis.cancellation import cancel_message
from ignis.clearing import delete_matching
from ignis.clearing import purge as purge_magazine
from ignis.console.call import Answer, Call
from ignis.console.choice import Id, IdList, Wanted
from ignis.console.jobs import Job
from ignis.console.reading import schedule_document, schedule_of
from ignis.console.refusals import RefusedError
from ignis.console.roles import ADMIN, OPERATE, READ
from ignis.errors import BadRequestError
from ignis.later import Later
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message_filter import AtMost, Filter
from ignis.pausing import store_pause
from ignis.shovel import Shovel

__all__ = [
    "CancelBody", "DropBody", "DropIds", "Ids", "Nothing", "PurgeBody", "RedriveBody", "cancel", "cancel_delayed", "drop",
    "drop_all", "job", "jobs", "pause", "pause_schedule", "purge", "redrive", "resume", "resume_schedule", "run_delayed",
    "run_schedule", "stop_job",
]  # fmt: skip

_LEAST_RATE = 0.1

WaitS = Annotated[
    float, Meta(ge=0, le=30, description="How long to wait for the job's end before its number is answered.")
]


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing more needs to be said."""


class Ids(msgspec.Struct, forbid_unknown_fields=True):
    """Messages by their ids."""

    ids: IdList


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    """One message by its id."""

    id: Id


class RedriveBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages come back, and how fast. ``all`` must be said for all of them."""

    where: Wanted | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    rate: (
        Annotated[float, Meta(le=1e9, description="No more than so many messages a second, and at least 0.1.")] | None
    ) = None
    dry_run: bool = False
    wait_s: WaitS = 5.0


class DropIds(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages of a sideline are removed for good."""

    ids: IdList
    dry_run: bool = False
    wait_s: WaitS = 5.0


class DropBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages of a sideline are removed for good. ``confirm`` is the queue's name."""

    where: Wanted | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    dry_run: bool = False
    confirm: Annotated[str, Meta(max_length=128)] = ""
    wait_s: WaitS = 5.0


class PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    """``confirm`` is the queue's name. ``in_flight``: also what is claimed."""

    confirm: Annotated[str, Meta(max_length=128)]
    in_flight: bool = False
    wait_s: WaitS = 5.0


# -- the sideline


def redrive(call: Call) -> Answer:
    """Brings messages of the sideline back to the queue."""
    asked: RedriveBody = call.body
    wanted, limit = _wanted(asked.where, asked.all), asked.limit
    if asked.rate is not None and asked.rate < _LEAST_RATE:
        raise BadRequestError(
            f"rate = {asked.rate:g} is less than {_LEAST_RATE} messages a second, the least: it would hardly end"
        )
    if wanted.ids:  # when all of them are found the rest need not be looked at
        limit = min(len(wanted.ids), limit or len(wanted.ids))
    queue = call.services.app.queue(call.record().name)
    call.audited.update(dry_run=asked.dry_run)

    def work(job: Job) -> dict[str, Any]:
        # A shovel of its own, so that stopping it stops nothing else.
        shovel = Shovel(queue.name, queue.context)
        job.on_stop = lambda: shovel.stop(0)
        result = shovel.run_once(
            # With a filter the limit counts what is moved, not what is looked at.
            limit=None if wanted.given else limit,
            where=AtMost(wanted, limit) if wanted.given else None,
            rate=asked.rate,
            dry_run=asked.dry_run,
            progress=lambda count: _count(job, count),
        )
        found = result.told(asked.dry_run)
        del found["waiting"]
        return {**found, "dry_run": asked.dry_run}

    return _started(call, "redrive", work, asked.wait_s)


def drop(call: Call) -> Answer:
    """Removes messages of the sideline by their ids, for good."""
    asked: DropIds = call.body
    wanted = Filter(ids=tuple(one.lower() for one in asked.ids))
    return _drop(call, wanted, len(asked.ids), asked.dry_run, asked.wait_s)


def drop_all(call: Call) -> Answer:
    """Removes messages of the sideline by a filter, or all of them, for good."""
    asked: DropBody = call.body
    wanted = _wanted(asked.where, asked.all)
    if not asked.dry_run:
        _confirmed(call, asked.confirm)
    return _drop(call, wanted, asked.limit, asked.dry_run, asked.wait_s)


def _drop(call: Call, wanted: Filter, limit: int | None, dry_run: bool, wait_s: float) -> Answer:
    store, name = call.store, call.record().name + SIDELINE_SUFFIX
    call.audited.update(dry_run=dry_run)

    def work(job: Job) -> dict[str, Any]:
        match = wanted.matches if wanted.given else _everything
        found = delete_matching(store.magazines, name, match, limit=limit, dry_run=dry_run, progress=job.looked)
        return {
            "would_remove" if dry_run else "removed": found.deleted,
            "looked_at": found.looked_at,
            "dry_run": dry_run,
        }

    return _started(call, "drop", work, wait_s)


# -- the queue


def pause(call: Call) -> dict[str, Any]:
    """Makes the fleet's consumers claim nothing more of the queue."""
    return _pause(call, True)


def resume(call: Call) -> dict[str, Any]:
    """Lets them claim again."""
    return _pause(call, False)


def _pause(call: Call, paused: bool) -> dict[str, Any]:
    name = call.record().name
    store_pause(call.store.queues, name, paused)
    return {"queue": name, "paused": paused}


def purge(call: Call) -> Answer:
    """Removes what waits in the queue, for good."""
    asked: PurgeBody = call.body
    _confirmed(call, asked.confirm)
    store, name = call.store, call.record().name

    def work(job: Job) -> dict[str, Any]:
        found = purge_magazine(store.magazines, name, in_flight=asked.in_flight, progress=job.looked)
        return {"removed": found.waiting, "in_flight": found.in_flight}

    return _started(call, "purge", work, asked.wait_s)


def cancel(call: Call) -> dict[str, Any]:
    """Cancels one message wherever it is: delayed, waiting, or with a handler."""
    asked: CancelBody = call.body
    found = cancel_message(call.store, call.record().name, asked.id)
    if found is None:
        raise RefusedError("message_not_found", f"no message {asked.id} is delayed, waiting or being handled here")
    return {"queue": call.queue, "id": asked.id, "was": found}


def cancel_delayed(call: Call) -> dict[str, Any]:
    """Removes delayed messages by their ids."""
    asked: Ids = call.body
    return {"queue": call.queue, "cancelled": Later(call.store, call.record().name).cancel(*asked.ids)}


def run_delayed(call: Call) -> dict[str, Any]:
    """Puts delayed messages to the queue's tail now."""
    asked: Ids = call.body
    return {"queue": call.queue, "moved": Later(call.store, call.record().name).run_now(*asked.ids)}


# -- schedules


def run_schedule(call: Call) -> dict[str, Any]:
    """Publishes the schedule's message now, beside its ticks."""
    name, queue = schedule_of(call, OPERATE, call.body.queue)
    return {"schedule": name, "queue": queue, "id": call.services.app.schedules.run(name, queue=queue)}


def pause_schedule(call: Call) -> dict[str, Any]:
    """Stops the schedule until it is resumed."""
    name, queue = schedule_of(call, OPERATE, call.body.queue)
    return schedule_document(call.services.app.schedules.pause(name, queue=queue))


def resume_schedule(call: Call) -> dict[str, Any]:
    """Lets the schedule tick again."""
    name, queue = schedule_of(call, OPERATE, call.body.queue)
    return schedule_document(call.services.app.schedules.resume(name, queue=queue))


# -- jobs


def jobs(call: Call) -> dict[str, Any]:
    """The last jobs of this process, for queues that the visitor may look at."""
    found = [one for one in call.services.jobs.list() if call.visitor.may(READ, one.queue)]
    return {"jobs": [one.document() for one in found], "scope": "process"}


def job(call: Call) -> dict[str, Any]:
    """One job."""
    found = call.services.jobs.get(call.path["job"])
    call.visitor.require(READ, found.queue)
    return found.document()


def stop_job(call: Call) -> dict[str, Any]:
    """Stops a job after the step under way. What it has done stays done."""
    found = call.services.jobs.get(call.path["job"])
    # Whoever has begun it may end it; what another one destroys is an admin's to stop.
    own = found.by == call.visitor.name
    call.visitor.require(OPERATE if own or found.kind == "redrive" else ADMIN, found.queue)
    call.audited.update(queue=found.queue)
    found.stop()
    return found.document()


def _started(call: Call, kind: str, work: Any, wait_s: float) -> Answer:
    jobs, who = call.services.jobs, call.visitor.name
    made = jobs.start(kind, call.queue, who, work, shared=call.services.access.open)
    ended = made.wait(wait_s)
    call.audited.update(job=made.id)
    return Answer(made.document(), 200 if ended else 202)


def _count(job: Job, count: int) -> None:
    # Raising here would leave what the shovel has claimed for its next pass; its own stop gives that back.
    job.count(count)


def _wanted(where: Wanted | None, everything: bool) -> Filter:
    """Raises BadRequestError where it is not said, or said twice."""
    found = Filter() if where is None else where.filter()
    if found.given == everything:
        raise BadRequestError("say where, with at least one condition, or all: one of the two")
    return found


def _confirmed(call: Call, name: str) -> None:
    if name != call.queue:
        raise RefusedError("not_confirmed", "confirm must be the queue's name: what is removed is gone")


def _everything(record: bytes | None) -> bool:
    return True
