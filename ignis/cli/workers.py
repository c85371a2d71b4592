"""``ignis workers``: who has claimed what, and how far it is."""

from __future__ import annotations

from typing import Any

import click

from ignis.cli import exit_codes, output
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, pass_state, queue_record
from ignis.control.inspection import claim_owners
from ignis.magazine import SIDELINE_SUFFIX
from ignis.told_progress import progress_of

__all__ = ["workers"]


@click.command(short_help="Shows who has claimed messages, how long, and who is dead.")
@click.argument("queue", required=False, shell_complete=complete_queue)
@common_options
@pass_state
def workers(state: State, queue: str | None) -> int:
    """Shows who has claimed messages, of QUEUE or of all queues, and who is dead.

    "longest" is how long the longest call of a handler has run. Where no handler runs, it is the age of the oldest claim
    since it was made or renewed. Below stand the messages that handlers have been at for 5 s or more, by the ids that
    `ignis queue cancel` takes, and those whose handlers say how far they have come.

    Who is idle holds nothing and is not shown; the health address of `ignis worker` shows its processes.
    """
    with state.store() as store:
        records = store.queues.list() if queue is None else [queue_record(store, queue)]
        names = [record.name for record in records]
        told = [{"queue": record.name, **one._asdict()} for record in records for one in progress_of(record)]
        found = [
            one
            for name in names
            for magazine in (name, name + SIDELINE_SUFFIX)
            for one in claim_owners(store, magazine)
        ]
    if state.json:
        output.document({"workers": found, "progress": told})
        return exit_codes.OK
    if not found:
        output.remark("nobody has claimed anything")
        return exit_codes.OK
    columns = ["magazine", "owner", "in flight", "longest", "state"]
    rows = [
        [
            one["magazine"],
            output.preview(one["owner"] or "-", 60),
            output.number(one["in_flight"]),
            output.age(one["oldest_claim_s"]),
            "dead" if one["dead"] else "-",
        ]
        for one in found
    ]
    output.table(columns, rows, right=["in flight", "longest"])
    if rows := _calls(found, told):
        output.table(["queue", "message", "running", "progress", "at", "owner"], rows, right=["running", "progress"])
    return exit_codes.OK


def _calls(found: list[dict[str, Any]], told: list[dict[str, Any]]) -> list[list[str]]:
    """The messages that take long, the longest first, and those of which there is progress."""
    progress = {(one["queue"], one["id"]): one for one in told}
    long = [(owner["magazine"], call["id"], owner["owner"], call) for owner in found for call in owner["long_calls"]]
    long.sort(key=lambda one: -one[3]["running_s"])
    rows = []
    for queue, id, owner, call in long:
        more = f" and {call['messages'] - 1} more" if call["messages"] > 1 else ""
        rows.append(
            [queue, id + more, output.age(call["running_s"]), *_progress(progress.pop((queue, id), None)), owner]
        )
    rows += [[one["queue"], one["id"], "-", *_progress(one), one["owner"]] for one in progress.values()]
    return [[*row[:-1], output.preview(row[-1], 60)] for row in rows]


def _progress(told: dict[str, Any] | None) -> list[str]:
    return ["-", "-"] if told is None else [f"{told['fraction']:.0%}", output.preview(told["text"] or "-", 60)]
