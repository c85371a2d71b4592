"""Delayed messages as users have them: publishing, `queue.later`, the command line, and what else knows of them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis
from ignis.cli import exit_codes, main
from ignis.errors import ConfigError, DelayNotSupportedError, InvalidMessageError, QueueNotEmptyError
from ignis.later import Later, due_time_ms
from ignis.native import PackedBatch, encode_record
from ignis.retries import Retry
from ignis.schedules.fire import SCHEDULE_HEADER
from ignis.storage.later import KeepsLater
from ignis.testing import ManualClock, drain
from tests.support import eventually, one_store

BOUND_S = 60.0


@pytest.fixture(params=["memory", "embedded"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ignis]:
    with Ignis("memory://" if request.param == "memory" else f"embedded://{tmp_path}/store") as made:
        yield made


def wait_until(done: Callable[[], Any]) -> None:
    until = time.monotonic() + BOUND_S
    while not done():
        assert time.monotonic() < until
        time.sleep(0.005)


def bodies(queue: Any) -> list[str]:
    found: list[str] = []
    queue.handler(found.append)
    drain(queue)
    return found


def test_due_times_of_a_long_list_never_go_back(app: Ignis) -> None:
    """It is read in pieces, and two looks at the clocks differ."""
    queue = app.queue("jobs", int, shards=1)
    queue.publish_many(range(2_500), delay="1h")
    dues = [one.due for one in queue.later]
    assert len(dues) == 2_500
    assert len(set(dues)) == 1


def test_a_delayed_message_comes_when_its_time_is_here(app: Ignis) -> None:
    queue = app.queue("jobs", str)
    published = queue.publish("later", key="k", delay=0.2)
    assert (published.shard, published.pointer) == (-1, 0)
    queue.publish("now", key="k")
    due = queue.later.next_due()
    assert due is not None
    wait_until(lambda: datetime.now(timezone.utc) > due + timedelta(milliseconds=50))
    assert bodies(queue) == ["now", "later"]


@pytest.mark.parametrize("delay", ["1h", 3600, timedelta(hours=1)])
def test_every_form_of_a_delay(app: Ignis, delay: Any) -> None:
    queue = app.queue("jobs", str)
    before = datetime.now(timezone.utc)
    ids = queue.publish_many(["a", "b"], delay=delay)
    found = queue.later.list()
    assert sorted(str(one.id) for one in found) == sorted(ids)
    for one in found:
        assert timedelta(minutes=59) < one.due - before < timedelta(minutes=61)
    assert bodies(queue) == []
    assert queue.stats()["delayed"] == 2


def test_never_a_moment_too_early(app: Ignis) -> None:
    """By the store's clock, whose milliseconds end later than those who publish may think."""
    store = app.store
    for delay_s in (0.0104, 0.0109, 0.3, 300.0005):
        for _ in range(200):
            before_s = store.now_s()
            assert due_time_ms(store, delay_s, None) / 1000 >= before_s + delay_s - 2e-6
            assert due_time_ms(store, delay_s, None) / 1000 <= store.now_s() + delay_s + 0.0011


def test_by_a_clock_of_the_tests_it_is_exact() -> None:
    clock = ManualClock(start=1_600_000_000)
    with Ignis("memory://", clock=clock) as app:
        queue = app.queue("jobs", str)
        queue.publish("a", delay="5m")
        clock.advance(299.999)
        assert bodies(queue) == []
        clock.advance(0.001)
        assert drain(queue).done == 1
        at = datetime.fromtimestamp(1_600_003_600, timezone.utc)
        queue.publish("b", at=at)
        assert queue.later.next_due() == at


def test_at_a_time(app: Ignis) -> None:
    queue = app.queue("jobs", str)
    at = datetime.now(timezone(timedelta(hours=5))) + timedelta(days=1)
    queue.publish("tomorrow", at=at)
    due = queue.later.next_due()
    assert due is not None and abs(due - at) < timedelta(seconds=5)
    queue.publish("long ago", at=datetime(2001, 1, 1, tzinfo=timezone.utc))
    assert bodies(queue) == ["long ago"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 # that is the test
        ({"at": "tomorrow"}, "not a datetime"),
        ({"delay": "soon"}, "duration"),
        ({"delay": -1}, "100 years"),
        ({"delay": float("nan")}, "100 years|number"),
        ({"delay": "40000w"}, r"delay = '40000w' is outside 0 to 36,500 days \(100 years\)"),
        ({"delay": 10**400}, r"delay = 1000.*\(401 characters\) is outside 0 to 36,500 days"),
        ({"delay": -(10**9000)}, "delay = a int is outside 0 to 36,500 days"),
        ({"at": datetime(2999, 1, 1, tzinfo=timezone.utc)}, r"more than 36,500 days \(100 years\) away"),
        ({"delay": 1, "at": datetime(2030, 1, 1, tzinfo=timezone.utc)}, "not both"),
    ],
)
def test_wrong_times_publish_nothing(app: Ignis, options: dict[str, Any], why: str) -> None:
    queue = app.queue("jobs", str)
    with pytest.raises(ConfigError, match=why):
        queue.publish("a", **options)
    with pytest.raises(ConfigError, match=why):
        queue.publish_many(["a"], **options)
    assert queue.stats()["delayed"] == queue.stats()["pending"] == 0


def test_a_store_that_keeps_none_publishes_nothing(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", str)
    kind = type(queue.main.store)
    for name in ("load_later", "next_due_ms", "list_later", "delayed"):
        monkeypatch.setattr(kind, name, getattr(KeepsLater, name))
    monkeypatch.setattr(kind, "keeps_later", False)
    with pytest.raises(DelayNotSupportedError, match="embedded"):
        queue.publish("a", delay="1h")
    with pytest.raises(DelayNotSupportedError):
        queue.later.cancel("01890000-0000-7000-8000-000000000000")
    assert queue.stats()["pending"] == 0


def test_find_cancel_and_run_now(app: Ignis) -> None:
    queue = app.queue("jobs", str)
    ids = [queue.publish(f"m{n}", key="k", delay=f"{n + 1}h").id for n in range(4)]
    assert len(queue.later) == 4
    found = queue.later.find(ids[2])
    assert found is not None and found.message is not None
    assert found.message.key == "k"
    assert [one.id for one in queue.later] == ids
    assert queue.later.cancel(ids[0], ids[0]) == 1
    assert queue.later.cancel(ids[0]) == 0
    assert queue.later.run_now(ids[3], ids[0]) == 1
    assert queue.later.find(ids[3]) is None
    assert bodies(queue) == ["m3"]
    assert queue.later.cancel_all() == 2
    assert len(queue.later) == 0
    with pytest.raises(InvalidMessageError):
        queue.later.cancel("x")


def test_coroutines_publish_with_a_delay(app: Ignis) -> None:
    queue = app.queue("jobs", str)

    async def publish() -> None:
        await queue.apublish("a", delay="1h")
        await queue.apublish_many(["b", "c"], delay="2h")

    asyncio.run(publish())
    assert len(queue.later) == 3


@pytest.mark.parametrize("coroutine", [False, True])
@one_store("app")
def test_sleeping_consumers_get_it(app: Ignis, coroutine: bool) -> None:
    queue = app.queue("jobs", str)
    got: list[str] = []

    def handle(body: str) -> None:
        got.append(body)

    async def ahandle(body: str) -> None:
        got.append(body)

    queue.handler(ahandle if coroutine else handle)
    queue.start()
    queue.publish("first")
    wait_until(lambda: got == ["first"])
    queue.publish("far", delay="1h")
    queue.publish("near", delay=0.3)
    queue.publish("nearer", delay=0.1)
    wait_until(lambda: len(got) == 3)
    assert got == ["first", "nearer", "near"]
    # And again, when it has been idle for a while: others wait for the store then.
    time.sleep(1.5)
    queue.publish("last", delay=0.1)
    wait_until(lambda: got[-1] == "last")
    assert len(queue.later) == 1


def test_without_consumers_the_sweep_moves(app: Ignis) -> None:
    queue = app.queue("jobs", str)
    queue.publish_many(["a", "b", "c"], delay=0)
    queue.publish("far", delay="1h")
    assert queue.stats()["delayed"] == 4
    queue.sweep()
    assert (queue.stats()["delayed"], queue.stats()["pending"]) == (1, 3)


def test_a_queue_with_delayed_messages_is_not_empty(app: Ignis) -> None:
    queue = app.queue("jobs", str)
    queue.publish("a", delay="1h")
    store = app.store
    with pytest.raises(QueueNotEmptyError):
        store.remove_queue("jobs")
    assert len(queue.later) == 1
    assert store.remove_queue("jobs", force=True)
    assert not [name for name in store.magazines.names() if name.startswith("jobs")]


def test_the_longest_name(app: Ignis) -> None:
    name = "q" * 128
    queue = app.queue(name, str)
    queue.publish("a", delay="1h")
    queue.publish("b", delay=0)
    assert bodies(queue) == ["b"]
    assert app.store.remove_queue(name, force=True)


def test_many_threads_put_and_take(app: Ignis) -> None:
    queue = app.queue("jobs", str)
    got: list[str] = []
    queue.handler(got.append, concurrency=4)
    queue.start()

    def put(who: int) -> None:
        for n in range(40):
            queue.publish(f"{who}-{n}", delay=(n % 7) / 100)

    threads = [threading.Thread(target=put, args=[who]) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    wait_until(lambda: len(got) >= 160)
    assert len(got) == len(set(got)) == 160


# -- the command line


def test_an_envelope_that_cannot_be_read_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"embedded://{tmp_path}/store"
    with Ignis(url) as app:
        queue = app.queue("jobs", str)
        queue.open()
        record = encode_record(b'"x"', meta=b"\xc1")
        due_ms = round(app.store.now_s() * 1_000) + 60_000
        app.store.magazines.load_later("jobs", [(0, PackedBatch.pack([record]))], [[due_ms]], None)
    assert main(["later", "list", "jobs", "--url", url]) == exit_codes.OK
    assert "unreadable" in capsys.readouterr().out
    assert main(["later", "list", "jobs", "--json", "--url", url]) == exit_codes.OK
    assert len(json.loads(capsys.readouterr().out)["messages"]) == 1


def test_the_list_says_what_each_message_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"embedded://{tmp_path}/store"
    with Ignis(url) as app:
        queue = app.queue("jobs", str)

        @queue.handler(retry=Retry(attempts=3, base="9m", jitter=False))
        def handle(body: str) -> None:
            raise ValueError(f"not {body}")

        queue.publish("failing")
        queue.publish("a tick", headers={SCHEDULE_HEADER: "nightly"})
        queue.publish("patient", delay="3h")
        app.start()
        eventually(lambda: len(queue.later) == 3)
    assert main(["later", "list", "jobs", "--url", url]) == exit_codes.OK
    head, *rows = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert head == "due what attempt id key reason last error"
    found = {row.split(" ", 2)[2] for row in rows}
    assert sum("retry 2 " in row and row.endswith("exception ValueError: not failing") for row in found) == 1
    assert sum("retry, schedule nightly 2 " in row and row.endswith("ValueError: not a tick") for row in found) == 1
    assert sum("delay 1 " in row and row.endswith(" - - -") for row in found) == 1


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"embedded://{tmp_path}/store"
    with Ignis(url) as app:
        queue = app.queue("jobs", str)
        ids = [queue.publish(f"m{n}", key=f"k{n}", delay=f"{n + 1}h").id for n in range(3)]

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["later", *arguments, "--url", url])
        return code, capsys.readouterr().out

    code, out = run("list", "jobs", "--json")
    assert code == exit_codes.OK
    listed = json.loads(out)
    assert listed["total"] == 3
    assert [one["id"] for one in listed["messages"]] == ids
    code, out = run("list", "jobs", "-n", "1")
    assert code == exit_codes.OK and ids[0] in out and ids[1] not in out
    assert run("cancel", "jobs", ids[0])[0] == exit_codes.OK
    assert run("cancel", "jobs", ids[0])[0] == exit_codes.NOTHING
    assert run("run", "jobs", ids[1])[0] == exit_codes.OK
    assert run("cancel", "jobs")[0] == exit_codes.USAGE
    assert run("cancel", "jobs", "--all", "--yes")[0] == exit_codes.OK
    assert json.loads(run("list", "jobs", "--json")[1])["total"] == 0
    assert main(["stats", "--json", "--url", url]) == exit_codes.OK
    assert '"delayed":0' in capsys.readouterr().out
    with Ignis(url) as app:
        store = app.store
        assert len(Later(store, "jobs")) == 0
        assert bodies(app.queue("jobs", str)) == ["m1"]
