"""One model of what waits for its time, every store that keeps it: random calls, each answer compared, while clocks are moved.

Time stands still but for the moves. The rising clock, by which stores count, only goes on; the wall clock, which deadlines are
met by, is set forward and back by hours as well. A crash is played as in test_model.py. Planted mistakes show that the model
sees what it is there for. ``IGNIS_TEST_MODEL_EXAMPLES`` sets the number of runs.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import ignis
from ignis import Message, Retry, RetryLater
from ignis.testing import drain
from tests.contract.later_mistakes import HAND, MISTAKES, QUEUE, Hand, Mistake
from tests.contract.support import Kind
from tests.contract.test_model import EXAMPLES

ATTEMPTS = 3
BASE_S, FACTOR = 10, 4
ASKED_S = 7
HOUR_S = 3_600
SECONDS = (1, 7, 10, 30, 45, 600, HOUR_S, 5 * HOUR_S)
DEADLINES_S = (5.5, 20.5, 2 * HOUR_S + 0.5)
"""Between the whole seconds of all other moves: nothing expires in the moment in which it is looked at."""
SERVERS_S = 300
"""A server of its own goes by its own clock, which nobody moves: it must clear nothing away while a run lasts."""


@dataclass
class Waiting:
    """What the model knows of one message. Times in seconds since the model began, by the store's clock and by the wall clock."""

    serial: int
    id: str
    good_at: int
    how: str
    """``fails``, ``asks`` for its time, or ``defers``: asks once, before its first attempt, and that does not count."""
    due_s: float = 0
    at_once: bool = False
    tried: int = 0
    deferred: bool = False
    expires_s: float = float("inf")
    expires_wall_s: float = float("inf")

    def expired(self, hand: Hand) -> bool:
        return self.expires_s <= hand.passed_s

    def overdue(self, hand: Hand) -> bool:
        return self.expires_wall_s <= hand.passed_s + hand.step_s


class DueMachine(RuleBasedStateMachine):
    kind_name = "memory"
    plant: ClassVar[Mistake | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="ignis-due-model-"))
        self.hand = HAND
        self.hand.passed_s = self.hand.step_s = 0
        self.kind = Kind(self.kind_name, self.root)
        self.later: dict[int, Waiting] = {}
        self.main: dict[int, Waiting] = {}
        self.aside: dict[int, tuple[Waiting, str]] = {}
        self.known: list[Waiting] = []
        self.handled: list[int] = []
        self.copies = 0

    @initialize(on_expiry=st.sampled_from(["drop", "sideline"]), durability=st.sampled_from(["sync", "none"]))
    def begin(self, on_expiry: str, durability: str) -> None:
        self.on_expiry, self.durability = on_expiry, durability
        self.open()
        self.began_ms = round(self.app.store.now_s() * 1000)

    def open(self) -> None:
        options = {"sync_interval_ms": HOUR_S * 1000} if self.kind.in_directory else {}
        self.app = ignis.Ignis(self.kind.url, store=options)
        self.queue: ignis.Queue[str] = self.app.queue(
            QUEUE, str, shards=2, durability=self.durability, shovel_interval=0, on_expiry=self.on_expiry
        )
        policy = Retry(attempts=ATTEMPTS, base=BASE_S, factor=FACTOR, max="1h", jitter=False)
        self.queue.handler(retry=policy)(self.handle)
        self.queue.open()
        if self.plant is not None:
            self.plant(self.app.store.magazines, self.hand)

    def handle(self, job: str, ctx: ignis.Context) -> None:
        serial, good_at, how = job.split(":")
        self.handled.append(int(serial))
        if how == "defers" and ctx.last_error is None:
            raise RetryLater(ASKED_S, counts=False)
        if ctx.attempt < int(good_at):
            raise RetryLater(ASKED_S) if how == "asks" else RuntimeError(f"{serial} at {ctx.attempt}")

    def teardown(self) -> None:
        try:
            if hasattr(self, "app"):
                self.app.close()
            self.kind.forget()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def one_of(self, draw: int) -> Waiting | None:
        """One of all messages there ever were, the younger ones more often."""
        return self.known[-1 - draw % len(self.known)] if self.known else None

    def arrive(self) -> None:
        """What a move does: whatever is due goes to the tail, or expires."""
        for one in sorted(self.later.values(), key=lambda each: each.due_s):
            if one.due_s <= self.hand.passed_s:
                del self.later[one.serial]
                if not one.expired(self.hand):
                    self.main[one.serial] = one

    # -- moves

    @rule(
        due=st.none() | st.tuples(st.sampled_from(["delay", "at"]), st.sampled_from((0, *SECONDS))),
        good_at=st.sampled_from([1, 1, 2, 3, ATTEMPTS + 1]),
        how=st.sampled_from(["fails", "asks", "defers"]),
        ends_s=st.none() | st.sampled_from(DEADLINES_S),
        count=st.integers(1, 3),
    )
    def publish(self, due: tuple[str, int] | None, good_at: int, how: str, ends_s: float | None, count: int) -> None:
        given: dict[str, Any] = {}
        due_s = 0.0
        if ends_s is not None and self.kind.name == "aerospike":
            ends_s += SERVERS_S
        if due is not None:
            option, wait_s = due
            due_s = self.hand.passed_s + wait_s
            given[option] = wait_s if option == "delay" else wall_time(wait_s)
        if ends_s is not None:
            given["expires_in"] = ends_s
            # What the store lets go of is not in the sideline for ever: it goes there or it has an end, not both.
            good_at = 1 if self.on_expiry == "drop" else good_at
        made = [
            Waiting(
                len(self.known) + n, "", good_at, how, due_s, due is not None and due[1] == 0,
                expires_s=self.end_s(ends_s), expires_wall_s=self.wall_end_s(ends_s),
            )
            for n in range(count)
        ]  # fmt: skip
        bodies = [f"{one.serial}:{one.good_at}:{how}" for one in made]
        if count == 1:
            ids = [self.queue.publish(bodies[0], **given).id]
        else:
            ids = self.queue.publish_many(bodies, **given)
        for one, id in zip(made, ids, strict=True):
            one.id = id
            self.known.append(one)
            (self.main if due is None else self.later)[one.serial] = one

    def end_s(self, ends_s: float | None) -> float:
        return float("inf") if ends_s is None or self.on_expiry != "drop" else self.hand.passed_s + ends_s

    def wall_end_s(self, ends_s: float | None) -> float:
        return float("inf") if ends_s is None else self.hand.passed_s + self.hand.step_s + ends_s

    @rule(seconds=st.sampled_from(SECONDS))
    def time_passes(self, seconds: int) -> None:
        self.hand.passed_s += seconds

    @precondition(lambda self: self.kind.name != "aerospike")  # which has no other clock
    @rule(hours=st.integers(-9, 9))
    def the_wall_clock_is_set(self, hours: int) -> None:
        self.hand.step_s += hours * HOUR_S

    @rule()
    def move(self) -> None:
        gone = [one for one in self.later.values() if one.due_s <= self.hand.passed_s]
        expired = sum(one.expired(self.hand) for one in gone)
        self.arrive()
        found = self.app.store.magazines.move_due(QUEUE)
        next_s = min((one.due_s for one in self.later.values()), default=None)
        next_due_ms = None if next_s is None else self.began_ms + round(next_s * 1000)
        assert found == (len(gone) - expired, expired, next_due_ms)

    @precondition(lambda self: self.kind.name != "aerospike")
    @rule(seconds=st.sampled_from(SECONDS), hours=st.integers(-9, 9))
    def a_step_between_two_moves(self, seconds: int, hours: int) -> None:
        """Chance alone brings these four together in one run of hundreds."""
        self.time_passes(seconds)
        self.move()
        self.the_wall_clock_is_set(hours)
        self.move()

    @rule()
    def handle_all(self) -> None:
        self.arrive()
        expected: Counter[str] = Counter()
        calls: list[int] = []
        for one in list(self.main.values()):
            del self.main[one.serial]
            if one.expired(self.hand):
                continue
            if one.overdue(self.hand):
                if self.on_expiry == "sideline":
                    self.aside[one.serial] = one, "expired"
                continue
            calls.append(one.serial)
            if one.how == "defers" and not one.deferred:
                expected["retried"] += 1
                one.deferred, one.at_once, one.due_s = True, False, self.hand.passed_s + ASKED_S
                self.later[one.serial] = one
                continue
            one.tried += 1
            if one.tried >= one.good_at:
                expected["done"] += 1
            elif one.tried >= ATTEMPTS:
                expected["sidelined"] += 1
                self.aside[one.serial] = one, "exception"
            else:
                expected["retried"] += 1
                one.at_once = False
                one.due_s = self.hand.passed_s + (ASKED_S if one.how == "asks" else BASE_S * FACTOR ** (one.tried - 1))
                self.later[one.serial] = one
        self.handled.clear()
        found = drain(self.queue, raises=False)
        assert sorted(self.handled) == sorted(calls)
        assert (found.done, found.retried) == (expected["done"], expected["retried"])
        late = sum(1 for _, reason in self.aside.values() if reason == "expired")
        assert expected["sidelined"] <= found.sidelined <= expected["sidelined"] + late

    @rule(draws=st.lists(st.integers(0, 9), max_size=3))
    def cancel(self, draws: list[int]) -> None:
        wanted = {one.serial: one for draw in draws if (one := self.one_of(draw)) is not None}
        there = [self.later.pop(serial) for serial in wanted if serial in self.later]
        assert self.queue.later.cancel(*(one.id for one in wanted.values())) == len(there)

    @rule(draw=st.integers(0, 9))
    def cancel_wherever_it_is(self, draw: int) -> None:
        one = self.one_of(draw)
        if one is None or one.expired(self.hand):
            return
        if self.later.pop(one.serial, None) is not None:
            assert self.queue.cancel(one.id) == "delayed"
        elif self.main.pop(one.serial, None) is not None:
            assert self.queue.cancel(one.id) == "waiting"
        else:
            assert self.queue.cancel(one.id) is None

    @rule(draws=st.lists(st.integers(0, 9), max_size=3))
    def run_now(self, draws: list[int]) -> None:
        wanted = {one.serial: one for draw in draws if (one := self.one_of(draw)) is not None}
        there = [self.later.pop(serial) for serial in wanted if serial in self.later]
        for one in there:
            self.main[one.serial] = one
        assert self.queue.later.run_now(*(one.id for one in wanted.values())) == len(there)

    @rule(draw=st.integers(0, 9))
    def find(self, draw: int) -> None:
        one = self.one_of(draw)
        if one is not None:
            assert (self.queue.later.find(one.id) is not None) == (one.serial in self.later)

    @rule()
    def purge(self) -> None:
        certain = sum(not one.expired(self.hand) for one in self.main.values())
        assert certain <= self.queue.purge().waiting <= len(self.main)
        self.main.clear()

    @rule()
    def reopen(self) -> None:
        self.app.close()
        self.open()

    @precondition(lambda self: self.kind.in_directory)
    @rule()
    def crash(self) -> None:
        self.copies += 1
        copy = self.root / f"copy{self.copies}"
        with ExitStack() as stack:
            self.app.store.directory.at_rest(stack)  # type: ignore[attr-defined]  # no file goes while it is copied
            subprocess.run(["cp", "-a", "--sparse=always", str(self.kind.directory), str(copy)], check=True, timeout=60)
        self.app.close()
        self.kind.directory = copy
        self.kind.url = f"{self.kind.name}://{copy}"
        self.open()

    # -- what holds at all times

    @invariant()
    def what_waits_for_its_time_is_there(self) -> None:
        found = [(serial_of(one.message), self.passed_s(one.due)) for one in self.queue.later]
        assert [due_s for _, due_s in found] == sorted(due_s for _, due_s in found), "the next one first"
        assert len(found) == len(dict(found)) and dict(found).keys() == self.later.keys()
        for serial, due_s in found:
            one = self.later[serial]
            # What is due at once may be due a moment before it was published.
            assert due_s == one.due_s or (one.at_once and -0.002 < due_s - one.due_s < 0)
        assert len(self.queue.later) == len(self.later)

    def passed_s(self, at: datetime) -> float:
        """By the wall clock, as users are shown it."""
        return round(at.timestamp() - time.time(), 3) + self.hand.passed_s

    @invariant()
    def what_is_due_is_in_the_queue_once(self) -> None:
        rows = self.app.store.magazines.scan(QUEUE, limit=10_000)
        found = Counter(serial_of(Message.from_bytes(data)) for _, _, data in rows if data is not None)
        assert found.total() == len(rows) == len(found), "none twice"
        assert set(found) <= set(self.main)
        assert set(found) >= {one.serial for one in self.main.values() if not one.expired(self.hand)}
        assert not sum(one.in_flight for one in self.app.store.magazines.metadata(QUEUE))

    @invariant()
    def what_failed_for_good_is_in_the_sideline(self) -> None:
        found = {serial_of(one.envelope): one.envelope for one in self.queue.sideline.peek(10_000)}
        assert set(found) == set(self.aside)
        for serial, (one, reason) in self.aside.items():
            envelope = found[serial]
            assert (envelope.id, envelope.reason) == (one.id, reason)
            assert len(envelope.history) == one.tried + (reason == "expired")


def wall_time(ahead_s: float) -> datetime:
    return datetime.fromtimestamp(round(time.time(), 3), timezone.utc) + timedelta(seconds=ahead_s)


def serial_of(message: Message | None) -> int:
    assert message is not None
    return int(message.body.split(b":")[0])


@pytest.mark.parametrize("name", ["memory", "embedded", "aerospike", "broker"])
def test_stores_do_what_the_model_does(name: str) -> None:
    machine = type(f"{name.title()}DueMachine", (DueMachine,), {"kind_name": name})
    if name == "aerospike":
        check(machine, max(1, EXAMPLES // 5))  # a server is asked hundreds of times in each
    else:
        check(machine, EXAMPLES, Phase.shrink)


def check(machine: type[DueMachine], examples: int, *phases: Phase, always_the_same: bool = False) -> None:
    with HAND.installed():
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=30,
                database=None,
                derandomize=always_the_same,
                deadline=None,
                phases=[Phase.explicit, Phase.reuse, Phase.generate, *phases],
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            ),
        )


@pytest.mark.parametrize(
    "mistake",
    [
        one if one.__name__ in ("moved_twice", "a_moment_too_early") else pytest.param(one, marks=pytest.mark.long)
        for one in MISTAKES
    ],
    ids=lambda one: str(one.__name__),
)
def test_the_model_sees(mistake: Mistake) -> None:
    machine = type("Mistaken", (DueMachine,), {"plant": staticmethod(mistake)})
    # What a round draws depends on what ran in this process before; one that happens to miss is followed by others.
    assert any(caught(machine, always_the_same=number == 0) for number in range(5))


def caught(machine: type[DueMachine], *, always_the_same: bool) -> bool:
    try:
        check(machine, 1_000, always_the_same=always_the_same)
    except AssertionError:
        return True
    return False
