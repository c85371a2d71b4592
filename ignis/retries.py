"""When a message that failed is tried again: policies as users give them, and what a handler asks for itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple, NoReturn, cast

from ignis.config import (
    MAX_EXPIRY_S,
    RetrySettings,
    check_number,
    check_whole,
    parse_duration_s,
    resolve,
    shown,
)
from ignis.errors import ConfigError
from ignis.later import check_delay_s, until_s
from ignis.near_names import elsewhere_or_meant, meant

__all__ = [
    "ANY_HANDLER", "NEVER", "Backoff", "Retry", "RetryLater", "RetryRules", "is_kind", "retry_policy", "retry_rules",
]  # fmt: skip

Kinds = type[BaseException] | tuple[type[BaseException], ...]
Duration = float | str | timedelta

MOST_ATTEMPTS = 1_000
MOST_FACTOR = 1_000


class Backoff(NamedTuple):
    """What follows a failed attempt: numbers alone, which travel from the worker that saw the failure to who stores it.

    Attributes:
        attempts: calls of the handler in all.
        base_s, factor, max_s, jitter: as in `Retry`.
        after_s, at_s: asked for by the handler, and instead of these: seconds, or a time in seconds since 1970.
        counts: whether the call that asked for it is an attempt.
    """

    attempts: int
    base_s: float = 0.0
    factor: float = 1.0
    max_s: float = 0.0
    jitter: bool = False
    after_s: float | None = None
    at_s: float | None = None
    counts: bool = True

    @property
    def asked(self) -> bool:
        """Whether the handler itself asked for it."""
        return self.after_s is not None or self.at_s is not None

    def delay_s(self, attempt: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds between the failure of that attempt, 1 being the first, and the next one.

        ``draw``: a number from 0 to 1, for the jitter.
        """
        if not self.base_s:
            return 0.0
        try:
            whole_s = min(self.base_s * float(self.factor) ** (attempt - 1), self.max_s)
        except OverflowError:
            whole_s = self.max_s
        return whole_s * (0.5 + draw() / 2) if self.jitter else whole_s


NEVER = Backoff(1)
"""The message goes to the sideline."""


def _longest_wait_s(base_s: float) -> float:
    """Where only ``base`` is given: the default may be below it, and is nobody's wish."""
    return max(float(RetrySettings.max_s), base_s)


@dataclass(frozen=True, init=False)
class Retry:
    """When a message whose handler failed is tried again. Immutable; may be shared by handlers.

    >>> policy = Retry(attempts=5, base="1s", factor=3, max="10s", jitter=False)
    >>> [policy.backoff.delay_s(attempt) for attempt in (1, 2, 3, 4)]
    [1.0, 3.0, 9.0, 10.0]

    Args:
        attempts: calls of the handler, the first included; then the message goes to the sideline.
        base: wait behind the first failed attempt: seconds, text such as ``"500ms"``, or a timedelta.
        factor: each further wait is so many times as long ...
        max: ... and never longer than this. The default is 600 s, or ``base`` where that is longer.
        jitter: each wait is drawn between half of it and all of it, so that what failed together does not come together.
        on: only these exceptions are tried again. The default is every failure.
        give_up_on: ... but not these.

    Raises ConfigError.
    """

    attempts: int = 8
    base: Duration = 1.0
    factor: float = 2.0
    max: Duration | None = None
    jitter: bool = True
    on: Kinds = (BaseException,)
    give_up_on: Kinds = ()

    def __init__(
        self,
        attempts: int = attempts,
        base: Duration = base,
        factor: float = factor,
        max: Duration | None = None,  # noqa: A002 - the policy's own word
        jitter: bool = jitter,
        on: Kinds = on,
        give_up_on: Kinds = give_up_on,
        **others: NoReturn,
    ) -> None:
        if others:
            name, known = next(iter(others)), [one.name for one in fields(self)]
            raise ConfigError(
                f"Retry has no argument {shown(name)}; {elsewhere_or_meant(name, known)}known: {', '.join(known)}"
            )
        base_s = parse_duration_s(base, "retry.base")
        max_s = _longest_wait_s(base_s) if max is None else parse_duration_s(max, "retry.max")
        checked = {
            "attempts": check_whole(attempts, "retry.attempts", 1, MOST_ATTEMPTS),
            "base": check_number(base_s, "retry.base", 0, MAX_EXPIRY_S),
            "factor": float(check_number(factor, "retry.factor", 1, MOST_FACTOR)),
            "max": check_number(max_s, "retry.max", 0, MAX_EXPIRY_S),
            "jitter": jitter,
            "on": _kinds(on, "retry.on"),
            "give_up_on": _kinds(give_up_on, "retry.give_up_on"),
        }
        if not isinstance(jitter, bool):  # text is for settings files and the environment
            raise ConfigError(f"retry.jitter = {shown(jitter)} is not True or False")
        if max_s < base_s:
            raise ConfigError(f"retry.max = {shown(max)} is below base = {shown(base)}")
        if not checked["on"]:
            raise ConfigError("retry.on is empty: nothing would be tried again; leave it out for every failure")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def base_s(self) -> float:
        """Seconds."""
        return cast(float, self.base)

    @property
    def max_s(self) -> float:
        """Seconds."""
        return cast(float, self.max)

    @property
    def backoff(self) -> Backoff:
        """Its numbers."""
        return Backoff(self.attempts, self.base_s, self.factor, self.max_s, self.jitter)

    def takes(self, kind: type[BaseException]) -> bool:
        """Whether a failure of that kind is tried again."""
        return is_kind(kind, *_of(self.on)) and not is_kind(kind, *_of(self.give_up_on))


def is_kind(kind: type[BaseException], *kinds: type[BaseException]) -> bool:
    """Whether an exception is one of these, as an ``except`` clause decides it: by its bases. Never raises, where a metaclass
    that is asked may: what becomes of a message hangs on the answer."""
    return any(base is one for base in _bases(kind) for one in kinds)


def _bases(kind: type[BaseException]) -> tuple[type, ...]:
    """Its ``__mro__``, whatever a metaclass says."""
    return cast("tuple[type, ...]", type.__dict__["__mro__"].__get__(kind))


def _of(kinds: Kinds) -> tuple[type[BaseException], ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


class RetryLater(Exception):
    """Raised or returned by a handler: the message comes back then. In the list that a batch handler returns it is for the one
    message that stands there.

    Args:
        delay: so long from now: seconds, text such as ``"30s"``, or a timedelta.
        why: for the message's history.
        at: ... or at that time, which needs a time zone.
        counts: whether this call is an attempt. One that is not uses up nothing: for a handler that had no room for the message,
            and did not try.

    After the ``attempts`` of the handler's policy the message goes to the sideline; after 8 where it has none, or a mapping that
    has none for `Exception`. With ``counts=False`` it comes back as often as the handler asks, until its deadline or its time
    to live ends. Raises ConfigError for a wrong time, or none.
    """

    def __init__(
        self, delay: Duration | None = None, why: str = "", *, at: datetime | None = None, counts: bool = True
    ) -> None:
        if delay is None and at is None:
            raise ConfigError('RetryLater needs a time: RetryLater("30s"), or RetryLater(at=...) with a datetime')
        if delay is not None and at is not None:
            raise ConfigError("RetryLater takes delay or at, not both")
        if not isinstance(counts, bool):
            raise ConfigError(f"RetryLater: counts = {shown(counts)} is not True or False")
        self.delay_s = None if delay is None else check_delay_s(delay)
        self.at = at
        self.why = str(why)
        self.counts = counts
        if at is not None:
            until_s(at, time.time())
        when = f"in {self.delay_s:g} s" if at is None else f"at {at.isoformat()}"
        super().__init__(f"{when}: {self.why}" if self.why else when)

    def __reduce__(self) -> tuple[Any, ...]:
        return _asked_again, (self.delay_s, self.why, self.at, self.counts)

    def within(self, backoff: Backoff) -> Backoff:
        """What follows, by a policy's number of attempts."""
        at_s = None if self.at is None else self.at.timestamp()
        return backoff._replace(after_s=self.delay_s, at_s=at_s, counts=self.counts)


def _asked_again(delay_s: float | None, why: str, at: datetime | None, counts: bool) -> RetryLater:
    return RetryLater(delay_s, why, at=at, counts=counts)


@dataclass(frozen=True)
class RetryRules:
    """What a handler's ``retry`` says: by kind of exception, the nearest one counts.

    Attributes: ``policies``: (exception, its policy or None), each exception once.
    """

    policies: tuple[tuple[type[BaseException], Retry | None], ...]

    def after(self, kind: type[BaseException]) -> Backoff:
        """What follows a failure of that kind."""
        policy = self._nearest(kind)
        return NEVER if policy is None or not policy.takes(kind) else policy.backoff

    def attempts_for(self, kind: type[BaseException]) -> Backoff:
        """What holds for a failure behind which the handler itself asked for another attempt: no kind is given up on."""
        policy = self._nearest(kind)
        return ANY_HANDLER if policy is None else policy.backoff

    def _nearest(self, kind: type[BaseException]) -> Retry | None:
        return next((policy for one in _bases(kind) for known, policy in self.policies if known is one), None)


def retry_rules(given: Any, file: Mapping[str, Any]) -> RetryRules:
    """What ``retry=`` of a handler means: a policy, the name of one in the settings file, or a mapping from exceptions to these.

    Raises ConfigError.
    """
    if isinstance(given, RetryRules):
        return given
    if not isinstance(given, Mapping):
        return RetryRules(((BaseException, _policy(given, file)),))
    if not given:
        raise ConfigError("retry is an empty mapping: nothing would be tried again; leave it out")
    policies = {
        one: None if policy is None else _policy(policy, file)
        for kind, policy in given.items()
        for one in _kinds(kind, "retry")
    }
    return RetryRules(tuple(policies.items()))


def _policy(given: Any, file: Mapping[str, Any]) -> Retry:
    if not isinstance(given, (Retry, str)):
        raise ConfigError(
            f"retry = {shown(given)} is no policy: give ignis.Retry(...), the name of one in the settings file, or a mapping "
            "from exceptions to these"
        )
    return retry_policy(given, file, "retry")


def retry_policy(given: Any, file: Mapping[str, Any], name: str) -> Retry:
    """The policy that an option ``name`` was given, or names. Raises ConfigError."""
    if isinstance(given, Retry):
        return given
    if not isinstance(given, str):
        raise ConfigError(
            f"{name} = {shown(given)} is no policy: give ignis.Retry(...), or the name of one in the settings file"
        )
    table = file.get(RetrySettings.section, {})
    known = sorted(name for name, value in table.items() if isinstance(value, Mapping))
    if given not in known:
        said = f"known: {', '.join(known)}" if known else "it has none"
        raise ConfigError(
            f"{name} = {shown(given)} names no policy: the settings file has no [retries.{given}]; {meant(given, known)}{said}"
        )
    found = resolve(RetrySettings, {}, file, name=given)
    return Retry(found.attempts, found.base_s, found.factor, found.max_s, found.jitter)


def _kinds(given: Any, name: str) -> tuple[type[BaseException], ...]:
    """One exception or several. Raises ConfigError."""
    kinds = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, type)) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigError(f"{name} holds {shown(kind)}, which is not an exception class")
    return kinds


ANY_HANDLER = Retry().backoff
"""Of a handler without a policy that asks for another attempt."""
