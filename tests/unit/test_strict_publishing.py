"""What no consumer could read is refused by whoever publishes it, with the field; whatever the way in."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import math
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ignis
from ignis.errors import ConfigError, InvalidMessageError, MessageTooLargeError
from ignis.message import BodyCodec, encode_key, encode_meta
from tests.support import reasons, wait_idle

HALF = "\ud800"


class Order(msgspec.Struct):
    id: int
    price: float = 1.0
    note: Optional[float] = None  # noqa: UP045 - msgspec asks at run time
    lines: list[dict[str, int]] = []


class Tight(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n is below 0")


@dataclass
class Plain:
    id: int
    tags: list[str] = field(default_factory=list)


class Level(enum.Enum):
    LOW = math.inf


@pytest.fixture(params=["memory", "embedded"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ignis.Ignis]:
    url = "memory://" if request.param == "memory" else f"embedded://{tmp_path}/store"
    with ignis.Ignis(url) as made:
        yield made


def ways(queue: ignis.Queue[Any]) -> dict[str, Callable[..., Any]]:
    """Every way in of the library."""
    publisher = queue.publisher()

    def asend(message: Any, **options: Any) -> None:
        asyncio.run(publisher.asend(message, **options))

    return {
        "publish": queue.publish,
        "publish_many": lambda message, headers=None, key=None: queue.publish_many(
            [message], headers=headers, keys=None if key is None else [key]
        ),
        "apublish": lambda message, **options: asyncio.run(queue.apublish(message, **options)),
        "send": publisher.send,
        "asend": asend,
        "load": queue.main.load,
        "load_many": lambda message, headers=None, key=None: queue.main.load_many(
            [message], headers=headers, keys=None if key is None else [key]
        ),
    }


WRONG: list[tuple[Any, Any, str]] = [
    (Order, Order("7"), r"Expected `int`, got `str` - at `\$\.id`"),  # type: ignore[arg-type]
    (Order, Order(1, lines=[{"a": "b"}]), r"\$\.lines\[0\]\[\.\.\.\]"),  # type: ignore[dict-item]
    (Order, Order(1, lines=[{1: 2}, 3]), r"\$\.lines\[1\]"),  # type: ignore[dict-item, list-item]
    (Order, Order(1, price=math.nan), r"\$\.price is nan"),
    (Order, Order(1, note=math.inf), r"\$\.note is inf"),
    (Plain, Plain("x"), r"\$\.id"),  # type: ignore[arg-type]
    (Plain, Plain(1, [2]), r"\$\.tags\[0\]"),  # type: ignore[list-item]
    (Plain, Plain(1, [HALF]), "surrogates"),
    (list[int], ["a"], r"\$\[0\]"),
    (dict[str, float], {"a": -math.inf}, r"\$\.a is -inf"),
    (Tight, type("Broken", (Tight,), {"__post_init__": lambda self: None})(-1), "n is below 0"),
    (dict, {"a": [1, {"b": math.nan}]}, r"\$\.a\[1\]\.b is nan"),
    (None, [None, math.inf], r"\$\[1\] is inf"),
    (None, {"l": Level.LOW}, r"\$\.l is inf"),
    (None, {3: math.nan}, r"\$\[3\] is nan"),
    (None, Plain(1, [math.nan]), r"\$\.tags\[0\] is nan"),  # type: ignore[list-item]
    (None, {"a": HALF}, "surrogates"),
    (None, {(1, 2): 3}, "keys"),
    (str, HALF, "surrogates"),
]


class Blob(msgspec.Struct, eq=False):
    data: bytes
    more: Optional[list[bytes]] = None  # noqa: UP045 - msgspec asks at run time


class Packed(msgspec.Struct, array_like=True, tag="p"):
    data: Any


class Holder(msgspec.Struct):
    name: str
    anything: Any = None


CHANGED: list[tuple[Any, Any, str]] = [
    (Blob, Blob("abcd"), r"\$\.data is str and not bytes"),  # type: ignore[arg-type]
    (Blob, Blob(b"", [b"", "abcd"]), r"\$\.more\[1\] is str and not bytes"),  # type: ignore[list-item]
    (list[bytes], ["abcd"], r"\$\[0\] is str and not bytes"),
    (set[bytes], {"abcd"}, r"\$\[\.\.\.\] is str and not bytes"),
    (bytes | None, "abcd", r"\$ is str and not bytes"),
    (Holder, Holder(b"abc"), r"\$\.name is bytes, which JSON has not"),  # type: ignore[arg-type]
    (Holder, Holder("a", {"b": bytearray(b"abc")}), r"\$\.anything\.b is bytearray"),
    (Holder, Holder("a", Packed(b"abc")), r"\$\.anything\.data is bytes"),
    (Holder, Holder("a", Holder("b", b"abc")), r"\$\.anything\.anything is bytes"),
    (None, b"abc", "declare the queue as bytes, or codec='msgpack'"),
    (None, {"a": [1, {"b": memoryview(b"abc")}]}, r"\$\.a\[1\]\.b is memoryview"),
    (dict, {"a": (1, b"")}, r"\$\.a\[1\] is bytes"),
    (dict, {1: "a"}, r"\$ has the key 1, an int: .* arrive as '1'"),
    (dict, {"x": [{1.5: "a"}]}, r"\$\.x\[0\] has the key 1\.5, a float"),
    (dict, {1: "a", "1": "b"}, "has the key"),
    (dict[str, str], {1: "a"}, r"dict\[int, str\]"),
    (dict[int, str], {1: "a", "1": "b"}, "has the keys 1 and '1': in JSON both are '1', and one is lost"),
]


@pytest.mark.parametrize(("kind", "message", "says"), CHANGED, ids=lambda value: repr(value)[:40].encode().hex()[:30])
def test_what_would_arrive_as_something_else_is_refused(app: ignis.Ignis, kind: Any, message: Any, says: str) -> None:
    queue = app.queue("q", kind, codec="json", shards=1)
    for name, send in ways(queue).items():
        with pytest.raises(InvalidMessageError, match=says):
            send(message)
        assert not queue.main.pending(), name


def test_bytes_and_numbers_as_keys_arrive_where_there_is_a_form_for_them(app: ignis.Ignis) -> None:
    good: list[tuple[Any, str, Any]] = [
        (Holder, "msgpack", Holder("a", {1: b"abc", "1": "b"})),
        (None, "msgpack", {1: b"abc", "1": "b"}),
        (dict[int, str], "json", {1: "a", 2: "b"}),
        (list[bytes], "json", [b"abc", b""]),
        (bytes, "json", b"abc"),
        (float, "json", 3),
        (float, "msgpack", 3),
        (Decimal, "json", 3.5),
        (float | None, "json", 3),
    ]
    for number, (kind, codec, message) in enumerate(good):
        queue = app.queue(f"q{number}", kind, codec=codec, shards=1)
        queue.publish(message)
        assert [fired.message for fired in queue.main.fire(1)] == [message]
    with pytest.raises(InvalidMessageError, match="Expected `float`, got `bool`"):
        app.queue("f", float).publish(True)
    with pytest.raises(InvalidMessageError, match=r"an int was published to a queue of Order"):
        app.queue("o", Order).publish(1)  # type: ignore[arg-type]


class Extra(Order):
    more: int = 2


class Keys(TypedDict):
    a: int


class Colour(enum.Enum):
    RED = "red"


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SOME_ID = UUID(int=7)
ARRIVES: dict[str, tuple[Any, Any, Any]] = {
    "`Decimal` | untyped | text": (None, Decimal("1.50"), "1.50"),
    "`datetime` | untyped | text": (None, NOON, "2026-01-02T12:00:00Z"),
    "`date`, `time` | untyped | text": (dict, {"on": NOON.date()}, {"on": "2026-01-02"}),
    "`timedelta` | untyped | text, such as `PT90S`": (list, [timedelta(seconds=90)], ["PT90S"]),
    "`UUID` | untyped | text": (None, SOME_ID, str(SOME_ID)),
    "`Enum` | untyped | its value": (None, Colour.RED, "red"),
    "`set`, `frozenset` | untyped | a list, in any order": (None, {3}, [3]),
    "`tuple` | untyped | a list": (None, (1, 2), [1, 2]),
    "a `Struct` or dataclass | untyped | a `dict`": (None, Plain(1), {"id": 1, "tags": []}),
    "a subclass of the type | typed | the type; the fields that the subclass added are dropped": (
        Order,
        Extra(1),
        Order(1),
    ),
    "more keys than the `TypedDict` has | typed | without them": (Keys, {"a": 1, "b": 2}, {"a": 1}),
    "`int` beyond 2**53 | `float` | rounded": (float, (1 << 60) + 1, float(1 << 60)),
    "`float` | `Decimal` | as the number's text says": (Decimal, 0.1, Decimal("0.1")),
    "text of a `UUID`, `datetime`, number | that type | that type": (UUID, str(SOME_ID), SOME_ID),
}


def test_msgpack_keeps_a_time_with_its_zone_as_utc(app: ignis.Ignis) -> None:
    queue = app.queue("times", codec="msgpack", shards=1)
    there = NOON.astimezone(timezone(timedelta(hours=2)))
    queue.publish([there, NOON.replace(tzinfo=None)])
    (arrived,) = queue.main.fire(1)
    assert arrived.message == [NOON, "2026-01-02T12:00:00"]
    assert arrived.message[0].utcoffset() == timedelta(0)


def test_a_dict_or_the_class_itself_is_told_what_is_meant(app: ignis.Ignis) -> None:
    queue: ignis.Queue[Any] = app.queue("orders", Order)
    with pytest.raises(
        InvalidMessageError, match=r"a dict was published to a queue of Order; Order\(\*\*message\) makes one"
    ):
        queue.publish({"id": 1})
    with pytest.raises(InvalidMessageError, match=r"the class itself and not one of its objects, Order\(\.\.\.\)"):
        queue.publish(Order)


def test_a_dict_for_a_class_of_any_library_is_told_what_is_meant(app: ignis.Ignis) -> None:
    attrs, pydantic = pytest.importorskip("attrs"), pytest.importorskip("pydantic")
    made = [
        attrs.make_class("Made", {"id": attrs.field(type=int)}),
        pydantic.create_model("Made", id=(int, ...)),
        dataclasses.make_dataclass("Made", [("id", int)]),
        NamedTuple("Made", [("id", int)]),
    ]
    for number, kind in enumerate(made):
        queue: ignis.Queue[Any] = app.queue(f"made{number}", kind)
        with pytest.raises(InvalidMessageError, match=r"a dict was published .*; Made\(\*\*message\) makes one"):
            queue.publish({"id": 1})


def test_a_key_for_all_is_a_function(app: ignis.Ignis) -> None:
    with pytest.raises(ConfigError, match=r"key = 'k' is not a function .*: write key=lambda message: 'k', or keys=\["):
        app.queue("q", int).publish_many([1], key="k")  # type: ignore[arg-type]


@pytest.mark.parametrize("row", ARRIVES)
def test_what_arrives_as_what(app: ignis.Ignis, row: str) -> None:
    kind, message, arrives = ARRIVES[row]
    page = (Path(__file__).parents[2] / "docs/guarantees.md").read_text("utf-8")
    assert re.search(rf"^\| {re.escape(row)} \| \[T\d+\] \|$", page, re.MULTILINE)
    queue = app.queue("q", kind, shards=1)
    queue.publish(message)
    found = queue.main.fire(1)[0].message
    assert found == arrives
    assert type(found) is type(arrives)


@pytest.mark.parametrize(("kind", "message", "says"), WRONG, ids=lambda value: repr(value)[:40].encode().hex()[:30])
def test_what_no_consumer_could_read_is_refused(app: ignis.Ignis, kind: Any, message: Any, says: str) -> None:
    queue = app.queue("q", kind, shards=1)
    for name, send in ways(queue).items():
        with pytest.raises(InvalidMessageError, match=says):
            send(message)
        assert not queue.main.pending(), name


def test_a_field_that_may_be_none_is_none(app: ignis.Ignis) -> None:
    queue = app.queue("q", Order, shards=1)
    good = [Order(1 << 70), Order(2, note=None, lines=[{"a": 1}]), Order(3, note=1.5)]
    queue.publish_many(good)
    assert [fired.message for fired in queue.main.fire(10)] == good
    untyped = app.queue("u", shards=1)
    untyped.publish({"null": None, "text": "null", "one": 1.0})
    assert untyped.main.fire(1)[0].message == {"null": None, "text": "null", "one": 1.0}


def test_messagepack_has_a_number_that_is_none(app: ignis.Ignis) -> None:
    queue = app.queue("q", Order, codec="msgpack", shards=1)
    queue.publish(Order(1, price=math.inf, note=math.nan))
    found = queue.main.fire(1)[0].message
    assert found.price == math.inf
    assert math.isnan(found.note)
    with pytest.raises(InvalidMessageError, match=r"64|ints"):
        queue.publish(Order(1 << 70))


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("kind", [dict, None])
def test_bytes_that_are_put_in_unread_are_looked_at(app: ignis.Ignis, kind: Any, codec: str) -> None:
    queue = app.queue("q", kind, codec=codec, shards=1)
    good = msgspec.Raw(getattr(msgspec, codec).encode([1, "\u00e9"]))
    queue.publish({"a": good})
    assert queue.main.fire(1)[0].message == {"a": [1, "\u00e9"]}
    for bad in (b"garbage\xc1", b"", b"\xc1") if codec == "msgpack" else (b"garbage", b"", b'"\xff"', b'{"a"', b"NaN"):
        for send in (queue.publish, lambda one: queue.publish_many([one]), queue.publisher().send):
            with pytest.raises(InvalidMessageError, match="no consumer could read it"):
                send({"a": msgspec.Raw(bad)})
    assert not queue.main.pending()


def test_the_check_can_be_turned_off(app: ignis.Ignis) -> None:
    queue = app.queue("q", Order, strict=False, shards=1)
    queue.publish(Order("7"))  # type: ignore[arg-type]
    queue.handler(lambda order: None)
    app.start()
    wait_idle(queue)
    assert reasons(queue) == {"unreadable": 1}
    with pytest.raises(InvalidMessageError, match=r"\$\.price is nan"):
        queue.publish(Order(1, price=math.nan))  # it would be lost without a word, so that is always refused
    assert app.magazine("m", Order, strict=False).load(Order("7"))  # type: ignore[arg-type]
    with pytest.raises(InvalidMessageError):
        app.magazine("m", Order).load(Order("7"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="strict"):
        app.magazine("m", Order, strict=1)  # type: ignore[arg-type]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(codec=None)) | st.integers() | st.floats() | st.booleans(), inner, max_size=3
        )
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(message=JSON, codec=st.sampled_from(["json", "msgpack"]), kind=st.sampled_from([None, dict, list[Any]]))
def test_what_is_accepted_can_be_read_and_has_no_number_lost(message: Any, codec: str, kind: Any) -> None:
    coder: BodyCodec[Any] = BodyCodec(kind, codec)
    try:
        body = coder.encode_checked(message)
    except InvalidMessageError:
        return
    assert count(coder.decode_checked(body)) == count(message)


def count(value: Any) -> tuple[int, int]:
    """How many numbers and how many None there are; not the keys, which JSON makes text."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        parts = [count(one) for one in value]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    return int(isinstance(value, (int, float)) and not isinstance(value, bool)), int(value is None)


# -- headers and keys


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([("a", 1)], "mapping"),
        ({1: 2}, "str"),
        ({b"a": 2}, "str"),
        ({"a": object()}, "object"),
        ({"a": 1 << 70}, "2\\*\\*64|int"),
        ({HALF: 1}, "surrogates"),
        ({"a": HALF}, "surrogates"),
    ],
)
def test_headers_that_are_none(app: ignis.Ignis, headers: Any, says: str) -> None:
    queue = app.queue("q", dict, shards=1)
    for send in ways(queue).values():
        with pytest.raises(InvalidMessageError, match=says):
            send({}, headers=headers)
    assert not queue.main.pending()


@pytest.mark.parametrize("key", [HALF, f"a{HALF}", 7, ["a"], object()])
def test_keys_that_are_none(app: ignis.Ignis, key: Any) -> None:
    queue = app.queue("q", dict, shards=1)
    for send in ways(queue).values():
        with pytest.raises(InvalidMessageError, match="key"):
            send({}, key=key)
    assert not queue.main.pending()


def test_sizes_of_headers_and_keys(app: ignis.Ignis) -> None:
    queue = app.queue("q", bytes, shards=1)
    for send in ways(queue).values():
        with pytest.raises(
            MessageTooLargeError, match=r"headers of 2000\d\d bytes are over .* 16384 .*max_headers_bytes"
        ) as info:
            send(b"", headers={"a": "x" * 200_000})
        assert (info.value.limit_bytes, info.value.setting, info.value.part) == (
            16_384,
            "queue.max_headers_bytes",
            "headers",
        )
        with pytest.raises(MessageTooLargeError, match="key of 70000 bytes is over the limit of 65535") as info:
            send(b"", key="k" * 70_000)
        assert info.value.part == "key"
    assert not queue.main.pending()
    again = pickle.loads(pickle.dumps(info.value))
    assert (str(again), again.part) == (str(info.value), "key")


def test_the_largest_of_everything_reaches_every_pool(app: ignis.Ignis) -> None:
    sizes = {"max_message_bytes": 1 << 20, "max_headers_bytes": 64 << 10}
    seen: list[tuple[int, int]] = []
    for pool in ("thread", "async"):
        queue = app.queue(f"q-{pool}", bytes, shards=1, **sizes)
        room = (64 << 10) - len(encode_meta({"a": ""})) - 4
        headers = {"a": "x" * room}
        assert (64 << 10) - 8 <= len(encode_meta(headers, 64 << 10)) <= 64 << 10
        key = "k" * 65_535
        queue.publish(b"x" * (1 << 20), key=key, headers=headers)
        with queue.publisher() as publisher:
            publisher.send(b"x" * (1 << 20), key=key, headers=headers)

        def look(body: bytes, ctx: ignis.Context) -> None:
            assert len(ctx.message.headers["a"]) == room  # noqa: B023 - the same in both rounds
            seen.append((len(body), len(ctx.message.key or "")))

        async def alook(body: bytes, ctx: ignis.Context) -> None:
            look(body, ctx)

        queue.handler(look if pool == "thread" else alook)
    app.start()
    for queue in app.queues():
        wait_idle(queue)
        assert not reasons(queue)
    assert seen == [(1 << 20, 65_535)] * 4


def test_nothing_is_no_header() -> None:
    assert encode_meta(None) == encode_meta({}) == b""
    assert encode_key(None) == encode_key("") == b""
