"""``ignis queue``: making, emptying, pausing and removing queues."""

from __future__ import annotations

from typing import Any

import click

from ignis.cancellation import cancel_message
from ignis.clearing import delete_matching
from ignis.clearing import purge as purge_magazine
from ignis.cli import exit_codes, output
from ignis.cli.confirm import confirmed, yes_option
from ignis.cli.filters import filter_options, message_ids
from ignis.cli.other_words import WordGroup
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, counted, pass_state, queue_record
from ignis.config import check_queue_name
from ignis.control.queue_depths import queue_depths
from ignis.deadlines import on_expiry_of
from ignis.errors import ConfigError, PermissionDeniedError, QueueNotEmptyError, QueueNotFoundError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message_filter import Filter
from ignis.pausing import store_pause
from ignis.shovel_rounds import shovel_retry_of
from ignis.storage.base import QueueRecord, Store

__all__ = ["queue"]

_CANCELLED = {
    "delayed": "was delayed, and is removed",
    "waiting": "waited, and is removed",
    "running": "is being handled, and told to end",
    None: "is not there",
}


@click.group(cls=WordGroup)
@common_options
def queue() -> None:
    """Makes, empties, pauses and removes queues."""


@queue.command("cancel")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queue)
@click.argument("ids", nargs=-1, required=True, callback=message_ids)
@common_options
@pass_state
def cancel_command(state: State, name: str, ids: tuple[str, ...]) -> int:
    """Cancels messages of QUEUE by their IDS, wherever they are.

    What waits or is delayed is removed. What is being handled is told to end, and goes to the sideline as cancelled when it
    does. Ends with 5 when none of them was there.
    """
    with state.store() as store:
        queue_record(store, name)
        found = {id: cancel_message(store, name, id) for id in ids}
    if state.json:
        output.document({"queue": name, "messages": found})
    else:
        for id, where in found.items():
            output.remark(f"{id}: {_CANCELLED[where]}")
    return exit_codes.OK if any(found.values()) else exit_codes.NOTHING


@queue.command("create")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--shards", type=int, metavar="N", help="Independent sequences of messages.  [default: 32]")
@click.option("--durability", type=click.Choice(["sync", "interval", "none"]), help="What an acknowledgement survives.")
@click.option("--codec", type=click.Choice(["json", "msgpack", "raw"]), help="How bodies are stored.  [default: json]")
@click.option("--message-expiry", metavar="AGE", help="A message that waits longer is dropped, e.g. 2d.")
@click.option("--on-expiry", type=click.Choice(["drop", "sideline"]), help="Where a message past its deadline goes.")
@click.option("--queue-expiry", metavar="AGE", help="A queue that is empty and unused for longer becomes inactive.")
@click.option("--stuck-after", metavar="AGE", help="What nobody renews for so long is taken from its worker.")
@click.option("--max-returns", type=int, metavar="N", help="How often the shovel brings a message back.  [default: 5]")
@click.option("--shovel-interval", metavar="AGE", help="How often the shovel runs; 0 = only by hand.  [default: 10m]")
@click.option("--shovel-concurrency", type=int, metavar="N", help="Parallel workers of the shovel.  [default: 4]")
@click.option(
    "--shovel-retry", metavar="POLICY", help="In place of both: a policy's name in the settings file; '' = none."
)
@click.option("--handler-type", metavar="NAME", help="The handler of app.handler that takes QUEUE.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Workers of each process, until the handler's code asks for others.",
)
@common_options
@pass_state
def create_command(state: State, /, name: str, codec: str | None, concurrency: int | None, **given: Any) -> int:
    """Makes QUEUE, and the store when it does not exist.

    One that is there already gets the settings that are given, for all its processes; what has changed is said. Another
    codec or durability is refused, and fewer shards while what they hold waits. More shards may move a key to another
    one, so that its new messages pass those that wait.

    These are all the settings that are stored with a queue. Its limits of bytes and strict are each process's own.
    """
    settings = {option: value for option, value in given.items() if value is not None}
    if codec is not None:
        settings["codec"] = codec
    with state.app(create=True) as app:
        there = app.store.queues.get(check_queue_name(name))
        if concurrency is not None and there is not None and not there.concurrency:
            raise ConfigError(
                f"--concurrency {concurrency}: no process is to consume queue {name!r}, as its handler says (concurrency=0)"
            )
        before = {} if there is None else _changeable(there)
        made = app.queue(name, bytes if codec == "raw" else None, **settings)
        made.open()
        if concurrency is not None:
            app.store.queues.update(name, lambda stored: setattr(stored, "concurrency", concurrency))
        record = queue_record(app.store, name)
    after = _changeable(record)
    changed = {what: {"from": value, "to": after[what]} for what, value in before.items() if after[what] != value}
    if state.json:
        answer = {"queue": name, "created": there is None, "shards": record.shards, "durability": record.durability}
        output.document({**answer, "changed": changed})
    elif there is not None:
        said = ", ".join(
            f"{output.label(what)} {output.setting(what, step['from'])} -> {output.setting(what, step['to'])}"
            for what, step in changed.items()
        )
        output.remark(f"queue {name} is there already" + (f"; changed: {said}" if said else ", and stays as it is"))
    else:
        output.line(
            f"queue {name} made: {record.shards} shard(s), durability {record.durability}, codec {record.codec}"
        )
    return exit_codes.OK


def _changeable(record: QueueRecord) -> dict[str, int | str]:
    """What `queue create` may change of a queue that is there."""
    names = (
        "shards", "message_expiry_s", "queue_expiry_s", "stuck_after_s", "shovel_interval_s", "shovel_concurrency",
        "max_returns", "handler_type", "concurrency",
    )  # fmt: skip
    kept = {name: getattr(record, name) for name in names}
    return {**kept, "on_expiry": on_expiry_of(record), "shovel_retry": shovel_retry_of(record)}


@queue.command("delete")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--force", is_flag=True, help="Also when it holds messages: they are lost.")
@yes_option
@common_options
@pass_state
def delete_command(state: State, name: str, force: bool, yes: bool) -> int:
    """Removes QUEUE with its settings and its sideline.

    Consumers end; whoever publishes to it is refused. Without --force a queue that holds messages stays: exit code 1.
    """
    with state.store() as store:
        check_queue_name(name)
        held = _held(store, name)
        if sum(held.values()) and not force:
            raise QueueNotEmptyError(name, sum(held.values()))
        question = f"Remove queue {name} ({_said(held) or 'it is empty'})?" if held else f"Remove queue {name}?"
        if not confirmed(question, yes):
            return exit_codes.ERROR
        store.remove_queue(name, force=force)
    if state.json:
        output.document({"queue": name, "removed": True, "messages": sum(held.values())})
    else:
        output.line(f"queue {name} removed")
    return exit_codes.OK


@queue.command("purge", short_help="Removes what waits in QUEUE, all or by a filter.")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--in-flight", is_flag=True, help="Also what workers have claimed. Handlers that run go on.")
@filter_options(failures=False)
@click.option("--limit", type=click.IntRange(min=1), help="With a filter: remove no more than so many messages.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@yes_option
@common_options
@pass_state
def purge_command(
    state: State, name: str, wanted: Filter, in_flight: bool, limit: int | None, dry_run: bool, yes: bool
) -> int:
    """Removes the messages that wait in QUEUE, or those that a filter names; nobody handles them.

    What a worker has claimed stays, and so does what is published from now on. The sideline is for `ignis sideline drop`.
    A filter reads every waiting message.
    """
    if wanted.given and in_flight:
        raise click.UsageError("--in-flight takes everything: it cannot go with a filter")
    if limit is not None and not wanted.given:
        raise click.UsageError("--limit is for a filter: without one everything goes")
    with state.store() as store:
        held = _depths(store, queue_record(store, name))
        looked_at, claimed = held.get("pending", 0), 0
        if dry_run and not wanted.given:
            held = queue_depths(store, queue_record(store, name))
            removed = held["pending"]
            claimed = held["in_flight"] if in_flight else 0
        else:
            waiting = f"{output.number(held['pending'])} waiting message(s)" if held else "all waiting messages"
            what = "what the filter names" if wanted.given else waiting
            more = f" and {output.number(held.get('in_flight'))} in flight" if in_flight else ""
            if not dry_run and not confirmed(f"Remove {what}{more} from queue {name}?", yes):
                return exit_codes.ERROR
            with counted(state, "removing") as progress:
                if wanted.given:
                    removed, looked_at = delete_matching(
                        store.magazines, name, wanted.matches, limit=limit, dry_run=dry_run, progress=progress
                    )
                else:
                    removed, claimed = purge_magazine(store.magazines, name, in_flight=in_flight, progress=progress)
    report_removed(state, name, name, removed, claimed, dry_run=dry_run, looked_at=looked_at if wanted.given else None)
    return exit_codes.OK


def report_removed(
    state: State, queue_name: str, where: str, removed: int, claimed: int, *, dry_run: bool, looked_at: int | None
) -> None:
    """What a purge or a drop did."""
    if state.json:
        done = "would_remove" if dry_run else "removed"
        figures: dict[str, Any] = {"queue": queue_name, "dry_run": dry_run, done: removed, "in_flight": claimed}
        if looked_at is not None:
            figures["looked_at"] = looked_at
        output.document(figures)
        return
    verb = "would be removed" if dry_run else "removed"
    of = f" of {looked_at:,} that wait there" if looked_at is not None else ""
    more = f", and {claimed:,} in flight" if claimed else ""
    output.line(f"{removed:,} message(s){of} {verb} from {where}{more}")


@queue.command("pause", short_help="Makes all consumers of QUEUE stop claiming.")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queue)
@common_options
@pass_state
def pause_command(state: State, name: str) -> int:
    """Makes all consumers of QUEUE stop claiming, in every process and until `resume`; what they have they finish.

    Running processes notice within refresher.watch_s (5 s), brokers within 10 s.
    """
    return _set_pause(state, name, True)


@queue.command("resume")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queue)
@common_options
@pass_state
def resume_command(state: State, name: str) -> int:
    """Lets the consumers of QUEUE claim again."""
    return _set_pause(state, name, False)


def _set_pause(state: State, name: str, paused: bool) -> int:
    with state.store() as store:
        queue_record(store, name)
        store_pause(store.queues, name, paused)
    if state.json:
        output.document({"queue": name, "paused": paused})
    else:
        output.line(f"queue {name} is {'paused: its consumers take nothing more within 5 s' if paused else 'resumed'}")
    return exit_codes.OK


def _held(store: Store, name: str) -> dict[str, int]:
    """What is in the queue's magazines, there being a record of it or not."""
    held: dict[str, int] = {}
    found = store.queues.get(name) is not None
    for magazine, word in ((name, "waiting"), (name + SIDELINE_SUFFIX, "in the sideline")):
        try:
            states = store.magazines.metadata(magazine)
            if magazine == name:
                held["delayed"] = store.magazines.delayed(name)
        except QueueNotFoundError:
            continue
        except PermissionDeniedError:
            return {}  # who may remove it need not be allowed to look into it
        found = True
        held[word] = sum(one.pending for one in states)
        held["in flight"] = held.get("in flight", 0) + sum(one.in_flight for one in states)
    if not found:
        queue_record(store, name)  # which says what there is
    return held


def _depths(store: Store, record: QueueRecord) -> dict[str, Any]:
    """Empty for who may empty the queue and not look into it."""
    try:
        return queue_depths(store, record)
    except PermissionDeniedError:
        return {}


def _said(held: dict[str, int]) -> str:
    return ", ".join(f"{output.number(count)} {word}" for word, count in held.items() if count)
