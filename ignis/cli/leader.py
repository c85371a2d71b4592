"""``ignis leader``: who leads, who sweeps, since when, and who else is there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ignis.cli import exit_codes, output
from ignis.cli.state import State, common_options, pass_state
from ignis.leader import LeaderStatus

__all__ = ["leader"]


@click.command()
@click.option("--scope", default="sweeper", show_default=True, metavar="NAME", help="What is led.")
@common_options
@pass_state
def leader(state: State, scope: str) -> int:
    """Shows who leads, who sweeps, since when, under which epoch, and the instances that are there.

    Settings of [leader] count as for a worker: IGNIS_LEADER_ZOOKEEPER=zk://host/chroot, or --config FILE.
    Takes no part in the contest. Ends with 5 when nobody leads, with 3 when nobody can tell.
    """
    state.log_to_stderr("error")
    with state.app() as app:
        status = app.leader(scope).status()
        last = {one.name: one.extra["sweep"] for one in app.store.queues.list() if "sweep" in one.extra}
    if state.json:
        output.document({**asdict(status), "swept_queues": last})
    else:
        _show(status, last)
    if not status.available:
        return exit_codes.UNREACHABLE
    return exit_codes.OK if status.leader else exit_codes.NOTHING


def _show(status: LeaderStatus, last: dict[str, Any]) -> None:
    members = "-" if status.members is None else ", ".join(status.members) or "none"
    shown: dict[str, Any] = {
        "leader": status.leader or ("nobody" if status.available else "unknown"),
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
