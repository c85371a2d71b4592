"""``ignis doctor``: whether a store is sound, and repairing what can be of an embedded one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from ignis.cli import exit_codes, output
from ignis.cli.doctor_service import examine_service
from ignis.cli.state import State, common_options, pass_state
from ignis.errors import ConfigError
from ignis.storage import OPENERS
from ignis.storage.directories import directory_of
from ignis.urls import redacted

if TYPE_CHECKING:
    from ignis.storage.embedded.check import Report

__all__ = ["doctor"]

_SERVICES = ("ignis", "ignis+tls", "aerospike")


@click.command(short_help="Checks an embedded store, a broker or Aerospike.")
@click.argument("directory", metavar="[DIRECTORY|URL]", required=False)
@click.option("--repair", is_flag=True, help="Repair what can be; what is taken out is laid into DIRECTORY/aside.")
@common_options
@pass_state
def doctor(state: State, /, directory: str | None, repair: bool) -> int:
    """Checks the embedded store in DIRECTORY while nobody has it open: every file, every checksum.

    Nothing is changed without --repair, so a store on a read-only file system can be checked too. With it, damaged ranges are
    copied aside and taken out of the log, damaged checkpoints and what dead processes left are removed, and the store is
    checked once more. What can still be read of a damaged range is kept, the rest is lost; a copy of the directory first costs
    nothing.

    With the URL of a broker or of Aerospike it looks as a client does: whether it answers, the login and its rights, versions,
    clocks. Room and damage are shown as far as the other side tells them, and whether the ZooKeeper of the settings answers.
    Nothing is changed. Without an argument the store is that of --url, IGNIS_URL or the settings file.

    Ends with 0 when the store is sound, 1 when it is not (any more than could be repaired), 3 when there is none or it
    does not answer, and 4 while it is open. It ends with 1 too when the disk has no room for more messages.
    """
    from ignis.storage.embedded.check import Alone, check_store
    from ignis.storage.embedded.repair import repair_store

    if directory is None:
        directory = state.resolved_url()
    scheme, _, rest = directory.partition(":")
    is_url = rest.startswith(("/", "\\")) or scheme in OPENERS
    if is_url and scheme in _SERVICES:
        if repair:
            raise click.UsageError("--repair is for the directory of an embedded store")
        return examine_service(replace(state, url=directory))
    if is_url and scheme != "embedded":
        raise ConfigError(f"{redacted(directory)} is no directory: write /path/of/it or embedded:///path/of/it")
    path = Path(directory_of(urlsplit(directory)) if is_url else directory)
    after = None
    with Alone(path, writes=repair):
        report = check_store(path)
        if repair and report.all_problems():
            repair_store(report)
            after = check_store(path)
    last = report if after is None else after
    if state.json:
        document = report.document()
        document["repaired"] = None if after is None else after.document()
        output.document(document)
        return _code(last)
    for one in report.classes:
        output.pairs(
            {
                "durability": one.durability,
                "segments": output.number(one.segments),
                "size": output.size(one.log_bytes),
                "entries": output.number(sum(one.entries.values())),
                "checkpoints": output.number(one.checkpoints),
            },
        )
    for problem in report.all_problems():
        where = problem.file if problem.offset is None else f"{problem.file} at {problem.offset}"
        size = "" if problem.bytes is None else f", {output.number(problem.bytes)} bytes"
        done = f" [{problem.repaired}]" if problem.repaired else ""
        output.line(f"{'note' if problem.harmless else 'DAMAGE'} {problem.code}: {where}{size}: {problem.what}{done}")
    if after is not None:
        left = [one for one in after.all_problems() if not one.harmless]
        output.line(f"after the repair: {'sound' if after.sound else f'{len(left)} problem(s) left'}")
        for problem in left:
            output.line(f"DAMAGE {problem.code}: {problem.file}: {problem.what}")
    elif report.sound:
        output.line("sound")
    _say_room(last)
    return _code(last)


def _code(report: Report) -> int:
    return exit_codes.OK if report.sound and not report.short_of_room else exit_codes.ERROR


def _say_room(report: Report) -> None:
    if report.free_bytes is None:
        return
    free = f"{output.size(report.free_bytes)} free on the disk"
    if report.short_of_room:
        output.line(f"PROBLEM room: {free}: loads are refused, or will be soon; free space there, or give it more")
    else:
        output.line(f"room: {free}")
