"""``ignis locks``: who leads what, and who holds which lock, since when and for how long."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import asdict, replace
from typing import Any

import click

from ignis.app import Ignis
from ignis.cli import exit_codes, output
from ignis.cli.state import State, common_options, pass_state
from ignis.config import AutoscalerSettings, check_name, load_file, resolve
from ignis.errors import InvalidNameError
from ignis.leader import LeaderStatus
from ignis.locks import LockLevel, LockManager
from ignis.storage.records import LockRecord

__all__ = ["locks"]

_SCOPES = ("sweeper", "schedules")
_APP = "app"
"""Where a lock is: the application's own, which the library takes, such as a leader's lease; else a `LockLevel`."""

Held = tuple[str, LockRecord]


@click.command(short_help="Shows who leads, and who holds which lock.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--suffix", default="distributed_lock", show_default=True, metavar="NAME", help="The table of locks.")
@common_options
@pass_state
def locks(state: State, names: tuple[str, ...], suffix: str) -> int:
    """Shows who leads each scope, under which epoch, and who holds which lock of this application and deployment, since when
    and until when. With NAMES only the locks and scopes of these names.

    An embedded store lists its locks; Aerospike and a broker have no list of them: name those that you look for. Takes no lock
    and no part in any contest. Ends with 5 when nobody holds or leads any of the NAMES, with 3 when nobody can tell who
    leads.
    """
    state.log_to_stderr("error")
    file = load_file(state.config)
    with (
        state.app() as app,
        closing(LockManager(app.client_id, app.farm_id, app.store, suffix=suffix, file=file)) as manager,
    ):
        epochs = app.store.locks.epochs()
        leaders = _leaders(app, names, {*(epochs or ()), resolve(AutoscalerSettings, {}, file).scope})
        found = _named(app, manager, names) if names else _listed(app, manager)
    if state.json:
        output.document(
            {
                "leaders": [asdict(one) for one in leaders],
                "locks": None if found is None else [_document(*one) for one in found],
            }
        )
    else:
        _show(leaders, found, names)
    if any(not one.available for one in leaders):
        return exit_codes.UNREACHABLE
    return exit_codes.NOTHING if names and not found and not any(one.leader for one in leaders) else exit_codes.OK


def _leaders(app: Ignis, names: tuple[str, ...], known: set[str]) -> list[LeaderStatus]:
    """Of every scope that is known, or of those of the names that are, or were ever led."""
    scopes = dict.fromkeys(names or (*_SCOPES, *sorted(known.difference(_SCOPES))))
    found: list[LeaderStatus] = []
    for scope in scopes:
        with suppress(InvalidNameError):  # a lock's name takes more than a scope's
            check_name(scope, "scope")
            if found and not found[-1].available:  # one decider for all, and one wait for it
                status = replace(found[-1], scope=scope, epoch=app.store.locks.epoch(scope))
            else:
                status = app.leader(scope).status()
            if scope in _SCOPES or scope in known or status.leader or status.epoch:
                found.append(status)
    return found


def _listed(app: Ignis, manager: LockManager) -> list[Held] | None:
    """Every lock that is held; None where the store has no list."""
    found: list[Held] = []
    for place, held in (
        (_APP, app.store.locks.held()),
        *((level.name.lower(), manager.held(level)) for level in LockLevel),
    ):
        if held is None:
            return None
        found += ((place, one) for one in held)
    return found


def _named(app: Ignis, manager: LockManager, names: tuple[str, ...]) -> list[Held]:
    found: list[Held] = []
    for name in dict.fromkeys(names):
        for level in LockLevel:
            held = manager.holder(name, level)
            if held is not None:
                found.append((level.name.lower(), held._replace(name=name)))
        with suppress(
            InvalidNameError
        ):  # the name of a distributed lock takes more than that of one of the application's
            held = app.store.locks.get(name)
            if held is not None:
                found.append((_APP, held))
    return found


def _document(place: str, held: LockRecord) -> dict[str, Any]:
    return {
        "lock": held.name,
        "level": place,
        **{name: value for name, value in held._asdict().items() if name != "name"},
    }


def _show(leaders: list[LeaderStatus], found: list[Held] | None, names: tuple[str, ...]) -> None:
    if leaders:
        rows = [
            [
                one.scope,
                one.leader or ("nobody" if one.available else "unknown"),
                output.setting("since_at_ms", one.since_ms),
                str(one.epoch),
                one.kind,
            ]
            for one in leaders
        ]
        output.table(["scope", "leader", "since", "epoch", "decided by"], rows, right=["epoch"])
    for trouble in dict.fromkeys(one.trouble for one in leaders if one.trouble):
        output.warning(trouble)
    if found is None:
        output.remark("this store has no list of its locks; name those that you look for: ignis locks NAME")
    elif found:
        if leaders:
            output.line("")
        rows = [
            [
                held.name,
                place,
                held.owner or "-",
                output.moment(held.acquired_at_ms),
                output.moment(held.expires_at_ms),
                str(held.token) if held.token else "-",  # a count would get commas; 0: its holder asked for none
            ]
            for place, held in found
        ]
        output.table(["lock", "level", "owner", "since", "until", "token"], rows, right=["token"])
    else:
        output.remark("nobody holds " + ("any of these locks" if names else "a lock"))
