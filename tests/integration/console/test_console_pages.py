"""What the console's pages show, in a real browser: charts that are read out, many queues, searches, retries, progress."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("playwright.sync_api", reason="no playwright: the extra dev has it")

from playwright.sync_api import Browser, BrowserContext, Page, expect

from ignis import Context, Ignis, Retry
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker
from tests.support.console import fail
from tests.support.console_browser import BOUND_MS, CHROMIUM, ConsoleProcess, Live, kept, log_in, watched

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: scripts/system-packages test installs it"),
]

WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
TIME = r"\d\d:\d\d:\d\d"


def violations(page: Page) -> list[Any]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: the extra dev has it").Axe()
    return [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in axe.run(page).response["violations"]]


@contextmanager
def at_work(live: Live) -> Iterator[str]:
    """A queue whose one worker is half way with a message until the end; returns the message's id."""
    free, begun = threading.Event(), threading.Event()
    queue = live.app.queue("long", dict, shards=1)

    def handle(message: dict[str, Any], ctx: Context) -> None:
        ctx.progress(0.5, "row 5,000 of 10,000")
        begun.set()
        free.wait(WAIT_S)

    queue.handler(handle)
    try:
        id = queue.publish({"n": 1}, key="customer-7").id
        assert begun.wait(WAIT_S)
        yield id
    finally:
        free.set()


def retrying(live: Live) -> None:
    """A queue with a message that failed and waits for its second attempt, and one that was published for later."""
    queue = live.app.queue("bills", dict, shards=1)

    def handle(message: dict[str, Any]) -> None:
        raise ConnectionError("the bank does not answer")

    queue.handler(handle, retry=Retry(attempts=5, base="1h", max="2h", jitter=False))
    queue.publish({"bill": 1}, key="customer-7")
    queue.publish({"bill": 2}, delay="3h")
    eventually(lambda: len(queue.later) == 2, what="the failed one waits")


# -- charts


def test_a_chart_is_read_out_by_keyboard_pointer_and_finger(live: Live, browser: Browser) -> None:
    live.idle.publish_many([{"n": number} for number in range(3)])
    context = browser.new_context(viewport={"width": 1200, "height": 1000}, has_touch=True)
    context.set_default_timeout(BOUND_MS)
    expect.set_options(timeout=BOUND_MS)
    try:
        page, wrong = watched(context)
        log_in(page, live, "rita", "#/queue/idle")
        plot = page.locator("figure", has=page.get_by_role("slider", name="pending over time"))
        slider = plot.get_by_role("slider")
        expect(slider).to_have_attribute("max", re.compile("^[2-9]$|^[1-9][0-9]"))  # three looks
        expect(plot.locator(".most")).to_have_text("5")  # the scale ends at a round number
        expect(plot.locator(".ends")).to_have_text(re.compile(r"^\d.* s agonow$|^1\.\d min agonow$"))
        expect(plot.locator(".value")).to_have_text("3")
        live.idle.publish_many([{"n": number} for number in range(4)])
        expect(plot.locator(".value")).to_have_text("7")
        expect(plot.locator(".most")).to_have_text("10")
        slider.focus()
        page.keyboard.press("Home")  # the look that the console made before it listened
        expect(slider).to_have_attribute("aria-valuetext", re.compile(f"^{TIME}: 0$"))
        expect(plot.locator(".value")).to_have_text(re.compile(f"^{TIME}0$"))
        expect(plot.locator(".mark")).to_be_visible()
        page.keyboard.press("End")
        expect(slider).to_have_attribute("aria-valuetext", re.compile(f"^{TIME}: 7$"))
        page.keyboard.press("ArrowLeft")
        expect(slider).to_have_attribute("aria-valuetext", re.compile(f"^{TIME}: [37]$"))
        page.get_by_role("link", name="Workers").focus()
        expect(plot.locator(".value")).to_have_text("7")  # the latest again
        expect(plot.locator(".mark")).to_be_hidden()
        box = slider.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 1, box["y"] + 20)
        expect(plot.locator(".value")).to_have_text(re.compile(f"^{TIME}0$"))
        page.mouse.move(box["x"] + 1, box["y"] - 200)
        expect(plot.locator(".value")).to_have_text("7")
        page.touchscreen.tap(box["x"] + 1, box["y"] + 20)
        expect(plot.locator(".value")).to_have_text(re.compile(f"^{TIME}0$"))
        names = page.get_by_role("slider").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        shown = ("pending", "in flight", "rates", "oldest", "latency", "sideline")
        assert names == [f"{name} over time" for name in shown]
        assert violations(page) == []
        assert wrong == []
    finally:
        context.close()


@pytest.mark.long
def test_latency_and_the_oldest_age_are_shown(live: Live, context: BrowserContext) -> None:
    live.idle.publish_many([{"n": number} for number in range(8)])
    page, wrong = watched(context)
    log_in(page, live, "rita", "#/queue/idle")
    tile = page.locator(".tiles > div", has=page.get_by_text("latency", exact=True)).locator("dd")
    expect(tile).to_have_text("\u2013")  # none has left
    oldest = page.locator("figure", has=page.get_by_role("slider", name="oldest over time"))
    expect(oldest.locator(".value")).to_have_text(re.compile(r"^\d+(\.\d)? (s|min)$"))
    live.idle.main.delete(live.idle.main.fire(4))
    expect(tile).to_have_text(re.compile(r"^\d+(\.\d)? (ms|s|min)$"))
    assert wrong == []


# -- the overview


@pytest.mark.parametrize(
    ("device", "width", "height"), [pytest.param("phone", 390, 844, marks=pytest.mark.long), ("desktop", 1200, 900)]
)
def test_a_hundred_queues_are_sorted_filtered_and_added_up(
    live: Live, browser: Browser, device: str, width: int, height: int
) -> None:
    for number in range(97):
        live.app.queue(f"tenant-{number:02}.events", dict, shards=1).open()
    live.app.queue("tenant-07.events", dict, shards=1).publish_many([{"n": 1}] * 30)
    live.app.queue("tenant-08.events", dict, shards=1).publish_many([{"n": 1}] * 4)
    live.app.queue("a" * 128, dict, shards=1).open()
    live.idle.pause()
    fail(live.idle, {"n": 1}, {"n": 2})
    live.app.queue("tenant-50.events", dict, shards=1).pause()
    context = browser.new_context(viewport={"width": width, "height": height})
    context.set_default_timeout(BOUND_MS)
    expect.set_options(timeout=BOUND_MS)
    try:
        page, wrong = watched(context)
        log_in(page, live, "rita")
        rows = page.locator("table.queues tbody tr")
        expect(rows).to_have_count(100)
        expect(page.locator(".tiles")).to_have_text(re.compile("^pending34in flight0sideline2delayed0in"))
        expect(rows.nth(0)).to_contain_text("idle")  # what needs somebody comes first
        expect(rows.nth(0)).to_contain_text("failed")
        expect(rows.nth(0)).to_contain_text("paused")
        expect(rows.nth(1)).to_contain_text("tenant-50.events")
        assert page.evaluate(WIDER) <= 0
        kept(page, f"overview-100-{device}")
        if device == "phone":
            page.get_by_label("Sort by").select_option("pending")
        else:
            page.get_by_role("button", name="pending", exact=True).click()
            expect(page.locator("th", has_text="pending").first).to_have_attribute("aria-sort", "descending")
        expect(rows.nth(0)).to_contain_text("tenant-07.events")
        expect(rows.nth(1)).to_contain_text("tenant-08.events")
        if device == "desktop":
            page.get_by_role("button", name="pending", exact=True).click()
            expect(page.locator("th", has_text="pending").first).to_have_attribute("aria-sort", "ascending")
            expect(rows.nth(99)).to_contain_text("tenant-07.events")
        page.get_by_label("Filter by name").fill("tenant-0")
        expect(rows).to_have_count(10)
        expect(page.get_by_text("10 of 100 queues")).to_be_visible()
        expect(page.locator(".tiles")).to_have_text(re.compile("^pending34in flight0sideline0"))
        page.get_by_label("Filter by name").fill("nothing like it")
        expect(page.get_by_text("No queue is like that.")).to_be_visible()
        page.get_by_label("Filter by name").fill("")
        problems = page.get_by_role("button", name="2 with problems")
        problems.click()
        expect(problems).to_have_attribute("aria-pressed", "true")
        expect(rows).to_have_count(2)
        live.app.queue("tenant-51.events", dict, shards=1).pause()
        expect(rows).to_have_count(3)  # while it is looked at
        assert page.evaluate(WIDER) <= 0
        assert violations(page) == []
        assert wrong == []
    finally:
        context.close()


@pytest.mark.long
def test_a_row_stays_where_it_is_while_its_figures_change(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "rita")
    link = page.get_by_role("link", name="idle")
    link.focus()
    page.evaluate("() => { window.kept = document.activeElement; }")
    live.idle.publish_many([{"n": 1}, {"n": 2}])
    expect(page.get_by_role("row", name=re.compile("idle")).get_by_role("cell").nth(1)).to_have_text("2")
    assert page.evaluate("() => window.kept === document.activeElement && window.kept.isConnected")
    assert wrong == []


@pytest.mark.long
def test_whose_oldest_message_grows_old_is_marked(live: Live, context: BrowserContext) -> None:
    live.idle.publish({"n": 1})
    page, wrong = watched(context)
    log_in(page, live, "rita")
    expect(page.get_by_role("row", name=re.compile("idle"))).to_contain_text("oldest rising", timeout=3 * BOUND_MS)
    expect(page.get_by_role("row", name=re.compile("jobs"))).not_to_contain_text("rising")
    assert wrong == []


@pytest.mark.long
def test_who_sees_no_queue_is_told_what_to_type(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "else")
    expect(page.get_by_role("heading", name="There is no queue that you may look at.")).to_be_visible()
    terminal, python = page.locator("main pre").all_inner_texts()
    assert f"ignis queue create orders --url '{live.app.url}'" in terminal
    ran = subprocess.run(
        ["sh", "-ec", f'ignis() {{ "{sys.executable}" -m ignis "$@"; }}\n{terminal}'],
        check=False, capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    ran = subprocess.run([sys.executable, "-c", python], check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert ran.returncode == 0, ran.stderr
    assert [one.message for one in live.app.queue("orders", dict).main.peek()] == [{"id": 1}, {"id": 1}]
    expect(page.get_by_label("Filter by name")).to_be_hidden()
    assert violations(page) == []
    assert wrong == []


# -- the sideline


def test_what_is_searched_for_is_what_is_brought_back(live: Live, context: BrowserContext) -> None:
    (red,) = fail(live.idle, {"n": 1, "at": "café"}, headers={"tenant": "red"})
    (blue,) = fail(live.idle, {"n": 2, "at": "café"}, headers={"tenant": "blue"})
    (other,) = fail(live.idle, {"n": 3}, headers={"tenant": "blue"})
    page, wrong = watched(context)
    log_in(page, live, "adam", "#/queue/idle")
    rows = page.get_by_role("table", name="Sideline").locator("tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_label("Header").fill("tenant")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#said")).to_contain_text("name=value")
    page.get_by_label("Header").fill("tenant=blue")
    page.get_by_label("Body contains").fill("café")
    page.get_by_role("button", name="Search").click()
    expect(rows).to_have_count(1)
    expect(page.get_by_label(f"choose {blue}")).to_be_visible()
    page.get_by_label("Header").fill("tenant=red")  # typed and not searched for: means nothing yet
    page.get_by_role("button", name="Bring back all that were searched for").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("No more than so many a second").fill("100")
    dialog.get_by_label("Only count").check()
    dialog.get_by_role("button", name="Bring back").click()
    expect(page.locator("#said")).to_contain_text("1 would move")
    assert live.idle.sideline.pending() == 3
    page.get_by_role("button", name="Bring back all that were searched for").click()
    dialog.get_by_role("button", name="Bring back").click()
    expect(page.locator("#said")).to_contain_text("1 moved")
    assert [one.envelope.id for one in live.idle.main.peek()] == [blue]
    page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(2)
    page.get_by_label("Body contains").fill("café")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_label(f"choose {red}")).to_be_visible()
    page.get_by_role("button", name="Drop all that were searched for").click()
    dialog.get_by_role("textbox").fill("idle")
    dialog.get_by_role("button", name="Drop").click()
    expect(page.locator("#said")).to_contain_text("1 removed")
    assert [one.envelope.id for one in live.idle.sideline.peek()] == [other]
    assert wrong == []


@pytest.mark.long
def test_where_nothing_failed_there_is_nothing_to_bring_back(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "adam", "#/queue/idle")
    expect(page.get_by_text("Nothing is here: no message has failed.")).to_be_visible()
    buttons = page.get_by_role("button", name=re.compile("^(Bring back|Drop) "))
    expect(buttons).to_have_count(0)
    fail(live.idle, {"n": 1}, {"n": 2})
    page.get_by_role("button", name="Show it").click()
    expect(buttons).to_have_count(2)
    page.get_by_label("choose every message of this page").check()
    expect(page.get_by_role("button", name="Bring back 2 chosen")).to_be_visible()
    page.get_by_label("Reason").fill("timeout")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("Nothing like that")).to_be_visible()
    expect(buttons).to_have_count(0)
    assert wrong == []


# -- what waits, and who works


def test_a_retry_is_shown_with_its_next_attempt_and_its_last_error(live: Live, context: BrowserContext) -> None:
    retrying(live)
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/bills/delayed")
    rows = page.get_by_role("table", name="Delayed messages").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("retry, attempt 2 next")
    expect(rows.nth(0)).to_contain_text("ConnectionError: the bank does not answer")
    expect(rows.nth(0)).to_contain_text(re.compile(r"in \d+\.\d min"))
    expect(rows.nth(1)).to_contain_text("delay")
    expect(rows.nth(1)).not_to_contain_text("retry")
    rows.nth(0).get_by_role("button", name="Look").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("History: one attempt")
    expect(dialog.locator(".history")).to_contain_text("the bank does not answer")
    assert violations(page) == []
    dialog.get_by_role("button", name="Close").click()
    assert wrong == []


def test_a_worker_is_shown_with_its_message_and_how_far_it_is(live: Live, context: BrowserContext) -> None:
    with at_work(live) as id:
        page, wrong = watched(context)
        log_in(page, live, "rita", "#/queue/long/workers")
        row = page.get_by_role("row", name=re.compile(id))
        expect(row).to_contain_text("customer-7")
        expect(row).to_contain_text("50 % row 5,000 of 10,000")
        bar = row.get_by_role("progressbar", name=f"progress of {id}")
        assert bar.evaluate("one => one.value") == 0.5
        assert violations(page) == []
        kept(page, "workers")
        assert wrong == []
    expect(page.get_by_text("Nobody has claimed anything.")).to_be_visible()


def test_a_message_that_is_stuck_is_cancelled(live: Live, context: BrowserContext) -> None:
    told = threading.Event()
    queue = live.app.queue("stuck", dict, shards=1)

    def handle(message: dict[str, Any], ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.01)
        told.set()

    queue.handler(handle)
    id = queue.publish({"n": 1}).id
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/stuck/workers")
    page.get_by_role("button", name=f"Cancel {id}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(id)
    assert violations(page) == []
    dialog.get_by_role("button", name="Close").click()
    assert not told.is_set()
    page.get_by_role("button", name=f"Cancel {id}").click()
    dialog.get_by_role("button", name="Cancel the message").click()
    expect(page.locator("#said")).to_contain_text(f"{id}: told to end")
    expect(dialog).to_be_hidden()
    assert told.wait(WAIT_S)
    assert wrong == []


@pytest.mark.long
def test_who_may_only_look_cancels_nothing(live: Live, context: BrowserContext) -> None:
    with at_work(live) as id:
        page, _ = watched(context)
        log_in(page, live, "rita", "#/queue/long/workers")
        expect(page.get_by_role("row", name=re.compile(id))).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("^Cancel"))).to_have_count(0)


# -- times and figures


@pytest.mark.long
def test_times_say_their_zone_and_the_same_in_utc(live: Live, browser: Browser) -> None:
    fail(live.idle, {"n": 1})
    shown = []
    for zone in ("America/St_Johns", "UTC"):
        context = browser.new_context(timezone_id=zone)
        context.set_default_timeout(BOUND_MS)
        page, wrong = watched(context)
        log_in(page, live, "rita", "#/queue/idle")
        said = page.locator("table time").first
        expect(said).to_be_visible()
        shown.append((page.locator("#zone").inner_text(), said.inner_text(), said.get_attribute("title")))
        assert wrong == []
        context.close()
    (far, far_text, far_title), (near, near_text, near_title) = shown
    assert re.match(r"Times are in America/St_Johns, UTC\u2212[23]:30; ".replace("[23]", "0[23]"), far)
    assert near == "Times are in UTC."
    assert far_title == near_title == f"{near_text} UTC"
    assert far_text != near_text


@pytest.mark.long
def test_figures_of_the_system_are_sizes_times_and_plain_ids(tmp_path: Path, context: BrowserContext) -> None:
    broker = RunningBroker(f"embedded://{tmp_path}/store")
    console = ConsoleProcess(tmp_path, broker.url)
    try:
        page, wrong = watched(context)
        page.goto(console.url + "#/system")
        expect(page.get_by_role("heading", name="The broker")).to_be_visible()
        facts = dict(
            zip(
                page.locator("dl.facts dt").all_inner_texts(),
                page.locator("dl.facts dd").all_inner_texts(),
                strict=True,
            )
        )
        assert facts["pid"] == str(os.getpid())
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", facts["started"])
        assert not [one for one in facts.values() if re.match(r"1,[78]\d\d,\d{3},\d{3}", one)]  # seconds since 1970
        kept(page, "system-broker")
        assert violations(page) == []
        assert wrong == []
    finally:
        console.close()
        broker.stop()


@pytest.mark.long
def test_a_dialog_does_not_stay_over_another_page(live: Live, context: BrowserContext) -> None:
    page, wrong = watched(context)
    log_in(page, live, "olga", "#/queue/jobs")
    expect(page.get_by_role("heading", name="jobs")).to_be_visible()
    page.goto(live.url + "#/queue/idle")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("dialog")).to_contain_text("Publish to idle")
    page.go_back()
    expect(page.get_by_role("heading", name="jobs")).to_be_visible()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert wrong == []


def test_a_console_that_was_killed_is_told_until_it_answers_again(live: Live, context: BrowserContext) -> None:
    page, _ = watched(context)
    log_in(page, live, "rita")
    expect(page.get_by_role("link", name="idle")).to_be_visible()
    bar = page.locator("#stale")
    expect(bar).to_be_hidden()
    live.console.kill()
    expect(bar).to_have_text(re.compile(f"^No answer since {TIME}: the console does not answer$"))
    expect(page.locator("main.old .tiles")).to_have_css("filter", "grayscale(1)")
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 500})
    page.mouse.wheel(0, 2_000)
    expect(bar).to_be_in_viewport()
    kept(page, "no-answer")
    live.console.start()
    # Its sessions ended with it.
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    expect(bar).to_be_hidden()
    expect(page.locator("main.old")).to_have_count(0)


@pytest.mark.long
def test_a_broker_that_was_stopped_is_told_until_it_answers_again(
    tmp_path: Path, context: BrowserContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGNIS_CLIENT_CONNECT_TIMEOUT_S", "1")
    store = f"embedded://{tmp_path}/store"
    broker = RunningBroker(store)
    console = None
    try:
        with Ignis(broker.url) as app:
            app.queue("idle", dict, shards=1).publish({"n": 1})
        console = ConsoleProcess(tmp_path, broker.url)
        pages = [watched(context)[0] for _ in range(2)]
        # What a page asks for last: when that fails, it has not been shown yet, and says so in place of the bar.
        lasts = re.compile(r"/overview$"), re.compile(r"/sideline/reasons$")
        for page, path, last in zip(pages, ("", "#/queue/idle"), lasts, strict=True):
            with page.expect_response(last):
                page.goto(console.url + path)
            expect(page.locator(".tiles dd").first).to_have_text("1")
            expect(page.locator("#stale")).to_be_hidden()
        expect(pages[1].get_by_text("no message has failed")).to_be_visible()
        port = broker.port
        broker.stop()
        for page in pages:
            page.bring_to_front()
            expect(page.locator("#stale")).to_have_text(
                re.compile(f"^No answer since {TIME}: .*refused", re.IGNORECASE), timeout=3 * BOUND_MS
            )
            expect(page.locator("main.old")).to_have_count(1)
            expect(page.locator(".tiles dd").first).to_have_text("1")
        pages[1].get_by_role("link", name="Schedules").click()
        expect(pages[1].get_by_role("heading", name="That did not work")).to_be_visible(timeout=3 * BOUND_MS)
        expect(pages[1].get_by_role("button", name="Try again")).to_be_visible()
        broker = RunningBroker(store, at_port=port)
        expect(pages[1].get_by_text("No schedule is stored.")).to_be_visible(timeout=3 * BOUND_MS)  # by itself
        pages[0].bring_to_front()
        expect(pages[0].locator("#stale")).to_be_hidden(timeout=3 * BOUND_MS)
        expect(pages[0].locator("main.old")).to_have_count(0)
    finally:
        if console is not None:
            console.close()
        broker.stop()
