"""Policies by which failed messages are tried again: their arithmetic, what they refuse, and how they are named."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ignis
from ignis.config import RetrySettings, check_sections, load_file, resolve
from ignis.errors import ConfigError, HandlerTimeoutError
from ignis.retries import ANY_HANDLER, NEVER, Backoff, Retry, RetryLater, RetryRules, retry_rules

FAR = datetime(2100, 1, 1, tzinfo=timezone.utc)


def test_waits_grow_up_to_the_longest() -> None:
    backoff = Retry(attempts=9, base="500ms", factor=2, max=timedelta(seconds=3), jitter=False).backoff
    assert [backoff.delay_s(attempt) for attempt in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_defaults() -> None:
    policy = Retry()
    assert (policy.attempts, policy.base_s, policy.factor, policy.max_s, policy.jitter) == (8, 1.0, 2.0, 600.0, True)
    assert policy == Retry(8, "1s", 2, "10m")
    assert hash(policy) == hash(Retry(base=timedelta(seconds=1)))


seconds = st.floats(0, 1e6)


@given(seconds, st.floats(1, 1_000), seconds, st.integers(1, 10_000), st.floats(0, 1))
def test_jitter_stays_within_half_of_the_wait_and_all_of_it(
    base_s: float, factor: float, more_s: float, attempt: int, drawn: float
) -> None:
    given_ = Retry(base=base_s, factor=factor, max=base_s + more_s, jitter=False).backoff
    whole_s = given_.delay_s(attempt)
    wait_s = given_._replace(jitter=True).delay_s(attempt, lambda: drawn)
    assert whole_s / 2 <= wait_s <= whole_s <= base_s + more_s
    assert whole_s >= base_s or whole_s == base_s + more_s
    assert given_.delay_s(attempt + 1) >= whole_s, "a further wait is never shorter"


def test_jitter_reaches_both_ends() -> None:
    backoff = Retry(base="10s").backoff
    assert (backoff.delay_s(1, lambda: 0.0), backoff.delay_s(1, lambda: 1.0)) == (5.0, 10.0)
    assert len({backoff.delay_s(1) for _ in range(50)}) > 1


def test_a_base_longer_than_the_default_of_max_is_the_longest_wait() -> None:
    assert Retry().max_s == Retry(base="10m").max_s == Retry(base=0.5).max_s == 600
    slow = Retry(base="15m", jitter=False)
    assert (slow.max_s, slow.backoff.delay_s(1), slow.backoff.delay_s(5)) == (900, 900, 900)
    assert Retry(base="15m", max="1h").max_s == 3_600
    file = {"retries": {"slow": {"base": "15m"}, "shared": {"base_s": 5}, "max_too": {"base": "15m", "max": "1h"}}}
    found = [resolve(RetrySettings, {}, file, name=name, environ={}) for name in ("slow", "shared", "max_too")]
    assert [(one.base_s, one.max_s) for one in found] == [(900, 900), (5, 600), (900, 3_600)]


def test_a_policy_is_a_value() -> None:
    policy = Retry(3, "2s", max="1m", on=[OSError])  # type: ignore[arg-type]
    for same in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy), dataclasses.replace(policy)):
        assert same == policy and hash(same) == hash(policy) and repr(same) == repr(policy)
    assert dataclasses.replace(policy, attempts=4).attempts == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.attempts = 4  # type: ignore[misc]


def test_no_base_is_no_wait_however_often() -> None:
    assert Retry(base=0, factor=1_000, attempts=1_000).backoff.delay_s(900) == 0.0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"attempts": 0}, "retry.attempts = 0 is outside 1 to 1000"),
        ({"attempts": 1_001}, "retry.attempts = 1001 is outside 1 to 1000"),
        ({"attempts": 2.5}, "retry.attempts = 2.5 is not a whole number"),
        ({"base": "soon"}, "retry.base = 'soon' is not a duration"),
        ({"base": -1}, "retry.base = -1.0 is outside 0 to 31536000"),
        ({"base": float("nan")}, "retry.base = nan is not a finite number"),
        ({"max": "1000d"}, "retry.max = .* is outside 0 to 31536000"),
        ({"base": "2h", "max": 600.0}, "retry.max = 600.0 is below base = '2h'"),
        ({"base": "1000d"}, "retry.base = .* is outside 0 to 31536000"),
        ({"factor": 0.5}, "retry.factor = 0.5 is outside 1 to 1000"),
        ({"factor": "2"}, "retry.factor = '2' is not a number"),
        ({"jitter": "perhaps"}, "retry.jitter = 'perhaps' is not True or False"),
        ({"jitter": "yes"}, "retry.jitter = 'yes' is not True or False"),
        (
            {"max_attempts": 3},
            r"Retry has no argument 'max_attempts'; is attempts meant\? known: attempts, base, factor, max",
        ),
        ({"max_retries": 3}, r"'max_retries'; docs/coming-from-celery.md says what is here for it; known: attempts, "),
        ({"backoff": 3}, "Retry has no argument 'backoff'; known: attempts, "),
        ({"jitter": 1}, "retry.jitter = 1 is not True or False"),
        ({"on": "TimeoutError"}, "retry.on holds 'TimeoutError', which is not an exception class"),
        ({"on": ()}, "retry.on is empty"),
        ({"give_up_on": [ValueError, int]}, "retry.give_up_on holds <class 'int'>, which is not an exception class"),
    ],
)
def test_what_is_no_policy_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Retry(**options)


def test_kinds() -> None:
    policy = Retry(on=(OSError, ValueError), give_up_on=ConnectionError)
    assert [policy.takes(kind) for kind in (OSError, TimeoutError, UnicodeError, ConnectionResetError, KeyError)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert Retry().takes(SystemExit)
    assert Retry(on=HandlerTimeoutError).on == (HandlerTimeoutError,)


def test_the_nearest_exception_counts() -> None:
    often, seldom = Retry(20), Retry(2)
    rules = retry_rules({OSError: often, TimeoutError: seldom, (ValueError, KeyError): None}, {})
    assert rules.after(ConnectionError).attempts == 20
    assert rules.after(HandlerTimeoutError).attempts == 2, "a time-out of ours is one of Python's"
    assert rules.after(KeyError) == rules.after(UnicodeError) == rules.after(RuntimeError) == NEVER
    assert retry_rules({Exception: often, ValueError: Retry(2, on=UnicodeError)}, {}).after(ValueError) == NEVER
    assert rules.attempts_for(RetryLater) == ANY_HANDLER
    assert retry_rules(seldom, {}).attempts_for(RetryLater).attempts == 2


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        (3, "retry = 3 is no policy: give ignis.Retry"),
        ({}, "retry is an empty mapping"),
        ({"TimeoutError": Retry()}, "retry holds 'TimeoutError', which is not an exception class"),
        ({TimeoutError: 3}, "retry = 3 is no policy"),
        ("slow", r"no \[retries.slow\]; it has none"),
    ],
)
def test_what_a_handler_cannot_have(memory_app: ignis.Ignis, given_: Any, why: str) -> None:
    queue = memory_app.queue("jobs", str)
    with pytest.raises(ConfigError, match=why):
        queue.handler(retry=given_)(lambda job: None)
    with pytest.raises(ConfigError, match=why):
        memory_app.handler("jobs.*", str, retry=given_)(lambda job: None)
    assert queue.spec is None


def test_attempts_in_one_delivery_are_another_thing(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", str)
    with pytest.raises(ConfigError, match=r"attempts = 3 are calls one right after the other.*Retry\(attempts=3\)"):
        queue.handler(attempts=3, retry=Retry())(lambda job: None)


# -- by name


FILE = """
[retries]
factor = 3

[retries.slow]
attempts = 4
base = "10s"
max = "1h"

[retries.quick]
base_s = 0.05
jitter = false
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "ignis.toml"
    path.write_text(FILE)
    return path


def test_a_policy_by_name(settings: Path) -> None:
    file = load_file(settings)
    check_sections(file, {})
    assert retry_rules("slow", file) == RetryRules(((BaseException, Retry(4, "10s", 3, "1h")),))
    rules = retry_rules({OSError: "quick", ValueError: None}, file)
    assert rules.after(OSError) == Backoff(8, 0.05, 3.0, 600.0, False)
    with ignis.Ignis("memory://", config=settings) as app:
        queue = app.queue("jobs", str)
        queue.handler(retry="slow")(lambda job: None)
        assert queue.spec is not None and queue.spec.retry == retry_rules("slow", file)
        with pytest.raises(ConfigError, match=r"no \[retries.quik\]; is quick meant\? known: quick, slow"):
            app.queue("other", str).handler(retry="quik")(lambda job: None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[retries.slow]\nattempts = 0", r"retries.attempts = 0 is outside 1 to 1000 .*\[retries.slow\]"),
        ("[retries.slow]\nbase = '2h'\nmax = '10m'", "retries.max_s = 600 is below base_s = 7200"),
        ("[retries]\nmax = '10m'\n[retries.slow]\nbase = '2h'", "retries.max_s = 600 is below base_s = 7200"),
        ("[retries.slow]\nbase = 'soon'", r"retries.base_s = 'soon' is not a duration.*\[retries.slow\]"),
        ("[retries.slow]\ntimes = 3", "unknown retries setting 'times'.*base_s.*; the _s at an end may be left out"),
        ("[retries]\nslow = 3", "unknown retries setting 'slow'"),
    ],
)
def test_what_is_wrong_in_the_file(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "ignis.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        check_sections(load_file(path), {})
    with pytest.raises(ConfigError, match=why):  # though no handler names it
        ignis.Ignis("memory://", config=path)


# -- what a handler raises


@pytest.mark.parametrize("delay", ["30s", 30, timedelta(seconds=30)])
def test_later_by_so_much(delay: Any) -> None:
    asked = RetryLater(delay, "closed")
    assert (asked.delay_s, asked.at, str(asked)) == (30.0, None, "in 30 s: closed")
    assert asked.within(Retry(3).backoff) == Retry(3).backoff._replace(after_s=30.0)


def test_later_at_a_time() -> None:
    asked = RetryLater(at=FAR)
    assert str(asked) == "at 2100-01-01T00:00:00+00:00"
    assert asked.within(ANY_HANDLER).at_s == FAR.timestamp()
    assert asked.within(ANY_HANDLER).counts
    assert not RetryLater(1, counts=False).within(ANY_HANDLER).counts
    assert RetryLater(at=datetime(2001, 1, 1, tzinfo=timezone.utc)).delay_s is None


@pytest.mark.parametrize(
    "asked", [RetryLater("30s"), RetryLater(1, "why"), RetryLater(at=FAR, why="late", counts=False)]
)
def test_later_is_copied_and_sent(asked: RetryLater) -> None:
    for again in (copy.copy(asked), pickle.loads(pickle.dumps(asked))):
        assert (type(again), str(again), again.delay_s, again.at) == (RetryLater, str(asked), asked.delay_s, asked.at)
        assert (again.why, again.counts) == (asked.why, asked.counts)


@pytest.mark.parametrize(
    ("given_", "options", "why"),
    [
        ((), {}, r'RetryLater needs a time: RetryLater\("30s"\), or RetryLater\(at=...\) with a datetime'),
        ((1,), {"at": FAR}, "delay or at, not both"),
        ((-1,), {}, "100 years"),
        (("40000w",), {}, "100 years"),
        (("soon",), {}, "not a duration"),
        ((), {"at": datetime(2100, 1, 1)}, "time zone"),  # noqa: DTZ001 # that is the test
        ((), {"at": 12}, "not a datetime"),
        ((1,), {"counts": "no"}, "counts = 'no' is not True or False"),
        ((), {"at": datetime(9000, 1, 1, tzinfo=timezone.utc)}, "100 years"),
    ],
)
def test_wrong_times_are_refused(given_: tuple[Any, ...], options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        RetryLater(*given_, **options)
