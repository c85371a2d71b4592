"""An operator's jobs in a real browser, on a live queue with a worker: Debian's chromium, headless, driven by Playwright."""

from __future__ import annotations

import http.client
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("playwright.sync_api", reason="no playwright: the extra dev has it")

from playwright.sync_api import Browser, BrowserContext, expect

from ignis.broker.auth.users_file import editing
from tests.support import WAIT_S, eventually
from tests.support.console import PASSWORD, fail
from tests.support.console_browser import BOUND_MS, CHROMIUM, Live, kept, log_in, watched

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: scripts/system-packages test installs it"),
]

MARKUP = '</pre><script>window.hit = 1</script><img src="x" onerror="window.hit = 2"><b>bold</b>'


def test_who_logs_in_sees_the_queues(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    page.goto(live.url)
    page.get_by_label("User").fill("rita")
    page.get_by_label("Password").fill("not hers")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("form").get_by_role("alert")).to_contain_text("unknown user, or wrong password")
    expect(page.locator("#said")).to_be_empty()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    row = page.get_by_role("row", name=re.compile("idle"))
    expect(row).to_be_visible()
    live.idle.publish_many([{"n": 1}, {"n": 2}, {"n": 3}])
    expect(row.get_by_role("cell").nth(1)).to_have_text("3")  # without a reload
    page.get_by_role("link", name="idle").click()
    expect(page.get_by_role("heading", name="idle")).to_be_visible()
    expect(page.locator("svg.chart").first).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    assert wrong == []


def test_a_session_is_that_of_all_tabs_and_outlives_a_reload(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "olga")
    page.reload()
    expect(page.locator("#who")).to_contain_text("olga")
    second, also_wrong = watched(context)
    second.goto(live.url + "#/queue/idle")
    expect(second.locator("#who")).to_contain_text("olga")
    second.get_by_role("button", name="Pause").click()
    expect(second.locator("#said")).to_contain_text("aused")
    eventually(lambda: live.app.store.queues.get("idle").extra, what="it is paused")  # type: ignore[union-attr]
    second.get_by_role("button", name="Log out").click()
    expect(second.get_by_label("Password")).to_be_visible()
    expect(page.get_by_label("Password")).to_be_visible()  # with its next look
    log_in(page, live, "rita")
    second.reload()
    expect(second.locator("#who")).to_contain_text("rita")
    assert (wrong, also_wrong) == ([], [])


def test_a_session_that_has_ended_is_begun_again(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "rita")
    page.evaluate("localStorage.setItem('ignis.csrf /', 'of a session that has ended')")
    expect(page.get_by_text("Your session has ended. Log in again.")).to_be_visible()
    page.get_by_label("User").fill("olga")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("#who")).to_contain_text("olga")
    context.clear_cookies()
    page.reload()
    expect(page.get_by_label("Password")).to_be_visible()
    assert wrong == []


@pytest.mark.long
def test_a_page_of_another_port_gets_the_cookie_and_nothing_by_it(live: Live, context: BrowserContext) -> None:
    cookies: list[str] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>other</title>")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
            pass

    page, _ = watched(context)
    log_in(page, live, "adam")
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        serving = threading.Thread(target=other.serve_forever)
        serving.start()
        try:
            page.goto(f"http://127.0.0.1:{other.server_address[1]}/")
            expect(page).to_have_title("other")
            assert page.evaluate("localStorage.length") == 0
            read = page.evaluate(
                "url => fetch(url, {credentials: 'include'}).then(() => 'read', () => 'refused')",
                live.url + "ignis/v1/session",
            )
        finally:
            other.shutdown()
            serving.join(WAIT_S)
    assert read == "refused"
    assert "ignis_console_" in cookies[0]
    host, port = live.url.removeprefix("http://").rstrip("/").split(":")

    def ask(method: str, path: str) -> tuple[int, Any]:
        """As the server behind that page would: with the cookie, and any Origin that it likes."""
        connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
        try:
            headers = {"Cookie": cookies[0], "Origin": live.url.rstrip("/"), "Content-Type": "application/json"}
            connection.request(method, f"/ignis/v1{path}", b"{}" if method == "POST" else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    status, who = ask("GET", "/session")
    assert (status, who["user"], "csrf" in who) == (200, None, False)
    assert [ask(*one)[0] for one in [("GET", "/overview"), ("POST", "/queues/idle/pause"), ("DELETE", "/session")]] == [
        401
    ] * 3
    page.goto(live.url)
    expect(page.locator("#who")).to_contain_text("adam")


def test_directions_and_what_cannot_be_seen_are_shown_and_edited_as_they_are(
    live: Live, context: BrowserContext
) -> None:
    hidden = "pay \u202egnirts\u202c to\u200b\u034f\u3164\u2800\U000e0041 \u0007me"
    shown = "pay \\u202egnirts\\u202c to\\u200b\\u034f\\u3164\\u2800\\u{e0041} \\u0007me"
    queue = live.app.queue("turned", dict, shards=1)
    fail(queue, {"note": hidden}, error=f"ValueError: {hidden}", key=hidden)
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/turned")
    row = page.get_by_role("row", name=re.compile("ValueError"))
    expect(row).to_contain_text(f"ValueError: {shown}")
    assert not re.search("[\u202a-\u202e\u200b]", page.evaluate("document.documentElement.outerHTML"))
    page.get_by_role("button", name="Edit").click()
    body = page.get_by_role("dialog").get_by_label("Body (json)")
    assert json.loads(body.input_value()) == {"note": hidden}
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Look").click()
    expect(page.locator("pre[data-body]")).to_contain_text("pay \\u202egnirts")
    assert not re.search("[\u202a-\u202e\u200b]", page.evaluate("document.body.innerText"))
    assert wrong == []


@pytest.mark.long
def test_a_link_that_is_no_address_shows_the_overview(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "rita", "#/%")
    expect(page.get_by_role("row", name=re.compile("idle"))).to_be_visible()
    assert wrong == []


def test_a_failed_message_is_chosen_and_brought_back(live: Live, context: BrowserContext) -> None:
    first, second = fail(live.idle, {"n": 1}, {"n": 2}, error="ValueError: no such order")
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/idle")
    expect(page.get_by_role("cell", name="ValueError: no such order")).to_have_count(2)
    page.get_by_label(f"choose {second}").check()
    page.get_by_role("button", name="Bring back 1 chosen").click()
    page.get_by_role("dialog").get_by_role("button", name="Bring back").click()
    expect(page.locator("#said")).to_contain_text("1 moved")
    expect(page.get_by_label(f"choose {second}")).to_have_count(0)
    expect(page.get_by_label(f"choose {first}")).to_be_visible()
    assert [one.envelope.id for one in live.idle.main.peek()] == [second]
    assert live.idle.sideline.pending() == 1
    assert wrong == []


def test_a_failed_message_is_edited_and_sent_again(live: Live, context: BrowserContext) -> None:
    (old,) = fail(live.idle, {"n": 1, "price": 1}, error="ValueError: price is no text", key="customer-7")
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/idle")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    body = dialog.get_by_label("Body (json)")
    expect(body).to_have_value('{\n  "n": 1,\n  "price": 1\n}')
    body.fill('{"n": 1, "price": ')
    dialog.get_by_role("button", name="Send again").click()
    expect(dialog.get_by_role("alert")).to_contain_text("no JSON value")
    body.fill('{"n": 1, "price": "1.00"}')
    dialog.get_by_label("Only check").check()
    dialog.get_by_role("button", name="Send again").click()
    expect(dialog.get_by_role("status")).to_contain_text("checked: a body of 25 bytes")
    assert (live.idle.main.pending(), live.idle.sideline.pending()) == (0, 1)
    dialog.get_by_label("Only check").uncheck()
    kept(page, "edit")
    dialog.get_by_role("button", name="Send again").click()
    expect(page.locator("#said")).to_contain_text("sent again as")
    expect(dialog).to_be_hidden()
    (one,) = live.idle.main.peek()
    assert (one.message, one.envelope.key) == ({"n": 1, "price": "1.00"}, "customer-7")
    assert one.envelope.headers == {"ignis-resent-from": old}
    assert live.idle.sideline.pending() == 0
    assert wrong == []


def test_a_schedule_is_added_changed_and_removed_and_a_queue_is_scaled(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "adam", "#/schedules")
    page.get_by_role("button", name="Add a schedule").click()
    dialog = page.get_by_role("dialog")
    for label, value in {"Name": "beat", "Queue": "idle", "Every, such as 5m": "1h", "Body": '{"tick": 1}'}.items():
        dialog.get_by_label(label, exact=label == "Queue").fill(value)
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_role("cell", name="every 1.0 h")).to_be_visible()
    page.get_by_role("button", name="Change").click()
    dialog.get_by_label("Every, such as 5m").fill("2h")
    dialog.get_by_role("button", name="Change").click()
    expect(page.get_by_role("cell", name="every 2.0 h")).to_be_visible()
    assert live.app.schedules.get("beat").message == b'{"tick":1}'
    page.get_by_role("button", name="Remove").click()
    dialog.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No schedule is stored.")).to_be_visible()
    page.goto(live.url + "#/queue/idle")
    page.get_by_role("button", name="Scale").click()
    dialog.get_by_label("Shards").fill("3")
    dialog.get_by_label("Type idle to go on").fill("idle")
    dialog.get_by_role("button", name="Scale").click()
    expect(page.locator("#said")).to_contain_text("3 shards")
    record = live.app.store.queues.get("idle")
    assert record is not None
    assert (record.shards, len(live.idle.main.metadata())) == (3, 3)
    assert wrong == []


@pytest.mark.parametrize(
    ("device", "width", "height"), [("phone", 390, 844), pytest.param("desktop", 1200, 900, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_pages_fit_and_are_kept_for_people(
    live: Live, browser: Browser, scheme: Any, device: str, width: int, height: int
) -> None:
    fail(live.idle, {"n": 1}, {"n": 2}, error="TimeoutError: the warehouse does not answer")
    fail(live.idle, {"n": 3}, reason="timeout")
    live.idle.publish_many([{"n": one} for one in range(20)])
    live.idle.publish({"n": 4}, delay="1h")
    live.app.schedules.add("beat", queue="idle", message={"tick": 1}, every="1h")
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.set_default_timeout(BOUND_MS)
    try:
        page, wrong = watched(context)
        log_in(page, live, "adam")
        for name, (path, text) in {
            "overview": ("", "idle"),
            "sideline": ("#/queue/idle", "TimeoutError"),
            "delayed": ("#/queue/idle/delayed", "Run now"),
            "waiting": ("#/queue/idle/messages", "Read again"),
            "shards": ("#/queue/idle/shards", "fire pointer"),
            "schedules": ("#/schedules", "beat"),
            "system": ("#/system", "Who leads"),
        }.items():
            page.goto(live.url + path)
            expect(page.locator("main")).to_contain_text(text)
            wider = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.evaluate(wider) <= 0, name
            kept(page, f"{name}-{device}-{scheme}")
        assert wrong == []
    finally:
        context.close()


@pytest.mark.long
def test_what_is_brought_back_is_handled(live: Live, context: BrowserContext) -> None:
    live.jobs.pause()
    fail(live.jobs, {"n": 1}, {"n": 2})
    live.jobs.resume()
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/jobs")
    page.get_by_role("button", name="Bring back all").click()
    page.get_by_label("Only count").check()
    page.get_by_role("dialog").get_by_role("button", name="Bring back").click()
    expect(page.locator("#said")).to_contain_text("2 would move")
    assert live.handled == []
    page.get_by_role("button", name="Bring back all").click()
    page.get_by_role("dialog").get_by_role("button", name="Bring back").click()
    eventually(lambda: sorted(one["n"] for one in live.handled) == [1, 2], what="both are handled")
    assert wrong == []


def test_a_message_is_published(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/jobs")
    page.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Body").fill("{ no json")
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog.get_by_role("alert")).to_contain_text("no JSON value")
    dialog.get_by_label("Body").fill('{"order": 7}')
    dialog.get_by_label("Key").fill("customer-7")
    dialog.get_by_role("button", name="Publish").click()
    expect(page.locator("#said")).to_contain_text("published")
    eventually(lambda: live.handled == [{"order": 7}], what="it is handled")
    assert wrong == []


@pytest.mark.long
def test_who_may_only_look_changes_nothing(live: Live, context: BrowserContext) -> None:
    fail(live.idle, {"n": 1})
    page, wrong = watched(context)
    log_in(page, live, "rita", "#/queue/idle")
    expect(page.get_by_text("You may look at this queue, and not change it.")).to_be_visible()
    expect(page.get_by_role("button", name="Look")).to_be_visible()
    for name in ("Publish", "Pause", "Purge", "Bring back", "Drop"):
        expect(page.get_by_role("button", name=re.compile(f"^{name}"))).to_have_count(0)
    # With the session's own token, as a page that shows the buttons all the same would ask.
    found = page.evaluate(
        """async () => {
            const csrf = localStorage.getItem("ignis.csrf /");
            const answer = await fetch("ignis/v1/queues/idle/pause", {
                method: "POST", headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf }, body: "{}",
            });
            return [answer.status, (await answer.json()).error.code];
        }"""
    )
    assert found == [403, "permission_denied"]
    assert not live.app.store.queues.get("idle").extra
    assert wrong == []


def test_a_body_with_markup_is_text(live: Live, context: BrowserContext) -> None:
    queue = live.app.queue("marked", dict, shards=1)
    fail(queue, {"note": MARKUP}, error=MARKUP, key=MARKUP)
    page, wrong = watched(context)
    log_in(page, live, "rita", "#/queue/marked")
    page.get_by_role("button", name="Look").click()
    body = page.locator("pre[data-body]")
    expect(body).to_contain_text("<script>window.hit = 1</script>")
    expect(page.get_by_role("dialog")).to_contain_text("<b>bold</b>")
    history = page.get_by_role("dialog").locator(".history li").last
    expect(history.locator("p")).to_have_text(MARKUP, use_inner_text=True)
    inert = """() => [
        window.hit ?? null,
        document.querySelectorAll("main img, dialog img, body script").length,
        [...document.querySelectorAll("main b, dialog b")].filter((one) => one.textContent === "bold").length,
    ]"""  # the charts have a <b> of their own
    assert page.evaluate(inert) == [None, 0, 0]
    assert wrong == []


def test_the_policy_stops_a_script_that_got_in(live: Live, context: BrowserContext) -> None:
    page = context.new_page()
    log_in(page, live, "rita")
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.hit = 1";
            document.body.append(script);
            const image = document.createElement("img");
            image.setAttribute("onerror", "window.hit = 2");
            image.src = "nothing";
            document.body.append(image);
            return new Promise((done) => image.addEventListener("error", () => done()));
        }"""
    )
    assert page.evaluate("() => window.hit ?? null") is None


@pytest.mark.long
def test_a_session_that_ended_asks_for_a_login(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/idle")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    with editing(live.users) as users:
        found = users.find("olga")
        assert found is not None
        users.users.remove(found)
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    page.get_by_label("User").fill("adam")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()  # where the page was
    expect(page.locator("#who")).to_contain_text("adam")
    assert wrong == []


def test_purging_asks_for_the_name(live: Live, context: BrowserContext) -> None:
    live.idle.publish_many([{"n": 1}, {"n": 2}])
    page, _ = watched(context)
    log_in(page, live, "adam", "#/queue/idle")
    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("jobs")
    dialog.get_by_role("button", name="Purge").click()
    wrong = dialog.get_by_role("alert")
    expect(wrong).to_contain_text("confirm must be the queue's name")
    expect(dialog.get_by_role("textbox")).to_have_value("jobs")  # what was typed is still there
    above, button = wrong.bounding_box(), dialog.get_by_role("button", name="Purge").bounding_box()
    assert above is not None
    assert button is not None
    assert above["y"] + above["height"] <= button["y"]
    assert live.idle.main.pending() == 2
    dialog.get_by_role("textbox").fill("idle")
    dialog.get_by_role("button", name="Purge").click()
    expect(page.locator("#said")).to_contain_text("2 removed")
    assert live.idle.main.pending() == 0
    lines = [json.loads(one) for one in live.audit.read_text().splitlines()]
    assert [(one["user"], one["status"]) for one in lines if one["path"].endswith("/purge")] == [
        ("adam", 409),
        ("adam", 200),
    ]


@pytest.mark.long
def test_two_tabs_see_each_other(live: Live, context: BrowserContext) -> None:
    one, _ = watched(context)
    log_in(one, live, "olga", "#/queue/idle")
    other, _ = watched(context)
    other.goto(live.url + "#/queue/idle")  # the session is the browser's
    expect(other.get_by_role("button", name="Pause")).to_be_visible()
    one.bring_to_front()
    one.get_by_role("button", name="Pause").click()
    expect(one.get_by_role("button", name="Resume")).to_be_visible()
    other.bring_to_front()
    other.get_by_role("button", name="Resume").click()
    expect(other.get_by_role("button", name="Pause")).to_be_visible()
    one.bring_to_front()
    expect(one.get_by_role("button", name="Pause")).to_be_visible()


def test_delayed_messages_and_schedules(live: Live, context: BrowserContext) -> None:
    live.idle.publish({"n": 1}, delay="1h")
    live.app.schedules.add("beat", queue="idle", message={"tick": 1}, every="1h")
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/idle/delayed")
    page.get_by_role("button", name="Run now").click()
    eventually(lambda: live.idle.main.pending() == 1, what="it is in the queue")
    page.get_by_role("link", name="Schedules").click()
    expect(page.get_by_role("row", name=re.compile("beat"))).to_contain_text(re.compile(r"in (1\.0 h|\d\d\.\d min)"))
    page.get_by_role("button", name="Run now").click()
    eventually(lambda: live.idle.main.pending() == 2, what="the schedule's message too")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert live.app.schedules.get("beat").paused
    page.get_by_role("link", name="System").click()
    expect(page.get_by_role("heading", name="Who leads")).to_be_visible()
    assert wrong == []


@pytest.mark.long
def test_a_phone_a_keyboard_and_the_dark(live: Live, browser: Browser) -> None:
    fail(live.idle, {"n": 1})
    phone = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    phone.set_default_timeout(BOUND_MS)
    try:
        page = phone.new_page()
        page.goto(live.url)
        expect(page.get_by_label("User")).to_be_focused()
        page.keyboard.type("olga")
        page.keyboard.press("Tab")
        page.keyboard.type(PASSWORD)
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="idle")).to_be_visible()
        page.get_by_role("link", name="idle").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="idle")).to_be_visible()
        expect(page.get_by_role("button", name="Look")).to_be_attached()
        wider = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wider) <= 0
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(23, 20, 18)"
    finally:
        phone.close()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_axe_finds_nothing(live: Live, browser: Browser, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: the extra dev has it").Axe()
    fail(live.idle, {"n": 1})
    live.idle.publish({"n": 2})
    live.idle.publish({"n": 3}, delay="1h")
    live.app.schedules.add("beat", queue="idle", message={"tick": 1}, every="1h")
    live.idle.main.fire(1)
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(BOUND_MS)
    found: dict[str, Any] = {}

    def look(name: str) -> None:
        wrong = axe.run(page).response["violations"]
        if wrong:
            found[name] = [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in wrong]

    try:
        page = context.new_page()
        page.goto(live.url)
        expect(page.get_by_label("Password")).to_be_visible()
        look("login")
        log_in(page, live, "adam")
        shown = {
            "": "idle",
            "#/queue/idle": "exception",
            "#/queue/idle/messages": "No message waits",
            "#/queue/idle/delayed": "Run now",
            "#/queue/idle/workers": "idle",
            "#/queue/idle/shards": "fire pointer",
            "#/schedules": "beat",
            "#/system": "Who leads",
        }
        for path, text in shown.items():
            page.goto(live.url + path)
            expect(page.locator("main")).to_contain_text(text)
            look(path or "overview")
        page.goto(live.url + "#/queue/idle")
        for name in ("Look", "Edit", "Publish", "Scale", "Purge", "Bring back all", "Drop all"):
            page.get_by_role("button", name=name, exact=True).first.click()
            expect(page.get_by_role("dialog")).to_be_visible()
            look(f"dialog {name}")
            page.keyboard.press("Escape")
        page.goto(live.url + "#/schedules")
        page.get_by_role("button", name="Add a schedule").click()
        look("dialog schedule")
    finally:
        context.close()
    assert found == {}
