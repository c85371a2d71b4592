"""``ignis later``: messages that wait for their time."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from ignis.cli import exit_codes, output
from ignis.cli.confirm import confirmed, yes_option
from ignis.cli.filters import message_ids
from ignis.cli.other_words import WordGroup
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, pass_state, queue_record
from ignis.errors import UnreadableMessageError
from ignis.later import DelayedMessage, Later
from ignis.message import Message
from ignis.schedules.fire import SCHEDULE_HEADER

__all__ = ["later"]


@click.group(cls=WordGroup)
@common_options
def later() -> None:
    """Messages that wait for their time."""


@later.command("list", short_help="Shows the delayed messages of QUEUE, the next one first.")
@click.argument("queue", shell_complete=complete_queue)
@click.option(
    "-n", "--limit", default=20, show_default=True, type=click.IntRange(1, 1_000_000), help="At most so many messages."
)
@common_options
@pass_state
def list_command(state: State, queue: str, limit: int) -> int:
    """Shows the messages of QUEUE that wait for their time, the next one first.

    A retry has failed and is tried again: the attempt is the one that comes. A delay was published for later. Of what a schedule
    has published stands its name.
    """
    with state.store() as store:
        queue_record(store, queue)
        waiting = Later(store, queue)
        found, total = waiting.list(limit), len(waiting)
    if state.json:
        output.document({"queue": queue, "total": total, "messages": [_shown(one) for one in found]})
        return exit_codes.OK
    if not found:
        output.remark(f"nothing of {queue} waits for its time")
        return exit_codes.OK
    columns = ["due", "what", "attempt", "id", "key", "reason", "last error"]
    title = f"{output.number(total)} delayed message(s) of {queue}"
    output.table(columns, [_row(one) for one in found], title=title, right=["attempt"])
    if total > len(found):
        output.remark(f"{len(found):,} of {total:,}: -n shows more")
    return exit_codes.OK


def _row(one: DelayedMessage) -> list[str]:
    due, key, message = one.due.astimezone().isoformat(" ", "seconds"), _key(one) or "-", _readable(one)
    if message is None:
        return [due, "unreadable", "-", one.id or "-", key, "-", "-"]
    what = "retry" if message.attempt > 1 else "delay"
    schedule = message.headers.get(SCHEDULE_HEADER)
    if schedule is not None:
        what += f", schedule {output.preview(str(schedule), 24)}"
    why = [message.reason or "-", output.preview(message.error or "-", 50)]
    return [due, what, str(message.attempt), one.id or "-", key, *why]


def _readable(one: DelayedMessage) -> Message | None:
    """Its message, where the envelope can be read too: whoever may publish chooses its bytes."""
    with contextlib.suppress(UnreadableMessageError):
        if one.message is not None:
            one.message.meta  # noqa: B018
            return one.message
    return None


@later.command("cancel")
@click.argument("queue", shell_complete=complete_queue)
@click.argument("ids", nargs=-1, callback=message_ids)
@click.option("--all", "everything", is_flag=True, help="All that wait now.")
@yes_option
@common_options
@pass_state
def cancel_command(state: State, queue: str, ids: tuple[str, ...], everything: bool, yes: bool) -> int:
    """Removes delayed messages of QUEUE, by their IDS or --all. Ends with 5 when none of them was there."""
    if bool(ids) == everything:
        raise click.UsageError("give the ids of messages, or --all")
    with state.store() as store:
        queue_record(store, queue)
        waiting = Later(store, queue)
        if everything and not confirmed(f"Remove {len(waiting)} delayed message(s) of {queue}?", yes):
            return exit_codes.OK
        count = waiting.cancel_all() if everything else waiting.cancel(*ids)
    return _told(state, queue, "cancelled", count)


@later.command("run")
@click.argument("queue", shell_complete=complete_queue)
@click.argument("ids", nargs=-1, required=True, callback=message_ids)
@common_options
@pass_state
def run_command(state: State, queue: str, ids: tuple[str, ...]) -> int:
    """Puts delayed messages of QUEUE, by their IDS, to its tail now. Ends with 5 when none of them was there."""
    with state.store() as store:
        queue_record(store, queue)
        count = Later(store, queue).run_now(*ids)
    return _told(state, queue, "moved", count)


def _told(state: State, queue: str, what: str, count: int) -> int:
    if state.json:
        output.document({"queue": queue, what: count})
    else:
        output.remark(f"{what} {count} delayed message(s) of {queue}")
    return exit_codes.OK if count else exit_codes.NOTHING


def _key(one: DelayedMessage) -> str:
    key = None if one.message is None else one.message.key
    return "" if key is None else output.preview(key, 40)


def _shown(one: DelayedMessage) -> dict[str, Any]:
    about = {"due": one.due.isoformat(), "id": one.id, "shard": one.shard, "pointer": one.pointer}
    message = _readable(one)
    return about if message is None else {**message.as_dict(), **about}
