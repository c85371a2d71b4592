"""Asking before something is destroyed."""

from __future__ import annotations

import sys

import click

from ignis.cli import output

__all__ = ["confirmed", "yes_option"]

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask at.")


def confirmed(question: str, yes: bool) -> bool:
    """Whether to go on: ``--yes`` was given, or somebody at the terminal says so; the default is no. Raises UsageError where
    nobody can be asked: a script must say what it means."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{question} There is no terminal to ask at: give --yes")
    if click.confirm(question, default=False, err=True):
        return True
    output.remark("nothing was changed")
    return False
