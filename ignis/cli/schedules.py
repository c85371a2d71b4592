"""``ignis schedules``: what is published by the clock, listed, added, paused, resumed, run by hand, removed."""

from __future__ import annotations

import datetime as dt
from typing import Any

import click
import msgspec

from ignis.app import Ignis
from ignis.cli import exit_codes, output
from ignis.cli.confirm import confirmed, yes_option
from ignis.cli.other_words import WordGroup
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, pass_state, queue_record
from ignis.schedules.book import Schedule
from ignis.schedules.due import MISSED

__all__ = ["schedules"]


_of_queue = click.option(
    "-q", "--queue", metavar="QUEUE", shell_complete=complete_queue,
    help="Whose schedule, where several queues have one of that name.",
)  # fmt: skip


@click.group(cls=WordGroup)
@common_options
def schedules() -> None:
    """Shows and changes what is published by the clock. The processes of `ignis worker` fire it."""


@schedules.command("list")
@common_options
@pass_state
def list_command(state: State) -> int:
    """Lists all schedules with their next and last tick."""
    with state.app() as app:
        found = app.schedules.list()
    if state.json:
        output.document([_document(one) for one in found])
        return exit_codes.OK
    if not found:
        output.remark("no schedule is stored")
        return exit_codes.OK
    rows = [
        [one.name, one.queue, _times(one), _moment(one.next_at, one), _moment(one.last_at), output.number(one.fired)]
        for one in found
    ]
    output.table(["schedule", "queue", "times", "next", "last", "fired"], rows, right=["fired"])
    return exit_codes.OK


@schedules.command("show")
@click.argument("name", metavar="NAME")
@_of_queue
@common_options
@pass_state
def show_command(state: State, name: str, queue: str | None) -> int:
    """Shows schedule NAME with its message and its figures."""
    with state.app() as app:
        _show(state, app.schedules.get(name, queue=queue))
    return exit_codes.OK


@schedules.command("add", short_help="Publishes MESSAGE to QUEUE by the clock.")
@click.argument("name", metavar="NAME")
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@click.argument("message", metavar="MESSAGE")
@click.option(
    "--cron", metavar="FIELDS", help="Minute, hour, day of the month, month, day of the week: '0 3 * * *'; or @daily."
)
@click.option("--every", metavar="AGE", help="So often, e.g. 5m; at least 100ms.")
@click.option("--timezone", metavar="ZONE", help="Of --cron, e.g. Europe/Berlin; UTC without it.")
@click.option(
    "--missed",
    type=click.Choice(MISSED),
    default="once",
    show_default=True,
    help="What becomes of ticks that nobody fired in time.",
)
@common_options
@pass_state
def add_command(
    state: State,
    name: str,
    queue: str,
    message: str,
    cron: str | None,
    every: str | None,
    timezone: str | None,
    missed: str,
) -> int:
    """Publishes MESSAGE to QUEUE at each tick, or changes the schedule of that NAME.

    MESSAGE is a JSON value; for a queue of codec raw, the text as it stands. The leader sees it within schedules.look_s (10 s),
    the first schedule of a store within a minute.
    """
    if (cron is None) == (every is None):
        raise click.UsageError("give --cron or --every")
    with state.app() as app:
        body = _message(queue_record(app.store, queue).codec, message)
        made = app.schedules.add(
            name, queue=queue, message=body, cron=cron, every=every, timezone=timezone, missed=missed
        )
    _show(state, made)
    return exit_codes.OK


def _message(codec: str, text: str) -> Any:
    """Raises UsageError."""
    if codec == "raw":
        return text.encode("utf-8", "surrogateescape")
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise click.UsageError(f"the message is no JSON value: {exc}; {output.TEXT_AS_JSON}") from None


@schedules.command("pause")
@click.argument("name", metavar="NAME")
@_of_queue
@common_options
@pass_state
def pause_command(state: State, name: str, queue: str | None) -> int:
    """Stops schedule NAME until `resume`. The ticks of that time are left out."""
    with state.app() as app:
        app.schedules.pause(name, queue=queue)
    return _said(state, name, "paused")


@schedules.command("resume")
@click.argument("name", metavar="NAME")
@_of_queue
@common_options
@pass_state
def resume_command(state: State, name: str, queue: str | None) -> int:
    """Lets schedule NAME tick again, from now on."""
    with state.app() as app:
        app.schedules.resume(name, queue=queue)
    return _said(state, name, "resumed")


@schedules.command("remove")
@click.argument("name", metavar="NAME")
@_of_queue
@yes_option
@common_options
@pass_state
def remove_command(state: State, name: str, queue: str | None, yes: bool) -> int:
    """Removes schedule NAME. What it has published stays."""
    with state.app() as app:
        queue = app.schedules.get(name, queue=queue).queue
        if not confirmed(f"Remove schedule {name}?", yes):
            return exit_codes.ERROR
        app.schedules.remove(name, queue=queue)
    return _said(state, name, "removed")


@schedules.command("run")
@click.argument("name", metavar="NAME")
@_of_queue
@common_options
@pass_state
def run_command(state: State, name: str, queue: str | None) -> int:
    """Publishes the message of schedule NAME now, beside its ticks."""
    with state.app() as app:
        id, queue = _run(app, name, queue)
    if state.json:
        output.document({"schedule": name, "queue": queue, "id": id})
    else:
        output.line(f"schedule {name}: message {id} published to {queue}")
    return exit_codes.OK


def _run(app: Ignis, name: str, queue: str | None) -> tuple[str, str]:
    queue = app.schedules.get(name, queue=queue).queue
    return app.schedules.run(name, queue=queue), queue


def _said(state: State, name: str, what: str) -> int:
    if state.json:
        output.document({"schedule": name, what: True})
    else:
        output.line(f"schedule {name} {what}")
    return exit_codes.OK


def _show(state: State, one: Schedule) -> None:
    if state.json:
        output.document(_document(one))
        return
    output.pairs(
        {
            "schedule": one.name, "queue": one.queue, "times": _times(one), "missed ticks": one.missed, "paused": one.paused,
            "next": _moment(one.next_at, one), "last": _moment(one.last_at), "last_lag_s": one.last_lag_s, "fired": one.fired,
            "left out": one.missed_ticks, "message": output.preview(one.message.decode("utf-8", "replace")),
        },
        title=f"schedule {one.name}",
    )  # fmt: skip


def _times(one: Schedule) -> str:
    return (
        f"every {output.age(one.every_s).replace('.0 s', ' s')}"
        if one.every_s is not None
        else f"{one.cron} {one.timezone}"
    )


def _moment(at: dt.datetime | None, one: Schedule | None = None) -> str:
    if at is None:
        return "paused" if one is not None and one.paused else "-"
    return output.moment(at.timestamp() * 1000)


def _document(one: Schedule) -> dict[str, Any]:
    return {
        "schedule": one.name, "queue": one.queue, "cron": one.cron or None, "timezone": one.timezone if one.cron else None,
        "every_s": one.every_s, "missed": one.missed, "paused": one.paused, "next_at": _text(one.next_at),
        "last_at": _text(one.last_at), "last_lag_s": one.last_lag_s, "fired": one.fired, "missed_ticks": one.missed_ticks,
        "message": one.message.decode("utf-8", "replace"), "codec": one.codec,
    }  # fmt: skip


def _text(at: dt.datetime | None) -> str | None:
    return None if at is None else at.isoformat()
