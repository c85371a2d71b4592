"""Options that say which messages are meant, and the filter that they make."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import click

from ignis.config import parse_duration_s
from ignis.errors import ConfigError, UnreadableMessageError
from ignis.message import REASON_CORRUPT, REASON_UNREADABLE, REASONS, Message

__all__ = ["UNKNOWN", "Filter", "filter_options", "message_ids", "reason_option"]

F = TypeVar("F", bound=Callable[..., Any])

UNKNOWN = "unknown"
"""The reason of what is in a sideline and does not say why."""

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
    for value in values:
        try:
            UUID(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not the id of a message, which is a UUID") from None
    return tuple(str(UUID(value)) for value in values)


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration_s(value, "--older-than")
    except ConfigError as exc:
        raise click.BadParameter(str(exc)) from None


class Filter(NamedTuple):
    """Messages that meet every condition."""

    ids: tuple[str, ...] = ()
    key: str | None = None
    older_than: float | None = None
    reasons: tuple[str, ...] = ()
    error: str | None = None

    @property
    def given(self) -> bool:
        """Whether there is any condition."""
        return self != Filter()

    def matches(self, record: bytes | None) -> bool:
        """Whether a stored record is meant; None is one that does not match its checksum."""
        try:
            message = None if record is None else Message.from_bytes(record)
            return self._reason_fits(message) and self._fits(message)
        except UnreadableMessageError:
            # Of such a record nothing is known but that.
            return REASON_UNREADABLE in self.reasons and self._replace(reasons=()) == Filter()

    def fits(self, message: Message) -> bool:
        """Whether a message that could be read is meant."""
        return self._reason_fits(message) and self._fits(message)

    def _reason_fits(self, message: Message | None) -> bool:
        if not self.reasons:
            return True
        return (REASON_CORRUPT if message is None else message.reason or UNKNOWN) in self.reasons

    def _fits(self, message: Message | None) -> bool:
        if message is None:
            return self._replace(reasons=()) == Filter()
        if self.ids and message.id not in self.ids:
            return False
        if self.key is not None and message.key != self.key:
            return False
        if self.error is not None and self.error not in (message.error or ""):
            return False
        if self.older_than is None:
            return True
        failed_ms = message.failed_at_ms if message.reason is not None else None
        since_s = message.enqueued_at_us / 1e6 if failed_ms is None else failed_ms / 1000
        return time.time() - since_s > self.older_than


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
