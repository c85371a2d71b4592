"""What one user, or somebody who has not said who they are, can take of the console: places, answers, bytes, lines of a log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from ignis import Ignis
from ignis.broker.auth.users_file import editing
from ignis.console import Console, documents, requests
from ignis.console.audit import AuditLog
from ignis.console.documents import FILES, Strangers
from ignis.console.refusals import RefusedError
from ignis.console.waiting import FOR_OPERATORS, Places
from tests.support import WAIT_S, eventually
from tests.support.console import PASSWORD, Someone, a_console, write_users

PULL = "/queues/jobs/pull"


@pytest.fixture
def users(tmp_path: Path) -> dict[str, str]:
    return write_users(tmp_path / "users.json")


@pytest.fixture
def console(memory_app: Ignis, users: dict[str, str], tmp_path: Path) -> Iterator[Console]:
    memory_app.queue("jobs", dict, shards=1).open()
    options = {"max_waiting": 4, "max_waiting_per_user": 3}
    with a_console(memory_app, users=tmp_path / "users.json", audit=tmp_path / "audit", **options) as made:
        yield made


def code_of(found: Any) -> tuple[int, str]:
    return found.status_code, found.json()["error"]["code"]


class Waiting:
    """Pulls that wait, each in a thread."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.found: dict[str, list[Any]] = {}
        self.threads: list[threading.Thread] = []

    def begin(self, name: str, someone: Someone, count: int = 1) -> None:
        mine = self.found.setdefault(name, [])
        before = len(self.console.places)
        for _ in range(count):
            thread = threading.Thread(target=lambda: mine.append(someone.ask("POST", PULL, {"wait_s": 30})))
            self.threads.append(thread)
            thread.start()
        eventually(lambda: len(self.console.places) >= min(4, before + count), "they wait")

    def end(self) -> None:
        self.console.services.closing.set()
        for one in self.threads:
            one.join(60)


@contextlib.contextmanager
def waiting(console: Console) -> Iterator[Waiting]:
    made = Waiting(console)
    try:
        yield made
    finally:
        made.end()


# -- places


def test_one_users_pulls_shut_nobody_out(memory_app: Ignis, console: Console, users: dict[str, str]) -> None:
    greedy, other = Someone(console, users["con"]), Someone(console, users["olga"])
    with waiting(console) as pulls:
        pulls.begin("con", greedy, 3)
        refused = greedy.ask("POST", PULL, {"wait_s": 30})
        assert code_of(refused) == (429, "too_many_requests")
        assert refused.headers["retry-after"] == "1"
        assert "3 pulls of user 'con'" in refused.json()["error"]["message"]
        assert "--max-waiting-per-user" in refused.json()["error"]["message"]
        pulls.begin("olga", other)  # the last place
        pulls.begin("olga", other)  # one of the other user's: he has more
        eventually(lambda: len(pulls.found["con"]) == 1, "the one that waited longest is answered")
        assert (pulls.found["con"][0].status_code, pulls.found["con"][0].json()["messages"]) == (200, [])
        full = other.ask("POST", PULL, {"wait_s": 30})  # two of four each: nobody has too many
        assert code_of(full) == (429, "too_many_requests")
        assert "--max-waiting)" in full.json()["error"]["message"]


def test_who_does_not_wait_needs_no_place(memory_app: Ignis, console: Console, users: dict[str, str]) -> None:
    greedy = Someone(console, users["con"])
    with waiting(console) as pulls:
        pulls.begin("con", greedy, 3)
        memory_app.queue("jobs").pause()
        memory_app.queue("jobs").publish({"n": 1})
        assert greedy.post(PULL, {"wait_s": 0})["messages"] == []
        assert len(console.places) == 3


def test_places_even_out_between_users() -> None:
    places, enough = Places(6, 6), [threading.Event() for _ in range(20)]
    with contextlib.ExitStack() as stack:
        for number in range(6):
            stack.enter_context(places.of_program("a", enough[number]))
        for number in range(6, 9):
            stack.enter_context(places.of_program("b", enough[number]))
        assert [one.is_set() for one in enough[:9]] == [True] * 3 + [False] * 6
        with pytest.raises(RefusedError):
            stack.enter_context(places.of_program("b", enough[9]))
        stack.enter_context(places.of_program("c", enough[10]))
        assert sum(one.is_set() for one in enough) == 4
        assert len(places) == 6
    assert len(places) == 0


def test_operators_have_places_of_their_own() -> None:
    places = Places(1, 1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(places.of_program("a", threading.Event()))
        for _ in range(FOR_OPERATORS // 2):
            stack.enter_context(places.of_operator("a"))
        with pytest.raises(RefusedError, match="wait_s = 0"):
            stack.enter_context(places.of_operator("a"))
        stack.enter_context(places.of_operator("b"))


# -- users that were removed


@pytest.mark.parametrize("how", ["token", "session"])
def test_a_removed_users_open_pull_gets_nothing(
    memory_app: Ignis, console: Console, users: dict[str, str], tmp_path: Path, how: str
) -> None:
    jobs = memory_app.queue("jobs")
    someone = Someone(console, users["olga"] if how == "token" else "")
    headers = {} if how == "token" else someone.log_in("olga")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(someone.ask("POST", PULL, {"wait_s": 30}, **headers)))
    thread.start()
    try:
        eventually(lambda: len(console.places) == 1, "it waits")
        with editing(tmp_path / "users.json") as kept:
            removed = kept.find("olga")
            assert removed is not None
            kept.users.remove(removed)
        eventually(lambda: not someone_known(console), "the console has read the file again")
        jobs.publish({"n": 1})
    finally:
        thread.join(60)
    assert code_of(found[0]) == (401, "unauthenticated")
    assert (jobs.main.pending(), jobs.main.in_flight(), len(console.services.leases)) == (1, 0, 0)


def someone_known(console: Console) -> bool:
    users = console.services.access._users
    assert users is not None
    return users.find("olga") is not None


def test_a_user_who_may_no_longer_gets_nothing(
    memory_app: Ignis, console: Console, users: dict[str, str], tmp_path: Path
) -> None:
    someone = Someone(console, users["con"])
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(someone.ask("POST", PULL, {"wait_s": 30})))
    thread.start()
    eventually(lambda: len(console.places) == 1, "it waits")
    with editing(tmp_path / "users.json") as kept:
        changed = kept.find("con")
        assert changed is not None
        changed.allow[:] = ["publish:jobs"]
    thread.join(60)
    assert code_of(found[0]) == (403, "permission_denied")


# -- documents


def test_the_description_is_made_once_and_has_a_tag(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = documents.document
    documents.api_document.cache_clear()
    monkeypatch.setattr(documents, "document", lambda rows, root: made.append(root) or real(rows, root))
    someone = Someone(console)
    found = [someone.http.get("/ignis/v1/openapi.json") for _ in range(5)]
    assert made == ["/"]
    assert {one.content for one in found} == {found[0].content}
    tag = found[0].headers["etag"]
    again = someone.http.get("/ignis/v1/openapi.json", headers={"if-none-match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)


def test_a_page_that_has_not_changed_is_not_sent_again(console: Console) -> None:
    someone = Someone(console)
    for path, (_, kind) in FILES.items():
        found = someone.http.get(path)
        assert (found.status_code, found.headers["content-type"]) == (200, kind)
        again = someone.http.get(path, headers={"if-none-match": found.headers["etag"]})
        assert (again.status_code, again.headers["x-frame-options"]) == (304, "DENY")


def test_a_strangers_connection_ends_after_a_hundred_answers(console: Console, users: dict[str, str]) -> None:
    stranger, known = Someone(console), Someone(console, users["rita"])
    for someone in (stranger, known):
        where = someone.http._transport.client  # type: ignore[attr-defined]
        assert not any(console._strangers.answered(where, False) for _ in range(99))
    assert stranger.http.get("/ignis/v1/openapi.json").headers["connection"] == "close"
    assert "connection" not in known.http.get("/ignis/v1/session").headers


def test_connections_that_are_counted_are_bounded() -> None:
    strangers = Strangers()
    for number in range(10_000):
        assert not strangers.answered(("10.0.0.1", number), False)
    assert len(strangers._answers) == 4_096
    assert not strangers.answered(None, False)


# -- bodies


async def _ask(console: Console, headers: dict[str, str], receive: Callable[[], Any]) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/ignis/v1/queues/jobs/publish"
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("10.9.9.8", 1),
        "server": ("localhost", 9711),
        "headers": [(one.encode(), said.encode()) for one, said in {"host": "localhost", **headers}.items()],
    }  # fmt: skip
    await console(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"content-length": str(1 << 40), "content-type": "application/json"}, 413),
        ({"content-length": "9" * 4_000, "content-type": "application/json"}, 413),
    ],
)
def test_what_says_that_it_is_too_large_is_not_read(
    console: Console, users: dict[str, str], said: dict[str, str], status: int
) -> None:
    read: list[None] = []

    async def receive() -> Any:
        read.append(None)
        return {"type": "http.request", "body": b"x" * 65_536, "more_body": True}

    headers = {"authorization": f"Bearer {users['pub']}", **said}
    sent = asyncio.run(_ask(console, headers, receive))
    assert (sent[0]["status"], read) == (status, [])
    assert (b"connection", b"close") in [(one.lower(), value) for one, value in sent[0]["headers"]]


def test_what_grows_too_large_is_not_read_to_its_end(console: Console, users: dict[str, str]) -> None:
    read: list[None] = []

    async def receive() -> Any:
        read.append(None)
        return {"type": "http.request", "body": b" " * (1 << 20), "more_body": True}

    headers = {"authorization": f"Bearer {users['pub']}", "content-type": "application/json"}
    sent = asyncio.run(_ask(console, headers, receive))
    assert (sent[0]["status"], len(read)) == (413, 16)


def test_a_body_that_is_too_large_is_read_on_to_its_end(console: Console, users: dict[str, str]) -> None:
    left = [b" " * (1 << 20)] * 10

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(), "more_body": bool(left)}

    headers = {
        "authorization": f"Bearer {users['pub']}", "content-type": "application/json", "content-length": str(10 << 20),
    }  # fmt: skip
    sent = asyncio.run(_ask(console, headers, receive))
    assert (sent[0]["status"], left) == (413, [])


def test_who_does_not_go_on_sending_is_answered(
    console: Console, users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_READ_ON_S", 0.01)

    async def receive() -> Any:
        await asyncio.Event().wait()

    headers = {"authorization": f"Bearer {users['pub']}", "content-length": str(10 << 20)}
    sent = asyncio.run(asyncio.wait_for(_ask(console, headers, receive), WAIT_S))
    assert sent[0]["status"] == 413


def test_too_many_wrong_tokens_are_told_when_to_try_again(console: Console) -> None:
    guesser = Someone(console, "ign_no_no")
    found = [guesser.ask("GET", "/queues/jobs") for _ in range(12)]
    assert [one.status_code for one in found] == [401] * 11 + [429]
    assert found[-1].headers["retry-after"] == "1"
    text = found[-1].json()["error"]["message"]
    assert text == "11 failed logins, the limit is 10 (try again in 1 s)"


# -- the audit log


def test_no_character_of_a_request_begins_a_line_of_the_audit_log(console: Console, tmp_path: Path) -> None:
    adam = Someone(console)
    right = adam.log_in("adam")
    nasty = "jobs\u2028\u2029\u0085\x1b[2J\x9b\u202e\x7f\ue000\U000e0001é"
    adam.ask("POST", "/queues/jobs/purge", {"confirm": nasty}, **right)
    adam.ask("POST", "/queues/a%0Ab%E2%80%A8%0D%00/pause", {}, **right)
    text = (tmp_path / "audit").read_bytes().decode()
    assert text.replace("\n", "").isprintable()
    lines = [json.loads(one) for one in text.splitlines()]
    assert len(lines) == 3
    assert lines[1]["asked"]["confirm"] == nasty
    assert lines[2]["path"] == "/ignis/v1/queues/a%0Ab%E2%80%A8%0D%00/pause"


def test_refused_logins_fill_no_audit_log(console: Console, tmp_path: Path) -> None:
    guesser = Someone(console)
    for _ in range(30):
        found = guesser.ask("POST", "/session", {"user": "adam", "password": "x", "token": "ign_no_no"})
        assert found.status_code in (401, 429)
    Someone(console).log_in("adam")
    lines = [json.loads(one) for one in (tmp_path / "audit").read_text().splitlines()]
    assert [one["status"] for one in lines if one["user"] != "adam"] == [401] * 5
    assert lines[-1]["user"] == "adam"
    console.close()
    lines = [json.loads(one) for one in (tmp_path / "audit").read_text().splitlines()]
    assert (lines[-1]["refused_logins"], lines[-1]["says"]) == (25, "25 more logins were refused")
    assert lines[-1]["from"] == lines[0]["from"]
    assert PASSWORD not in (tmp_path / "audit").read_text()


def test_refused_logins_of_many_addresses_are_bounded_and_counted(tmp_path: Path) -> None:
    now_s = [0.0]
    log = AuditLog(tmp_path / "audit", lambda: now_s[0])
    try:
        for number in range(5_000):
            log.write_refused_login({"from": f"10.0.{number >> 8}.{number & 255}", "status": 401})
        lines = (tmp_path / "audit").read_text().splitlines()
        assert len(lines) == 50
        now_s[0] = 60.0
        log.write({"user": "adam"})
        lines = (tmp_path / "audit").read_text().splitlines()
        more = [json.loads(one).get("refused_logins", 0) for one in lines]
        assert sum(more) == 4_950
        assert len(lines) == 50 + 101 + 1
        log.write_refused_login({"from": "10.0.0.1", "status": 401})
        assert json.loads((tmp_path / "audit").read_text().splitlines()[-1])["status"] == 401
    finally:
        log.close()


def test_the_count_comes_without_another_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ignis.console.refused_logins.WINDOW_S", 0.05)
    log = AuditLog(tmp_path / "audit")
    try:
        eventually(lambda: _more_after_a_refusal(log, tmp_path / "audit"), "a line says how many there were")
    finally:
        log.close()


def _more_after_a_refusal(log: AuditLog, path: Path) -> bool:
    if "refused_logins" in path.read_text():
        return True
    if len(path.read_text().splitlines()) < 50:
        for _ in range(10):
            log.write_refused_login({"from": "10.0.0.1", "status": 401})
    return False
