"""Messages that are read for an answer, and answers until they are read, have the memory that bodies have: 128 MiB, 32 MiB of a
user."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from ignis import Ignis
from ignis.console import Console, asgi, body_room
from ignis.console.body_room import BodyRoom, decoded_msgpack_bytes
from ignis.console.lanes import Lanes
from ignis.console.leases import Leases
from ignis.console.refusals import RefusedError
from ignis.message import Message, failed_record
from ignis.native import CODEC_JSON, CODEC_MSGPACK, CODEC_RAW, encode_record
from ignis.safe_msgpack import decode
from ignis.storage.base import Transfer
from tests.support import WAIT_S, eventually
from tests.support.console import Someone, a_console, write_users

LARGE = 4 << 20
FULL = (32 << 20) - 500_000
"""With so much taken a user has no room for what is large."""
BODY = b'{"x": "' + b"y" * LARGE + b'"}'


@pytest.fixture
def users(tmp_path: Path) -> dict[str, str]:
    return write_users(tmp_path / "users.json")


@pytest.fixture
def console(memory_app: Ignis, tmp_path: Path, users: dict[str, str]) -> Iterator[Console]:
    memory_app.queue("jobs", dict, shards=1).open()
    with a_console(memory_app, users=tmp_path / "users.json", audit=tmp_path / "audit") as made:
        yield made


def put(app: Ignis, *bodies: bytes, codec: int = CODEC_JSON, magazine: str = "jobs") -> list[bytes]:
    """Stores messages as whoever has the store may: of any size. Returns their records."""
    records = [encode_record(body, flags=codec) for body in bodies]
    for one in records:
        app.store.magazines.load_records(magazine, 0, [one])
    return records


def failed(app: Ignis, body: bytes) -> str:
    """Puts a message into the sideline; returns its id."""
    (record,) = put(app, body)
    (claim,) = app.store.magazines.fire("jobs", 1, app.store.owner).claims
    item = Transfer(0, claim.pointers[0], failed_record(record, "exception", "ValueError: no", handler="h"), 0)
    assert app.store.magazines.transfer("jobs", "jobs_SIDELINE", [item]) == 1
    return Message.from_bytes(record).id


def code_of(found: Any) -> tuple[int, str]:
    return found.status_code, found.json()["error"]["code"]


# -- what is read from the store


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/messages", None),
        ("GET", "/messages/0/2", None),
        ("GET", "/sideline", None),
        ("GET", "/sideline?text=y", None),
        ("GET", "/sideline/reasons", None),
        ("GET", "/sideline/0/1", None),
        ("GET", "/delayed", None),
        ("POST", "/sideline/0/1/resend", {"dry_run": True}),
        ("POST", "/pull", {}),
    ],
)
def test_what_is_read_for_an_answer_has_its_share_of_the_room(
    memory_app: Ignis, console: Console, users: dict[str, str], method: str, path: str, body: dict[str, Any] | None
) -> None:
    id = failed(memory_app, BODY[:1_000_000] + b'"}')
    put(memory_app, BODY)
    memory_app.queue("jobs").publish({"x": "y" * 1_000_000}, delay=3_600)
    asked = None if body is None else {**({"id": id} if "resend" in path else {}), **body}
    olga = Someone(console, users["olga"])
    with console.room.of("olga", FULL):
        found = olga.ask(method, f"/queues/jobs{path}", asked)
        assert code_of(found) == (429, "too_many_requests")
        assert found.headers["retry-after"] == "1"
        assert "bodies of user 'olga' take" in found.json()["error"]["message"]
        assert len(console.room) == FULL
    assert (memory_app.queue("jobs").main.in_flight(), len(console.services.leases)) == (0, 0)
    assert olga.ask(method, f"/queues/jobs{path}", asked).status_code == 200
    assert len(console.room) == 0
    with console.room.of("rita", FULL):  # another user has a share of their own
        assert olga.ask(method, f"/queues/jobs{path}", asked).status_code == 200


def test_a_page_is_read_a_little_at_a_time(app: Ignis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app.queue("jobs", dict, shards=2).open()
    size, most = 300 << 10, 0
    put(app, *[b'"' + b"y" * size + b'"'] * 12)
    with a_console(app) as console:
        take = BodyRoom._take

        def taken(room: BodyRoom, who: Any, more: int, own: int) -> None:
            nonlocal most
            take(room, who, more, own)
            most = max(most, len(room))

        monkeypatch.setattr(BodyRoom, "_take", taken)
        found = Someone(console).get("/queues/jobs/messages?limit=200")
        assert [one["pointer"] for one in found["messages"]] == list(range(1, 13))
        assert found["next"] is None
        assert size < most < 8 * size
        assert len(console.room) == 0


def test_a_large_body_is_shown_and_not_decoded(
    memory_app: Ignis, console: Console, users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = b"[" + b",".join([b"{}"] * 500_000) + b"]"
    put(memory_app, many)
    put(memory_app, b"\xc3\xa9" * 600_000 + b"\xff", codec=CODEC_RAW)
    put(memory_app, b"\xff" * 1_200_000, codec=CODEC_RAW)
    put(memory_app, b"\xc4\x02\x00\x00" * 300_000, codec=CODEC_MSGPACK)

    def decoded(message: Message) -> Any:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(Message, "shown_body", decoded)
    rita = Someone(console, users["rita"])
    found = rita.get("/queues/jobs/messages")["messages"]
    assert [(one["body_kind"], one["body_cut"], len(one["body_text"])) for one in found] == [
        ("json", True, 1_024), ("text", True, 1_024), ("hex", True, 1_024), ("hex", True, 1_024),
    ]  # fmt: skip
    assert (found[0]["body_text"][:7], found[2]["body_text"][:4]) == ("[{},{},", "ffff")
    one = rita.get("/queues/jobs/messages/0/1")
    assert (one["body_kind"], one["body_cut"], one["body_text"]) == ("json", True, many[: 1 << 20].decode())


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"[" + b", ".join([b'{"n": 1.10}'] * 20_000) + b"]", "body"),
        (b'"' + b"x" * 70_000 + b'\xff"', "body_hex"),
        (b"[" + b"1," * 70_000 + b"]", "body_hex"),
    ],
)
def test_a_large_json_body_is_pulled_as_it_is_stored(
    memory_app: Ignis, console: Console, users: dict[str, str], body: bytes, name: str
) -> None:
    put(memory_app, body)
    con = Someone(console, users["con"])
    answer = con.ask("POST", "/queues/jobs/pull", {})
    (one,) = answer.json()["messages"]
    assert {"body", "body_hex"} & set(one) == {name}
    assert (body if name == "body" else body.hex().encode()) in answer.content


def test_what_msgpack_is_decoded_to_is_reckoned_not_too_small() -> None:
    for body in (b"\xdd\x00\x00\xff\xff" + b"\x90" * 65_535, b"\xdd\x00\x00\xff\xff" + b"\x80" * 65_535):
        assert decoded_msgpack_bytes(body) >= 64 * len(decode(body))


def test_what_is_given_up_is_read_in_pieces_of_bounded_bytes(
    memory_app: Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = memory_app.queue("jobs", dict, shards=1)
    queue.open()
    put(memory_app, *[BODY] * 6)
    magazines, now_s, read = memory_app.store.magazines, [0.0], list[int]()
    peek = type(magazines).peek

    def counted(self: Any, magazine: str, pointers: Any) -> Any:
        found = peek(self, magazine, pointers)
        read.append(sum(len(one) for many in found.values() for one in many.values()))
        return found

    monkeypatch.setattr(type(magazines), "peek", counted)
    leases = Leases(lambda: memory_app.store, clock=lambda: now_s[0])
    for error in ("no", None):
        places = [
            (claim.shard, pointer, len(data or b""))
            for claim in magazines.fire("jobs", 3, memory_app.store.owner).claims
            for pointer, data in zip(claim.pointers, claim.records, strict=True)
        ]
        held = leases.take("jobs", "con", places, 10, 1_200)
        if error is None:
            now_s[0] = 11.0
            leases.look()
        else:
            assert leases.release("jobs", "con", [one.receipt for one in held], error) == 3
    assert (queue.sideline.pending(), len(leases)) == (3, 0)
    assert len(read) == 6
    assert max(read) < 2 * LARGE


def test_what_is_refused_keeps_nothing_of_what_was_read(
    memory_app: Ignis, console: Console, users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(memory_app, BODY)
    seen: list[BaseException] = []
    real = asgi._refusal
    monkeypatch.setattr(asgi, "_refusal", lambda exc: seen.append(exc) or real(exc))
    with console.room.of("olga", FULL):
        for path in ("/messages", "/messages/0/1"):
            assert Someone(console, users["olga"]).ask("GET", f"/queues/jobs{path}").status_code == 429
    assert len(seen) == 2
    for exc in seen:
        frames, at = list[str](), exc.__traceback__
        while at is not None:
            frames.append(at.tb_frame.f_code.co_filename)
            at = at.tb_next
        assert exc.__context__ is None
        assert not [one for one in frames if one.endswith("browsing.py")]


# -- who reads


def test_threads_of_a_user_read_one_after_the_other() -> None:
    room, inside, go_on = BodyRoom(), list[str](), threading.Event()

    def read(who: str) -> None:
        with room.of(who, 0).reading():
            inside.append(who)
            go_on.wait(WAIT_S)

    threads = [threading.Thread(target=read, args=(who,)) for who in ("a", "a", "b", "c", "d")]
    for one in threads:
        one.start()
    eventually(lambda: len(inside) == 3, "three read")
    assert len(set(inside)) == 3
    go_on.set()
    for one in threads:
        one.join(WAIT_S)
    assert (len(inside), room._reading.total()) == (5, 0)


def test_a_request_has_what_it_took_in_small_parts_too() -> None:
    room = BodyRoom(most=1_000_000, most_of_a_user=400_000)
    with room.of("a", 0) as share:
        for _ in range(20):
            share.take(10_000)
        assert 100_000 < len(room) <= 200_000
        share.settle(300_000)
        assert len(room) == 300_000
        with room.of("a", 0) as other, pytest.raises(RefusedError), other.held(200_000):
            pass
        share.settle(0)
        assert len(room) == 0


def test_requests_that_read_leave_threads_to_others_and_users_take_turns() -> None:
    async def body() -> None:
        lanes, begun, go_on = Lanes(3, 2), list[str](), asyncio.Event()

        async def ask(who: str) -> None:
            async with lanes.of(who):
                begun.append(who)
                await go_on.wait()

        asking = [asyncio.create_task(ask(who)) for who in ("a", "a", "a", "a", "b", "b", "c")]
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == ["a", "a", "b"]
        asking[4].cancel()  # who leaves makes room
        asking[3].cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == ["a", "a", "b", "b"]
        go_on.set()
        await asyncio.gather(*asking, return_exceptions=True)
        assert sorted(begun) == ["a", "a", "a", "b", "b", "c"]
        assert len(lanes) == 0

    asyncio.run(asyncio.wait_for(body(), WAIT_S))


def test_a_console_lets_a_few_readers_through(memory_app: Ignis, console: Console, users: dict[str, str]) -> None:
    assert sum(row.reads for rows in [asgi.ROUTES] for row in rows) >= 13
    assert asgi._READERS < asgi._THREADS
    with console.room.of(
        "olga", 0
    ).reading():  # she reads already: her next request waits, and takes no place of others
        found: list[Any] = []
        thread = threading.Thread(
            target=lambda: found.append(Someone(console, users["olga"]).get("/queues/jobs/messages"))
        )
        thread.start()
        eventually(lambda: len(console.lanes) == 1, "it waits")
        assert Someone(console, users["rita"]).get("/queues/jobs/messages")["messages"] == []
        assert Someone(console).get("/health")["status"] == "ok"
        assert found == []
    thread.join(WAIT_S)
    assert [one["messages"] for one in found] == [[]]
    assert len(console.lanes) == 0


# -- answers until they are read


async def _pull(console: Console, token: str, send: Callable[[Any], Any]) -> None:
    path = "/ignis/v1/queues/jobs/pull"
    headers = {
        "host": "localhost", "authorization": f"Bearer {token}", "content-type": "application/json", "content-length": "2",
    }  # fmt: skip
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("10.9.9.8", 1),
        "server": ("localhost", 9711), "headers": [(one.encode(), said.encode()) for one, said in headers.items()],
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    await console(scope, receive, send)


def test_an_answer_has_its_room_until_it_is_read(memory_app: Ignis, console: Console, users: dict[str, str]) -> None:
    put(memory_app, *[BODY] * 20)

    async def body() -> None:
        sent, statuses, begun, go_on = list[Any](), list[int](), asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body":
                await go_on.wait()
                return
            statuses.append(message["status"])
            if len(statuses) == 12:
                begun.set()

        asking = [asyncio.create_task(_pull(console, users["con"], send)) for _ in range(12)]
        await begun.wait()
        assert set(statuses) == {200, 429}
        assert statuses.count(200) <= 8
        assert statuses.count(200) * LARGE < len(console.room) <= 32 << 20
        assert len(console.services.leases) == statuses.count(200)
        go_on.set()
        await asyncio.gather(*asking)
        assert max(len(one.get("body", b"")) for one in sent) <= 64 << 10

    asyncio.run(asyncio.wait_for(body(), WAIT_S))
    assert len(console.room) == 0


def test_an_answer_that_nobody_reads_is_given_up(
    memory_app: Ignis, console: Console, users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "_READ_S", 0.01)
    monkeypatch.setattr(asgi, "_LEAST_BYTES_PER_S", 1 << 40)
    put(memory_app, BODY)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    asyncio.run(asyncio.wait_for(_pull(console, users["con"], send), WAIT_S))
    assert len(console.room) == 0
    assert all(one.get("more_body") for one in sent[1:])  # it never looks whole


def test_who_waits_to_read_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_room, "_READ_WAIT_S", 0.01)
    room = BodyRoom()
    first, second = room.of("a", 0), room.of("a", 0)
    with first.reading(), pytest.raises(RefusedError, match=r"for 0\.01 s"), second.reading():
        pass
    with second.reading():
        pass
