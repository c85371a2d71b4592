"""The shovel by a retry policy: each message comes back in rounds, behind growing waits, and not for ever.

The wait of a round counts from the message's last failure, which is in its envelope, as is the number of rounds. So any process
can tell when a message is due, and nothing else is stored.
"""

from __future__ import annotations

import dataclasses
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ignis.config import QueueSettings, shown
from ignis.errors import ConfigError, UnreadableMessageError
from ignis.magazine import Magazine
from ignis.message import STAYS, Message, returned_record
from ignis.retries import Backoff, Retry, retry_policy
from ignis.storage.base import QueueRecord, Transfer

__all__ = [
    "SHOVEL_RETRY",
    "Look",
    "Rounds",
    "note_shovel_retry",
    "policy_in",
    "round_due_s",
    "shovel_retry_of",
    "stored_policy",
    "with_policy",
]

SHOVEL_RETRY = "shovel_retry"
"""Where the stored queue keeps the numbers of the policy in its ``extra``; absent: it has none."""

_PAGE = 1_000
_LEAST_LOOK_S = 0.25
_REST = 10
"""A look is followed by a rest of so many times as long as it took."""
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_STORED = re.compile(rf"attempts=(\d+) base_s={_NUMBER} factor={_NUMBER} max_s={_NUMBER} jitter=(true|false)", re.ASCII)


# -- the policy, as users give it and as it is stored


def stored_policy(given: Any, file: Mapping[str, Any]) -> str:
    """What ``shovel_retry`` of a queue means, as text with the policy's numbers; empty = none.

    Args:
        given: an `ignis.Retry`, the name of one in the settings file, such a text, or an empty text.
        file: the parsed settings file.

    Raises ConfigError.
    """
    if given == "" or (isinstance(given, str) and _STORED.fullmatch(given)):
        policy_in(given)
        return str(given)
    policy = retry_policy(given, file, SHOVEL_RETRY)
    if policy.on != Retry.on or policy.give_up_on != Retry.give_up_on:
        raise ConfigError(
            "shovel_retry has a policy with on or give_up_on: what is in a sideline has no exception any more; leave them out "
            "there, or give them to the handler's retry"
        )
    numbers = policy.backoff
    return (
        f"attempts={numbers.attempts} base_s={_text(numbers.base_s)} factor={_text(numbers.factor)} "
        f"max_s={_text(numbers.max_s)} jitter={'true' if numbers.jitter else 'false'}"
    )


def _text(number: float) -> str:
    return repr(float(number)).removesuffix(".0")


def policy_in(text: str) -> Backoff | None:
    """The numbers in the stored text; None where it is empty. Raises ConfigError."""
    if not text:
        return None
    found = _STORED.fullmatch(text)
    if found is None:
        raise ConfigError(f"shovel_retry = {shown(text)} is no policy as it is stored")
    attempts, base_s, factor, max_s, jitter = found.groups()
    return Retry(int(attempts), float(base_s), float(factor), float(max_s), jitter == "true").backoff


def with_policy(settings: QueueSettings, file: Mapping[str, Any]) -> QueueSettings:
    """The settings with the policy's numbers in place of its name. Raises ConfigError."""
    text = stored_policy(settings.shovel_retry, file)
    return settings if text == settings.shovel_retry else dataclasses.replace(settings, shovel_retry=text)


def shovel_retry_of(record: QueueRecord) -> str:
    """The text of the stored queue's policy; empty where it has none, or one that cannot be read."""
    text = record.extra.get(SHOVEL_RETRY)
    try:
        return text if isinstance(text, str) and policy_in(text) is not None else ""
    except ConfigError:
        return ""


def note_shovel_retry(record: QueueRecord, text: str) -> None:
    """Writes it into the queue's record."""
    if text:
        record.extra[SHOVEL_RETRY] = text
    else:
        record.extra.pop(SHOVEL_RETRY, None)


# -- the rounds


class Look(NamedTuple):
    """What one page of the sideline has: the messages that are due, as they come back, and how many others."""

    due: list[Transfer]
    others: int


class Rounds:
    """Finds what is due in one sideline. Reads what came since the last look, and everything only when something is due, or
    when it is told to. Claims nothing. For one thread at a time.

    Args:
        text: the policy, as it is stored.
        monotonic_s: by which it measures how long a look takes.
    """

    def __init__(self, text: str, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        policy = policy_in(text)
        assert policy is not None
        self.text = text
        self.policy = policy
        self.given_up = 0
        """Messages for which no round is left, as of the last look."""
        self.waiting = 0
        """These, and the others that only a person brings back."""
        self.next_due_s: float | None = None
        """When the next one is due, by the queue's clock; None = none waits for its round."""
        self._after: dict[int, int] | None = None
        self._full_s = 0.0
        self._monotonic_s = monotonic_s
        self._took_s = 0.0

    @property
    def rounds(self) -> int:
        """How often a message comes back."""
        return self.policy.attempts - 1

    @property
    def look_s(self) -> float:
        """Seconds between two looks for what has failed meanwhile: no round is over before the next."""
        return max(_LEAST_LOOK_S, self.policy.base_s / (2 if self.policy.jitter else 1))

    def wait_s(self, now_s: float, most_s: float) -> float:
        """Seconds until the next look, at most ``most_s`` unless a look takes long."""
        wait_s = min(self.look_s, most_s)
        if self.next_due_s is not None:
            wait_s = min(wait_s, max(0.0, self.next_due_s - now_s))
        return max(wait_s, self._took_s * _REST)

    def look(self, sideline: Magazine[Any], shards: Callable[[], int], now_s: float, every_s: float) -> Iterator[Look]:
        """Page by page. Whoever moves what is due does so before he asks for the next page.

        Args:
            sideline: where to look.
            shards: of the main magazine; asked for where something is due.
            now_s: by the queue's clock.
            every_s: the whole sideline is read when it was not for so long.
        """
        began_s = self._monotonic_s()
        whole = self._after is None or now_s - self._full_s >= every_s or now_s < self._full_s
        if whole or (self.next_due_s is not None and self.next_due_s <= now_s):
            self._after, self.next_due_s, self.given_up, self.waiting, self._full_s = {}, None, 0, 0, now_s
        assert self._after is not None
        count = 0
        try:
            while page := sideline.store.scan(sideline.name, after=self._after, limit=_PAGE, pending_only=True):
                fresh = [(shard, pointer, self._fresh(record, now_s)) for shard, pointer, record in page]
                if any(record is not None for _, _, record in fresh):
                    count = count or shards()
                due = [
                    Transfer(shard, pointer, record, shard % count)
                    for shard, pointer, record in fresh
                    if record is not None
                ]
                self._after.update({shard: pointer for shard, pointer, _ in page})
                yield Look(due, len(page) - len(due))
        except BaseException:
            self._after = None  # what was not looked at is with the next look
            raise
        self._took_s = self._monotonic_s() - began_s

    def refused(self, now_s: float) -> None:
        """Some of what is due was not taken: it is looked at again after the usual time."""
        at_s = now_s + self.look_s
        self.next_due_s = at_s if self.next_due_s is None else min(self.next_due_s, at_s)

    def _fresh(self, record: bytes | None, now_s: float) -> bytes | None:
        """The record as it comes back; None for one that is not due, or stays."""
        try:
            message = None if record is None else Message.from_bytes(record)
            if message is None or message.reason in STAYS or message.given_up:
                self.waiting += 1
                return None
            if message.returns >= self.rounds:
                self.given_up += 1
                self.waiting += 1
                return None
            due_s = round_due_s(self.policy, message, now_s)
            if due_s > now_s:
                self.next_due_s = due_s if self.next_due_s is None else min(self.next_due_s, due_s)
                return None
            return returned_record(record or b"", counted=True)
        except UnreadableMessageError:  # without a count it would come back for ever
            self.waiting += 1
            return None


def round_due_s(policy: Backoff, message: Message, now_s: float) -> float:
    """When a failed message comes back by the policy, by the clock of who stored the failure. Raises UnreadableMessageError.

    A failure in the future is that of a clock that is ahead, or was put back: it lengthens the wait by as much, unless that is
    more than the longest wait there is.
    """
    failed_s = (message.failed_at_ms or 0) / 1000
    wait_s = policy.delay_s(message.returns + 1, lambda: _drawn(message))
    return failed_s + wait_s if failed_s <= now_s + policy.max_s else now_s


def _drawn(message: Message) -> float:
    """From 0 to 1, for the jitter: the same at each look, in every process."""
    return zlib.crc32(f"{message.id}/{message.returns}".encode()) / 0xFFFF_FFFF
