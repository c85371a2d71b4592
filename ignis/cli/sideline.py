"""``ignis sideline``: what failed, why, and bringing it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ignis.clearing import delete_matching
from ignis.clearing import purge as purge_magazine
from ignis.cli import exit_codes, output
from ignis.cli.confirm import confirmed, yes_option
from ignis.cli.filters import filter_options, reason_option
from ignis.cli.inspection import show_messages
from ignis.cli.other_words import WordGroup
from ignis.cli.queue import report_removed
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, counted, is_pattern, matching_queues, pass_state, queue_record
from ignis.control.inspection import Reason, Row, failure_of, scan_magazine, sideline_reasons
from ignis.control.queue_depths import shard_states
from ignis.errors import IgnisError, UnreadableMessageError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import Message
from ignis.message_filter import AtMost, Filter
from ignis.shovel import ShovelResult

if TYPE_CHECKING:
    from ignis.storage.base import Store

__all__ = ["sideline"]


@click.group(cls=WordGroup)
@common_options
def sideline() -> None:
    """What failed, why, and bringing it back."""


@sideline.command("list", short_help="Counts what failed by reason, of QUEUE or of all queues.")
@click.argument("queue", required=False, shell_complete=complete_queue)
@reason_option
@click.option("--limit", type=click.IntRange(min=1), help="Look at no more than so many messages of a queue.")
@common_options
@pass_state
def list_command(state: State, queue: str | None, reasons: tuple[str, ...], limit: int | None) -> int:
    """Counts what is in QUEUE's sideline, or in that of each queue, by reason. QUEUE may be a pattern, such as 'tenant.*'.

    With it stand the time since the oldest and the newest failure and the most frequent error. Errors that differ only in words
    with a digit, such as ids, count as one; the first of them is shown. --older-than elsewhere goes by the time of the failure.

    What is for a person has come back as often as max_returns or shovel_retry says, or cannot, or was given up by its
    handler's retry: only 'ignis sideline shovel' brings it back.
    """
    with state.store() as store:
        names = _names(store, queue)
        found = {name: _wanted(sideline_reasons(store, name, limit=limit), reasons) for name in names}
    if state.json:
        documents = [
            {
                "queue": name,
                "total": sum(one.count for one in some.values()),
                "reasons": {reason: one.as_dict() for reason, one in some.items()},
            }
            for name, some in found.items()
        ]
        output.document({"queues": documents} if _is_several(queue) else documents[0])
        return exit_codes.OK
    if not any(found.values()):
        where = f"the sideline of {queue} is empty" if queue else "every sideline is empty"
        of = f" of {queue}" if queue else ""
        output.remark(where if not reasons else f"no message{of} failed for that reason")
        return exit_codes.OK
    columns = ["reason", "count", "for a person", "oldest", "newest", "most frequent error", "of that"]
    rows = []
    for name, some in found.items():
        for reason, one in some.items():
            error, count = one.commonest()
            cells = [
                reason,
                output.number(one.count),
                output.number(one.waiting),
                output.age(one.oldest_s),
                output.age(one.newest_s),
                output.preview(error or "-", 60),
                output.number(count),
            ]
            rows.append([name, *cells] if _is_several(queue) else cells)
    title = f"sideline of {queue}" if queue else "sidelines"
    columns = ["queue", *columns] if _is_several(queue) else columns
    output.table(columns, rows, title=title, right=["count", "for a person", "oldest", "newest", "of that"])
    return exit_codes.OK


def _is_several(queue: str | None) -> bool:
    """Whether the command is about any number of queues."""
    return queue is None or is_pattern(queue)


def _names(store: Store, queue: str | None) -> list[str]:
    """Those of the queues that are meant; None = all. Raises QueueNotFoundError, InvalidNameError."""
    if queue is None:
        return [one.name for one in store.queues.list()]
    return matching_queues(store, queue) if is_pattern(queue) else [queue_record(store, queue).name]


def _wanted(found: dict[str, Reason], reasons: tuple[str, ...]) -> dict[str, Reason]:
    return {name: one for name, one in found.items() if not reasons or name in reasons}


@sideline.command("show", short_help="Shows messages in QUEUE's sideline, and why they failed.")
@click.argument("queue", shell_complete=complete_queue)
@click.option(
    "-n", "--limit", default=10, show_default=True, type=click.IntRange(1, 1_000_000), help="At most so many messages."
)
@reason_option
@click.option("--history", is_flag=True, help="Also the last attempts at each, with the ends of their tracebacks.")
@common_options
@pass_state
def show_command(state: State, queue: str, limit: int, reasons: tuple[str, ...], history: bool) -> int:
    """Shows messages in QUEUE's sideline with the reason and error of each, and its age since it was published. With --json
    one document per message, which has the history too. Says when there are more.

    Ends with 5 when there is none.
    """
    with state.store() as store:
        queue_record(store, queue)
        rows: list[Row] = []
        more = False
        for row in scan_magazine(store, queue + SIDELINE_SUFFIX):
            if not reasons or failure_of(row)[0] in reasons:
                more = len(rows) == limit
                if more:
                    break
                rows.append(row)
        states = shard_states(store, queue + SIDELINE_SUFFIX) if more and not reasons else []
        total = sum(one.pending + one.in_flight for one in states)
    if not rows:
        if not state.json:
            output.remark(f"nothing of that is in the sideline of {queue}")
        return exit_codes.NOTHING
    show_messages(state, rows, failures=True)
    if more and not state.json:
        of = f" of {total:,}" if total > limit else ", there are more"
        output.remark(f"{limit:,}{of}: -n shows more, 'ignis sideline list {queue}' counts them")
    if history and not state.json:
        for row in rows:
            _show_history(row)
    return exit_codes.OK


def _show_history(row: Row) -> None:
    shard, pointer, record = row
    try:
        message = None if record is None else Message.from_bytes(record)
        attempts = () if message is None else message.history
    except UnreadableMessageError:
        return
    if message is None or not attempts:
        return
    output.line("")
    output.line(f"shard {shard}, pointer {pointer}, message {message.id}, {message.returns} return(s)")
    for one in attempts:
        took = "" if one.took_ms is None else f", after {output.age(one.took_ms / 1000)}"
        worker = f", by {output.preview(one.worker, 100)}" if one.worker else ""
        output.line(f"  {output.moment(one.at_ms)}: {output.preview(one.reason, 64)}{took}{worker}")
        for text in [one.error, *one.trace.splitlines()]:
            if text:
                output.line(f"    {output.preview(text, 200)}")


@sideline.command(
    "shovel", short_help="Brings the messages in QUEUE's sideline back (redrive); 'tenant.*' means many queues."
)
@click.argument("queue", shell_complete=complete_queue)
@filter_options(failures=True)
@click.option("--limit", type=click.IntRange(min=1), help="Bring back no more than so many messages.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="No more than N messages a second."
)
@click.option("--dry-run", is_flag=True, help="Only count what would be brought back; nothing is claimed or moved.")
@click.option(
    "--retry-for",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    metavar="SECONDS",
    help="When the pass fails, or the queue refuses something, try again every 10 s for so long.",
)
@common_options
@pass_state
def shovel_command(
    state: State,
    queue: str,
    wanted: Filter,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    retry_for: float,
) -> int:
    """Brings the messages in QUEUE's sideline back to the queue, where they are handled again. QUEUE may be a pattern, such as
    'tenant.*': then of one queue after the other, --limit of all together, and what fails for one leaves the others to be done.

    One pass over what is there now, also over what waits because it came back max_returns times: its count begins anew. Corrupt
    messages have no body to handle and always stay.
    """
    state.log_to_stderr("warning")
    several = is_pattern(queue)
    done: list[dict[str, Any]] = []
    total = ShovelResult(left=0)
    failed = 0
    with state.app() as app, counted(state, "shovelling") as progress:
        for name in _names(app.store, queue):
            most = None if limit is None else limit - total.moved
            if most == 0:
                break
            where = AtMost(wanted, most) if wanted.given else None
            try:
                result = app.queue(name).shovel.run_until_done(
                    retry_for,
                    # With a filter the limit counts what is moved, not what is looked at.
                    limit=None if where is not None else most,
                    where=where,
                    rate=rate,
                    dry_run=dry_run,
                    progress=progress,
                )
            except IgnisError as exc:
                if not several:
                    raise
                failed += 1
                output.remark(f"{name}: {exc}", event="shovel_failed", queue=name)
                continue
            total.add(result)
            total.left = None if result.left is None or total.left is None else total.left + result.left
            done.append({"queue": name, **result.told(dry_run)})
            if not state.json and (not several or result.moved or result.kept or result.left):
                output.line(_said(name, result, dry_run))
    if state.json:
        document = {"pattern": queue, "queues": done, "failed": failed} if several else {"queue": queue}
        output.document({**document, "dry_run": dry_run, **total.told(dry_run)})
    elif several:
        output.line(_said(f"{len(done):,} queue(s)", total, dry_run))
    return exit_codes.ERROR if total.refused or failed else exit_codes.OK


def _said(name: str, result: ShovelResult, dry_run: bool) -> str:
    if dry_run:
        return f"{result.moved:,} message(s) of {name} would be brought back, {_left(result)} would stay"
    refused = f", {result.refused:,} of them refused by the store" if result.refused else ""
    return f"{result.moved:,} message(s) of {name} brought back, {_left(result)} stay in the sideline{refused}"


def _left(result: ShovelResult) -> str:
    return f"at least {result.kept:,}" if result.left is None else f"{result.left:,}"


@sideline.command("drop", short_help="Removes messages from QUEUE's sideline for good.")
@click.argument("queue", shell_complete=complete_queue)
@filter_options(failures=True)
@click.option("--limit", type=click.IntRange(min=1), help="With a filter: remove no more than so many messages.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@yes_option
@common_options
@pass_state
def drop_command(state: State, queue: str, wanted: Filter, limit: int | None, dry_run: bool, yes: bool) -> int:
    """Removes messages from QUEUE's sideline for good: all of them, or those that a filter names.

    What a shovel has in hand stays. A filter reads every message of the sideline.
    """
    if limit is not None and not wanted.given:
        raise click.UsageError("--limit is for a filter: without one everything goes")
    with state.store() as store:
        queue_record(store, queue)
        waiting = sum(one.pending for one in shard_states(store, queue + SIDELINE_SUFFIX))
        removed, looked_at = waiting, waiting
        if wanted.given or not dry_run:
            what = "what the filter names" if wanted.given else f"{waiting:,} message(s)"
            if not dry_run and not confirmed(f"Remove {what} from the sideline of {queue} for good?", yes):
                return exit_codes.ERROR
            with counted(state, "removing") as progress:
                name = queue + SIDELINE_SUFFIX
                if wanted.given:
                    removed, looked_at = delete_matching(
                        store.magazines, name, wanted.matches, limit=limit, dry_run=dry_run, progress=progress
                    )
                else:
                    removed = purge_magazine(store.magazines, name, progress=progress).waiting
    where = f"the sideline of {queue}"
    report_removed(state, queue, where, removed, 0, dry_run=dry_run, looked_at=looked_at if wanted.given else None)
    return exit_codes.OK
