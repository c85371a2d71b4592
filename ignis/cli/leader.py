"""``ignis leader``: who leads, who sweeps, since when, and who else is there."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import click

from ignis.cli import exit_codes, output
from ignis.cli.state import State, common_options, pass_state
from ignis.control.sweeper import counts_from_s
from ignis.leader import LeaderStatus

__all__ = ["leader"]


@click.command(short_help="Shows who leads, since when, and who else is there.")
@click.option("--scope", default="sweeper", show_default=True, metavar="NAME", help="What is led.")
@common_options
@pass_state
def leader(state: State, scope: str) -> int:
    """Shows who leads, who sweeps, since when, under which epoch, and the instances that are there.

    Settings of [leader] count as for a worker: IGNIS_LEADER_ZOOKEEPER=zk://host/chroot, or --config FILE.
    Takes no part in the contest. Ends with 5 when nobody leads, with 3 when nobody can tell. In the first ten minutes of a store
    ([sweeper] initial_delay_s) nobody sweeps yet: then it says when the first sweep is due.
    """
    state.log_to_stderr("error")
    with state.app() as app:
        status = app.leader(scope).status()
        records = app.store.queues.list()
        last = {one.name: one.extra["sweep"] for one in records if "sweep" in one.extra}
        due_s: float | None = None
        if scope == "sweeper" and status.available and not status.leader and records:
            left_s = counts_from_s(records) + app.sweeper_settings.initial_delay_s - time.time()
            due_s = left_s if left_s > 0 else None
    if state.json:
        output.document({**asdict(status), "first_sweep_due_s": due_s, "swept_queues": last})
    else:
        _show(status, last, due_s)
    if not status.available:
        return exit_codes.UNREACHABLE
    return exit_codes.OK if status.leader else exit_codes.NOTHING


def _nobody(due_s: float | None) -> str:
    """Processes that begin leave the contest alone until the first sweep is due."""
    return "nobody" if due_s is None else f"nobody yet: the first sweep is due in {output.age(due_s)}"


def _show(status: LeaderStatus, last: dict[str, Any], due_s: float | None) -> None:
    members = "-" if status.members is None else ", ".join(status.members) or "none"
    shown: dict[str, Any] = {
        "leader": status.leader or (_nobody(due_s) if status.available else "unknown"),
        "sweeping" if status.scope == "sweeper" else "active": status.sweeping or "nobody",
        "since_at_ms": status.since_ms,
        # As text: a count would get commas.
        "epoch": str(status.epoch),
        "decided by": status.kind,
        "members": members,
    }
    if not status.available:
        shown.pop("sweeping", None)
    output.pairs(shown, title=f"leader of {status.scope}")
    if last:
        output.line("")
        rows = [[name, str(one["epoch"]), output.moment(one["at_ms"])] for name, one in sorted(last.items())]
        output.table(["queue", "last swept under epoch", "at"], rows, right=["last swept under epoch"])
    if status.trouble:
        output.warning(status.trouble)
