"""The sweeper: what was claimed and never finished comes to the sideline, under the leader's authority."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from ignis.control.sweep_clock import ClockGuard
from ignis.control.sweeper import Sweeper, SweepResult
from ignis.errors import ConfigError, LockHeldError, QueueNotFoundError, StaleEpochError, StoreBusyError, StoreFullError
from ignis.leader import SoleLeader, make_leader
from ignis.native import CODEC_JSON, PackedBatch, encode_record
from ignis.storage.base import Fence
from tests.support import UNREADABLE_METAS, WAIT_S, NewThreads, eventually, reasons, sidelined

MakeApp = Callable[..., ignis.Ignis]


class Clock:
    """Seconds since the epoch, ahead of the real ones by as much as the test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def app(store_url: str, new_app: MakeApp, clock: Clock) -> ignis.Ignis:
    return new_app(store_url, clock=clock, sweeper={"batch": 10})


def open_queue(app: ignis.Ignis, **settings: Any) -> ignis.Queue[Any]:
    queue: ignis.Queue[Any] = app.queue("jobs", int, **{"shards": 3, "stuck_after": "10m", **settings})
    queue.open()
    return queue


def test_what_is_stuck_goes_to_the_sideline(app: ignis.Ignis, clock: Clock) -> None:
    queue = open_queue(app)
    queue.publish_many(range(50), keys=[f"k{n}" for n in range(50)], headers={"h": 1})
    before = {fired.message: fired.envelope for fired in queue.main.fire(40)}
    clock.ahead_s = 590
    assert app.sweeper().run_once() == SweepResult(queues=1), "not yet"
    clock.ahead_s = 610
    assert app.sweeper().run_once().swept == 40
    assert (queue.main.pending(), queue.main.in_flight()) == (10, 0)
    for message in sidelined(queue):
        was = before[int(message.body)]
        assert (message.id, message.key, message.headers) == (was.id, was.key, {"h": 1})
        assert (message.reason, message.failures, message.crashes) == ("abandoned", 1, 0)
        assert message.error is not None
        assert message.error.startswith(f"claimed by {app.store.owner}: not finished after 600 s")
    assert len(sidelined(queue)) == 40
    assert app.sweeper().run_once().swept == 0
    record = app.store.queues.get("jobs")
    assert record is not None
    assert record.swept_count == 40
    assert set(record.sweep_pointers) == {0, 1, 2}
    assert app.sweeper().total.swept == 40


def test_what_is_swept_counts_when_it_comes_back(app: ignis.Ignis, clock: Clock) -> None:
    """It went through the sideline, as what failed does. What the sweeper moves within the sideline is no return."""
    queue = open_queue(app, shovel_interval="10m", max_returns=1)
    queue.publish(1)
    assert len(queue.main.fire(1)) == 1
    clock.ahead_s = 610
    assert app.sweeper().run_once().swept == 1
    assert len(queue.sideline.fire(1)) == 1
    clock.ahead_s = 10_000
    assert app.sweeper().run_once().sideline_swept == 1
    assert [message.returns for message in sidelined(queue)] == [0]
    assert queue.shovel.run_scheduled().moved == 1
    assert [fired.envelope.returns for fired in queue.main.fire(1)] == [1]
    clock.ahead_s = 20_000
    assert app.sweeper().run_once().swept == 1
    assert queue.shovel.run_scheduled().waiting == 1


def test_headers_that_cannot_be_read_stop_no_sweep(app: ignis.Ignis, clock: Clock) -> None:
    queue = open_queue(app, shards=1)
    records = [encode_record(b"1", flags=CODEC_JSON, meta=meta) for meta in UNREADABLE_METAS.values()]
    queue.main.load_batches([(0, PackedBatch.pack(records))])
    queue.publish(2)
    assert len(queue.main.fire(10)) == len(records) + 1
    clock.ahead_s = 610
    assert app.sweeper().run_once().swept == len(records) + 1
    assert reasons(queue) == {"unreadable": len(records), "abandoned": 1}


def test_what_was_finished_is_not_swept(app: ignis.Ignis, clock: Clock) -> None:
    queue = open_queue(app)
    queue.publish_many(range(9))
    fired = queue.main.fire(9)
    queue.main.delete(fired[:3])
    queue.main.reload(fired[3:6])
    clock.ahead_s = 10_000
    assert app.sweeper().run_once().swept == 3
    assert sorted(int(message.body) for message in sidelined(queue)) == sorted(one.message for one in fired[6:])


def test_a_late_acknowledgement_changes_nothing(app: ignis.Ignis, clock: Clock) -> None:
    queue = open_queue(app)
    queue.publish(1)
    fired = queue.main.fire(1)
    clock.ahead_s = 10_000
    app.sweeper().run_once()
    assert queue.main.delete(fired) == 0
    assert reasons(queue) == Counter({"abandoned": 1})


def test_the_sidelines_own_threshold(app: ignis.Ignis, clock: Clock) -> None:
    """A claim in the sideline is a shovel's. It is left alone for stuck_after and for two shovel intervals."""
    queue = open_queue(app, shovel_interval="20m")
    queue.sideline.store.load_records("jobs_SIDELINE", 0, [encode_record(b"1", flags=CODEC_JSON)])
    assert len(queue.sideline.fire(10)) == 1
    clock.ahead_s = 2_390
    assert app.sweeper().run_once().sideline_swept == 0
    clock.ahead_s = 2_410
    assert app.sweeper().run_once().sideline_swept == 1
    assert (queue.sideline.pending(), queue.sideline.in_flight(), queue.main.pending()) == (1, 0, 0)
    record = app.store.queues.get("jobs")
    assert record is not None
    assert (record.sideline_swept_count, record.swept_count) == (1, 0)


def test_the_sidelines_threshold_is_stuck_after_when_that_is_longer(app: ignis.Ignis, clock: Clock) -> None:
    queue = open_queue(app, shovel_interval="1m")
    queue.sideline.store.load_records("jobs_SIDELINE", 0, [encode_record(b"1", flags=CODEC_JSON)])
    queue.sideline.fire(10)
    clock.ahead_s = 590
    assert app.sweeper().run_once().sideline_swept == 0
    clock.ahead_s = 610
    assert app.sweeper().run_once().sideline_swept == 1


def test_only_the_queues_asked_for(app: ignis.Ignis, clock: Clock) -> None:
    queues = [app.queue(f"q{n}", int, stuck_after="10m") for n in range(3)]
    for queue in queues:
        queue.publish(1)
        queue.main.fire(1)
    clock.ahead_s = 10_000
    assert app.sweeper().run_once(["q1"]) == SweepResult(queues=1, swept=1)
    assert [len(sidelined(queue)) for queue in queues] == [0, 1, 0]
    assert app.sweeper().run_once().swept == 2


def test_inactive_queues_are_left_alone(app: ignis.Ignis, clock: Clock) -> None:
    queue = open_queue(app)
    queue.publish(1)
    queue.main.fire(1)
    app.store.queues.update("jobs", lambda record: setattr(record, "active", False))
    clock.ahead_s = 10_000
    assert app.sweeper().run_once() == SweepResult(queues=0)


def test_expired_messages_are_retired(app: ignis.Ignis) -> None:
    queue = open_queue(app, message_expiry=1)
    queue.publish_many(range(3))
    time.sleep(1.1)
    assert app.sweeper().run_once().expired == 3
    assert queue.main.pending() == 0


def test_a_corrupt_record_is_set_aside(app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = open_queue(app, shards=1)
    queue.publish_many([1, 2])
    queue.main.fire(2)
    abandoned = queue.main.store.abandoned

    def flipped(*args: Any, **kwargs: Any) -> Any:
        return [one._replace(record=None) if one.pointer == 1 else one for one in abandoned(*args, **kwargs)]

    monkeypatch.setattr(queue.main.store, "abandoned", flipped)
    clock.ahead_s = 10_000
    assert app.sweeper().run_once().swept == 2
    assert reasons(queue) == Counter({"abandoned": 1, "corrupt": 1})


def test_one_queues_failure_does_not_stop_the_others(
    app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "good"):
        queue = app.queue(name, int, stuck_after="10m")
        queue.publish(1)
        queue.main.fire(1)
    transfer = queue.main.store.transfer

    def broken(source: str, *args: Any, **kwargs: Any) -> int:
        if source == "bad":
            raise StoreBusyError("held")
        return transfer(source, *args, **kwargs)

    monkeypatch.setattr(queue.main.store, "transfer", broken)
    clock.ahead_s = 10_000
    assert app.sweeper().run_once() == SweepResult(queues=2, swept=1, failed_queues=1)
    assert "sweep of bad failed" in caplog.text


def test_a_full_store_is_rid_of_what_expired(app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no room for what is to be moved; what has run out of time gives some."""
    queue = open_queue(app, shards=1)
    queue.publish(1)
    queue.main.fire(1)
    queue.main.store.load_records(queue.main.name, 0, [encode_record(b"2")], ttl_s=0.001)
    time.sleep(0.02)

    def full(*args: Any, **kwargs: Any) -> int:
        raise StoreFullError("no room")

    clock.ahead_s = 10_000
    with monkeypatch.context() as patched:
        patched.setattr(queue.main.store, "transfer", full)
        assert app.sweeper().run_once().failed_queues == 1
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 1)
    assert app.sweeper().run_once().swept == 1


# -- authority


@pytest.mark.parametrize("where", ["main", "sideline"])
def test_a_leader_that_was_replaced_writes_nothing(app: ignis.Ignis, clock: Clock, where: str) -> None:
    queue = open_queue(app)
    if where == "main":
        queue.publish(1)
        queue.main.fire(1)
    else:
        queue.sideline.store.load_records("jobs_SIDELINE", 0, [encode_record(b"1", flags=CODEC_JSON)])
        queue.sideline.fire(1)
    clock.ahead_s = 10_000
    sweeper = app.sweeper()
    sweeper.run_once(["nothing"])
    app.store.locks.next_epoch("sweeper")
    with pytest.raises(StaleEpochError):
        sweeper.run_once()
    assert queue.main.in_flight() + queue.sideline.in_flight() == 1, "nothing moved"
    assert sweeper.refused == 1
    result = sweeper.run_once()
    assert result.swept + result.sideline_swept == 1, "it leads anew, under a new epoch"


def test_a_sweep_by_hand_under_an_epoch_that_was_replaced(app: ignis.Ignis, clock: Clock) -> None:
    queue = open_queue(app)
    queue.publish(1)
    queue.main.fire(1)
    clock.ahead_s = 10_000
    sweeper = app.sweeper()
    sweeper.run_once(["nothing"])
    app.store.locks.next_epoch("sweeper")
    with pytest.raises(StaleEpochError):
        app.sweep_queue("jobs")
    assert (queue.main.in_flight(), sweeper.refused) == (1, 1)
    assert app.sweep_queue("jobs").swept == 1, "it leads anew, under a new epoch"


def test_only_the_leader_sweeps(embedded_url: str, new_app: MakeApp) -> None:
    first, second = new_app(embedded_url), new_app(embedded_url)
    open_queue(first)
    first.sweeper().run_once()
    with pytest.raises(LockHeldError, match="another instance leads sweeper"):
        second.sweeper().run_once()
    first.close()
    assert second.sweeper().run_once().queues == 1, "closing gives the lead up"


def test_stopping_gives_the_lead_up_and_sweeping_by_hand_goes_on(embedded_url: str, new_app: MakeApp) -> None:
    first, second = new_app(embedded_url), new_app(embedded_url)
    queue = open_queue(first)
    queue.handler(lambda message: None)
    first.start()
    first.sweeper().run_once()
    first.stop()
    assert second.sweeper().run_once().queues == 1
    second.sweeper().stop()
    clock = Clock()
    clock.ahead_s = 10_000
    third = new_app(embedded_url, clock=clock)
    third.sweeper().stop()
    queue.publish(1)
    queue.main.fire(1)
    assert third.sweeper().run_once().swept == 1


def test_a_stale_fence_moves_nothing(app: ignis.Ignis) -> None:
    queue = open_queue(app)
    queue.publish(1)
    queue.main.fire(1)
    app.store.locks.next_epoch("sweeper")
    leader = SoleLeader(app.store, "sweeper")
    leader._fence = Fence("sweeper", 0)
    sweeper = Sweeper(app.store, leader, app.sweeper_settings, lambda: time.time() + 10_000)
    with pytest.raises(StaleEpochError):
        sweeper.sweep_queue("jobs")
    assert (queue.main.in_flight(), sidelined(queue)) == (1, [])


def test_one_queue_by_hand(app: ignis.Ignis, clock: Clock) -> None:
    queues = [app.queue(f"q{n}", int, stuck_after="10m") for n in range(2)]
    for queue in queues:
        queue.publish(1)
        queue.main.fire(1)
    clock.ahead_s = 10_000
    assert queues[1].sweep() == SweepResult(queues=1, swept=1)
    assert [len(sidelined(queue)) for queue in queues] == [0, 1]
    assert app.sweep_queue("q0").swept == 1
    with pytest.raises(QueueNotFoundError, match="'q7'"):
        app.sweep_queue("q7")
    assert app.stats()["sweeper"]["swept"] == 2


def test_by_hand_only_on_the_leader(embedded_url: str, new_app: MakeApp) -> None:
    first, second = new_app(embedded_url), new_app(embedded_url)
    open_queue(first)
    first.sweeper().run_once()
    with pytest.raises(LockHeldError, match="another instance leads sweeper"):
        second.sweep_queue("jobs")


def test_a_leader_that_gave_up_stops_within_the_pass(app: ignis.Ignis, clock: Clock) -> None:
    """It need not ask the store: its own fence is gone."""
    queue = open_queue(app, shards=1)
    queue.publish_many(range(30))
    queue.main.fire(30)
    clock.ahead_s = 10_000
    sweeper = app.sweeper()
    moved = app.store.magazines.transfer

    def then_give_up(*args: Any, **kwargs: Any) -> int:
        count = moved(*args, **kwargs)
        app.leader().relinquish()
        return count

    app.store.magazines.transfer = then_give_up  # type: ignore[method-assign]
    with pytest.raises(StaleEpochError, match="does not lead under epoch 1 any more"):
        sweeper.run_once()
    assert len(sidelined(queue)) == 10, "one batch"
    assert sweeper.stats()["refused_writes"] == 1
    app.store.magazines.transfer = moved  # type: ignore[method-assign]
    assert sweeper.run_once().swept == 20


def test_under_which_epoch_is_kept(app: ignis.Ignis, clock: Clock) -> None:
    queue = open_queue(app)
    queue.publish(1)
    queue.main.fire(1)
    app.store.locks.raise_epoch("sweeper", 41)
    clock.ahead_s = 10_000
    app.sweeper().run_once()
    record = app.store.queues.get("jobs")
    assert record is not None
    assert record.extra["sweep"]["epoch"] == 42


def test_batches_that_move_nothing_do_not_go_on_for_ever(app: ignis.Ignis, clock: Clock) -> None:
    """Somebody else is moving the same messages at this moment."""
    queue = open_queue(app, shards=1)
    queue.publish_many(range(30))
    queue.main.fire(30)
    clock.ahead_s = 10_000
    app.store.magazines.transfer = lambda *args, **kwargs: 0  # type: ignore[method-assign]
    assert app.sweeper().run_once().swept == 0


# -- what cannot be known


class TwoClocks:
    def __init__(self) -> None:
        self.wall_s = 1_700_000_000.0
        self.monotonic_s = 50.0

    def pass_by(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds

    def guard(self) -> ClockGuard:
        return ClockGuard(lambda: self.wall_s, lambda: self.monotonic_s)


@pytest.mark.parametrize("by_s", [3_600, -3_600])
def test_age_says_nothing_after_the_clock_was_set(
    app: ignis.Ignis, clock: Clock, caplog: pytest.LogCaptureFixture, by_s: float
) -> None:
    queue = open_queue(app)
    queue.publish(1)
    queue.main.fire(1)
    clocks = TwoClocks()
    sweeper = Sweeper(app.store, app.leader(), app.sweeper_settings, clock, clocks.guard())
    clocks.pass_by(100)
    assert sweeper.run_once() == SweepResult(queues=1)
    clocks.wall_s += by_s
    clock.ahead_s = 3_600
    assert sweeper.run_once() == SweepResult(queues=1, untimed_queues=1), "it may be seconds old"
    assert f"the clock was set by {by_s:+.0f} s" in caplog.text
    clocks.pass_by(599)
    assert sweeper.run_once().untimed_queues == 1
    clocks.pass_by(2)
    assert sweeper.run_once() == SweepResult(queues=1, swept=1), "now it is older than 600 s by any clock"
    assert sweeper.stats()["untimed_queues"] == 2


def test_the_dead_are_known_by_any_clock(embedded_url: str, new_app: MakeApp) -> None:
    app = new_app(embedded_url)
    queue = open_queue(app)
    queue.publish_many(range(8))
    clocks = TwoClocks()
    sweeper = Sweeper(app.store, app.leader(), app.sweeper_settings, guard=clocks.guard())
    with claim_elsewhere(embedded_url) as process:
        process.kill()
    clocks.wall_s += 3_600
    assert sweeper.run_once() == SweepResult(queues=1, swept=5, untimed_queues=1)


@pytest.mark.parametrize("by_s", [3_600, -3_600])
def test_a_step_of_the_wall_clock_suspends_no_age(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by_s: float
) -> None:
    """The claims are stamped by the store's clock, which nobody can set."""
    queue = open_queue(app)
    queue.publish(1)
    queue.main.fire(1)
    wall_s, wall_ns, store_s, slept_s = time.time, time.time_ns, app.store.now_s, [0.0]
    monkeypatch.setattr(app.store, "now_s", lambda: store_s() + slept_s[0])
    sweeper = Sweeper(app.store, app.leader(), app.sweeper_settings, lambda: time.time())  # noqa: PLW0108 - patched below
    monkeypatch.setattr(time, "time", lambda: wall_s() + by_s)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + int(by_s * 1e9))
    assert sweeper.run_once() == SweepResult(queues=1), "it is no older"
    slept_s[0] = 3_600
    assert sweeper.run_once() == SweepResult(queues=1, untimed_queues=1), "whoever works on it slept as well"
    assert sweeper.run_once() == SweepResult(queues=1, untimed_queues=1)
    assert caplog.text.count("or the machine slept") == 1


def test_slow_drift_is_no_jump() -> None:
    clocks = TwoClocks()
    guard = clocks.guard()
    for _ in range(100):
        clocks.pass_by(900)
        clocks.wall_s += 5
        guard.look()
    assert guard.trusted(300)
    assert guard.jumps == 0


def test_a_queue_without_a_limit_is_refused_and_the_others_are_swept(
    app: ignis.Ignis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "good"):
        queue = app.queue(name, int, stuck_after="10m")
        queue.publish(1)
        queue.main.fire(1)
    app.store.queues.update("bad", lambda record: setattr(record, "stuck_after_s", 0))
    clock.ahead_s = 10_000
    assert app.sweeper().run_once() == SweepResult(queues=2, swept=1, failed_queues=1)
    assert "stuck_after_s = 0: what is abandoned cannot be told" in caplog.text
    assert app.stats()["sweeper"]["failed_queues"] == 1
    with pytest.raises(ConfigError):
        app.sweep_queue("bad")


# -- dead owners


CLAIMER = textwrap.dedent("""
    import sys, ignis
    queue = ignis.Ignis(sys.argv[1]).queue("jobs", int, shards=3, stuck_after="10m")
    print(len(queue.main.fire(5)), flush=True)
    sys.stdin.read()
""")


def claim_elsewhere(url: str) -> subprocess.Popen[str]:
    """Another process, which has claimed five messages and keeps them."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIMER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "5\n"
    return process


def test_what_a_dead_process_held_is_recovered_at_once(embedded_url: str, new_app: MakeApp) -> None:
    app = new_app(embedded_url)
    queue = open_queue(app)
    queue.publish_many(range(8))
    with claim_elsewhere(embedded_url) as process:
        assert app.sweeper().run_once().swept == 0, "it lives"
        process.send_signal(signal.SIGKILL)
    assert app.sweeper().run_once().swept == 5
    found = sidelined(queue)
    assert [(message.reason, message.crashes) for message in found] == [("abandoned", 1)] * 5
    assert all("its worker's process is dead" in (message.error or "") for message in found)
    assert queue.shovel.run_once().moved == 5
    assert sorted(one.message for one in queue.main.fire(10)) == list(range(8))


def test_dead_processes_may_be_left_to_time(embedded_url: str, new_app: MakeApp, clock: Clock) -> None:
    app = new_app(embedded_url, clock=clock, sweeper={"dead_owners": False})
    queue = open_queue(app)
    queue.publish_many(range(5))
    with claim_elsewhere(embedded_url) as process:
        process.kill()
    assert app.sweeper().run_once().swept == 0
    clock.ahead_s = 10_000
    assert app.sweeper().run_once().swept == 5


def test_the_sweep_pointer_stays_before_what_the_living_hold(embedded_url: str, new_app: MakeApp, clock: Clock) -> None:
    app = new_app(embedded_url, clock=clock)
    queue = open_queue(app, shards=1)
    queue.publish_many(range(20))
    queue.main.fire(4)
    with claim_elsewhere(embedded_url) as process:
        process.kill()
    assert app.sweep_queue("jobs").swept == 5
    record = app.store.queues.get("jobs")
    assert record is not None
    assert (record.swept_count, record.sweep_pointers) == (5, {}), "1 to 4 are in work"
    clock.ahead_s = 10_000
    queue.main.fire(2)
    assert app.sweep_queue("jobs").swept == 6
    record = app.store.queues.get("jobs")
    assert record is not None
    assert (record.swept_count, record.sweep_pointers) == (11, {0: 11}), "all of them by their age"


def test_the_sweep_pointer_stays_before_what_was_renewed(app: ignis.Ignis, clock: Clock) -> None:
    queue = open_queue(app, shards=1)
    queue.publish_many(range(10))
    fired = queue.main.fire(10)
    time.sleep(0.01)
    clock.ahead_s = 600
    assert queue.main.renew(fired[3:5]) == []
    moment_s = time.time()
    sweeper = app.sweeper()
    sweeper._clock = lambda: moment_s + 600 - 0.005
    assert app.sweep_queue("jobs").swept == 8
    record = app.store.queues.get("jobs")
    assert record is not None
    assert record.sweep_pointers == {0: 3}, "4 and 5 are in work"
    queue.main.delete(fired)


def test_a_shovel_that_died_gives_back(embedded_url: str, new_app: MakeApp) -> None:
    app = new_app(embedded_url)
    queue = open_queue(app)
    queue.sideline.store.load_records(
        "jobs_SIDELINE", 0, [encode_record(b"%d" % n, flags=CODEC_JSON) for n in range(5)]
    )
    script = CLAIMER.replace("queue.main.fire", "queue.sideline.fire")
    with subprocess.Popen(
        [sys.executable, "-c", script, embedded_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "5\n"
        os.kill(process.pid, signal.SIGKILL)
    assert app.sweeper().run_once().sideline_swept == 5
    assert (queue.sideline.pending(), queue.sideline.in_flight()) == (5, 0)


# -- the schedule


def test_the_schedule(store_url: str, new_app: MakeApp, clock: Clock) -> None:
    app = new_app(store_url, clock=clock, sweeper={"interval": 0.1, "initial_delay": 0})
    queue = open_queue(app)
    queue.publish(1)
    queue.main.fire(1)
    clock.ahead_s = 10_000
    sweeper, threads = app.sweeper(), NewThreads()
    sweeper.start()
    sweeper.start()
    eventually(lambda: len(sidelined(queue)) == 1)
    sweeper.stop(WAIT_S)
    assert not threads.named("ignis-sweeper")


def test_the_schedule_survives_failures_and_other_leaders(
    embedded_url: str, new_app: MakeApp, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(embedded_url, clock=clock, sweeper={"interval": 0.1, "initial_delay": 0})
    queue = open_queue(app)
    queue.publish(1)
    queue.main.fire(1)
    clock.ahead_s = 10_000
    rival = make_leader(app.store, "sweeper")
    rival.lead()
    listed = threading.Event()
    queues_list = app.store.queues.list

    def fails_once(*args: Any, **kwargs: Any) -> Any:
        if not listed.is_set():
            listed.set()
            raise StoreBusyError("held")
        return queues_list(*args, **kwargs)

    monkeypatch.setattr(app.store.queues, "list", fails_once)
    app.sweeper().start()
    rival.relinquish()
    eventually(lambda: len(sidelined(queue)) == 1)
    assert listed.is_set()


def test_coming_to_lead_sweeps_at_once(embedded_url: str, new_app: MakeApp, clock: Clock) -> None:
    """Not at the next turn of the schedule, an hour away."""
    settings = {"interval": 3_600, "initial_delay": 0}
    apps = [new_app(embedded_url, clock=clock, sweeper=settings, leader={"refresh": 0.1}) for _ in range(2)]
    queue = open_queue(apps[0])
    apps[0].sweeper().start()
    eventually(lambda: apps[0].sweeper().passes == 1)
    apps[1].sweeper().start()
    eventually(lambda: len(apps[1].leader().status().members or ()) == 2)
    queue.publish(1)
    queue.main.fire(1)
    clock.ahead_s = 10_000
    assert apps[1].sweeper().passes == 0
    apps[0].sweeper().stop()
    eventually(lambda: len(sidelined(queue)) == 1)
    eventually(lambda: apps[1].sweeper().passes == 1)
    assert apps[1].stats()["sweeper"]["leader"]["leading"]


def test_leading_again_sweeps_at_once_too(embedded_url: str, new_app: MakeApp) -> None:
    """Whatever the schedule was before: somebody else may have led meanwhile."""
    app = new_app(embedded_url, sweeper={"interval": 3_600, "initial_delay": 0}, leader={"refresh": 0.1})
    open_queue(app)
    sweeper = app.sweeper()
    sweeper.start()
    eventually(lambda: sweeper.passes == 1)
    app.leader().relinquish()
    eventually(lambda: sweeper.passes == 2)
    assert app.store.locks.epoch("sweeper") == 2
