"""The shovel by a retry policy: growing waits, and so many rounds for each message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.cli.sideline import sideline_reasons
from ignis.errors import ConfigError, StoreBusyError
from ignis.message import encode_meta, failed_record
from ignis.native import CODEC_JSON, encode_record
from ignis.shovel_rounds import SHOVEL_RETRY, Rounds, policy_in, stored_policy
from ignis.testing import ManualClock, drain
from tests.conftest import MakeApp
from tests.support import eventually, sidelined

QUICK = ignis.Retry(attempts=3, base="20ms", factor=1, jitter=False)
STEADY = ignis.Retry(attempts=4, base="10s", factor=3, max="60s", jitter=False)


def by_hand(new_app: MakeApp, url: str, **settings: Any) -> tuple[ManualClock, ignis.Queue[int], list[float]]:
    """A queue whose handler fails for every message, and when it was called, in seconds since the first call."""
    clock = ManualClock()
    app = new_app(url, clock=clock)
    queue = app.queue("jobs", int, shards=2, **settings)
    called: list[float] = []

    @queue.handler
    def fail(message: int) -> bool:
        called.append(clock.monotonic_s())
        return False

    return clock, queue, called


def fill(queue: ignis.Queue[Any], count: int, at_s: float, reason: str = "exception") -> None:
    """Puts messages into the sideline that failed at that time."""
    for n in range(count):
        record = encode_record(b"%d" % n, flags=CODEC_JSON, meta=encode_meta({"h": n}))
        failed = failed_record(record, reason, f"error {n}", at_ms=int(at_s * 1000))
        queue.sideline.store.load_records(queue.sideline.name, n % queue.settings.shards, [failed])


def test_each_round_comes_behind_a_longer_wait_and_then_there_is_none(memory_url: str, new_app: MakeApp) -> None:
    clock, queue, called = by_hand(new_app, memory_url, shovel_retry=STEADY)
    queue.publish(7)
    drain(queue, raises=False)
    for wait_s in (10, 30, 60):
        clock.advance(wait_s - 0.1)
        drain(queue, raises=False)
        before = len(called)
        clock.advance(0.1)
        drain(queue, raises=False)
        assert len(called) == before + 1
    clock.advance(1_000_000)
    drain(queue, raises=False)
    assert [round(at) for at in called] == [0, 10, 40, 100]
    [message] = sidelined(queue)
    assert (message.returns, message.failures, message.given_up) == (3, 4, False)
    figures = queue.shovel.stats()
    assert (figures["returned"], figures["waiting"], figures["given_up"]) == (3, 1, 1)


def test_a_person_brings_back_what_was_given_up_and_the_rounds_begin_anew(memory_url: str, new_app: MakeApp) -> None:
    clock, queue, called = by_hand(new_app, memory_url, shovel_retry=ignis.Retry(attempts=2, base=5, jitter=False))
    queue.publish(7)
    for _ in range(3):
        drain(queue, raises=False)
        clock.advance(5)
    assert (len(called), queue.shovel.given_up) == (2, 1)
    assert queue.shovel.run_once().moved == 1
    for _ in range(3):
        drain(queue, raises=False)
        clock.advance(5)
    assert (len(called), sidelined(queue)[0].returns) == (4, 1)


def test_the_running_schedule_goes_by_the_policy(app: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
    queue = app.queue("jobs", int, shards=2, shovel_retry=QUICK)
    called: list[int] = []

    @queue.handler
    def fail(message: int) -> bool:
        called.append(message)
        return False

    queue.publish(7)
    app.start()
    eventually(lambda: queue.shovel.given_up == 1)
    assert called == [7, 7, 7]
    pointers = [one.load_pointer for one in queue.sideline.metadata()]
    assert queue.stats()["shovel"] == {
        "moved": 2, "returned": 2, "kept": queue.shovel.total.kept, "refused": 0, "waiting": 1, "given_up": 1,
    }  # fmt: skip
    assert queue.sideline.in_flight() == 0
    assert [one.load_pointer for one in queue.sideline.metadata()] == pointers, "what stays is not moved about"
    said = [one.getMessage() for one in caplog.records if "shovel_retry" in one.getMessage()]
    assert len(said) == 1, "not at every look"
    assert "1 message(s) in the sideline of jobs have come back 2 time(s), as its shovel_retry says" in said[0]


def test_what_only_a_person_brings_back_stays(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1, shovel_retry=QUICK)
    for reason in ("corrupt", "expired", "cancelled"):
        fill(queue, 1, 0.0, reason)
    gone = failed_record(encode_record(b"1", flags=CODEC_JSON), "exception", "e", given_up=True, at_ms=1)
    unread = encode_record(b"1", flags=CODEC_JSON, meta=b"\xc1")
    queue.sideline.store.load_records(queue.sideline.name, 0, [gone, unread])
    fill(queue, 1, 0.0)
    result = queue.shovel.run_scheduled()
    assert (result.moved, result.kept, result.waiting) == (1, 5, 5)
    assert queue.shovel.given_up == 0
    assert queue.shovel.run_scheduled().waiting == 5, "nothing came: the count stays"


def test_a_look_reads_only_what_came_until_something_is_due(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int, shards=2, shovel_retry=ignis.Retry(attempts=2, base="1h", max="1h", jitter=False))
    now_s = app.clock()
    fill(queue, 6, now_s)
    rows: list[int] = []
    scan = queue.sideline.store.scan

    def counted(*args: Any, **options: Any) -> Any:
        found = scan(*args, **options)
        rows.append(len(found))
        return found

    monkeypatch.setattr(queue.sideline.store, "scan", counted)
    rounds = Rounds(queue.settings.shovel_retry)

    def look(at_s: float) -> int:
        del rows[:]
        return sum(len(one.due) for one in rounds.look(queue.sideline, lambda: 2, at_s, 600.0))

    assert (look(now_s), sum(rows)) == (0, 6)
    assert (look(now_s + 1), sum(rows)) == (0, 0)
    fill(queue, 1, now_s)
    assert (look(now_s + 2), sum(rows)) == (0, 1)
    assert rounds.next_due_s == pytest.approx(now_s + 3_600, abs=0.01)
    assert (look(now_s + 601), sum(rows)) == (0, 7), "all of it every interval: others may have removed some"
    assert (look(now_s + 3_601), sum(rows)) == (7, 7)


def test_a_sideline_that_takes_long_to_read_is_read_less_often(memory_app: ignis.Ignis) -> None:
    """Its messages may be due one after the other, and each time all of it is read."""
    queue = memory_app.queue("jobs", int, shards=1, shovel_retry=ignis.Retry(attempts=2, base="100s", jitter=False))
    fill(queue, 3, 1_000.0)
    times = iter([0.0, 7.0, 7.0, 7.001])
    rounds = Rounds(queue.settings.shovel_retry, lambda: next(times))
    list(rounds.look(queue.sideline, lambda: 1, 1_099.0, 600.0))
    assert rounds.next_due_s == 1_100.0
    assert rounds.wait_s(1_099.0, 600.0) == 70.0
    list(rounds.look(queue.sideline, lambda: 1, 1_099.5, 600.0))  # only what came since
    assert rounds.wait_s(1_099.5, 600.0) == pytest.approx(0.5)


def test_what_the_main_magazine_refuses_comes_later(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int, shards=1, shovel_retry=QUICK)
    fill(queue, 2, 0.0)
    with monkeypatch.context() as patched:

        def refuse(*args: Any, **options: Any) -> int:
            raise StoreBusyError("held")

        patched.setattr(queue.main.store, "transfer", refuse)
        result = queue.shovel.run_scheduled()
    assert (result.moved, result.refused, queue.sideline.pending()) == (0, 2, 2)
    queue.shovel.start()
    eventually(lambda: queue.main.pending() == 2)
    queue.shovel.stop()


def test_two_processes_bring_each_message_back_once(store_url: str, new_app: MakeApp) -> None:
    queues = [new_app(store_url).queue("jobs", int, shards=2, shovel_retry=QUICK) for _ in range(2)]
    fill(queues[0], 50, 0.0)
    looks = [Rounds(one.settings.shovel_retry).look(one.sideline, lambda: 2, 1.0, 600.0) for one in queues]
    found = [next(look) for look in looks]
    assert [len(one.due) for one in found] == [50, 50]
    moved = [
        queue.main.store.transfer(queue.sideline.name, queue.main.name, one.due)
        for queue, one in zip(queues, found, strict=True)
    ]
    assert moved == [50, 0]
    assert (queues[0].main.pending(), queues[0].sideline.pending()) == (50, 0)
    for look in looks:
        look.close()


def test_a_wait_is_drawn_once_for_each_round(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int, shards=1, shovel_retry=ignis.Retry(attempts=2, base="100s", jitter=True))
    fill(queue, 200, 1_000.0)
    dues = []
    for _ in range(2):
        rounds = Rounds(queue.settings.shovel_retry)
        assert not any(look.due for look in rounds.look(queue.sideline, lambda: 1, 1_000.0, 600.0))
        dues.append(rounds.next_due_s)
    assert dues[0] == dues[1], "in every process the same"
    counts = []
    for at_s in (1_049.0, 1_075.0, 1_101.0):
        rounds = Rounds(queue.settings.shovel_retry)
        counts.append(sum(len(look.due) for look in rounds.look(queue.sideline, lambda: 1, at_s, 600.0)))
    assert counts[0] == 0
    assert 50 < counts[1] < 150
    assert counts[2] == 200


@pytest.mark.parametrize(("ahead_s", "comes"), [(30.0, False), (100.0, True)])
def test_a_clock_that_was_put_back_lengthens_a_wait_by_as_much(
    memory_app: ignis.Ignis, ahead_s: float, comes: bool
) -> None:
    """What says that it failed further in the future than any wait is long is not believed."""
    queue = memory_app.queue("jobs", int, shards=1, shovel_retry=STEADY)
    fill(queue, 1, 1_000.0 + ahead_s)
    rounds = Rounds(queue.settings.shovel_retry)
    assert sum(len(look.due) for look in rounds.look(queue.sideline, lambda: 1, 1_000.0, 600.0)) == comes
    if not comes:
        assert rounds.next_due_s == 1_000.0 + ahead_s + 10


def test_the_policy_may_stand_in_the_settings_file(tmp_path: Path, store_url: str, new_app: MakeApp) -> None:
    file = tmp_path / "ignis.toml"
    file.write_text('[retries.slow]\nattempts = 5\nbase = "1m"\nmax = "1h"\n[queue.jobs]\nshovel_retry = "slow"\n')
    app = new_app(store_url, config=file)
    queue = app.queue("jobs", int)
    queue.open()
    text = "attempts=5 base_s=60 factor=2 max_s=3600 jitter=true"
    assert queue.settings.shovel_retry == text
    record = app.store.queues.get("jobs")
    assert record is not None
    assert record.extra[SHOVEL_RETRY] == text
    # Another process without that file has the same, and may take another one, or none.
    other = new_app(store_url)
    found = other.queue("jobs", int)
    found.open()
    assert found.settings.shovel_retry == text
    new_app(store_url).queue("jobs", int, shovel_retry="").open()
    record = app.store.queues.get("jobs")
    assert record is not None
    assert SHOVEL_RETRY not in record.extra


def test_other_processes_follow_the_stored_policy(store_url: str, new_app: MakeApp) -> None:
    app = new_app(store_url)
    queue = app.queue("jobs", int)
    queue.handler(print)
    app.start()
    new_app(store_url).queue("jobs", int, shovel_retry=STEADY).open()
    app.refresh()
    assert policy_in(queue.settings.shovel_retry) == STEADY.backoff


def test_the_sidelines_count_says_who_waits(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1, shovel_retry=ignis.Retry(attempts=2, base=0, jitter=False))
    fill(queue, 1, 0.0)
    assert sideline_reasons(app.store, "jobs")["exception"].waiting == 0
    assert queue.shovel.run_scheduled().moved == 1
    [(_, _, record)] = queue.main.store.scan(queue.main.name)
    assert record is not None
    again = failed_record(record, "exception", "again", at_ms=1)
    queue.sideline.store.load_records(queue.sideline.name, 0, [again])
    assert sideline_reasons(app.store, "jobs")["exception"].waiting == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("nobody", r"shovel_retry = 'nobody' names no policy"),
        (3, "shovel_retry = 3 is no policy"),
        ({ValueError: ignis.Retry()}, "is no policy"),
        (ignis.Retry(on=ValueError), "has no exception any more"),
        (ignis.Retry(give_up_on=ValueError), "has no exception any more"),
        ("attempts=0 base_s=1 factor=2 max_s=3 jitter=true", "retry.attempts"),
    ],
)
def test_what_is_no_policy_for_a_shovel(memory_app: ignis.Ignis, given: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        memory_app.queue("jobs", int, shovel_retry=given)


@pytest.mark.parametrize(
    "policy", [ignis.Retry(), QUICK, STEADY, ignis.Retry(base=1e-6, factor=1.5, max="3d"), ignis.Retry(attempts=1)]
)
def test_the_stored_text_has_all_numbers(policy: ignis.Retry) -> None:
    text = stored_policy(policy, {})
    assert policy_in(text) == policy.backoff
    assert stored_policy(text, {}) == text


def test_without_a_policy_nothing_is_stored(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    queue.open()
    record = app.store.queues.get("jobs")
    assert record is not None
    assert SHOVEL_RETRY not in record.extra
    assert queue.shovel.stats()["given_up"] == 0
