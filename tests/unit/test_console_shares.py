"""What one user may take of what all users of a console share: jobs, leases, memory for bodies."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("starlette")

from ignis import Ignis
from ignis.console import Console, requests
from ignis.console.body_room import FREE_BYTES, BodyRoom, decoded_bytes
from ignis.console.jobs import KEPT_FREE, MOST_OF_A_USER, MOST_RUNNING, MOST_S, Job, Jobs
from ignis.console.leases import MOST_HELD, Leases
from ignis.console.leases import MOST_OF_A_USER as MOST_LEASES
from ignis.console.refusals import RefusedError
from ignis.console.requests import body_in
from ignis.console.routes import ROUTES
from tests.support.console import Someone, a_console, fail, write_users

PUBLISH = next(row for row in ROUTES if row.path.endswith("/publish"))


@pytest.fixture
def users(tmp_path: Path) -> dict[str, str]:
    return write_users(tmp_path / "users.json")


@pytest.fixture
def console(memory_app: Ignis, tmp_path: Path, users: dict[str, str]) -> Iterator[Console]:
    memory_app.queue("jobs", dict, shards=1).open()
    with a_console(memory_app, users=tmp_path / "users.json", audit=tmp_path / "audit") as made:
        yield made


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


# -- jobs


def test_one_user_does_not_take_all_jobs(go_on: threading.Event) -> None:
    jobs = Jobs()

    def begin(who: str, shared: bool = False) -> Job:
        return jobs.start("redrive", "jobs", who, lambda job: {"waited": go_on.wait(60)}, shared=shared)

    try:
        for _ in range(MOST_OF_A_USER):
            begin("wrk")
        with pytest.raises(RefusedError, match=rf"{MOST_OF_A_USER} of them of user 'wrk'.*at most {MOST_OF_A_USER}"):
            begin("wrk")
        for _ in range(MOST_RUNNING - KEPT_FREE - MOST_OF_A_USER):
            begin("other")
        with pytest.raises(RefusedError, match=f"the last {KEPT_FREE} of {MOST_RUNNING} places"):
            begin("other")
        for who in ("third", "fourth"):
            begin(who)
        with pytest.raises(RefusedError, match=f"{MOST_RUNNING} jobs run already"):
            begin("fifth")
    finally:
        go_on.set()
        jobs.close()


def test_where_nobody_has_a_name_all_share_the_jobs(go_on: threading.Event) -> None:
    jobs = Jobs()
    try:
        for _ in range(MOST_RUNNING):
            jobs.start("redrive", "jobs", "anyone", lambda job: {"waited": go_on.wait(60)}, shared=True)
        with pytest.raises(RefusedError, match=f"{MOST_RUNNING} jobs run already"):
            jobs.start("redrive", "jobs", "anyone", lambda job: {}, shared=True)
    finally:
        go_on.set()
        jobs.close()


def test_a_job_that_runs_too_long_is_stopped_and_says_so() -> None:
    now_s = [0.0]
    jobs, stopped = Jobs(lambda: now_s[0]), threading.Event()

    def work(job: Job) -> dict[str, Any]:
        job.on_stop = stopped.set
        begun.set()
        stopped.wait(60)
        return {"moved": 3}

    begun = threading.Event()
    try:
        slow = jobs.start("redrive", "jobs", "wrk", work)
        assert begun.wait(60)
        now_s[0] = MOST_S
        slow.count(1)
        assert not slow.stopping
        now_s[0] = MOST_S + 1
        jobs.start("purge", "jobs", "wrk", lambda job: {}).wait(60)  # whoever needs a place looks
        assert slow.wait(60)
        found = slow.document()
        assert (found["state"], found["result"], found["error"]["code"]) == ("stopped", {"moved": 3}, "job_too_long")
        assert f"{MOST_S:.0f} s" in found["error"]["message"]
    finally:
        jobs.close()


def test_a_rate_by_which_a_job_hardly_ends_is_refused_by_name(console: Console, users: dict[str, str]) -> None:
    olga = Someone(console, users["olga"])
    for rate in (1e-9, 0.0999, 0, -1):
        found = olga.post("/queues/jobs/sideline/redrive", {"all": True, "rate": rate}, status=400)["error"]
        assert found["code"] == "bad_request"
        assert found["message"].startswith(f"rate = {rate:g} is less than 0.1 messages a second")
    assert olga.post("/queues/jobs/sideline/redrive", {"all": True, "rate": 0.1})["state"] == "done"


def test_an_admin_sees_and_stops_the_job_of_another(console: Console, users: dict[str, str], memory_app: Ignis) -> None:
    fail(memory_app.queue("jobs", dict), *({"n": one} for one in range(50)))
    olga, adam = Someone(console, users["olga"]), Someone(console, users["adam"])
    number = olga.post("/queues/jobs/sideline/redrive", {"all": True, "rate": 0.1, "wait_s": 0}, status=202)["job"]
    (seen,) = adam.get("/jobs")["jobs"]
    assert (seen["job"], seen["by"], seen["state"]) == (number, "olga", "running")
    assert adam.ask("DELETE", f"/jobs/{number}").status_code == 200
    assert console.services.jobs.get(number).wait(60)
    assert adam.get(f"/jobs/{number}")["state"] == "stopped"


# -- leases


def test_one_user_does_not_take_all_leases() -> None:
    leases = Leases(lambda: None, clock=lambda: 0.0)  # type: ignore[arg-type,return-value]
    leases.check_room(MOST_LEASES, "con")
    held = leases.take("jobs", "con", [(0, one, 1) for one in range(MOST_LEASES - 10)], 60, 60)
    leases.check_room(10, "con")
    with pytest.raises(RefusedError, match=f"leased to user 'con', and 11 more .* {MOST_LEASES}"):
        leases.check_room(11, "con")
    leases.check_room(1_000, "other")
    leases.check_room(1_000, None)
    leases._pop("jobs", "con", [one.receipt for one in held])
    leases.check_room(MOST_LEASES, "con")
    assert leases._of_user == {}
    leases._put_back(held)
    leases._put_back(held)
    assert leases._of_user == {"con": len(held)}
    assert MOST_LEASES * 4 <= MOST_HELD


def test_an_admin_sees_and_ends_the_leases_of_another(
    console: Console, users: dict[str, str], memory_app: Ignis
) -> None:
    queue = memory_app.queue("jobs", dict)
    queue.publish_many([{"n": one} for one in range(3)])
    con, olga, adam = (Someone(console, users[who]) for who in ("con", "olga", "adam"))
    held = con.post("/queues/jobs/pull", {"limit": 2, "lease_s": 43_200})["messages"]
    olga.post("/queues/jobs/pull", {"limit": 1})
    found = adam.get("/leases")
    assert [(one["queue"], one["user"], one["messages"]) for one in found["leases"]] == [
        ("jobs", "con", 2), ("jobs", "olga", 1),
    ]  # fmt: skip
    assert (found["most"], found["most_of_a_user"]) == (MOST_HELD, MOST_LEASES)
    assert Someone(console, users["else"]).get("/leases")["leases"] == []  # another queue's
    assert adam.post("/queues/jobs/leases/end", {"user": "con"})["ended"] == 2
    assert queue.main.pending() == 2
    assert [one.envelope.crashes for one in queue.main.peek()] == [0, 0]
    receipts = [one["receipt"] for one in held]
    assert con.post("/queues/jobs/acknowledge", {"receipts": receipts})["acknowledged"] == 0
    assert [one["user"] for one in adam.get("/leases")["leases"]] == ["olga"]


# -- bodies


def test_bodies_share_a_bounded_room_and_small_ones_need_none() -> None:
    room = BodyRoom(most=1_000_000, most_of_a_user=400_000)
    with room.of("pub", 300_000):
        with pytest.raises(RefusedError, match=r"user 'pub' take 300000 bytes.* 400000"), room.of("pub", 300_000):
            pass
        with room.of("pub", FREE_BYTES), room.of("a", 300_000), room.of("b", 300_000):
            assert len(room) == 900_000
            with pytest.raises(RefusedError, match=r"take 900000 bytes.* 1000000"), room.of("c", 300_000):
                pass
    assert (len(room), room._taken) == (0, {})
    with room.of("pub", 5_000_000):  # alone, whatever one request may have
        pass


def test_what_a_body_is_decoded_to_counts_before_it_is() -> None:
    room, data = BodyRoom(most=1_000_000, most_of_a_user=400_000), b"[" + b",".join([b'{"":0}'] * 1_000) + b"]"
    made = msgspec.json.decode(data)
    size = sys.getsizeof(made) + sum(map(sys.getsizeof, made))
    assert size <= decoded_bytes(data) <= 2 * size + len(data)
    with room.of("pub", len(data)) as share:
        share.take(decoded_bytes(data))
        assert len(room) == decoded_bytes(data)
        with room.of("pub", 0) as more, pytest.raises(RefusedError, match=r"user 'pub' take .* 400000"):
            more.take(decoded_bytes(data))
        with room.of("a", 0) as others:
            others.take(decoded_bytes(data))
            with room.of("b", 0) as third, pytest.raises(RefusedError, match="1000000"):
                third.take(decoded_bytes(data))
    assert (len(room), room._taken) == (0, {})


def test_a_body_takes_room_for_what_it_is_decoded_to(console: Console, users: dict[str, str]) -> None:
    pub, body = Someone(console, users["pub"]), {"messages": [{"body": {"rows": [{"": 0}] * 100_000}}]}
    with console.room.of("pub", FREE_BYTES + 1):
        assert "bodies of user 'pub' take" in str(pub.post("/queues/jobs/publish", body, status=429)["error"])
    assert len(console.room) == 0
    assert len(pub.post("/queues/jobs/publish", body)["ids"]) == 1


def test_unfinished_bodies_of_a_user_are_bounded_and_given_back(console: Console, users: dict[str, str]) -> None:
    head = {"host": "localhost", "authorization": f"Bearer {users['pub']}", "content-type": "application/json"}
    size = 4 << 20

    async def ask(gone: asyncio.Event) -> int:
        status = 0

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        path = "/ignis/v1/queues/jobs/publish"
        headers = [(one.encode(), said.encode()) for one, said in {**head, "content-length": str(size)}.items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("10.9.9.8", 1),
            "server": ("localhost", 9711), "headers": headers,
        }  # fmt: skip
        await console(scope, receive, send)
        return status

    async def body() -> list[int]:
        gone = asyncio.Event()
        asking = [asyncio.create_task(ask(gone)) for _ in range(20)]
        done: set[Any] = set()
        while len(done) < 12:
            done, _ = await asyncio.wait(asking, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert done
            await asyncio.sleep(0.01)
        assert len(console.room) == 8 * size
        gone.set()
        return await asyncio.gather(*asking)

    statuses = asyncio.run(body())
    assert sorted(statuses) == [400] * 8 + [429] * 12
    assert len(console.room) == 0


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_BODY_S", 0.01)

    async def pieces() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    async def body() -> None:
        with pytest.raises(RefusedError, match="did not come within") as found:
            await body_in(
                PUBLISH, {"content-type": "application/json", "content-length": "2"}, pieces(), 100, lambda size: None
            )
        assert (found.value.code, found.value.headers) == ("body_too_slow", {"Connection": "close"})

    asyncio.run(body())
