"""Logins, sessions, headers, bounds, the audit log, and where the console listens."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from click.testing import CliRunner

from ignis import Ignis
from ignis.broker.auth.users_file import editing
from ignis.cli import cli
from ignis.cli.state import State
from ignis.console import Console, application, documents
from ignis.console.access import cookie_in
from ignis.console.documents import FILES
from ignis.console.refusals import STATUS
from ignis.console.sessions import MOST, MOST_OF_A_USER, Sessions
from ignis.errors import ConfigError
from tests.support.console import ORIGIN, PASSWORD, Someone, a_console, write_users


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.json"
    write_users(path)
    return path


@pytest.fixture
def console(memory_app: Ignis, users: Path) -> Iterator[Console]:
    memory_app.queue("jobs", dict, shards=1).open()
    with a_console(memory_app, users=users, audit=users.with_name("audit")) as made:
        yield made


def code_of(found: Any) -> tuple[int, str]:
    return found.status_code, found.json()["error"]["code"]


# -- logging in and out


def test_a_session_begins_and_ends(console: Console) -> None:
    rita = Someone(console)
    assert rita.get("/session")["user"] is None
    rita.log_in("rita")
    cookie = rita.http.cookies.jar
    (one,) = list(cookie)
    assert (one.name, one.has_nonstandard_attr("HttpOnly"), one.get_nonstandard_attr("SameSite")) == (
        "ignis_console_9711", True, "strict",
    )  # fmt: skip
    who = rita.get("/session")
    assert (who["user"], who["via"], who["roles"]) == ("rita", "session", ["read"])
    before = one.value
    assert "csrf" not in who
    found = rita.ask("DELETE", "/session", origin=ORIGIN)
    assert found.status_code == 200
    assert rita.get("/session")["user"] is None
    again = rita.ask("GET", "/overview", cookie=f"ignis_console_9711={before}")
    assert code_of(again) == (401, "unauthenticated")


def test_a_login_ends_the_session_before_it(console: Console) -> None:
    rita = Someone(console)
    rita.log_in("rita")
    (before,) = [one.value for one in rita.http.cookies.jar]
    rita.log_in("olga")
    assert rita.get("/session")["user"] == "olga"
    assert code_of(Someone(console).ask("GET", "/overview", cookie=f"ignis_console_9711={before}")) == (
        401,
        "unauthenticated",
    )


def test_a_login_that_is_large_is_not_read(console: Console) -> None:
    found = Someone(console).ask("POST", "/session", {"user": "rita", "password": "x" * 20_000})
    assert code_of(found) == (413, "body_too_large")


def test_the_cookie_is_for_tls_alone_where_there_is_tls(memory_app: Ignis, users: Path) -> None:
    with a_console(memory_app, users=users) as console:
        by_tls = Someone(console, origin="https://localhost:9711")
        found = by_tls.ask("POST", "/session", {"user": "rita", "password": PASSWORD})
        assert found.headers["set-cookie"].startswith("__Host-ignis_console_9711=")
        assert {"Secure", "Path=/", "HttpOnly"} <= set(found.headers["set-cookie"].split("; "))
        assert found.headers["strict-transport-security"]
    with a_console(memory_app, users=users, secure=True) as console:
        found = Someone(console).ask("POST", "/session", {"user": "rita", "password": PASSWORD})
        assert "Secure" in found.headers["set-cookie"]


def test_a_login_from_another_page_is_refused(console: Console) -> None:
    given = {"user": "rita", "password": PASSWORD}
    assert code_of(Someone(console).ask("POST", "/session", given, origin="http://evil.example")) == (403, "origin")
    found = Someone(console).http.post(
        "/ignis/v1/session", content=json.dumps(given), headers={"content-type": "text/plain"}
    )
    assert code_of(found) == (415, "unsupported_media_type")


def test_an_origin_of_ones_own_may_be_added(memory_app: Ignis, users: Path) -> None:
    with a_console(memory_app, users=users, origins=["https://queues.example/"]) as console:
        proxied = Someone(console)
        right = proxied.log_in("adam", origin="https://queues.example", host="queues.example")
        right["origin"] = "https://queues.example"
        memory_app.queue("jobs", dict).open()
        assert proxied.ask("POST", "/queues/jobs/pause", {}, **right, host="queues.example").status_code == 200
    for wrong in ("queues.example", "ftp://queues.example", "https://queues.example/path"):
        with pytest.raises(ConfigError, match="origin"):
            application(memory_app, origins=[wrong])


def test_wrong_passwords_cost_time_and_say_nothing(console: Console) -> None:
    guesser = Someone(console)
    known = console.services.access._users
    assert known is not None
    known._guesses._clock = lambda: 0.0  # no time passes, however slow the machine is
    texts = set()
    for user in ("rita", "nobody") * 5:
        found = guesser.ask("POST", "/session", {"user": user, "password": "guess"})
        assert code_of(found) == (401, "unauthenticated")
        texts.add(found.text)
    assert len(texts) == 1
    codes = [code_of(guesser.ask("POST", "/session", {"user": "rita", "password": "guess"}))[0] for _ in range(7)]
    assert codes[-1] == 429
    right = guesser.ask("POST", "/session", {"user": "rita", "password": PASSWORD})
    assert code_of(right) == (429, "too_many_requests")
    Someone(console).log_in("rita")  # from elsewhere


def test_a_session_ends_by_time() -> None:
    now_s = [0.0]
    sessions = Sessions(idle_s=10, most_s=25, clock=lambda: now_s[0])
    cookie, made = sessions.begin("rita", "x")
    assert made.csrf not in repr(made)
    for _ in range(2):
        now_s[0] += 9
        assert sessions.find(cookie, made.csrf) is made
    now_s[0] += 8
    assert sessions.find(cookie, made.csrf) is None  # 26 s after the login
    cookie, made = sessions.begin("rita", "x")
    now_s[0] += 11
    assert sessions.find(cookie, made.csrf) is None
    assert len(sessions) == 0


def test_a_cookie_alone_is_nobodys_and_uses_no_session(console: Console) -> None:
    rita = Someone(console)
    token = rita.log_in("rita")["x_csrf_token"]
    (cookie,) = [one.value for one in rita.http.cookies.jar]
    sessions = console.services.access.sessions
    now_s = [100.0]
    sessions._clock = lambda: now_s[0]
    (session,) = sessions._known.values()
    session.seen_s = session.began_s = 0.0
    thief, stolen = Someone(console), f"ignis_console_9711={cookie}"
    who = thief.ask("GET", "/session", cookie=stolen).json()
    assert (who["user"], who["via"], who["roles"]) == (None, "nobody", [])
    assert token not in str(who)
    for shown in ("", "x", token[:-1]):
        found = thief.ask("GET", "/overview", cookie=stolen, x_csrf_token=shown)
        assert code_of(found) == (401, "unauthenticated")
        assert token not in found.text
    found = thief.ask("DELETE", "/session", cookie=stolen, origin=ORIGIN)
    assert code_of(found) == (401, "unauthenticated")
    given = {"user": "olga", "password": PASSWORD}
    assert thief.ask("POST", "/session", given, cookie=stolen).status_code == 200  # which ends hers not
    assert session.seen_s == 0.0
    assert rita.get("/session")["user"] == "rita"
    assert session.seen_s == 100.0


def test_two_consoles_of_one_host_have_cookies_of_their_own(console: Console) -> None:
    rita = Someone(console)
    for host in ("localhost:9711", "localhost:9712", "localhost"):
        rita.log_in("rita", host=host, origin=f"http://{host}")
    assert sorted(one.name for one in rita.http.cookies.jar) == [
        "ignis_console_80", "ignis_console_9711", "ignis_console_9712",
    ]  # fmt: skip


def test_a_cookie_is_found_among_others() -> None:
    given = {"cookie": "xignis_console_1=no; ignis_console_11=no;ignis_console_1=yes; ignis_console_1=late"}
    assert cookie_in(given, "ignis_console_1") == "yes"
    assert cookie_in({"cookie": "a=ignis_console_1=no"}, "ignis_console_1") == ""
    assert cookie_in({}, "ignis_console_1") == ""


def test_sessions_are_bounded() -> None:
    sessions = Sessions(idle_s=10, most_s=25, clock=lambda: 0.0)
    mine = [sessions.begin("rita", "x") for _ in range(MOST_OF_A_USER + 1)]
    assert (sessions.find(mine[0][0], mine[0][1].csrf), len(sessions)) == (None, MOST_OF_A_USER)
    for number in range(MOST + 5):
        sessions.begin(f"user{number}", "x")
    assert len(sessions) == MOST


@pytest.mark.parametrize("change", ["removed", "password", "rules"])
def test_a_session_follows_the_users_file(memory_app: Ignis, users: Path, change: str) -> None:
    memory_app.queue("jobs", dict).open()
    with a_console(memory_app, users=users) as console:
        adam = Someone(console)
        adam.log_in("adam")
        assert adam.ask("GET", "/queues/jobs").status_code == 200
        with editing(users) as found:
            one = found.find("adam")
            assert one is not None
            if change == "removed":
                found.users.remove(one)
            elif change == "password":
                other = found.find("rita")
                assert other is not None
                one.password = one.password[:-4] + "AAAA"
            else:
                one.allow = ["look:other"]
        known = console.services.access._users
        assert known is not None
        known._next_look = 0.0  # it looks once a second
        expected = (403, "permission_denied") if change == "rules" else (401, "unauthenticated")
        assert code_of(adam.ask("GET", "/queues/jobs")) == expected


def test_without_users_everybody_reads_and_changes_need_a_session_and_the_flag(memory_app: Ignis) -> None:
    memory_app.queue("jobs", dict).open()
    with a_console(memory_app) as console:
        anyone = Someone(console)
        assert anyone.get("/session")["roles"] == ["read"]
        assert anyone.get("/queues/jobs")["queue"] == "jobs"
        right = {"x_csrf_token": anyone.post("/session")["csrf"], "origin": ORIGIN}
        assert code_of(anyone.ask("POST", "/queues/jobs/pause", {}, **right)) == (403, "permission_denied")
        assert code_of(anyone.ask("POST", "/session", {"user": "a", "password": "b"})) == (401, "unauthenticated")
        assert code_of(anyone.ask("GET", "/overview", authorization="Bearer ign_1")) == (401, "unauthenticated")
    with a_console(memory_app, anyone="operate") as console:
        anyone = Someone(console)
        assert code_of(anyone.ask("POST", "/queues/jobs/pause", {}, origin=ORIGIN)) == (401, "unauthenticated")
        right = {"x_csrf_token": anyone.post("/session")["csrf"], "origin": ORIGIN}
        assert anyone.ask("POST", "/queues/jobs/pause", {}, **right).status_code == 200
        assert code_of(anyone.ask("POST", "/queues/jobs/purge", {"confirm": "jobs"}, **right)) == (
            403,
            "permission_denied",
        )


# -- headers, bounds


def test_every_answer_has_the_headers_that_keep_a_browser_safe(console: Console) -> None:
    for path in ("/", "/assets/app.js", "/assets/app.css", "/ignis/v1/health", "/ignis/v1/overview", "/nothing"):
        headers = Someone(console).http.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "access-control-allow-origin" not in headers
    assert Someone(console).http.get("/ignis/v1/health").headers["cache-control"] == "no-store"


def test_the_pages_have_no_script_of_their_own(console: Console) -> None:
    page = Someone(console).http.get("/").text
    assert '<script type="module" src="assets/app.js"></script>' in page
    assert page.count("<script") == 1
    for word in (" style=", " onclick=", "javascript:"):
        assert word not in page
    for name in [path for path in FILES if path.endswith(".js")]:
        text = Someone(console).http.get(name).text
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert word not in text, (name, word)


def test_every_file_of_the_pages_is_served_and_every_script_that_one_needs(console: Console) -> None:
    web = Path(documents.__file__).parent / "web"
    assert {path.name for path in web.iterdir()} == {name for name, _ in FILES.values()}
    for path, (name, _) in FILES.items():
        found = Someone(console).http.get(path)
        assert found.content == (web / name).read_bytes()
        for needed in re.findall(r'from "\./(.+?)"', found.text):
            assert f"/assets/{needed}" in FILES, (name, needed)


def test_bodies_and_pages_are_bounded(memory_app: Ignis) -> None:
    memory_app.queue("jobs", dict).open()
    with a_console(memory_app, anyone="admin", max_body_bytes=1_000) as console:
        admin = Someone(console)
        right = {"x_csrf_token": admin.post("/session")["csrf"], "origin": ORIGIN}
        large = {"messages": [{"body": "x" * 2_000}]}
        assert code_of(admin.ask("POST", "/queues/jobs/publish", large, **right)) == (413, "body_too_large")
        for query in ("limit=0", "limit=201", "limit=x", "limit=1&limit=2", "what=1", "after=1", "after=1.x"):
            assert code_of(admin.ask("GET", f"/queues/jobs/sideline?{query}")) == (400, "bad_request"), query
        for body in (
            "{",
            "[]",
            '"x"',
            '{"limit": 0}',
            '{"limit": 1001}',
            '{"lease_s": 0}',
            '{"wait_s": 31}',
            '{"x": 1}',
        ):
            found = admin.http.post(
                "/ignis/v1/queues/jobs/pull",
                content=body,
                headers={"content-type": "application/json", "origin": ORIGIN, "x-csrf-token": right["x_csrf_token"]},
            )
            assert code_of(found) == (400, "bad_request"), body
        deep = '{"messages": [{"body": ' + "[" * 400 + "]" * 400 + "}]}"
        found = admin.http.post(
            "/ignis/v1/queues/jobs/publish",
            content=deep,
            headers={"content-type": "application/json", "origin": ORIGIN, "x-csrf-token": right["x_csrf_token"]},
        )
        assert found.status_code in (200, 400)
        assert code_of(admin.http.put("/ignis/v1/queues/jobs")) == (405, "method_not_allowed")
        assert code_of(admin.http.get("/ignis/v1/nothing")) == (404, "not_found")
        assert "/ignis/v1/overview has the queues, /ignis/v1/openapi.json" in admin.http.get("/ignis/v1/queues").text


def test_an_error_that_nobody_foresaw_is_logged_and_says_nothing(
    console: Console, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("secret of the machine room")

    monkeypatch.setattr(console.services.snapshot, "get", broken)
    rita = Someone(console)
    rita.log_in("rita")
    found = rita.ask("GET", "/overview")
    assert code_of(found) == (500, "internal")
    assert "secret" not in found.text
    assert "GET /overview failed" in caplog.text


def test_the_page_has_the_codes_that_the_console_gives_of_itself() -> None:
    source = Path(documents.__file__).parent
    text = "".join(one.read_text() for one in source.glob("*.py"))
    codes = {
        *re.findall(r'(?:RefusedError|_refused|Unfit)\(\s*(?:\d+, )?"([a-z_]+)"', text),
        "internal",
        "bad_request",
        "not_found",
    }
    assert {"length_required", "unsupported_media_type", "head_too_large", "origin"} <= codes
    assert codes - {"internal"} <= set(STATUS)
    page = Path(__file__).parents[2] / "docs" / "console.md"
    rows = {
        code: int(row[2])
        for row in re.finditer(r"^\| (`.*) \| (\d{3}) \|$", page.read_text(), re.MULTILINE)
        for code in re.findall(r"`([a-z_]+)`", row[1])
    }
    assert {code: rows.get(code) for code in codes} == {code: STATUS.get(code, 500) for code in codes}


def test_a_path_that_is_nothing_is_not_answered_for_another_host(console: Console) -> None:
    for path in ("/nothing", "/ignis/v1/nothing", "/ignis/v1/jobs/a/b"):
        for method in ("GET", "POST"):
            found = Someone(console).http.request(method, path, headers={"host": "evil.example"})
            assert code_of(found) == (421, "misdirected")
        assert code_of(Someone(console).http.get(path)) == (404, "not_found")
    assert code_of(Someone(console).http.put("/ignis/v1/overview")) == (405, "method_not_allowed")
    found = Someone(console).http.put("/ignis/v1/overview", headers={"host": "evil.example"})
    assert code_of(found) == (421, "misdirected")


def test_every_status_is_one_that_the_description_has() -> None:
    assert set(STATUS.values()) <= {400, 401, 403, 404, 405, 408, 409, 411, 413, 415, 421, 429, 431, 503}


# -- the audit log


def test_each_change_is_in_the_audit_log_without_contents(console: Console, users: Path) -> None:
    log = users.with_name("audit")
    adam = Someone(console)
    right = adam.log_in("adam")
    secret = {"messages": [{"body": {"card": "4111"}, "key": "k"}]}
    assert adam.ask("POST", "/queues/jobs/publish", secret, **right).status_code == 200
    assert adam.ask("POST", "/queues/jobs/purge", {"confirm": "x"}, **right).status_code == 409
    adam.get("/overview")
    lines = [json.loads(one) for one in log.read_text().splitlines()]
    assert [(one["user"], one["method"], one["path"], one["status"]) for one in lines] == [
        ("adam", "POST", "/ignis/v1/session", 200),
        ("adam", "POST", "/ignis/v1/queues/jobs/publish", 200),
        ("adam", "POST", "/ignis/v1/queues/jobs/purge", 409),
    ]
    assert lines[1]["messages"] == 1
    assert lines[2]["asked"]["confirm"] == "x"
    assert "4111" not in log.read_text()
    assert PASSWORD not in log.read_text()
    assert stat.S_IMODE(os.stat(log).st_mode) == 0o600


def test_a_change_that_is_refused_to_somebody_known_is_in_the_audit_log(console: Console, users: Path) -> None:
    rita = Someone(console)
    right = rita.log_in("rita")
    assert rita.ask("POST", "/queues/jobs/purge", {"confirm": "jobs"}, **right).status_code == 403
    assert rita.ask("POST", "/queues/jobs/pause", {}, **right).status_code == 403
    assert Someone(console).ask("POST", "/queues/jobs/pause", {}).status_code == 401  # nobody's
    lines = [json.loads(one) for one in users.with_name("audit").read_text().splitlines()]
    assert [(one["user"], one["path"][9:], one["status"]) for one in lines[1:]] == [
        ("rita", "/queues/jobs/purge", 403),
        ("rita", "/queues/jobs/pause", 403),
    ]


def test_without_a_file_the_audit_log_is_a_logger(
    memory_app: Ignis, users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ignis.console.audit")
    with a_console(memory_app, users=users) as console:
        Someone(console).log_in("adam")
    (line,) = [one.getMessage() for one in caplog.records if one.name == "ignis.console.audit"]
    assert json.loads(line)["user"] == "adam"


# -- ignis console


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--bind", "0.0.0.0:0"], "no authentication and no TLS"),
        (["--bind", "0.0.0.0:0", "--users", "USERS"], "no TLS"),
        (["--bind", "0.0.0.0:0", "--open", "--anyone", "admin"], "for loopback"),
        (["--bind", "nonsense"], "HOST:PORT"),
        (["--tls-key", "x"], "goes with --tls-cert"),
        (["--tls-cert", "x"], "needs --tls-key"),
        (["--users", "USERS", "--anyone", "admin"], "without users"),
        (["--origin", "queues"], "https://host"),
        (["--users", "/no/such/file"], "No such file"),
    ],
)
def test_the_command_refuses_what_is_not_safe(embedded_url: str, users: Path, arguments: list[str], says: str) -> None:
    with Ignis(embedded_url) as app:
        app.queue("jobs", dict).open()
    given = [str(users) if one == "USERS" else one for one in arguments]
    result = CliRunner().invoke(cli, ["--url", embedded_url, "console", *given], obj=State(), standalone_mode=False)
    assert isinstance(result.exception, ConfigError), result.output
    assert says in str(result.exception)
