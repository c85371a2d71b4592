"""``ignis workers``: who has claimed what, and how far it is."""

from __future__ import annotations

import click

from ignis.cli import exit_codes, output
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, pass_state, queue_record
from ignis.control.inspection import claim_owners
from ignis.magazine import SIDELINE_SUFFIX
from ignis.told_progress import progress_of

__all__ = ["workers"]


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@common_options
@pass_state
def workers(state: State, queue: str | None) -> int:
    """Shows who has claimed messages, of QUEUE or of all queues: how many, for how long, and who of them is dead. Below it
    stands how far messages have come whose handlers say so.

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
    if told:
        rows = [
            [
                one["queue"],
                one["id"],
                f"{one['fraction']:.0%}",
                output.preview(one["text"], 60),
                output.preview(one["owner"], 60),
            ]
            for one in told
        ]
        output.table(["queue", "message", "progress", "at", "owner"], rows, right=["progress"])
    return exit_codes.OK
