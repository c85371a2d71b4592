"""Every public call with arguments of a wrong type or range: a typed error, and nothing in the store has changed.

One table names the calls and what each argument may be; hypothesis draws the call, the argument and the odd value. What is
odd for one kind of argument may be good for another: see `odd_for`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ignis
from ignis.config import SECTIONS, load_file, resolve
from ignis.errors import ConfigError, IgnisError
from ignis.locks import LockManager
from ignis.storage import open_store
from ignis.storage.memory.store import MemoryStore
from tests.support import eventually

HALF = "\ud800"
LONG = "a" * 600


class Odd:
    """Has no sense as any argument; its repr cannot even be printed."""

    def __repr__(self) -> str:
        raise RuntimeError(HALF)


class Lying:
    """Says that it is a number, and raises."""

    def __index__(self) -> int:
        raise TypeError("no")

    def __float__(self) -> float:
        raise ValueError("no")


NUMBERS: list[Any] = [True, False, -1, -0.5, math.nan, math.inf, -math.inf, 1 << 70, 10**400, 0.5, 8.0, 16 / 2, 1j]
TEXTS: list[Any] = ["", "\0", "a\0b", HALF, f"a{HALF}", "a b", "../x", "a/b", LONG, "q\n", "é"]
OTHERS: list[Any] = [None, b"x", bytearray(b"x"), [], [1], (), {}, {"a": 1}, {1, 2}, Odd(), Lying(), object, len, ...]
EVERYTHING = NUMBERS + TEXTS + OTHERS


def _is(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)


def odd_for(kind: str) -> list[Any]:
    """What an argument of that kind must refuse."""
    refuse: dict[str, Callable[[Any], bool]] = {
        "name": lambda v: True,
        "whole": lambda v: v is not None,
        "whole, 0 is one": lambda v: (v is not None and v != 0) or v is False,
        "seconds": lambda v: v is not None and (not _is(v, int, float) or not 0 < v <= 365 * 86_400),
        "timeout": lambda v: v is not None and (not _is(v, int, float) or not 0 <= v <= math.inf or v == 10**400),
        "mapping": lambda v: v is not None and not isinstance(v, dict),
        "settings": lambda v: v is not None and v != {},
        "callable": lambda v: v is not None and not callable(v),
        "function": lambda v: not callable(v),
        "function or none": lambda v: v is not None and not callable(v),
        "durability": lambda v: v is not None,
        "codec": lambda v: True,
        "text": lambda v: not _is(v, str) or "\0" in v or HALF in v,
        "path": lambda v: v is not None and v != "",
        "above 0": lambda v: v is not None and (not _is(v, int, float) or not 0 < v < math.inf or v == 10**400),
        "bytes": lambda v: not _is(v, bytes, bytearray),
        "text of any kind": lambda v: not _is(v, str) or HALF in v,
        "wait of a batch": lambda v: v is not None and (not _is(v, int, float) or not 1 <= v <= 300),
        "linger": lambda v: v is not None and (not _is(v, int, float) or not 0 <= v <= 10),
        "expiry": lambda v: v is not None and (not _is(v, int, float) or not (v == 0 or 1 <= v <= 172_800)),
        "queue expiry": lambda v: v is not None and (not _is(v, int, float) or not 1 <= v <= 365 * 86_400),
        "bool": lambda v: not isinstance(v, bool),
        "key": lambda v: (v is not None and not _is(v, str, bytes, bytearray)) or (_is(v, str) and HALF in v),
        "headers": lambda v: v is not None and not isinstance(v, dict),
        "deadline": lambda v: v is not None,
        "iterable": lambda v: not hasattr(v, "__iter__"),
        "fired": lambda v: not hasattr(v, "__iter__") or bool(v),
        "keys": lambda v: v is not None,
        "exceptions": lambda v: (v != () and v != [] and v != {} and v != "") or v is False,
        "array value": lambda v: v is None or not _is(v, int, float, bool, str, bytes, list, dict)
            or (_is(v, int) and v >= 1 << 63) or (_is(v, str) and ("\0" in v or HALF in v)),
        "pool": lambda v: v != "",
        "url": lambda v: v not in (None, "") and not (_is(v, str) and v.startswith("memory:")),
    }  # fmt: skip
    return [value for value in EVERYTHING if refuse[kind](value)]


def noop(*args: Any) -> None: ...


@dataclasses.dataclass
class Call:
    """One public call: ``run(world, **{argument: odd value})``."""

    name: str
    run: Callable[..., Any]
    kinds: dict[str, str]


class World:
    """An application with a queue that was used, on one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = ignis.Ignis(url)
        self.queue = self.app.queue("jobs", dict, shards=2, durability="sync")
        self.queue.publish({"n": 1})
        self.raw = self.app.magazine("m", bytes, shards=2)
        self.raw.load(b"x")
        self.fresh = self.app.queue("fresh", dict, shards=2)
        self.fresh.open()
        self.typed = self.app.queue("typed", str, shards=1)
        self.typed.open()
        self.array = ignis.ArrayQueue(self.app.store, "list")
        self.array.enqueue(1)
        self.locks = LockManager("ignis", "local", self.app.store)
        self.lock = self.locks.lock("one")
        self.publisher = self.queue.publisher()
        self.publisher.send({"n": 2}).result(30)
        eventually(lambda: not self.publisher.pending)

    def state(self) -> Any:
        """Everything that the store holds."""
        store = self.app.store
        if isinstance(store, MemoryStore):
            content = store.content
            return (
                {key: (len(one.shards), one.durability, [shard.records for shard in one.all_shards])
                 for key, one in content.magazines.items()},
                dict(content.queues), dict(content.locks), {key: list(one) for key, one in content.arrays.items()},
            )  # fmt: skip
        content = {}
        for durability, log in store.directory.opened().items():  # type: ignore[attr-defined]
            magazines = log.magazines()
            shards = [(number, shard) for number, _, count, _ in magazines for shard in range(count)]
            content[durability] = (
                dict(log.keys()),
                magazines,
                [log.shards(number) for number, *_ in magazines],
                [log.living(*shard, [(0, 1 << 62)]) for shard in shards],
                [log.claims(*shard, 0, 64) for shard in shards],
            )
        return content

    def close(self) -> None:
        self.publisher.close()
        self.locks.close()
        self.app.close()


def opened(**arguments: Any) -> ignis.Ignis:
    with ignis.Ignis(**arguments) as app:
        _ = app.store
    return app


def made(make: Callable[..., Any]) -> Any:
    """For calls that make something: what they made by mistake is closed."""
    one = make()
    close = getattr(one, "close", None)
    if close is not None:
        close()
    return one


CALLS = [
    Call("Ignis", lambda w, **a: made(lambda: opened(**{"url": "memory://", **a})), {
        "url": "url", "client_id": "name", "farm_id": "name", "resources": "mapping", "consumer": "settings",
        "sweeper": "settings", "refresher": "settings", "publisher": "settings", "leader": "settings", "store": "mapping",
        "clock": "function or none",
    }),
    Call("Ignis(config)", lambda w, config: ignis.Ignis("memory://", config=config).store, {"config": "path"}),
    Call("Ignis(store options)", lambda w, **a: made(lambda: ignis.Ignis("memory://", store={"x": 1, **a}).store), {
        "create": "text",
    }),
    Call("open_store", lambda w, **a: made(lambda: open_store(**{"url": "memory://", **a})), {
        "client_id": "name", "farm_id": "name",
    }),
    Call("app.queue", lambda w, **a: w.app.queue(**{"name": "new", **a}).open(), {
        "name": "name", "shards": "whole", "message_expiry": "expiry", "queue_expiry_s": "queue expiry", "durability": "name",
        "codec": "name", "max_message_bytes": "name", "max_headers_bytes": "name", "strict": "bool",
        "handler_type": "text", "shovel_concurrency": "name", "nonsense": "name",
    }),
    Call("app.magazine", lambda w, **a: w.app.magazine(**{"name": "new", "type": bytes, **a}), {
        "name": "name", "shards": "whole", "ttl_s": "seconds", "durability": "durability", "codec": "codec",
        "max_message_bytes": "name", "max_headers_bytes": "name", "strict": "bool",
    }),
    Call("app.magazine of a queue", lambda w, **a: w.app.magazine("jobs", dict, **a), {"shards": "whole"}),
    Call("app.handler", lambda w, **a: w.app.handler(**a)(len), {"pattern": "text", "handler_type": "text"}),
    Call("app.handler function", lambda w, fn: w.app.handler("none.*")(fn), {"fn": "function"}),
    Call("app.middleware", lambda w, layer: w.app.middleware(layer), {"layer": "function"}),
    Call("app.after_publish", lambda w, fn: w.app.after_publish(fn), {"fn": "function"}),
    Call("app.after_handling", lambda w, fn: w.app.after_handling(fn), {"fn": "function"}),
    Call("app.start", lambda w, queues: w.app.start(queues), {"queues": "iterable"}),
    Call("app.stop", lambda w, timeout: w.app.stop(timeout), {"timeout": "timeout"}),
    Call("app.sweep_queue", lambda w, name: w.app.sweep_queue(name), {"name": "name"}),
    Call("app.leader", lambda w, scope: w.app.leader(scope), {"scope": "name"}),
    Call("queue.publish", lambda w, **a: w.queue.publish(**{"message": {}, **a}), {
        "message": "mapping", "key": "key", "headers": "headers",
    }),
    Call("queue.publish text", lambda w, message: w.typed.publish(message), {"message": "text of any kind"}),
    Call("queue.publish_many", lambda w, **a: w.queue.publish_many(**{"messages": [{}], **a}), {
        "messages": "iterable", "key": "callable", "keys": "keys", "headers": "headers",
    }),
    Call("queue.publisher", lambda w, **a: w.queue.publisher(**a), {
        "capacity": "whole", "linger_s": "linger", "max_batch": "whole", "nonsense": "name",
    }),
    Call("queue.handler", lambda w, **a: w.fresh.handler(**a)(noop), {
        "concurrency": "name", "pool": "pool", "ignore": "exceptions", "timeout_s": "above 0", "attempts": "name",
        "batch_size": "whole",
    }),
    Call("queue.handler batch", lambda w, **a: w.fresh.handler(**{"batch_size": 10, **a})(noop), {
        "batch_wait_s": "wait of a batch",
    }),
    Call("queue.handler function", lambda w, fn: w.fresh.handler()(fn), {"fn": "function"}),
    Call("queue.middleware", lambda w, layer: w.queue.middleware(layer), {"layer": "function"}),
    Call("queue.increase_consumers", lambda w, count: w.queue.increase_consumers(count), {"count": "name"}),
    Call("queue.decrease_consumers", lambda w, count: w.queue.decrease_consumers(count), {"count": "name"}),
    Call("shovel.run_once", lambda w, **a: w.queue.shovel.run_once(**a), {
        "limit": "whole, 0 is one", "where": "callable", "rate": "above 0", "progress": "callable",
    }),
    Call("shovel.start_once", lambda w, **a: w.queue.shovel.start_once(**a).join(), {
        "timeout": "timeout", "rate": "above 0", "nonsense": "name",
    }),
    Call("magazine.load", lambda w, **a: w.raw.load(**{"message": b"", **a}), {
        "message": "bytes", "key": "key", "headers": "headers", "deadline": "deadline",
    }),
    Call("magazine.load_many", lambda w, **a: w.raw.load_many(**{"messages": [b""], **a}), {
        "messages": "iterable", "keys": "keys", "headers": "headers", "deadline": "deadline", "due_ms": "deadline",
    }),
    Call("magazine.fire", lambda w, limit: w.raw.fire(limit), {"limit": "name"}),
    Call("magazine.peek", lambda w, limit: w.raw.peek(limit), {"limit": "name"}),
    Call("magazine.reload", lambda w, fired: w.raw.reload(fired), {"fired": "fired"}),
    Call("magazine.delete", lambda w, fired: w.raw.delete(fired), {"fired": "fired"}),
    Call("publisher.send", lambda w, **a: w.publisher.send(**{"message": {}, **a}), {
        "message": "mapping", "key": "key", "headers": "headers", "timeout": "timeout",
    }),
    Call("publisher.flush", lambda w, timeout: w.publisher.flush(timeout), {"timeout": "timeout"}),
    Call("publisher.close", lambda w, timeout: w.publisher.close(timeout), {"timeout": "timeout"}),
    Call("array.enqueue", lambda w, value: w.array.enqueue(value), {"value": "array value"}),
    Call("array.enqueue_many", lambda w, values: w.array.enqueue_many(values), {"values": "iterable"}),
    Call("LockManager", lambda w, **a: LockManager(**{"client_id": "a", "farm_id": "b", "store": w.app.store, **a}), {
        "client_id": "name", "farm_id": "name", "suffix": "name", "level": "name", "file": "mapping", "poll_s": "linger",
    }),
    Call("locks.lock level", lambda w, level: w.locks.lock("x", level), {"level": "whole"}),
    Call("locks.holder", lambda w, level: w.locks.holder("x", level), {"level": "whole"}),
    Call("locks.lock", lambda w, **a: w.locks.lock("x", **a), {"max_hold_s": "above 0", "on_lost": "callable"}),
    Call("lock.acquire", lambda w, **a: w.lock.acquire(**a), {"ttl_s": "seconds", "timeout": "timeout"}),
]  # fmt: skip

NOT_WITHOUT = ("function", "iterable", "fired", "array value", "text of any kind", "bytes")
"""Kinds for which None does not mean: not given."""
CASES = [
    (call, argument, value)
    for call in CALLS
    for argument, kind in call.kinds.items()
    for value in odd_for(kind)
    if value is not None or kind in NOT_WITHOUT
]  # fmt: skip


@pytest.fixture(params=["memory", "embedded"], scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("store")
    made = World("memory://wrong-arguments" if request.param == "memory" else f"embedded://{directory}/store")
    yield made
    made.close()
    with ignis.Ignis(made.url) as app:
        # What was refused has left nothing behind that the next process would stumble over.
        app.store.queues.list()
        for name in app.store.magazines.names():
            app.store.magazines.metadata(name)
        assert app.queue("jobs", dict).main.pending() == 2


def refuses(world: World, call: Call, argument: str, value: Any) -> None:
    before = world.state()
    templates, layers = len(world.app.templates), len(world.app.layers)
    try:
        call.run(world, **{argument: value})
    except IgnisError as exc:
        str(exc).encode()  # can be written to any log
    except Exception as exc:
        raise AssertionError(f"{call.name}({argument}={type(value)}): raw {type(exc).__name__}: {exc}") from exc
    else:
        raise AssertionError(f"{call.name}({argument}={type(value)}) was accepted")
    assert world.state() == before
    assert (len(world.app.templates), len(world.app.layers)) == (templates, layers)
    assert world.fresh.spec is None


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_wrong_argument_is_refused_and_changes_nothing(world: World, call: Call) -> None:
    for one, argument, value in CASES:
        if one is call:
            refuses(world, call, argument, value)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_drawn_wrong_argument_is_refused_and_changes_nothing(world: World, data: st.DataObject) -> None:
    """Beyond the table's values: text with what cannot be in a name, numbers outside every range."""
    call, argument = data.draw(
        st.sampled_from(
            [(call, name) for call in CALLS for name, kind in call.kinds.items() if kind in ("name", "whole")]
        )
    )
    whole = st.one_of(st.integers(max_value=-1), st.integers(min_value=1 << 63))
    text = st.text(min_size=129).filter(lambda one: not one.strip().replace("_", "").isdecimal())  # zeros are a number
    value = data.draw(st.one_of(whole, text, st.dictionaries(st.text(), st.text(), min_size=1), st.binary()))
    refuses(world, call, argument, value)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda cls: cls.section)
def test_settings_of_every_section(section: type) -> None:
    for spec in dataclasses.fields(section):
        for value in EVERYTHING:
            for source in (
                lambda v: resolve(section, {spec.name: v}),  # noqa: B023 - called at once
                lambda v: resolve(section, {}, {section.section: {spec.name: v}}),  # noqa: B023
            ):
                try:
                    found = getattr(source(value), spec.name)
                except ConfigError as exc:
                    str(exc).encode()
                else:
                    assert type(found) is type(spec.default) or spec.name.endswith("_s")
                    if isinstance(value, bool):
                        assert isinstance(spec.default, bool)


@pytest.mark.parametrize(
    "path",
    ["\0", HALF, LONG, Path("/nowhere/at/all"), 7, [], object()],
    ids=["zero byte", "half a character", "long", "not there", "number", "list", "object"],
)
def test_a_settings_file_that_is_none(path: Any) -> None:
    with pytest.raises(ConfigError, match="settings file"):
        load_file(path, {})
