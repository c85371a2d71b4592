"""Messages that are known to arrive as they were sent are not read back; of all others the old check decides."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Annotated, Any, Optional

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis.body_plan import plan_of
from ignis.errors import InvalidMessageError
from ignis.message import BodyCodec
from ignis.native.plan import ANYTHING, INT, STR, Plan


class Item(msgspec.Struct):
    name: str
    count: int = 1


class Order(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    number: int
    price: float
    who: Optional[str]  # noqa: UP045 - msgspec reads annotations at run time, and 3.10 is supported
    raw: bytes
    paid: bool
    items: list[Item]
    extra: dict[str, Any]


class Express(Item):
    days: int = 2


class Checked(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("below 0")


class Bounded(msgspec.Struct):
    number: Annotated[int, msgspec.Meta(ge=0)]


class Node(msgspec.Struct):
    value: int
    following: Optional[Node] = None  # noqa: UP045


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: int


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Hidden:
    x: int
    made: int = dataclasses.field(default=0, init=False)


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


GOOD: list[tuple[Any, Any]] = [
    (Order, Order(1, 1.5, None, b"\xff", True, [Item("a"), Item("b", 2)], {"a": [1, {"b": None}], "c": 1e300})),
    (Express, Express("a", 1, 3)),
    (Circle | Square | None, Square(2)),
    (Point, Point(1, 2.0)),
    (list[int], [1, 2]),
    (dict[str, float], {"a": 1.0}),
    (None, {"a": [1, "b", None, True, 1.5]}),
    (int, 5),
    (str | None, None),
]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "message"), GOOD)
def test_what_is_plainly_of_its_type_is_not_read_back(
    kind: Any, message: Any, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = BodyCodec(kind, codec)
    read = made.decode
    if codec == "json" or kind is not None:
        assert plan_of(Any if kind is None else kind).holds(message)  # type: ignore[union-attr]
    monkeypatch.setattr(made, "decode", lambda body: pytest.fail("it was read back"))
    assert read(made.encode_checked(message)) == message


def unset() -> Item:
    made = Item("a")
    del made.name
    return made


def nested(depth: int) -> Any:
    return [] if not depth else [nested(depth - 1)]


BAD: list[tuple[Any, Any]] = [
    (Item, Item(5)),  # type: ignore[arg-type]
    (Item, Item("a", "b")),  # type: ignore[arg-type]
    (Item, Item("a", True)),
    (Item, Item("a", 1.0)),  # type: ignore[arg-type]
    (Item, Item(None)),  # type: ignore[arg-type]
    (Item, Item(b"a")),  # type: ignore[arg-type]
    (Item, Item(Text("a"))),
    (Item, Item("a", Colour.RED)),
    (Item, Express("a")),
    (Item, unset()),
    (Item, {"name": "a"}),
    (Point, Point(1, math.nan)),
    (Point, Point(1, 2)),
    (Point, Point("1")),  # type: ignore[arg-type]
    (Order, Order(1, math.inf, None, b"", True, [], {})),
    (Order, Order(1, 1.5, None, b"", True, (), {})),  # type: ignore[arg-type]
    (Order, Order(1, 1.5, None, b"", True, [Item(1)], {})),  # type: ignore[arg-type]
    (Order, Order(1, 1.5, None, b"", True, [], {1: 2})),  # type: ignore[dict-item]
    (Order, Order(1, 1.5, None, b"", True, [], {"a": b""})),
    (Order, Order(1, 1.5, None, b"", True, [], {"a": [math.nan]})),
    (None, {"a": b"x"}),
    (None, {"a": (1, 2)}),
    (None, nested(200)),
    (list[int], [1, "2"]),
    (Circle | Square, Item("a")),
]


@pytest.mark.parametrize(("kind", "message"), BAD)
def test_what_is_not_is_read_back(kind: Any, message: Any) -> None:
    plan = plan_of(Any if kind is None else kind)
    assert plan is not None
    assert not plan.holds(message)


@pytest.mark.parametrize(
    "kind", [Checked, Bounded, Hidden, Colour, str | Colour, Node, tuple[int, ...], dict[int, str], set[int]]
)
def test_types_of_which_nothing_is_known(kind: Any) -> None:
    """Their own code or a constraint decides."""
    assert plan_of(kind) is None
    assert plan_of(list[kind]) is None


def test_a_class_may_stand_in_several_places() -> None:
    class Two(msgspec.Struct):
        one: Item
        other: Optional[Item]  # noqa: UP045
        many: list[Item]

    plan = plan_of(Two)
    assert plan is not None
    assert plan.holds(Two(Item("a"), None, [Item("b")]))
    assert not plan.holds(Two(Item("a"), Item(1), []))  # type: ignore[arg-type]


def test_a_property_in_place_of_a_field_is_not_believed() -> None:
    class Odd(Item):
        @property
        def name(self) -> str:  # type: ignore[override]
            return "always"

    assert plan_of(Odd) is None


def holders(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3),
        st.builds(Item, inner, inner),
        st.builds(Point, inner, inner),
        st.builds(Express, inner, inner, inner),
        st.builds(Node, inner, inner),
    )


PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3)
VALUES = st.recursive(PLAIN | st.binary(max_size=3) | st.just(Text("t")) | st.just(Colour.RED), holders, max_leaves=6)
ORDERS = st.builds(Order, st.integers(), VALUES, VALUES, VALUES, st.booleans(), st.lists(VALUES, max_size=2), VALUES)
KINDS = [
    None, Item, Point, Node, Order, Express, list[Item], dict[str, Any], Point | None, list[Any], dict[str, list[int]],
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), VALUES | ORDERS, st.sampled_from(["json", "msgpack"]))
def test_nothing_is_let_through_that_reading_back_refuses(kind: Any, message: Any, codec: str) -> None:
    with_plan, without = BodyCodec(kind, codec), BodyCodec(kind, codec)
    without._plan = None
    try:
        expected: bytes | None = without.encode_checked(message)
    except InvalidMessageError:
        expected = None
    try:
        body: bytes | None = with_plan.encode_checked(message)
    except InvalidMessageError:
        body = None
    assert body == expected
    plan = plan_of(Any if kind is None else kind)
    if body is not None and plan is not None and plan.holds(message):
        assert with_plan.decode(body) == message


def test_odd_callers() -> None:
    plan = Plan(INT)
    for arguments in ((1, (), ()), (Item, ("name",), ()), (Item, (1,), (plan,)), (Item, ("name",), (1,))):
        with pytest.raises(ValueError, match="plan"):
            plan.add_object(*arguments)  # type: ignore[arg-type]
    assert plan.holds(1)
    assert not plan.holds(object())
    assert Plan(STR, Plan(INT)).holds([1])
    assert Plan(ANYTHING).holds([[["a"]], {"b": None}])
    plan.add_object(Item, ("nothing",), (plan,))
    assert not plan.holds(Item("a")), "what has no such attribute is not known"
