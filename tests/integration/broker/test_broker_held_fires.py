"""A FIRE that waits: a handler behind ``ignis://`` asks once for the next message, and the broker holds that back until there is
one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis
from ignis.broker.client import store_calls
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.server import load_notifier
from ignis.broker.server.consumer_commands import ConsumerCommands
from ignis.broker.server.dispatcher import Dispatcher
from ignis.broker.server.load_notifier import Watch
from ignis.broker.server.request_queue import RequestQueue
from ignis.config import BrokerSettings
from ignis.errors import ClosedError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.native import PackedBatch, encode_record
from ignis.native.store import Recall
from ignis.storage import open_store
from ignis.storage.base import FireResult, Transfer
from tests.support import eventually
from tests.support.broker import RunningBroker, Wire

pytestmark = pytest.mark.integration

LONG_S = 28.0
"""Below what a client asks for at most."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(f"embedded://{tmp_path / 'store'}") as running:
        yield running


MakeApp = Callable[[], Ignis]


@pytest.fixture
def new_app(broker: RunningBroker) -> Iterator[MakeApp]:
    made: list[Ignis] = []

    def make() -> Ignis:
        app = Ignis(broker.url)
        app.queue("q", bytes, shards=2, durability="none").open()
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


class Waiting:
    """A thread of an application that asks for the next message. Its time is not to be over before it has ended."""

    def __init__(self, app: Ignis, timeout_s: float = LONG_S, limit: int = 10) -> None:
        self.recall = Recall()
        self.found: Any = None
        self._magazines = app.store.magazines
        self._owner = app.store.owner
        self._arguments = timeout_s, limit
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        timeout_s, limit = self._arguments
        try:
            self.found = self._magazines.fire_next("q", limit, self._owner, 0, timeout_s, self.recall)
        except ClosedError as exc:
            self.found = exc

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> Any:
        self._thread.join(LONG_S / 2)
        assert not self.waits
        return self.found

    @property
    def bodies(self) -> list[bytes]:
        found = self.end()
        assert isinstance(found[1], FireResult)
        return [bytes(record[-5:]) for claim in found[1].claims for record in claim.records]


def held_back(broker: RunningBroker, number: int) -> None:
    """Returns once so many FIREs are held back."""
    pump = broker.broker.applications[0].pump
    eventually(lambda: broker.on_loop(lambda: pump("q").consumers) == number)


def publish(app: Ignis, *bodies: bytes) -> None:
    app.store.magazines.load_records("q", 0, [encode_record(body) for body in bodies])


def handle_with(app: Ignis, kind: str) -> None:
    async def awaited(body: bytes) -> None:
        pass

    def called(body: bytes) -> None:
        pass

    app.queue("q", bytes).handler(awaited if kind == "async" else called)


def handled(app: Ignis) -> int:
    consumer = app.queue("q", bytes).stats()["consumer"]
    return int(consumer["handled"])


def test_what_comes_is_claimed_in_the_name_of_the_client(broker: RunningBroker, new_app: MakeApp) -> None:
    app, other = new_app(), new_app()
    waiting = Waiting(app)
    held_back(broker, 1)
    publish(other, b"first")
    assert waiting.bodies == [b"first"]
    assert [run.messages for run in app.store.magazines.held("q", app.store.owner)] == [1]
    (session,) = [one for one in broker.broker.sessions if one.held.count_of("q")]
    assert broker.on_loop(lambda: session.claims.delivered("q")) == [], "the client renews what it claims by itself"
    assert app.store.magazines.delete("q", {0: [1]}) == 1


def test_what_waits_already_is_claimed_at_once(broker: RunningBroker, new_app: MakeApp) -> None:
    app = new_app()
    publish(app, b"first", b"other")
    assert Waiting(app, limit=1).bodies == [b"first"]
    assert Waiting(app, limit=1).bodies == [b"other"]
    assert app.store.magazines.fire("q", 1, app.store.owner).claims == []
    publish(app, b"third")
    assert len(app.store.magazines.fire("q", 1, app.store.owner).claims) == 1
    assert broker.broker.state.delivered + sum(pump.delivered for pump in broker.pumps()) == 3


def test_when_the_time_is_over_nothing_was_claimed(broker: RunningBroker, new_app: MakeApp) -> None:
    app = new_app()
    assert Waiting(app, 0.05).end() == (0, None)
    publish(app, b"first")
    time.sleep(0.05)
    assert app.queue("q", bytes).main.pending() == 1


def test_who_is_called_back_returns(broker: RunningBroker, new_app: MakeApp) -> None:
    app = new_app()
    waiting, elsewhere = Waiting(app), Waiting(new_app())
    held_back(broker, 2)
    waiting.recall.set()
    app.store.magazines.wake("q")
    assert waiting.end() == (0, None)
    assert elsewhere.waits
    publish(app, b"first")
    assert elsewhere.bodies == [b"first"]


def test_a_call_back_that_was_sent_first_is_sent_again(
    broker: RunningBroker, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app()
    connection = app.store.magazines._calls.client.connect()
    real, recall = type(connection).begin, Recall()

    def begin(self: Any, command: int, *args: Any, **options: Any) -> int:
        monkeypatch.undo()
        recall.set()
        app.store.magazines.wake("q")  # before the request leaves
        return real(self, command, *args, **options)

    monkeypatch.setattr(type(connection), "begin", begin)
    began_s = time.monotonic()
    assert app.store.magazines.fire_next("q", 1, app.store.owner, 0, LONG_S, recall) == (0, None)
    assert time.monotonic() - began_s < LONG_S


def test_one_message_goes_to_one_of_those_who_wait(broker: RunningBroker, new_app: MakeApp) -> None:
    apps = [new_app() for _ in range(3)]
    waiting = [Waiting(app) for app in apps]
    held_back(broker, 3)
    publish(apps[0], b"first")
    eventually(lambda: sum(not one.waits for one in waiting) == 1)
    assert [one.bodies for one in waiting if not one.waits] == [[b"first"]]
    held_back(broker, 2)
    publish(apps[0], b"other")
    eventually(lambda: sum(not one.waits for one in waiting) == 2)


def test_a_paused_queue_gives_nothing_until_it_goes_on(broker: RunningBroker, new_app: MakeApp) -> None:
    app = new_app()
    queue = app.queue("q", bytes)
    queue.pause()
    waiting = Waiting(app)
    held_back(broker, 1)
    publish(app, b"first")
    time.sleep(0.2)
    assert waiting.waits
    queue.resume()
    assert waiting.bodies == [b"first"]


def test_what_comes_for_who_has_gone_is_there_for_others(broker: RunningBroker, new_app: MakeApp) -> None:
    app, other = new_app(), new_app()
    waiting = Waiting(app)
    held_back(broker, 1)
    app.close()
    assert isinstance(waiting.end(), ClosedError)
    held_back(broker, 0)
    publish(other, b"first")
    assert Waiting(other).bodies == [b"first"]


def test_a_connection_that_is_lost_ends_the_wait(broker: RunningBroker, new_app: MakeApp) -> None:
    app = new_app()
    waiting = Waiting(app)
    held_back(broker, 1)
    (session,) = [one for one in broker.broker.sessions if one.consuming._pulls]
    broker.on_loop(session.abort)
    assert waiting.end() == (1, None), "another number: the queue is to be looked at"
    publish(app, b"first")
    eventually(lambda: app.store.magazines._calls.tracking.in_step)
    assert Waiting(app).bodies == [b"first"]


def test_a_broker_that_drains_ends_the_wait(broker: RunningBroker, new_app: MakeApp) -> None:
    waiting = Waiting(new_app())
    held_back(broker, 1)
    broker.stop()
    seen, found = waiting.end()
    assert found is None
    assert seen in (0, 1), "its answer, or the end of the connection, whichever the client sees first"


def test_of_a_broker_that_does_not_hold_back_nothing_is_asked(new_app: MakeApp) -> None:
    app = new_app()
    connection = app.store.magazines._calls.client.connect()
    old = connection.machine.broker
    assert old is not None and old.holds_fires
    connection.machine.broker = type(old)(*[getattr(old, name) for name in old.__struct_fields__[:-1]])
    assert app.store.magazines.fire_next("q", 1, app.store.owner, 0, LONG_S, Recall()) is None


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_handler_asks_once_for_a_message(
    broker: RunningBroker, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What comes while it waits is brought by what it waits with."""
    app, publisher = new_app(), new_app()
    asked: list[int] = []
    real = RequestQueue.put

    def put(self: RequestQueue, request: Any) -> None:
        asked.append(request.command)
        real(self, request)

    handle_with(app, kind)
    app.start()
    held_back(broker, 1)
    monkeypatch.setattr(RequestQueue, "put", put)
    began_s = time.monotonic()
    for number in range(10):
        publisher.queue("q", bytes).publish(b"%d" % number)
        eventually(lambda number=number: handled(app) == number + 1)
        held_back(broker, 1)
    idle_looks = 1 + (time.monotonic() - began_s) / 10  # so often a FIRE that found nothing is made anew
    assert asked.count(Command.FIRE) <= idle_looks


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_an_idle_handler_asks_seldom(
    broker: RunningBroker, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Who holds its request back sees every load: it need not ask each second."""
    app = new_app()
    handle_with(app, kind)
    app.start()
    held_back(broker, 1)
    time.sleep(1.2)
    asked: list[int] = []
    take = ConsumerCommands.take

    def counted(self: ConsumerCommands, request: Any) -> bool:
        asked.append(request.command)
        return take(self, request)

    monkeypatch.setattr(ConsumerCommands, "take", counted)
    time.sleep(2.5)
    assert sum(one in (Command.FIRE, Command.WAIT) for one in asked) <= 1
    new_app().queue("q", bytes).publish(b"first")
    eventually(lambda: handled(app) == 1)


def test_of_a_broker_that_does_not_answer_nobody_waits_for_the_end_of_a_wait(
    broker: RunningBroker, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_calls, "_WAKE_S", 0.1)
    app = new_app()
    waiting = [Waiting(app) for _ in range(3)]
    held_back(broker, 3)
    goes_on = threading.Event()
    broker.broker.loop.call_soon_threadsafe(goes_on.wait, LONG_S)
    try:
        for _ in range(20):  # each would take its time
            app.store.magazines.wake("q")
        assert [one.end() for one in waiting] == [(1, None)] * 3
    finally:
        goes_on.set()
    publish(app, b"first")
    eventually(lambda: Waiting(app).bodies == [b"first"])


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_handler_that_waits_is_paused_and_stopped_at_once(broker: RunningBroker, new_app: MakeApp, kind: str) -> None:
    app, publisher = new_app(), new_app()
    handle_with(app, kind)
    app.start()
    held_back(broker, 1)
    consumer: Any = app.queue("q", bytes)._handling.consumer
    consumer.pause("the test")
    held_back(broker, 0)
    publisher.queue("q", bytes).publish(b"first")
    time.sleep(0.2)
    assert handled(app) == 0
    consumer.resume("the test")
    eventually(lambda: handled(app) == 1)
    held_back(broker, 1)
    began_s = time.monotonic()
    app.stop()
    assert time.monotonic() - began_s < LONG_S / 2
    held_back(broker, 0)


def test_who_waits_again_and_again_has_one_thread_that_looks(
    broker: RunningBroker, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message ends the wait for it, and the next one begins behind it."""
    app, publisher = new_app(), new_app()
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        started.append(thread)
        thread.start()

    monkeypatch.setattr(load_notifier, "start_thread", start)
    for number in range(40):
        waiting = Waiting(app)
        held_back(broker, 1)
        publish(publisher, b"%05d" % number)
        assert waiting.bodies == [b"%05d" % number]
    assert len(started) < 20


def test_what_another_process_loads_comes_while_the_broker_loads_too(
    broker: RunningBroker, new_app: MakeApp, tmp_path: Path
) -> None:
    """The thread that looks for loads by others looks away from the broker's own, and misses none of theirs."""
    app, publisher = new_app(), new_app()
    with open_store(f"embedded://{tmp_path / 'store'}") as beside:
        for number in range(15):
            for body, by in ((b"%05d" % number, publisher.store), (b"%05d" % (100 + number), beside)):
                waiting = Waiting(app)
                held_back(broker, 1)
                by.magazines.load_records("q", 0, [encode_record(body)])
                assert waiting.bodies == [body]


@pytest.mark.parametrize("how", ["reload", "transfer", "defer", "load once"])
def test_what_comes_back_or_from_elsewhere_reaches_who_waits(
    broker: RunningBroker, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """At once, from the loop: neither the thread that looks for loads by others nor the look now and then is needed."""
    app, other = new_app(), new_app()
    magazines, record = other.store.magazines, encode_record(b"first")
    source = "q" + SIDELINE_SUFFIX if how == "transfer" else "q"
    magazines.load_records(source, 0, [record])
    assert magazines.fire(source, 1, other.store.owner).total() == 1
    monkeypatch.setattr(Watch, "once", lambda self, timeout_s: bool(time.sleep(0.01)) or self.wanted)
    monkeypatch.setattr(Dispatcher, "look", lambda self: None)
    waiting = Waiting(app)
    held_back(broker, 1)
    item = Transfer(0, 1, record, 0)
    if how == "reload":
        assert magazines.reload("q", {0: [1]}) == 1
    elif how == "transfer":
        assert magazines.transfer(source, "q", [item]) == 1
    elif how == "defer":
        assert magazines.defer("q", [item], [1]) == 1
    else:
        magazines.load_once("q", [(0, PackedBatch.pack([record]))], None, 60)
    assert waiting.bodies == [b"first"]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_more_handlers_that_wait_than_a_connection_has_requests(broker: RunningBroker, kind: str) -> None:
    """Neither is anything else refused meanwhile, nor is a queue forgotten."""
    handled: list[bytes] = []

    async def awaited(body: bytes) -> None:
        handled.append(body)

    with Ignis(f"{broker.url}?max_pending=20") as app:
        queues = [app.queue(f"q{number}", bytes, shards=1, durability="none") for number in range(30)]
        for queue in queues:
            queue.handler(awaited if kind == "async" else handled.append)
        app.start()
        for turn in range(2):
            for number, queue in enumerate(queues):
                queue.publish(b"%d %d" % (turn, number))
            eventually(lambda turn=turn: len(handled) == 30 * (turn + 1))
        assert sum(one["consumer"]["fetch_errors"] for one in app.stats()["queues"]) == 0
    assert len(set(handled)) == 60


def test_a_user_has_so_many_requests_that_wait(tmp_path: Path) -> None:
    with RunningBroker(f"embedded://{tmp_path / 'store'}", settings=BrokerSettings(max_waiting_per_user=3)) as broker:
        waiting = broker.broker.context.waiting
        with Ignis(broker.url) as app, Wire(broker.port) as wire:
            app.queue("q", bytes, shards=2, durability="none").open()
            wire.greet()
            fire = pack(("q", 1, "", None, 1 << 20, int(LONG_S * 1_000)))
            wire.send(Command.FIRE, 10, fire)
            wire.send(Command.CONSUME, 11, pack(("q", 1, int(LONG_S * 1_000))))
            wire.send(Command.WAIT, 12, pack(("q", 0, int(LONG_S * 1_000))))
            user = broker.on_loop(lambda: [one.shares_with for one in broker.broker.sessions][-1])
            eventually(lambda: broker.on_loop(lambda: waiting.count(user)) == 3)
            for number, (command, payload) in enumerate(
                ((Command.FIRE, fire), (Command.WAIT, pack(("q", 0, 10_000)))), 20
            ):
                wire.send(command, number, payload)
                failure = wire.failure()
                assert (failure.code, "broker.max_waiting_per_user" in failure.message) == ("too_many_requests", True)
            wire.send(Command.WAKE, 30, pack(("q",)))  # ends them all
            assert sorted(wire.receive()[1] for _ in range(3)) == [10, 12, 30]
            publish(app, b"first")
            assert wire.receive()[1] == 11
            eventually(lambda: broker.on_loop(lambda: waiting.count(user)) == 0)
            wire.send(Command.FIRE, 40, fire)
            eventually(lambda: broker.on_loop(lambda: waiting.count(user)) == 1)
        eventually(lambda: broker.on_loop(lambda: waiting.count(user)) == 0)


def test_many_that_wait_are_told_in_turn(broker: RunningBroker, new_app: MakeApp) -> None:
    app = new_app()
    with Wire(broker.port) as wire:
        wire.greet()
        for number in range(700):
            wire.send(Command.WAIT, 10 + number, pack(("q", 0, int(LONG_S * 1_000))))
        pump = broker.broker.applications[0].watches
        eventually(lambda: len(broker.on_loop(lambda: pump.watch("q", "somebody"))._waiters) == 700)
        publish(app, b"first")
        told = [wire.receive() for _ in range(700)]
        assert sorted(number for _, number, _ in told) == list(range(10, 710))
        assert {payload for _, _, payload in told} == {pack(1)}


def test_nobody_is_woken_at_a_broker_that_is_gone(
    broker: RunningBroker, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop does that for each of its queues, and must not try to connect for each."""
    app = new_app()
    calls = app.store.magazines._calls
    connection = calls.client.connect()
    broker.stop()
    eventually(lambda: not connection.look() or not connection.alive)
    monkeypatch.setattr(type(calls.client), "connect", lambda self, timeout_s=None: pytest.fail("it connects"))
    app.store.magazines.wake("q")
    monkeypatch.undo()
