"""Who may do what: every role, every command, its own queue and another's, asked of a broker and compared with the
table of docs/security.md. And what permitted requests may not do all the same."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import ignis
from ignis import errors
from ignis.broker.auth.permissions import FREE
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol import later_payloads, payloads
from ignis.broker.protocol.commands import ANSWERS, Command
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.payloads import Failure
from ignis.broker.protocol.permission_words import words_for
from ignis.broker.protocol.table import TABLE, WORDS
from ignis.cli import main
from ignis.native import PackedBatch, encode_record
from ignis.native.wire import pack_pointers
from ignis.storage.base import QueueRecord
from tests.support import permission_matrix
from tests.support.broker import RunningBroker, Wire, running
from tests.support.permitted import Tokens, app, ask, client, make

MINE, THEIRS = "mine", "theirs"


@pytest.fixture
def broker(memory_url: str) -> Iterator[RunningBroker]:
    with running(memory_url, authenticator=Tokens()) as one:
        yield one


def test_who_may_look_at_a_queue_may_open_it_and_see_its_figures(broker: RunningBroker) -> None:
    make(broker, MINE, THEIRS)
    with app(broker, "anna", "look:mine") as looking:
        assert looking.queue(MINE, bytes).stats()["pending"] == 0
        assert looking.queue(MINE, bytes).main.peek() == []
        with pytest.raises(errors.PermissionDeniedError, match="SEND"):
            looking.queue(MINE, bytes).publish(b"a")
    with app(broker, "anna", "look:mine,new") as looking:
        with pytest.raises(errors.PermissionDeniedError, match=THEIRS):
            looking.queue(THEIRS, bytes).stats()
        with pytest.raises(errors.PermissionDeniedError, match="does not exist"):
            looking.queue("new", bytes).stats()
        with pytest.raises(errors.QueueMismatchError, match="which is for those who may manage it"):
            looking.queue(MINE, bytes, shards=9).open()


# -- what the commands need, as docs/operations.md says


@pytest.mark.parametrize(
    ("rules", "arguments", "code"),
    [
        ("look:mine", ["consume", "mine", "--no-ack"], 0),
        ("look:mine", ["consume", "mine"], 1),
        ("consume:mine", ["consume", "mine"], 1),
        ("work:mine", ["stats"], 0),
        ("look:mine", ["stats"], 0),
        ("look:mine", ["queues"], 0),
        ("look:mine", ["peek", "mine"], 0),
        ("work:mine", ["consume", "mine"], 0),
    ],
)
def test_the_words_that_commands_need(
    broker: RunningBroker, capsys: pytest.CaptureFixture[str], rules: str, arguments: list[str], code: int
) -> None:
    make(broker, "mine", "theirs")
    with app(broker, "boss", "all:*") as boss:
        boss.queue("mine", bytes).publish(b"x")
    assert main([*arguments, "--url", f"{broker.url}?token=who|{rules}"]) == code
    told = capsys.readouterr()
    if code:
        assert "that takes" in told.err
    elif arguments != ["stats"]:
        assert "mine" in told.out or '"pointer":1' in told.out or "x" in told.out
    assert "theirs" not in told.out


# -- every role, every command


def _record(name: str) -> QueueRecord:
    return QueueRecord(name, shards=2, codec="raw")


def request(command: int, name: str) -> bytes:
    """A request of this command about this queue, lock, scope or array queue."""
    runs = pack_pointers({0: [1]})
    batch = [(0, PackedBatch.pack([encode_record(b"x")]))]
    sent = payloads.pack_send_batch(name.encode(), 0, batch)
    lock = payloads.LockRequest(name, "me", 5.0)
    array = payloads.ArrayRequest(name, "Q", [1], 1)
    named = pack(payloads.Named(name))
    made: dict[int, bytes] = {
        Command.SEND: payloads.pack_send(name.encode(), 0, 0, encode_record(b"x")),
        Command.SEND_BATCH: sent,
        Command.LOAD_ONCE: pack(payloads.LoadOnce(name, 1000), sent),
        Command.LOAD_LATER: pack(later_payloads.LoadLater(name), later_payloads.pack_dues([[1]]) + sent),
        Command.DEFER: pack(later_payloads.DeferRequest(name, [])),
        Command.MOVE_DUE: pack(later_payloads.MoveDue(name)),
        Command.LIST_LATER: pack(later_payloads.ListLater(name)),
        Command.RUN_NOW: pack(payloads.Named(name), runs),
        Command.CANCEL_LATER: pack(payloads.Named(name), runs),
        Command.SUBSCRIBE: pack(payloads.Subscribe(name, 0)),
        Command.UNSUBSCRIBE: pack(payloads.Unsubscribe(0)),
        Command.CREDIT: pack(payloads.Credit(0, 0)),
        Command.CONSUME: pack(payloads.Consume(name, 1)),
        Command.ACK: pack(payloads.Named(name), runs),
        Command.NACK: pack(payloads.Nack(name), runs),
        Command.DECLARE: pack(payloads.Declare(name, 2, "sync")),
        Command.FIRE: pack(payloads.Fire(name, 1, "me")),
        Command.CLAIM: pack(payloads.ClaimRequest(name, 1, "me")),
        Command.HELD: pack(payloads.OwnerRequest(name, "me")),
        Command.RENEW: pack(payloads.OwnerRequest(name, "me")),
        Command.RENEW_CLAIMS: pack(payloads.RenewClaims(name), runs),
        Command.RESUME: pack(payloads.Resume(name), runs),
        Command.RELOAD: pack(payloads.Reload(name), runs),
        Command.DELETE: pack(payloads.Named(name), runs),
        Command.DELETE_WAITING: pack(payloads.Named(name), runs),
        Command.PURGE: pack(payloads.PurgeRequest(name)),
        Command.PEEK: pack(payloads.Named(name), runs),
        Command.SCAN: pack(payloads.Scan(name)),
        Command.TRANSFER: pack(payloads.TransferRequest(name, f"{name}_SIDELINE", [])),
        Command.ABANDONED: pack(payloads.AbandonedRequest(name, 0, 0, 1)),
        Command.EXPIRE: pack(payloads.Expire(name)),
        Command.WAIT: pack(payloads.Wait(name, -1, 0)),
        Command.QUEUE_PUT: pack(_record(name)),
        Command.QUEUE_REPLACE: pack(payloads.QueueReplace(_record(name), _record(name))),
        Command.CREATE_QUEUE: pack(payloads.CreateQueue(name, {"codec": "raw", "shards": 2})),
        Command.DELETE_QUEUE: pack(payloads.DeleteQueue(name, True)),
        Command.LIST_QUEUES: pack(payloads.QueueList()),
        Command.QUEUE_LIST: pack(payloads.QueueList()),
        **dict.fromkeys((one for one in TABLE if Command(one).name.startswith("LOCK_")), pack(lock)),
        **dict.fromkeys((Command.EPOCH_NEXT, Command.EPOCH_GET), pack(payloads.EpochRequest(name))),
        Command.EPOCH_RAISE: pack(payloads.EpochRequest(name, 1 << 40)),
        **dict.fromkeys((one for one in TABLE if Command(one).name.startswith("ARRAY_")), pack(array)),
        **dict.fromkeys(
            (
                Command.WAKE, Command.METADATA, Command.OLDEST, Command.DROP, Command.DROP_EMPTY, Command.QUEUE_GET,
                Command.QUEUE_INFO, Command.QUEUE_REMOVE, Command.DELAYED,
            ),
            named,
        ),
    }  # fmt: skip
    return made.get(command, pack(None))


class Somebody:
    """One connection that asks and tells whether it was denied."""

    def __init__(self, broker: RunningBroker, name: str, *rules: str) -> None:
        self.wire = Wire(broker.port)
        self.wire.greet(token=f"{name}|{' '.join(rules)}")
        self._ids = itertools.count(10)

    def ask(self, command: int, payload: bytes) -> tuple[int, bytes]:
        request_id = next(self._ids)
        self.wire.send(command, request_id, payload)
        while True:
            answer, answered, body = self.wire.receive()
            if answered == request_id:
                return answer, body

    def may(self, command: int, name: str) -> bool:
        answer, body = self.ask(command, request(command, name))
        return answer != Command.ERROR or unpack(body, Failure)[0].code != errors.PermissionDeniedError.code


DESTROYING = (Command.DROP, Command.DROP_EMPTY, Command.DELETE_QUEUE, Command.QUEUE_REMOVE)
OF_LEADERS = {"LOCK": "leader-sweeper", "EPOCH": "sweeper"}


def test_the_document_has_the_table() -> None:
    assert permission_matrix.documented() == permission_matrix.derived()
    commands = {command for command in Command if command not in ANSWERS}
    assert set(TABLE) == commands, "a new command needs a row"
    assert {"CONNECT", "DISCONNECT", "PING"} <= FREE


@pytest.mark.parametrize("word", permission_matrix.COLUMNS)
def test_every_role_and_every_command(broker: RunningBroker, word: str) -> None:
    matrix = permission_matrix.documented()
    rules = [] if word == "none" else [f"{word}:{MINE}"]
    make(broker, MINE, THEIRS)
    role = Somebody(broker, f"{word}-of-one", *rules)
    whole = Somebody(broker, f"{word}-of-all", *([] if word == "none" else [f"{word}:*"]))
    wrong: list[str] = []

    def expect(who: Somebody, command: int, name: str, allowed: bool, whose: str) -> None:
        if who.may(command, name) != allowed:
            wrong.append(f"{Command(command).name} of {name} for {whose}: {'denied' if allowed else 'allowed'}")
        if command in DESTROYING:
            make(broker, MINE, THEIRS)

    for number in TABLE:
        command = Command(number).name
        if command in FREE:
            continue
        cell = matrix[command][word]
        for name in (MINE, THEIRS):
            by_name = ("name" in cell and name == MINE) or ("lead" in cell and command.startswith("EPOCH"))
            expect(role, number, name, by_name or cell in ("list", "own"), "its own")
            expect(whole, number, name, cell != "-", "all")
        leader = OF_LEADERS.get(command.partition("_")[0])
        if leader is not None:
            expect(role, number, leader, "lead" in cell, "its own")
            expect(whole, number, leader, cell != "-", "all")
    assert not wrong
    role.wire.close()
    whole.wire.close()


def test_lists_have_what_one_may_see(broker: RunningBroker) -> None:
    make(broker, MINE, THEIRS)
    for word in ("look", "work"):
        with client(broker, word, f"{word}:{MINE}") as who:
            assert [one["name"] for one in ask(who, Command.QUEUE_LIST, payloads.QueueList())] == [MINE]
            assert ask(who, Command.NAMES, None) == [MINE, f"{MINE}_SIDELINE"]
    with client(broker, "look", f"look:{MINE}") as who:
        assert [one["name"] for one in ask(who, Command.LIST_QUEUES, payloads.QueueList())] == [MINE]
    with client(broker, "ops", "look:*") as who:
        assert [one["name"] for one in ask(who, Command.LIST_QUEUES, payloads.QueueList())] == [MINE, THEIRS]


def test_a_transfer_needs_both_queues(broker: RunningBroker) -> None:
    make(broker, MINE, THEIRS)
    with client(broker, "worker", f"work:{MINE}") as who:
        for pair in ((MINE, THEIRS), (THEIRS, MINE)):
            with pytest.raises(errors.PermissionDeniedError):
                ask(who, Command.TRANSFER, payloads.TransferRequest(*pair, []))
        sent = payloads.pack_send_batch(THEIRS.encode(), 0, [(0, PackedBatch.pack([encode_record(b"x")]))])
        with pytest.raises(errors.BadRequestError, match="two magazines"):
            ask(who, Command.LOAD_ONCE, payloads.LoadOnce(MINE, 1000), sent)


# -- opening is not making


@pytest.mark.parametrize("word", ["publish", "consume", "work"])
def test_who_may_not_manage_opens_what_there_is(broker: RunningBroker, word: str) -> None:
    make(broker, MINE)
    with client(broker, word, f"{word}:{MINE},{MINE}2") as who, client(broker, "boss", "all:*") as boss:
        for shards in (1, 3, 65_535):
            with pytest.raises(errors.QueueMismatchError, match="2 shards"):
                ask(who, Command.DECLARE, payloads.Declare(MINE, shards, "sync"))
        with pytest.raises(errors.QueueMismatchError, match="sync"):
            ask(who, Command.DECLARE, payloads.Declare(MINE, 2, "none"))
        for name in (f"{MINE}2", f"{MINE}2_SIDELINE"):
            with pytest.raises(errors.PermissionDeniedError):
                ask(who, Command.DECLARE, payloads.Declare(name, 2, "sync"))
        ask(who, Command.DECLARE, payloads.Declare(MINE, 2, "sync"))
        assert ask(boss, Command.NAMES, None) == [MINE, f"{MINE}_SIDELINE"]
        assert len(ask(boss, Command.METADATA, payloads.Named(MINE))) == 2


def test_no_declaration_takes_shards_away_from_a_queue(broker: RunningBroker) -> None:
    make(broker, MINE, shards=4)
    with client(broker, "boss", "manage:*", "look:*") as boss:
        with pytest.raises(errors.QueueMismatchError, match="CREATE_QUEUE"):
            ask(boss, Command.DECLARE, payloads.Declare(MINE, 1, "sync"))
        ask(boss, Command.DECLARE, payloads.Declare(MINE, 8, "sync"))
        assert len(ask(boss, Command.METADATA, payloads.Named(MINE))) == 8


# -- records of queues


def stored(who: SyncClient, name: str) -> QueueRecord:
    return msgspec.convert(ask(who, Command.QUEUE_GET, payloads.Named(name)), QueueRecord)


def test_a_record_is_replaced_by_one_of_its_name(broker: RunningBroker) -> None:
    make(broker, MINE, THEIRS)
    with client(broker, "eve", f"work:{MINE}") as eve, client(broker, "boss", "all:*") as boss:
        known = stored(eve, MINE)
        for who in (eve, boss):
            for pair in (
                (known, dataclasses.replace(known, name=THEIRS)),
                (dataclasses.replace(known, name=THEIRS), known),
            ):
                with pytest.raises(errors.BadRequestError, match="QUEUE_REPLACE of"):
                    ask(who, Command.QUEUE_REPLACE, payloads.QueueReplace(*pair))
        assert sorted(one["name"] for one in ask(boss, Command.QUEUE_LIST, payloads.QueueList())) == [MINE, THEIRS]


@pytest.mark.parametrize(
    "change",
    [
        {"stuck_after_s": 1}, {"stuck_after_s": 1 << 40}, {"message_expiry_s": -1}, {"queue_expiry_s": -1}, {"shards": 0},
        {"shards": 65_535}, {"concurrency": -1}, {"max_returns": -1}, {"shovel_interval_s": -5}, {"shovel_concurrency": 1 << 31},
        {"max_batch_size": 1 << 50}, {"max_wait_s": float("nan")}, {"max_wait_s": float("inf")}, {"swept_count": -1},
        {"durability": "maybe"}, {"codec": "pickle"}, {"handler_type": "a\nb"}, {"sweep_pointers": {-1: 5}},
        {"sweep_pointers": {1: -5}}, {"extra": {"x": "y" * 70_000}},
        {"message_expiry_s": 2_000, "queue_expiry_s": 1_000},
    ],
)  # fmt: skip
def test_what_a_record_may_say(broker: RunningBroker, change: dict[str, Any]) -> None:
    make(broker, MINE)
    with client(broker, "boss", "all:*") as boss:
        known = stored(boss, MINE)
        fresh = dataclasses.replace(known, **change)
        for command, head in (
            (Command.QUEUE_PUT, fresh), (Command.QUEUE_REPLACE, payloads.QueueReplace(known, fresh)),
        ):  # fmt: skip
            with pytest.raises(errors.ConfigError):
                ask(boss, command, head)
        assert stored(boss, MINE) == known


SECRET_BODY = {"salary": 1_000}


def scheduled(broker: RunningBroker, name: str) -> QueueRecord:
    with app(broker, "boss", "all:*") as boss:
        boss.queue(name, dict).open()
        boss.schedules.add("beat", queue=name, message=SECRET_BODY, every="1h")
        record = boss.store.queues.get(name)
        assert record is not None
        return record


@pytest.mark.parametrize("rule", ["publish:mine", "consume:mine", "manage:mine", "QUEUE_GET,QUEUE_LIST:mine"])
def test_what_a_schedule_publishes_is_for_who_may_look(broker: RunningBroker, rule: str) -> None:
    body = scheduled(broker, MINE).extra["schedules"]["beat"]["body"]
    assert body
    with client(broker, "who", rule) as who:
        row = stored(who, MINE).extra["schedules"]["beat"]
        assert (row["body"], row["every_ms"]) == ("", 3_600_000)
        if "LIST" in rule:
            (listed,) = ask(who, Command.QUEUE_LIST, payloads.QueueList())
            assert listed["extra"]["schedules"]["beat"]["body"] == ""
    for rule in ("look:mine", "work:mine", "all:*"):
        with client(broker, "who", rule) as who:
            assert stored(who, MINE).extra["schedules"]["beat"]["body"] == body


def test_who_may_manage_and_not_look_changes_schedules_without_seeing_what_they_publish(broker: RunningBroker) -> None:
    before = scheduled(broker, MINE)
    with client(broker, "manager", "manage:mine") as manager, client(broker, "boss", "all:*") as boss:
        known = stored(manager, MINE)
        rows = {**known.extra["schedules"]}
        rows["beat"] = {**rows["beat"], "every_ms": 60_000}
        rows["other"] = {**rows["beat"], "body": "MQ==", "incarnation": "other"}
        fresh = dataclasses.replace(known, extra={**known.extra, "schedules": rows})
        answer = ask(manager, Command.QUEUE_REPLACE, payloads.QueueReplace(known, fresh))
        assert answer["extra"]["schedules"]["beat"]["body"] == ""
        now = stored(boss, MINE).extra["schedules"]
        assert now["beat"]["body"] == before.extra["schedules"]["beat"]["body"]
        assert (now["beat"]["every_ms"], now["other"]["body"]) == (60_000, "MQ==")
        with pytest.raises(errors.ConflictError):
            ask(manager, Command.QUEUE_REPLACE, payloads.QueueReplace(known, fresh))
        ask(manager, Command.QUEUE_PUT, stored(manager, MINE))
        assert stored(boss, MINE).extra["schedules"] == now


def test_a_worker_fires_and_pauses_schedules_and_neither_adds_nor_changes_them(broker: RunningBroker) -> None:
    known = scheduled(broker, MINE)
    row = known.extra["schedules"]["beat"]
    with client(broker, "worker", "work:mine") as worker:
        for rows in (
            {},
            {"beat": row, "more": row},
            {"beat": {**row, "body": "MQ=="}},
            {"beat": {**row, "every_ms": 100}},
            {"more": row},
        ):
            fresh = dataclasses.replace(known, extra={**known.extra, "schedules": rows})
            with pytest.raises(
                errors.PermissionDeniedError, match="manage or all for it adds, changes and removes its schedules"
            ):
                ask(worker, Command.QUEUE_REPLACE, payloads.QueueReplace(known, fresh))
    with app(broker, "worker", "work:mine") as worker:
        assert worker.schedules.pause("beat").paused
        assert not worker.schedules.resume("beat").paused
        assert worker.schedules.run("beat")
        for change in (
            lambda: worker.schedules.add("beat", queue=MINE, message={}, every="2h"),
            lambda: worker.schedules.add("more", queue=MINE, message={}, every="2h"),
            lambda: worker.schedules.remove("beat"),
        ):
            with pytest.raises(errors.PermissionDeniedError, match="schedules"):
                change()


# -- what nobody may store


def test_keys_of_one_hash_reach_no_record(broker: RunningBroker) -> None:
    make(broker, MINE)
    with client(broker, "boss", "all:*") as boss:
        known = stored(boss, MINE)
        odd = dataclasses.replace(known, extra={"x": {(1, 2): None}})
        for command, head in (
            (Command.QUEUE_PUT, odd), (Command.QUEUE_REPLACE, payloads.QueueReplace(known, odd)),
            (Command.CREATE_QUEUE, payloads.CreateQueue("new", {"codec": {(1, 2): 3}})),
            (Command.ARRAY_ENQUEUE, ["mine", "b", [{(1, 2): 3}]]),
        ):  # fmt: skip
            with pytest.raises(errors.BadRequestError, match="a map has an array for a key, at byte"):
                ask(boss, command, head)
        assert stored(boss, MINE) == known


def test_metadata_over_the_limit_is_refused(broker: RunningBroker) -> None:
    make(broker, MINE)
    with app(broker, "boss", "publish,look:mine") as sender:
        magazines = sender.store.magazines
        largest = msgspec.msgpack.encode({"headers": {"h": b"x" * (131_072 - 17)}})
        assert len(largest) == 131_072
        magazines.load_records(MINE, 0, [encode_record(b"1", meta=largest)])
        for records in (
            [encode_record(b"1", meta=largest + b"x")],
            [encode_record(b"1"), encode_record(b"1", meta=largest + b"x")],
        ):
            with pytest.raises(
                errors.MessageTooLargeError, match="metadata of 131073 bytes is over the limit of 131072 bytes"
            ) as caught:
                magazines.load_records(MINE, 0, records)
            assert (caught.value.size_bytes, caught.value.limit_bytes) == (131_073, 131_072)
        assert sum(one.pending for one in magazines.metadata(MINE)) == 1


def test_a_worker_changes_settings_and_not_what_is_stored_by_them(broker: RunningBroker) -> None:
    make(broker, MINE)
    with client(broker, "worker", f"work:{MINE}") as worker:
        known = stored(worker, MINE)
        for change in ({"shards": 1}, {"durability": "none"}, {"codec": "json"}):
            fresh = dataclasses.replace(known, **change)  # type: ignore[arg-type]
            with pytest.raises(errors.QueueMismatchError, match="may manage"):
                ask(worker, Command.QUEUE_REPLACE, payloads.QueueReplace(known, fresh))
        fresh = dataclasses.replace(known, concurrency=7, stuck_after_s=600)
        ask(worker, Command.QUEUE_REPLACE, payloads.QueueReplace(known, fresh))
        assert stored(worker, MINE).concurrency == 7


# -- what a worker does


def test_a_worker_process_with_its_one_queue(broker: RunningBroker) -> None:
    make(broker, MINE, THEIRS)
    handled: list[bytes] = []
    with app(broker, "boss", "all:*") as boss:
        boss.queue(MINE, bytes).publish_many([b"a", b"b", b"bad"])
        boss.queue(THEIRS, bytes).publish(b"not yours")
        with app(broker, "worker", f"work:{MINE}") as worker:

            @worker.queue(MINE, bytes).handler(concurrency=2)
            def handle(message: bytes) -> None:
                if message == b"bad":
                    raise ValueError(message)
                handled.append(message)

            queue = worker.queue(MINE, bytes)
            queue.start()
            deadline = time.monotonic() + 20
            while (len(handled) < 2 or not queue.sideline.pending()) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert sorted(handled) == [b"a", b"b"]
            assert queue.sideline.pending() == 1
            assert worker.refresher.run_once().failed == []
            result = worker.sweeper().run_once()
            assert (result.queues, result.failed_queues) == (1, 0)
            assert boss.sweeper().run_once().queues == 2  # two leaders, each of its own
            assert worker.sweep_queue(MINE).failed_queues == 0
            assert boss.sweep_queue(THEIRS).failed_queues == 0
            with pytest.raises(errors.PermissionDeniedError):
                worker.queue("fresh", bytes).publish(b"x")
        assert boss.queue(THEIRS, bytes).main.pending() == 1


def test_leaders_of_different_users_do_not_fence_each_other(broker: RunningBroker) -> None:
    make(broker, MINE)
    with (
        client(broker, "one", f"work:{MINE}") as one,
        client(broker, "two", f"work:{MINE}") as two,
        client(broker, "boss", "work:*") as boss,
    ):
        taken = payloads.LockRequest("leader-sweeper", "me", 60.0)
        assert [ask(who, Command.LOCK_ACQUIRE, taken)[0] for who in (one, two, boss)] == ["leader-sweeper"] * 3
        assert ask(one, Command.LOCK_ACQUIRE, taken) is None
        scope = payloads.EpochRequest("sweeper")
        assert [ask(who, Command.EPOCH_NEXT, scope) for who in (one, two, two, boss)] == [1, 1, 2, 1]
        assert ask(one, Command.EPOCH_GET, scope) == 1
        with pytest.raises(errors.StaleEpochError):
            ask(two, Command.RELOAD, payloads.Reload(MINE, ("sweeper", 1)), pack_pointers({0: [1]}))
        for who in (one, boss):
            assert ask(who, Command.RELOAD, payloads.Reload(MINE, ("sweeper", 1)), pack_pointers({0: [1]})) == 0


# -- subscriptions and locks


def test_a_consumer_ends_and_changes_its_subscriptions(broker: RunningBroker) -> None:
    make(broker, MINE)
    with client(broker, "reader", f"consume:{MINE}") as reader:
        subscription = ask(reader, Command.SUBSCRIBE, payloads.Subscribe(MINE, 1))
        ask(reader, Command.CREDIT, payloads.Credit(subscription, 5))
        assert ask(reader, Command.UNSUBSCRIBE, payloads.Unsubscribe(subscription)) is True
        assert ask(reader, Command.UNSUBSCRIBE, payloads.Unsubscribe(subscription)) is False
    with client(broker, "web", f"publish:{MINE}") as web, pytest.raises(errors.PermissionDeniedError):
        ask(web, Command.UNSUBSCRIBE, payloads.Unsubscribe(1))


def test_locks_in_tables_are_those_of_ones_own_farm_and_application(broker: RunningBroker) -> None:
    def take(who: SyncClient, name: str, table: str, farm: str) -> Any:
        return ask(who, Command.LOCK_ACQUIRE, payloads.LockRequest(name, "me", 60.0, table, farm))

    own = ("DC#local#distributed_lock", "local")
    with client(broker, "one", "locks:mine") as one, client(broker, "ops", "locks:*") as ops:
        assert take(one, "ignis#mine", *own) is not None
        assert take(one, "ignis#mine", "XDC#distributed_lock", "local") is not None
        for name, table, farm in (
            ("ignis#theirs", *own), ("mine", *own), ("other#mine", *own), ("ignis#mine", "DC#west#t", "west"),
            ("ignis#mine", "DC#west#t", "local"), ("ignis#mine", "T", "other"), ("ignis#mine", "DC#local#t", "west"),
            ("ignis#mine", "DC#local", "local"),
        ):  # fmt: skip
            with pytest.raises(errors.PermissionDeniedError):
                take(one, name, table, farm)
            assert take(ops, name, table, farm) is not None or name == "ignis#mine"
        with pytest.raises(errors.PermissionDeniedError):
            ask(one, Command.EPOCH_NEXT, payloads.EpochRequest("sweeper"))


def test_words_of_the_command_line_are_those_of_the_table() -> None:
    used = {word.rstrip("*") for row in TABLE.values() for word in row.words.split()}
    assert used == set(WORDS)


def test_who_may_manage_a_queue_empties_pauses_and_removes_it(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without being allowed to look into it, by code and by command."""
    make(broker, MINE, THEIRS)
    with app(broker, "ops", f"manage:{MINE}") as ops, app(broker, "boss", "all:*") as boss:
        boss.queue(MINE, bytes).publish_many([b"a", b"b"])
        assert ops.queue(MINE, bytes).purge() == (2, 0)
        ops.queue(MINE).pause()
        assert boss.queue(MINE).main.pending() == 0
        with pytest.raises(errors.PermissionDeniedError):
            ops.remove_queue(THEIRS)
        monkeypatch.setenv("IGNIS_URL", broker.url)
        monkeypatch.setenv("IGNIS_TOKEN", f"ops|manage:{MINE}")
        boss.queue(MINE).publish(b"c")
        assert main(["queue", "delete", MINE, "--yes"]) == 1, "it holds a message"
        assert main(["queue", "resume", MINE]) == 0
        assert main(["queue", "purge", MINE, "--yes"]) == 0
        assert main(["queue", "delete", MINE, "--yes"]) == 0
        assert boss.store.queues.get(MINE) is None
        with pytest.raises(errors.QueueRemovedError):
            boss.queue(MINE).publish(b"d")


def test_a_worker_of_one_queue_has_figures(broker: RunningBroker) -> None:
    """Those of `ignis worker --health-bind`: of its queues and its connection, and not of the whole store."""
    make(broker, MINE, THEIRS)
    with app(broker, "worker", f"work:{MINE}") as worker, app(broker, "boss", "all:*") as boss:
        worker.queue(MINE, bytes).publish(b"a")
        figures = worker.stats()
        assert [(one["queue"], one["pending"]) for one in figures["queues"]] == [(MINE, 1)]
        assert figures["store"]["broker"] == broker.url
        assert set(figures["store"]) < set(boss.stats()["store"])


def test_who_may_only_publish_counts_what_it_publishes(broker: RunningBroker) -> None:
    make(broker, MINE)
    with app(broker, "web", f"publish:{MINE}") as web:
        web.queue(MINE, bytes).publish(b"a")
        [figures] = web.stats()["queues"]
        assert (figures["queue"], figures["published"], "pending" in figures) == (MINE, 1, False)
        with pytest.raises(errors.PermissionDeniedError):
            web.queue(MINE).stats()


def test_who_may_only_publish_destroys_nothing(broker: RunningBroker) -> None:
    make(broker, MINE)
    with app(broker, "web", f"publish:{MINE}") as web:
        queue = web.queue(MINE, bytes)
        queue.publish(b"a")
        for call in (
            queue.purge, queue.pause, queue.resume, lambda: web.remove_queue(MINE), lambda: queue.delete(where=bool),
        ):  # fmt: skip
            with pytest.raises(errors.PermissionDeniedError):
                call()


@pytest.mark.parametrize("word", ["publish", "consume", "work"])
def test_who_may_not_make_a_queue_is_told_that_it_is_missing_and_who_makes_it(broker: RunningBroker, word: str) -> None:
    says = r"queue 'mine', which does not exist .* manage or all for it makes it: ignis --url \.\.\. queue create mine$"
    with ignis.Ignis(broker.url, store={"token": f"someone|{word}:mine"}) as app:
        with pytest.raises(errors.PermissionDeniedError, match=says):
            app.queue("mine", bytes).open()
        make(broker, "mine")
        app.queue("mine", bytes).open()


def test_the_command_line_says_what_a_permission_takes(
    broker: RunningBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGNIS_URL", broker.url)
    monkeypatch.setenv("IGNIS_TOKEN", "ops|manage:mine")
    assert main(["queue", "create", "mine"]) == 0
    monkeypatch.setenv("IGNIS_TOKEN", "web|publish:mine,ours")
    assert main(["peek", "ours"]) == 5
    assert capfd.readouterr().err.endswith("queue 'ours' does not exist\n"), "though it may not list what there is"
    for arguments, says in (
        (["peek", "mine"], "no permission for SCAN on queue 'mine': that takes work, look or all; see 'ignis broker"),
        (["stats"], "that takes work, look or all; see"),
        (["queue", "pause", "mine"], "that takes work, manage or all; see"),
    ):
        assert main(arguments) == 1
        assert says in capfd.readouterr().err
    assert words_for("STATS") == ["look:*", "all:*"]
    assert words_for("DECLARE") == ["manage", "all"], "whoever may open it and not make it"
