"""Options that say which messages are meant, and the filter that they make."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ignis.config import parse_duration_s
from ignis.errors import ConfigError, InvalidMessageError
from ignis.message import REASONS, message_id
from ignis.message_filter import UNKNOWN, Filter

__all__ = ["filter_options", "message_ids", "reason_option"]

F = TypeVar("F", bound=Callable[..., Any])

reason_option = click.option(
    "--reason",
    "reasons",
    multiple=True,
    type=click.Choice([*REASONS, UNKNOWN]),
    metavar="REASON",
    help=f"Only messages that failed for this reason; may be given often: {', '.join([*REASONS, UNKNOWN])}.",
)


def message_ids(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Ids of messages, as an option or arguments name them."""
    try:
        return tuple(message_id(value) for value in values)
    except InvalidMessageError as exc:
        raise click.BadParameter(str(exc)) from None


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration_s(value, "--older-than")
    except ConfigError as exc:
        raise click.BadParameter(str(exc)) from None


def filter_options(*, failures: bool) -> Callable[[F], F]:
    """Decorator: the options, given to the command as ``wanted``, a `Filter`; ``failures`` adds those about failures."""
    options = [
        click.option(
            "--id",
            "ids",
            multiple=True,
            callback=message_ids,
            metavar="ID",
            help="Only this message; may be given often.",
        ),
        click.option("--key", metavar="KEY", help="Only messages of this key."),
        click.option(
            "--older-than",
            callback=_age,
            metavar="AGE",
            help=f"Only what {'failed' if failures else 'was published'} longer ago: seconds, or 30m, 12h, 2d.",
        ),
    ]
    if failures:
        options += [
            reason_option,
            click.option("--error", metavar="TEXT", help="Only messages whose error contains this."),
        ]

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def filtered(*arguments: Any, **given: Any) -> Any:
            wanted = Filter(**{name: given.pop(name) for name in Filter._fields if name in given})
            return command(*arguments, wanted=wanted, **given)

        return functools.reduce(lambda decorated, option: option(decorated), reversed(options), filtered)  # type: ignore[return-value]

    return decorate
