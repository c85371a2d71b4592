"""The application object: opening, settings, starting and stopping, failures."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import ignis
from ignis.errors import ConfigError, QueueMismatchError, StoreFailedError, StoreFormatError, StoreUnreachableError
from ignis.urls import absolute
from tests.support import WAIT_S, NewThreads, eventually, wait_idle

MakeApp = Callable[..., ignis.Ignis]


def test_nothing_is_opened_before_first_use(tmp_path: Path, new_app: MakeApp) -> None:
    app = new_app(f"embedded://{tmp_path}/store")
    queue = app.queue("jobs", int)
    queue.handler(lambda message: None)
    app.magazines  # noqa: B018 - opens the store, which the line before did not
    assert (tmp_path / "store").exists()


def test_importing_and_registering_touches_nothing(tmp_path: Path) -> None:
    script = """
import os, sys, threading
before = set(os.listdir("."))
import ignis
app = ignis.Ignis("embedded://" + os.getcwd() + "/store")
queue = app.queue("jobs", int)
@queue.handler
def handle(message): ...
assert threading.active_count() == 1
assert set(os.listdir(".")) == before
app.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(ignis.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_where_the_url_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ignis.toml"
    path.write_text('url = "memory://file"\n[consumer]\nmax_consumers = 7\n[queue.jobs]\nshards = 3\n')
    assert ignis.Ignis().url is None
    assert ignis.Ignis(config=path).url == "memory://file"
    monkeypatch.setenv("IGNIS_CONFIG", str(path))
    monkeypatch.setenv("IGNIS_URL", "memory://environment")
    assert ignis.Ignis().url == "memory://environment"
    app = ignis.Ignis("memory://argument")
    assert app.url == "memory://argument"
    assert app.consumer_settings.max_consumers == 7
    assert app.queue("jobs").settings.shards == 3
    assert "memory://argument" in repr(app)


@pytest.mark.parametrize("place", ["./first/st", "../st?durability=none"])
def test_a_relative_url_means_the_directory_in_which_the_application_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_app: MakeApp, place: str
) -> None:
    made, later = tmp_path / "a b", tmp_path / "later"
    made.mkdir()
    later.mkdir()
    monkeypatch.chdir(made)
    app = new_app(f"embedded://{place.partition('?')[0]}")
    monkeypatch.chdir(later)
    app.queue("jobs", bytes).publish(b"1")
    assert (made / place.partition("?")[0]).is_dir()
    assert not list(later.iterdir())
    assert absolute(f"relay://{place}") == f"relay://{quote(str(later))}/{place.removeprefix('./')}"
    assert absolute("embedded://.?create=0") == f"embedded://{quote(str(later))}?create=0"


@pytest.mark.parametrize(
    "url", ["embedded:///var/st", "embedded://...", "memory://./st", "relay:/x", "", "embedded://.st/x"]
)
def test_other_urls_are_left_alone(url: str) -> None:
    assert absolute(url) == url


def test_no_store_is_named() -> None:
    with pytest.raises(ConfigError, match="no store: give a URL such as embedded:///var/lib/orders, or set IGNIS_URL"):
        _ = ignis.Ignis().store


@pytest.mark.parametrize("url", ["nosql://x", "embedded://", "/just/a/path"])
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError):
        _ = ignis.Ignis(url).store


def test_a_store_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnreachableError):
        _ = ignis.Ignis(f"embedded://{tmp_path}/file/store").store
    with pytest.raises(StoreUnreachableError, match=r"file: it is a file, and a store is a directory"):
        _ = ignis.Ignis(f"embedded://{tmp_path}/file").store


def test_a_store_that_somebody_else_makes_while_it_is_looked_for(
    tmp_path: Path, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, looked = tmp_path / "store", Path.is_dir

    def is_dir(path: Path) -> bool:
        found = looked(path)
        if path == store and not found:
            store.mkdir(mode=0o700)  # behind the look
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir)
    _ = new_app(f"embedded://{store}").store


def test_another_opening_with_other_options_says_which_hold(
    tmp_path: Path, new_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    for options in ({"max_store_bytes": 1 << 30}, {"max_store_bytes": 1 << 31, "create": False}):
        _ = new_app(f"embedded://{tmp_path}/store", store=options).store
    assert "those hold: max_store_bytes = 1073741824 and not 2147483648" in caplog.text


def test_bad_settings_are_found_before_any_io(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown consumer setting 'speed'"):
        ignis.Ignis(consumer={"speed": 1})
    with pytest.raises(ConfigError, match=r"sweeper\.batch = 0"):
        ignis.Ignis(sweeper={"batch": 0})
    with pytest.raises(ConfigError, match="no-such"):
        ignis.Ignis(config=tmp_path / "no-such")
    app = ignis.Ignis("memory://")
    with pytest.raises(ConfigError, match=r"queue\.shards = 0"):
        app.queue("jobs", shards=0)
    assert app.queues() == []
    with pytest.raises(ConfigError, match=r"publisher\.capacity = 1"):
        app.queue("jobs").publisher(capacity=1)


def test_publisher_settings_of_the_application(memory_url: str, new_app: MakeApp) -> None:
    app = new_app(memory_url, publisher={"capacity": 128, "linger_s": 1})
    found = app.publisher_settings({"linger_s": 2})
    assert (found.capacity, found.linger_s) == (128, 2)


def test_what_cannot_be_started(memory_app: ignis.Ignis) -> None:
    with pytest.raises(ConfigError, match="no queue of this application has a handler"):
        memory_app.start()
    memory_app.queue("jobs", int)
    with pytest.raises(ConfigError, match="no handler is registered for jobs, others: there is none for any queue"):
        memory_app.start(["others", "jobs"])
    memory_app.queue("orders", int).handler(lambda message: None)
    with pytest.raises(ConfigError, match=r"no handler is registered for order: is orders meant[?] there are orders$"):
        memory_app.start(["order"])
    assert not memory_app.running


def test_a_named_queue_that_no_pattern_fits_cannot_be_started(memory_app: ignis.Ignis) -> None:
    """It ran nothing, for ever."""
    memory_app.queue("orders", int).handler(lambda message: None)
    memory_app.handler("mails.*", int)(lambda message: None)
    with pytest.raises(ConfigError, match=r"registered for nosuch: there are orders, every mails\.\*$"):
        memory_app.start(["nosuch"])
    assert not memory_app.running
    memory_app.start(["mails.later", "orders"])
    assert memory_app.running


@pytest.mark.parametrize("there", [False, True])
def test_a_named_queue_may_be_found_by_its_handler_type(memory_url: str, new_app: MakeApp, there: bool) -> None:
    """One that another program has made, or will."""

    first = new_app(memory_url)
    first.queue("other", int).open()
    if there:
        first.queue("found", int, handler_type="mail").open()
    app = new_app(memory_url)
    app.handler(handler_type="mail")(lambda message: None)
    with pytest.raises(ConfigError, match="no handler is registered for other: there is none for any queue"):
        app.start(["other"])
    app.start(["found"])
    assert app.running


def test_only_some_queues(memory_app: ignis.Ignis) -> None:
    seen: list[str] = []
    for name in ("one", "two"):
        queue = memory_app.queue(name, str)
        queue.handler(seen.append)
        queue.publish(name)
    memory_app.start(["two"])
    wait_idle(queue)
    assert seen == ["two"]
    assert memory_app.running
    assert memory_app.queue("one").main.pending() == 1
    memory_app.start()
    eventually(lambda: len(seen) == 2)


def test_a_start_that_fails_leaves_nothing_running(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = memory_app.queue("a", int), memory_app.queue("b", int)
    for queue in (good, bad):
        queue.handler(lambda message: None)

    def broken() -> None:
        raise StoreFailedError("EIO")

    monkeypatch.setattr(bad, "open", broken)
    threads = NewThreads()
    with pytest.raises(StoreFailedError):
        memory_app.start()
    assert not memory_app.running
    assert good.consumer is None
    assert not threads.named()


def test_a_start_that_fails_has_claimed_nothing(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = memory_app.queue("a", int), memory_app.queue("b", int)
    claimed, fire = threading.Event(), good.main.store.fire
    for queue in (good, bad):
        queue.handler(lambda message: None)
        queue.publish(1)

    def firing(*args: Any, **kwargs: Any) -> Any:
        claimed.set()
        return fire(*args, **kwargs)

    def broken() -> None:
        claimed.wait(0.5)  # time for what ought not to be
        raise StoreFailedError("EIO")

    monkeypatch.setattr(good.main.store, "fire", firing)
    with monkeypatch.context() as patched:
        patched.setattr(bad, "open", broken)
        with pytest.raises(StoreFailedError):
            memory_app.start()
    assert not claimed.is_set()
    assert good.main.pending() == 1
    memory_app.start()
    wait_idle(good)
    wait_idle(bad)


@pytest.mark.parametrize("how", ["stop", "close"])
def test_run_ends_when_another_thread_stops_the_application(
    memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.INFO, "ignis.app")
    queue = memory_app.queue("jobs", int)
    queue.handler(lambda message: None)
    thread = threading.Thread(target=memory_app.run)
    thread.start()
    eventually(lambda: memory_app.ready)
    getattr(memory_app, how)()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert f"process {os.getpid()}: app.stop() was called: stopping" in caplog.text


@pytest.mark.parametrize(
    ("why", "said"),
    [((), "app.request_stop() was called: stopping"), (("enough",), "enough: stopping")],
    ids=["bare", "why"],
)
def test_run_ends_when_asked(
    app: ignis.Ignis, caplog: pytest.LogCaptureFixture, why: tuple[str, ...], said: str
) -> None:
    caplog.set_level(logging.INFO, "ignis.app")
    queue = app.queue("jobs", int)

    @queue.handler
    def handle(message: int) -> None:
        app.request_stop(*why)

    queue.publish(1)
    app.run()
    assert said in caplog.text
    assert "a second signal" not in caplog.text, "nobody sent a first one"
    assert not app.running
    assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)


FORMS = ["thread", "async", "batch", "async batch", "middleware", "async middleware"]


def register_caller(app: ignis.Ignis, form: str, call: Callable[[], None]) -> ignis.Queue[int]:
    """A queue whose handler, or its middleware, calls that."""
    queue = app.queue("jobs", int, shards=1)

    @queue.middleware
    async def layer(ctx: ignis.Context, call_next: Any) -> Any:
        if form == "async middleware":
            call()
        return await call_next(ctx)

    def plain_layer(ctx: ignis.Context, call_next: Any) -> Any:
        call()
        return call_next(ctx)

    async def coroutine(message: Any) -> None:
        call()

    def plain(message: Any) -> None:
        if "middleware" not in form:
            call()

    if form == "middleware":
        queue.middleware(plain_layer)
    queue.handler(coroutine if form in ("async", "async batch") else plain, batch_size=2 if "batch" in form else None)
    return queue


@pytest.mark.parametrize("how", ["stop", "close", "run"])
@pytest.mark.parametrize("form", FORMS)
def test_a_handler_cannot_stop_the_application_that_waits_for_it(memory_app: ignis.Ignis, form: str, how: str) -> None:
    errors: list[str] = []

    def call() -> None:
        with pytest.raises(ConfigError) as raised:
            getattr(memory_app, how)()
        errors.append(str(raised.value))
        memory_app.request_stop()

    queue = register_caller(memory_app, form, call)
    queue.publish_many([1, 2])
    memory_app.run()
    assert errors, "it was called"
    assert errors[0].startswith(f"app.{how}() was called in a handler of queue 'jobs'")
    assert "app.request_stop()" in errors[0]
    assert (memory_app.drained, queue.main.in_flight(), queue.sideline.pending()) == (True, 0, 0)


@pytest.mark.parametrize("how", ["stop", "close"])
def test_a_hook_cannot_stop_the_application_that_waits_for_it(memory_app: ignis.Ignis, how: str) -> None:
    queue = memory_app.queue("jobs", int)
    queue.handler(lambda message: None)
    errors: list[str] = []

    @memory_app.after_handling
    def hook(name: str, handled: int, sidelined: int) -> None:
        try:
            getattr(memory_app, how)()
        except ConfigError as exc:
            errors.append(str(exc))
        memory_app.request_stop()

    queue.publish(1)
    memory_app.run()
    assert [one.partition(",")[0] for one in errors] == [f"app.{how}() was called in an after_handling hook"]
    assert (memory_app.drained, queue.main.in_flight()) == (True, 0)


@pytest.mark.parametrize("form", ["thread", "async"])
def test_a_thread_that_a_handler_starts_may_stop_the_application(memory_app: ignis.Ignis, form: str) -> None:
    answers: list[bool] = []
    threads: list[threading.Thread] = []

    def call() -> None:
        threads.append(threading.Thread(target=lambda: answers.append(memory_app.stop())))
        threads[-1].start()

    queue = register_caller(memory_app, form, call)
    queue.publish(1)
    memory_app.start()
    eventually(lambda: answers)
    for one in threads:
        one.join(WAIT_S)
    assert (answers, queue.main.in_flight()) == ([True], 0)


@pytest.mark.parametrize("form", ["thread", "async"])
def test_a_handler_may_stop_another_application(memory_app: ignis.Ignis, new_app: MakeApp, form: str) -> None:
    other = new_app("memory://")
    other.queue("others", int).handler(lambda message: None)
    other.start()
    queue = register_caller(memory_app, form, other.close)
    queue.publish(1)
    memory_app.start()
    wait_idle(queue)
    assert (other.running, queue.sideline.pending()) == (False, 0)


def test_run_off_the_main_thread(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    seen: list[int] = []
    queue.handler(seen.append)
    thread = threading.Thread(target=memory_app.run)
    thread.start()
    queue.publish(1)
    eventually(lambda: seen)
    memory_app.request_stop()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_run_raises_what_broke_a_consumer(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = memory_app.queue("jobs", int)
    queue.handler(lambda message: None)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise StoreFormatError("another format")

    monkeypatch.setattr(queue.main.store, "fire", broken)
    with pytest.raises(StoreFormatError, match="another format"):
        memory_app.run()
    assert not memory_app.running


def test_closing(store_url: str, new_app: MakeApp) -> None:
    app = new_app(store_url)
    queue = app.queue("jobs", int)
    queue.handler(lambda message: None)
    app.start()
    app.close()
    app.close()
    assert not app.running
    assert app.queues() == [queue]  # it works again: see test_restart.py
    with new_app(store_url) as again:
        assert again.queue("jobs", int).main.pending() == 0

    async def main() -> None:
        async with new_app(store_url) as third:
            await third.queue("jobs", int).apublish(1)

    asyncio.run(main())


def test_closing_stops_what_was_started_by_itself(app: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
    """A queue that was started without its application does not go on over a closed store."""
    queue, seen = app.queue("jobs", int), []
    queue.handler(seen.append)
    threads = NewThreads()
    queue.start()
    queue.publish(1)
    eventually(lambda: seen == [1])
    app.close()
    assert not queue.started
    eventually(lambda: not threads.named("ignis-jobs"))
    assert not [one for one in caplog.records if one.name != "ignis.upkeep"], (
        "its threads may still do what others asked for"
    )


@pytest.mark.parametrize(
    ("last", "says"),
    [("pass", True), ("app.close()", False), ("os.fork() or sys.exit()\nos.wait()\napp.close()", False)],
    ids=["running", "closed", "a child that was forked"],
)
def test_a_program_that_ends_while_its_application_runs_says_so(last: str, says: bool) -> None:
    program = f"""
import os, sys, ignis
app = ignis.Ignis("memory://ending")
app.queue("numbers", int).handler()(print)
app.start()
{last}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert ("app.run() instead of app.start()" in done.stderr) is says


def test_no_thread_is_left_after_a_stop(app: ignis.Ignis) -> None:
    async def coroutine(message: int) -> None: ...

    for name, fn in (("plain", lambda message: None), ("coroutine", coroutine)):
        app.queue(name, int).handler(fn, concurrency=3)
    threads = NewThreads()
    app.start()
    assert len(threads.named()) >= 6, "four workers, sweeper, refresher"
    assert app.stop() is True
    eventually(lambda: not [name for name in threads.named() if "store" not in name])


def test_figures(app: ignis.Ignis) -> None:
    app.queue("jobs", int).publish(1)
    found = app.stats()
    assert found["queues"][0]["pending"] == 1
    assert isinstance(found["store"], dict)


def test_a_queue_made_twice_names_what_differs() -> None:
    with ignis.Ignis("memory://") as app:
        app.queue("o", dict, shards=4)
        with pytest.raises(QueueMismatchError, match=r"'o' was made before with type = dict, now asked for with list$"):
            app.queue("o", list)
        with pytest.raises(QueueMismatchError, match=r"before with shards = 4, now asked for with 8$"):
            app.queue("o", shards=8)


def test_a_queue_that_is_stored_may_be_asked_for_again_as_before(tmp_path: Path) -> None:
    """What nobody gave is then as the store has it, and no other than before."""
    url = f"embedded://{tmp_path / 'store'}"
    settings: dict[str, Any] = {"shards": 4, "max_returns": 7}
    with ignis.Ignis(url) as app:
        app.queue("o", dict, codec="json", message_expiry="1h", **settings).open()
    with ignis.Ignis(url) as app:
        for number in range(3):
            queue = app.queue("o", dict, **settings)
            queue.publish({"n": number})
        assert queue is app.queue("o")
        with pytest.raises(QueueMismatchError, match="shards = 4, now asked for with 8"):
            app.queue("o", dict, shards=8, max_returns=7)


@pytest.mark.parametrize("by", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_is_of_a_process_is_not_handed_to_another(memory_app: ignis.Ignis, by: Callable[[Any], Any]) -> None:
    queue = memory_app.queue("orders")
    with pytest.raises(
        TypeError, match=r"an Ignis is not pickled or copied: .* make one in the child, by importing the module"
    ):
        by(memory_app)
    with pytest.raises(TypeError, match=r"queue 'orders' is not pickled or copied: .* hand over the queue's name"):
        by(queue)


def test_a_method_of_a_queue_is_not_pickled_either(memory_app: ignis.Ignis) -> None:
    with pytest.raises(TypeError, match="queue 'orders' is not pickled"):
        pickle.dumps(memory_app.queue("orders").publish)
