"""Every kind of class that a queue's messages may be of: published, handled as the same, checked in both directions."""

from __future__ import annotations

import abc
import collections
import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import typing
import uuid
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple, NewType, Protocol, TypeVar

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
import typing_extensions

import ignis
from ignis.errors import ConfigError, InvalidMessageError, UnreadableMessageError
from ignis.message import BodyCodec
from ignis.native import CODEC_JSON, encode_record
from tests.support import sidelined, wait_idle

WHEN = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)


class Struct(msgspec.Struct):
    id: int
    name: str
    at: dt.datetime = WHEN


@dataclasses.dataclass
class Data:
    id: int
    name: str
    at: dt.datetime = WHEN


class Typed(typing_extensions.TypedDict):
    id: int
    name: str
    at: dt.datetime


@attrs.define
class Attrs:
    id: int
    name: str
    at: dt.datetime = WHEN


class Tuple(NamedTuple):
    id: int
    name: str
    at: dt.datetime = WHEN


class Model(pydantic.BaseModel):
    id: int
    name: str
    at: dt.datetime = WHEN


@pydantic.dataclasses.dataclass
class PydanticData:
    id: int
    name: str
    at: dt.datetime = WHEN


def typed(id: int, name: str) -> Typed:
    return {"id": id, "name": name, "at": WHEN}


KINDS: dict[str, tuple[Any, Callable[[int, str], Any]]] = {
    "msgspec.Struct": (Struct, Struct),
    "dataclass": (Data, Data),
    "TypedDict": (Typed, typed),
    "attrs": (Attrs, Attrs),
    "NamedTuple": (Tuple, Tuple),
    "pydantic.BaseModel": (Model, Model),
    "pydantic.dataclass": (PydanticData, PydanticData),
    "list of models": (list[Model], lambda id, name: [Model(id=id, name=name)]),
}


def make(kind: str, id: Any = 1, name: str = "a") -> Any:
    build = KINDS[kind][1]
    return build(id=id, name=name) if kind != "list of models" else build(id, name)  # type: ignore[call-arg]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("kind", KINDS)
def test_published_and_handled(memory_app: ignis.Ignis, kind: str, codec: str) -> None:
    queue, seen = memory_app.queue("jobs", KINDS[kind][0], codec=codec), []
    queue.handler(seen.append)
    message = make(kind)
    queue.publish(message)
    queue.publish_many([make(kind, 2)])
    with queue.publisher() as publisher:
        publisher.send(make(kind, 3))
    memory_app.start()
    wait_idle(queue)
    assert sorted(seen, key=repr) == sorted([message, make(kind, 2), make(kind, 3)], key=repr)
    assert {type(one) for one in seen} == {type(message)}
    assert sidelined(queue) == []


BROKEN = {
    "a field of another type": b'{"id":"x","name":"a","at":"2026-01-02T03:04:05Z"}',
    "a field that is missing": b'{"id":1,"at":"2026-01-02T03:04:05Z"}',
    "no JSON": b"{",
}


@pytest.mark.parametrize("body", BROKEN)
@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_validate_is_unreadable(memory_app: ignis.Ignis, kind: str, body: str) -> None:
    """Stored by a producer that has no types, or others."""
    seen: list[Any] = []
    queue = memory_app.queue("jobs", KINDS[kind][0])
    queue.handler(seen.append)
    raw = BROKEN[body]
    if kind == "NamedTuple":
        raw = {"no JSON": raw}.get(body, b'["x","a"]')
    elif kind == "list of models":
        raw = b"[" + raw + b"]"
    queue.main.store.load_records("jobs", 0, [encode_record(raw, flags=CODEC_JSON)])
    memory_app.start()
    wait_idle(queue)
    assert seen == []
    (message,) = sidelined(queue)
    assert message.reason == "unreadable"
    assert message.body == raw


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_of_another_type_is_refused(memory_app: ignis.Ignis, kind: str) -> None:
    queue = memory_app.queue("jobs", KINDS[kind][0])
    for wrong in (b"bytes", 7, {"id": "x"}):
        with pytest.raises(InvalidMessageError):
            queue.publish(wrong)
    assert queue.main.pending() == 0


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"pydantic.BaseModel", "pydantic.dataclass", "list of models"}))
def test_a_field_of_another_type_is_refused(memory_app: ignis.Ignis, kind: str) -> None:
    with pytest.raises(InvalidMessageError, match=r"id|int"):
        memory_app.queue("jobs", KINDS[kind][0]).publish(make(kind, "x"))


# -- pydantic's own


class Address(pydantic.BaseModel):
    street: str


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    full_name: str = pydantic.Field(alias="fullName", min_length=2)
    age: Annotated[int, pydantic.Field(ge=0)] = 0
    home: Address | None = None
    others: list[Address] = []
    seen: float | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def initial(self) -> str:
        return self.full_name[0]

    @pydantic.field_validator("full_name")
    @classmethod
    def no_digits(cls, value: str) -> str:
        if any(one.isdigit() for one in value):
            raise ValueError("a name has no digits")
        return value


class Cat(pydantic.BaseModel):
    kind: typing.Literal["cat"] = "cat"
    lives: int


class Dog(pydantic.BaseModel):
    kind: typing.Literal["dog"] = "dog"
    tricks: list[str]


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@dataclasses.dataclass
class Owner:
    pets: list[Cat | Dog]
    home: Address


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr = pydantic.SecretStr("")
    cached: int = pydantic.Field(default=0, exclude=True)
    _opened: int = pydantic.PrivateAttr(default=0)


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Person, Person(fullName="Ada", age=3, home=Address(street="x"), others=[Address(street="y")])),
        (Pet, Dog(tricks=["sit"])),
        (Cat | Dog, Cat(lives=9)),
        (dict[str, Address], {"a": Address(street="x")}),
        (Owner, Owner([Cat(lives=1), Dog(tricks=[])], Address(street="x"))),
        (pydantic.RootModel[list[int]], pydantic.RootModel[list[int]]([1, 2])),
        (Address | None, None),
    ],
    ids=["aliases and validators", "tagged union", "union", "dict", "dataclass with models", "root model", "optional"],
)
def test_models_are_read_as_they_were_written(kind: Any, message: Any, codec: str) -> None:
    body = BodyCodec[Any](kind, codec)
    read = body.decode_checked(body.encode_checked(message))
    assert read == message
    assert type(read) is type(message)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"fullName":"A"}', r"at least 2 characters - at `\$\.fullName`"),
        (b'{"fullName":"R2"}', r"a name has no digits"),
        (b'{"fullName":"Ada","age":-1,"others":[{}]}', r"\$\.age`; .* at `\$\.others\[0\]\.street`"),
        (b'{"fullName":"Ada","more":1}', r"not permitted"),
        (b"{", "JSON"),
    ],
    ids=["constraint", "validator", "several", "extra", "no JSON"],
)
def test_what_a_model_refuses_is_told_in_one_line_without_values(body: bytes, said: str) -> None:
    with pytest.raises(UnreadableMessageError, match=said) as info:
        BodyCodec(Person).decode_checked(body)
    assert "\n" not in str(info.value)
    assert "https://" not in str(info.value)


def test_a_model_that_was_changed_past_its_validators_is_not_stored() -> None:
    person = Person(fullName="Ada")
    person.age = -5
    with pytest.raises(InvalidMessageError, match=r"no consumer could read it: .*greater than or equal to 0"):
        BodyCodec(Person).encode_checked(person)
    person.age = "old"  # type: ignore[assignment]
    with pytest.raises(InvalidMessageError, match="int"):
        BodyCodec(Person).encode_checked(person)
    person = Person(fullName="Ada", seen=float("nan"))
    with pytest.raises(InvalidMessageError, match="seen"):
        BodyCodec(Person).encode_checked(person)


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_what_a_model_masks_is_not_lost_without_a_word(codec: str) -> None:
    body = BodyCodec[Login](Login, codec)
    login = Login(user="ada", password="swordfish", cached=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessageError, match=r"\$\.password is masked") as info:
        body.encode_checked(login)
    assert "swordfish" not in str(info.value)
    assert body.decode_checked(BodyCodec[Login](Login, codec, strict=False).encode_checked(login)).user == "ada"
    plain = Login(user="ada", cached=3)
    plain._opened = 7
    assert body.decode_checked(body.encode_checked(plain)) == Login(user="ada")


def test_what_cannot_be_validated_is_refused_when_the_queue_is_made(memory_app: ignis.Ignis) -> None:
    holder = msgspec.defstruct("Holder", [("one", Address)], module=__name__)
    with pytest.raises(ConfigError, match=r"Holder.*holds .*Address.*make the outer class a model"):
        memory_app.queue("jobs", holder)

    @attrs.define
    class Outer:
        many: list[Address]

    with pytest.raises(ConfigError, match=r"holds .*Address"):
        memory_app.queue("jobs", Outer)
    with pytest.raises(ConfigError, match="codec raw takes messages of bytes or str"):
        memory_app.queue("jobs", Model, codec="raw")
    assert memory_app.queues() == []


class Plain:
    pass


class Map(dict[str, int]):
    pass


class Slots:
    __slots__ = ("id",)


class Failed(Exception):
    pass


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("kind", [Plain, Map, Slots, Failed, complex, collections.deque, collections.OrderedDict])
def test_a_class_that_nothing_is_read_as_is_refused_when_the_queue_is_made(
    memory_app: ignis.Ignis, kind: Any, codec: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.__name__}.* cannot be encoded as {codec}: .*make it a dataclass"):
        memory_app.queue("jobs", kind, codec=codec)
    assert memory_app.queues() == []
    # Without reading back it writes what others may read.
    memory_app.queue("jobs", Map, codec=codec, strict=False).publish(Map(a=1))


class Listed(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return other is dict

    @abc.abstractmethod
    def items(self) -> Iterable[Any]: ...


class Rows(Protocol):
    rows: int


T = TypeVar("T")


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(
    "kind",
    [
        object, Any, Listed, Rows, T, NewType("Number", int), Literal["a"], enum.Enum("Colour", "RED"), list[Plain],
        dict[str, Plain], Plain | None, dataclasses.make_dataclass("Holder", [("one", Plain, None)]),
        collections.abc.Mapping, Iterable[int],
        msgspec.Raw, decimal.Decimal, dt.datetime, uuid.UUID, Data | None, Tuple, Typed, Attrs,
    ],
)  # fmt: skip
def test_a_type_of_which_that_is_not_certain_is_left_to_each_message(
    memory_app: ignis.Ignis, kind: Any, codec: str
) -> None:
    assert memory_app.queue("jobs", kind, codec=codec).type is kind


def test_a_class_whose_objects_are_read_by_its_hook_is_used(memory_app: ignis.Ignis) -> None:
    jobs = memory_app.queue("jobs", collections.abc.Hashable)  # type: ignore[type-abstract]
    jobs.publish("a")
    assert [one.message for one in jobs.main.fire(1)] == ["a"]


def test_a_model_of_pydantic_1_is_refused(memory_app: ignis.Ignis) -> None:
    old = type("BaseModel", (), {"__module__": "pydantic.v1.main"})
    with pytest.raises(ConfigError, match="pydantic 1; derive it from pydantic 2"):
        memory_app.queue("jobs", type("Old", (old,), {}))


def test_an_older_pydantic_is_refused(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydantic, "VERSION", "2.6.4")
    with pytest.raises(ConfigError, match=r"2\.7 or newer, here is 2\.6\.4"):
        memory_app.queue("jobs", Model)
