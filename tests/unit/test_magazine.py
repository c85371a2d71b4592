"""The raw layer: load, fire, reload, delete, peek, metadata."""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import ignis
from ignis.errors import (
    ConfigError,
    InvalidMessageError,
    InvalidNameError,
    MessageTooLargeError,
    QueueMismatchError,
    QueueNotFoundError,
    UnreadableMessageError,
)
from ignis.magazine import MessageIds
from ignis.message import BodyCodec
from ignis.native import shard_for_key
from ignis.storage.base import QueueRecord


class Order(msgspec.Struct):
    id: str
    total: float


def drain(magazine: ignis.Magazine[Any]) -> list[Any]:
    out = []
    while fired := magazine.fire(100):
        out += [one.message for one in fired]
        assert magazine.delete(fired) == len(fired)
    return out


@pytest.mark.parametrize(
    ("kind", "codec", "message"),
    [
        (Order, "auto", Order("o1", 9.5)),
        (Order, "msgpack", Order("o1", 9.5)),
        (dict, "auto", {"a": [1]}),
        (str, "auto", "é"),
        (bytes, "auto", b"\x00\xff"),
        (None, "auto", [1, "two"]),
    ],
)
def test_there_and_back(app: ignis.Ignis, kind: Any, codec: str, message: Any) -> None:
    magazine = app.magazine("m", kind, shards=3, codec=codec)
    published = magazine.load(message, key="k", headers={"h": 1})
    assert uuid.UUID(published.id).version == 7
    assert (published.shard, published.pointer) == (shard_for_key(b"k", 3), 1)
    [fired] = magazine.fire(10)
    assert (fired.message, fired.shard, fired.pointer) == (message, published.shard, 1)
    assert (fired.envelope.id, fired.envelope.key, fired.envelope.headers) == (published.id, "k", {"h": 1})
    assert not fired.corrupt
    assert magazine.fire(10) == []
    assert (magazine.delete([fired]), magazine.delete([fired])) == (1, 0), "idempotent"


def test_keyless_messages_are_spread_and_keys_are_not(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", int, shards=4)
    assert {magazine.load(n).shard for n in range(8)} == {0, 1, 2, 3}
    assert len({magazine.load(n, key="same").shard for n in range(8)}) == 1


def test_many(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", int, shards=4)
    ids = magazine.load_many(range(20_000), headers={"run": 1})
    assert len(ids) == 20_000
    assert len(set(ids)) == 20_000
    assert ids[:2] == [ids[0], ids[1]]
    assert sorted(ids) == list(ids), "ids rise with the order"
    assert magazine.pending() == 20_000
    assert sorted(drain(magazine)) == list(range(20_000))
    assert isinstance(ids, MessageIds)
    assert list(magazine.load_many([])) == []
    assert list(magazine.load_many(n for n in range(3))) != []


def test_many_bytes_of_whatever_kind(app: ignis.Ignis) -> None:
    class Named(bytes):
        pass

    magazine = app.magazine("m", bytes, shards=1)
    for kinds in ([b"a", b"b"], [Named(b"a"), b"b"], [bytearray(b"a"), memoryview(b"b")]):
        ids = magazine.load_many(kinds)
        stored = magazine.fire(2)
        assert [fired.message for fired in stored] == [b"a", b"b"]
        assert [fired.envelope.id for fired in stored] == list(ids)
        assert (ids[-1], ids[::-1], repr(ids)) == (ids[1], [ids[1], ids[0]], "<2 message ids>")
        with pytest.raises(IndexError):
            ids[2]
        magazine.delete(stored)
    with pytest.raises(InvalidMessageError, match="str"):
        magazine.load_many([b"a", "b"])
    assert magazine.pending() == 0


def test_many_with_keys_keep_the_order_of_each(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", int, shards=4)
    magazine.load_many(range(1_000), keys=[f"k{n % 10}" for n in range(1_000)])
    got = drain(magazine)
    for k in range(10):
        assert [n for n in got if n % 10 == k] == list(range(k, 1_000, 10))


def test_reload_goes_to_the_tail(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", int, shards=1)
    magazine.load_many([1, 2, 3])
    first = magazine.fire(1)
    assert magazine.reload(first) == 1
    assert (magazine.pending(), magazine.in_flight()) == (3, 0)
    assert magazine.reload(first) == 0
    assert drain(magazine) == [2, 3, 1]


def test_peek_claims_nothing(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", int, shards=1)
    magazine.load_many(range(5))
    fired = magazine.fire(2)
    assert [one.message for one in magazine.peek(2)] == [2, 3]
    assert [one.message for one in magazine.peek(10, pending_only=False)] == [0, 1, 2, 3, 4]
    assert (magazine.pending(), magazine.in_flight()) == (3, 2)
    magazine.delete(fired)


def test_metadata(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", int, shards=2)
    magazine.load_many(range(3), keys=["a"] * 3)
    shard = shard_for_key(b"a", 2)
    magazine.fire(2)
    states = {state.shard: state for state in magazine.metadata()}
    state = states[shard]
    assert (state.load_pointer, state.fire_pointer, state.pending, state.in_flight) == (3, 2, 1, 2)
    assert states[1 - shard].load_pointer == 0


def test_what_is_refused(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", str, shards=2, max_message_bytes=10)
    with pytest.raises(MessageTooLargeError) as info:
        magazine.load("x" * 11)
    assert (info.value.size_bytes, info.value.limit_bytes, info.value.setting) == (11, 10, "queue.max_message_bytes")
    with pytest.raises(MessageTooLargeError):
        magazine.load_many(["x", "x" * 11])
    with pytest.raises(InvalidMessageError):
        magazine.load(5)
    with pytest.raises(InvalidMessageError):
        magazine.load_many(["x", 5])
    with pytest.raises(InvalidMessageError, match="a key is text or bytes"):
        magazine.load("x", key=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="2 keys were given for 1 messages"):
        magazine.load_many(["x"], keys=["a", "b"])
    with pytest.raises(ConfigError, match="limit = 0 is below 1"):
        magazine.fire(0)
    assert magazine.pending() == 0
    magazine.load("x" * 10)


def test_an_unreadable_body_is_told_when_it_is_looked_at(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", bytes, shards=1)
    magazine.load(b"{bad")
    [fired] = app.magazine("m", dict, shards=1).fire()
    assert fired.envelope.body == b"{bad"
    with pytest.raises(UnreadableMessageError):
        _ = fired.message


def test_a_corrupt_one_has_no_message() -> None:
    fired = ignis.Fired(3, 17, None, BodyCodec(dict))
    assert fired.corrupt
    with pytest.raises(UnreadableMessageError, match="record at shard 3, pointer 17 is corrupt"):
        _ = fired.message
    assert repr(fired) == "<Fired shard=3 pointer=17>"


@pytest.mark.parametrize("name", ["", "a b", "_SIDELINE", "../x"])
def test_names(app: ignis.Ignis, name: str) -> None:
    with pytest.raises(InvalidNameError, match="magazine name"):
        app.magazine(name)


def test_the_same_magazine_again(app: ignis.Ignis) -> None:
    magazine = app.magazine("m", int, shards=2)
    assert app.magazine("m", int, shards=2) is magazine
    assert app.magazine("m", int, shards=2, ttl_s=5).ttl_s == 5
    for n in range(10):
        magazine.load(n)
    with pytest.raises(QueueMismatchError, match="has 2 shards, asked for 4"):
        app.magazine("m", int, shards=4)
    app.store.magazines.declare("m", 4)
    assert app.magazine("m", int, shards=4).pending() == 10, "whoever may change the store adds shards"
    assert app.magazine("m", int).shards == 4, "taken as it is"
    with pytest.raises(QueueMismatchError):
        app.magazine("m", int, shards=1)
    with pytest.raises(QueueMismatchError):
        app.magazine("m", int, shards=4, durability="none")


def test_the_magazines_of_a_queue_have_its_shards(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("orders", dict, shards=5, durability="none")
    queue.publish({"n": 1})
    assert memory_app.magazine("orders", dict).shards == 5
    assert memory_app.magazine("orders_SIDELINE", dict).shards == 5
    assert memory_app.magazine("other", dict).shards == 32


def test_a_queues_magazine_takes_what_its_consumers_can_read(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("orders", dict, shards=1, codec="msgpack", max_message_bytes=100, max_headers_bytes=50)
    queue.publish({"n": 1})
    for name in ("orders", "orders_SIDELINE"):
        magazine = memory_app.magazine(name)
        assert (magazine.codec.name, magazine.max_message_bytes, magazine.max_headers_bytes) == ("msgpack", 100, 50)
        for given, both in (
            ({"codec": "json"}, "'msgpack', asked for 'json'"),
            ({"type": bytes}, "dict.*asked for.*bytes"),
            ({"max_message_bytes": 101}, "max_message_bytes = 100, asked for 101"),
            ({"max_headers_bytes": 51}, "max_headers_bytes = 50, asked for 51"),
            ({"durability": "interval"}, "'sync', asked for 'interval'"),
        ):
            with pytest.raises(QueueMismatchError, match=both):
                memory_app.magazine(name, **given)
    with pytest.raises(MessageTooLargeError):
        memory_app.magazine("orders").load({"n": "x" * 100})
    memory_app.magazine("orders", dict, max_message_bytes=10).load({"n": 2})
    assert [one.message for one in queue.main.fire(9)] == [{"n": 1}, {"n": 2}]


def test_of_a_queue_of_another_process_it_takes_the_codec(memory_app: ignis.Ignis) -> None:
    memory_app.store.queues.put(QueueRecord("blobs", codec="raw", shards=3))
    memory_app.store.queues.put(QueueRecord("orders", codec="msgpack", shards=3))
    assert memory_app.magazine("blobs").codec.name == "raw"
    assert memory_app.magazine("orders_SIDELINE", dict).codec.name == "msgpack"
    for name, kind in (("blobs", dict), ("orders", bytes)):
        with pytest.raises(QueueMismatchError, match=r"codec '(raw|msgpack)', asked for '(json|raw)'"):
            memory_app.magazine(name, kind)


def test_a_sideline_is_made_and_filled_by_its_queue_alone(memory_app: ignis.Ignis) -> None:
    with pytest.raises(QueueNotFoundError, match="'neu'"):
        memory_app.magazine("neu_SIDELINE", durability="interval")
    queue = memory_app.queue("neu", int, shards=2)
    queue.publish(1)
    for sideline in (memory_app.magazine("neu_SIDELINE"), queue.sideline):
        for call in (lambda one=sideline: one.load(1), lambda one=sideline: one.load_many([1])):
            with pytest.raises(ConfigError, match=r"is a sideline.*Publish to queue 'neu'"):
                call()
        assert not sideline.pending()


@pytest.mark.parametrize(
    ("bad", "keys", "said"),
    [
        (object(), None, r"messages\[9000\]: an object was published"),
        ({"text": "x" * 2_000}, None, r"messages\[9000\]: message of \d+ bytes is over the limit of 1000 bytes"),
        ({}, [None] * 9_000 + ["k" * 70_000], r"messages\[9000\]: key of 70000 bytes"),
    ],
)
def test_a_bad_message_behind_the_first_transaction(bad: object, keys: list[str | None] | None, said: str) -> None:
    """It is named, and so is how many are stored: whoever publishes the rest again must know."""
    with ignis.Ignis("memory://") as app:
        jobs = app.magazine("jobs", dict, max_message_bytes=1_000)
        many: list[Any] = [{}] * 9_000 + [bad]
        with pytest.raises(
            ignis.IgnisError, match=said + ".*the first 8,192 messages of the call are stored"
        ) as caught:
            jobs.load_many(many, keys=keys)
        assert caught.value.stored_messages == jobs.pending() == 8_192
        with pytest.raises(ignis.IgnisError, match=said.replace("9000", "0")) as caught:
            jobs.load_many([bad, {}], keys=None if keys is None else [keys[-1], None])
        assert caught.value.stored_messages == 0
        assert jobs.pending() == 8_192


def counting(most: int, left_behind: list[int], jobs: Any, fail_at: int | None = None) -> Iterator[dict[str, int]]:
    """Notes with each message how many are read and not yet stored."""
    for n in range(most):
        if n == fail_at:
            raise LookupError("the file ends here")
        if n % 1_024 == 1_023:  # to ask takes time
            left_behind.append(n - jobs.pending())
        yield {"n": n}


@pytest.mark.parametrize("key", [None, lambda message: str(message["n"] % 3)])
def test_a_generator_is_stored_as_it_is_read(memory_app: ignis.Ignis, key: Any) -> None:
    jobs = memory_app.queue("jobs", dict, shards=4)
    told: list[int] = []
    memory_app.after_publish(lambda name, count: told.append(count))
    left_behind: list[int] = []
    ids = jobs.publish_many(counting(20_000, left_behind, jobs.main), key=key)
    assert max(left_behind) == 8_191, "no more than one transaction is ever read ahead"
    assert told == [8_192, 8_192, 3_616]
    stored = jobs.main.fire(20_000)
    assert sorted(one.envelope.id for one in stored) == list(ids), "ids rise with the order"
    if key is not None:
        assert {one.envelope.key for one in stored} == {"0", "1", "2"}


@pytest.mark.parametrize("fail_at", [5, 10_000, 16_384])
def test_a_generator_that_raises_leaves_what_is_stored(memory_app: ignis.Ignis, fail_at: int) -> None:
    """Its error comes through as what it is, and says how many of its messages are stored."""
    jobs = memory_app.queue("jobs", dict)
    with pytest.raises(LookupError, match="the file ends here") as caught:
        jobs.publish_many(counting(20_000, [], jobs.main, fail_at))
    stored = fail_at // 8_192 * 8_192
    assert getattr(caught.value, "stored_messages", 0) == jobs.main.pending() == jobs.published == stored
    if stored and sys.version_info >= (3, 11):
        assert caught.value.__notes__ == [f"the first {stored:,} messages of the call are stored"]


def test_an_error_of_ours_out_of_a_generator_is_told_alike(memory_app: ignis.Ignis) -> None:
    def read() -> Iterator[dict[str, int]]:
        yield from ({} for _ in range(9_000))
        raise ignis.errors.StoreUnreachableError("the other store is away")

    jobs = memory_app.queue("jobs", dict)
    with pytest.raises(ignis.errors.StoreUnreachableError, match=r"away; the first 8,192 messages") as caught:
        jobs.publish_many(read())
    assert caught.value.stored_messages == 8_192


def test_keys_bound_how_far_a_generator_is_read(memory_app: ignis.Ignis) -> None:
    jobs = memory_app.magazine("jobs", int)
    endless = itertools.count()
    with pytest.raises(ConfigError, match="2 keys were given for more messages"):
        jobs.load_many(endless, keys=["a", "b"])
    assert (next(endless), jobs.pending()) == (3, 0)
