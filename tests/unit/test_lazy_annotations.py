"""Annotations that cannot be evaluated, or not yet: of handlers, of what else is called, and of message classes.

Since Python 3.14 an annotation is evaluated when somebody asks for it, so it may name what only a type checker imports, or a
class further down. Before, ``from __future__ import annotations`` did the same. Each case is an application's module, written
to a file and imported as it stands: without that import where this Python can read it so, and with it.
"""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ignis
from ignis.errors import ConfigError, InvalidMessageError
from tests.support import eventually

FUTURE = "from __future__ import annotations\n"
WRITTEN = [pytest.param(FUTURE, id="future import")]
if sys.version_info >= (3, 14):
    WRITTEN.append(pytest.param("", id="as it is"))

Imports = Callable[[str], ModuleType]


@pytest.fixture(params=WRITTEN)
def module(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Imports]:
    """Imports an application's module from its text."""
    name = "application_with_lazy_annotations"

    def imported(text: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(request.param + textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made

    yield imported
    sys.modules.pop(name, None)


HANDLERS = """
    import functools
    from typing import TYPE_CHECKING

    if TYPE_CHECKING:
        from somewhere import Clerk, Order, Result

    seen = []

    def plain(order: Order) -> Result:
        seen.append(order)

    def with_context(order: Order, ctx: Clerk) -> Result:
        seen.append((order, ctx.queue))

    async def coroutine(order: Order) -> Result:
        seen.append(order)

    async def coroutine_with_context(order: Order, ctx: Clerk) -> Result:
        seen.append((order, ctx.queue))

    class Handler:
        def __call__(self, order: Order) -> Result:
            seen.append(order)

        def method(self, order: Order, ctx: Clerk) -> Result:
            seen.append((order, ctx.queue))

    def with_discount(discount: Result, order: Order) -> Result:
        seen.append(order)

    @functools.wraps(with_context)
    def decorated(*args: Order) -> Result:
        return with_context(*args)

    an_object = Handler()
    method = Handler().method
    partial = functools.partial(with_discount, 3)
"""


@pytest.mark.parametrize("name", ["plain", "coroutine", "an_object", "partial"])
def test_a_handler_of_the_message(module: Imports, memory_app: ignis.Ignis, name: str) -> None:
    application = module(HANDLERS)
    queue = memory_app.queue("orders", dict)
    queue.handler(getattr(application, name))
    queue.publish({"n": 1})
    memory_app.start()
    eventually(lambda: application.seen)
    assert application.seen == [{"n": 1}]


@pytest.mark.parametrize("name", ["with_context", "coroutine_with_context", "method", "decorated"])
def test_a_handler_of_the_message_and_its_context(module: Imports, memory_app: ignis.Ignis, name: str) -> None:
    application = module(HANDLERS)
    queue = memory_app.queue("orders", dict)
    queue.handler(getattr(application, name))
    queue.publish({"n": 1})
    memory_app.start()
    eventually(lambda: application.seen)
    assert application.seen == [({"n": 1}, "orders")]


def test_what_else_is_called(module: Imports, memory_app: ignis.Ignis) -> None:
    application = module("""
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from somewhere import Context, Key, Next, Order, Result

        seen = []

        def layer(ctx: Context, call_next: Next) -> Result:
            seen.append("layer")
            return call_next(ctx)

        def key(order: Order) -> Key:
            return order["key"]

        def published(queue: Key, count: Result) -> None:
            seen.append(("published", count))

        def handled(queue: Key, handled: Result, sidelined: Result) -> None:
            seen.append(("handled", handled, sidelined))

        def handler(order: Order, ctx: Context) -> Result:
            seen.append(ctx.message.key)
    """)
    memory_app.middleware(application.layer)
    memory_app.after_publish(application.published)
    memory_app.after_handling(application.handled)
    memory_app.handler("found-*", dict)(application.handler)
    queue = memory_app.queue("orders", dict)
    queue.handler(application.handler)
    memory_app.start()
    queue.publish_many([{"key": "k"}], key=application.key)
    eventually(lambda: len(application.seen) >= 4)
    assert sorted(application.seen, key=str) == [("handled", 1, 0), ("published", 1), "k", "layer"]


def test_the_error_of_a_wrong_handler_names_its_arguments(module: Imports, memory_app: ignis.Ignis) -> None:
    application = module("""
        def handler(order: Order, ctx: Context, more: Result) -> Result:
            ...
    """)
    with pytest.raises(ConfigError, match=r"handler\(order, ctx, more\) cannot be called as fn\(message\)"):
        memory_app.queue("orders", dict).handler(application.handler)


CLASSES = {
    "struct": "class Order(msgspec.Struct):",
    "dataclass": "@dataclasses.dataclass\nclass Order:",
    "attrs": "@attrs.define\nclass Order:",
    "typed dict": "class Order(typing_extensions.TypedDict):",
    "named tuple": "class Order(NamedTuple):",
    "model": "class Order(pydantic.BaseModel):",
    "pydantic dataclass": "@pydantic.dataclasses.dataclass\nclass Order:",
}
IMPORTS = """
import dataclasses
from typing import TYPE_CHECKING, NamedTuple, Optional

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import typing_extensions
"""


@pytest.mark.parametrize("kind", CLASSES)
def test_a_message_of_a_class_that_stands_further_down(module: Imports, memory_app: ignis.Ignis, kind: str) -> None:
    further = CLASSES[kind].replace("Order", "Item")
    body = "\n    number: int\n    item: Item\n"
    application = module(f"{IMPORTS}\n{CLASSES[kind]}{body}\n{further}\n    name: str\n")
    queue = memory_app.queue("orders", application.Order)
    sent = application.Order(number=1, item=application.Item(name="nail"))
    queue.publish(sent)
    assert [fired.message for fired in queue.main.peek()] == [sent]
    wrong: Any = {"number": 1} if kind == "typed dict" else 3
    with pytest.raises(InvalidMessageError):
        queue.publish(wrong)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_message_that_holds_its_own_kind(module: Imports, memory_app: ignis.Ignis, kind: str) -> None:
    application = module(f"{IMPORTS}\n{CLASSES[kind]}\n    number: int\n    before: Optional[Order]\n")
    queue = memory_app.queue("orders", application.Order)
    sent = application.Order(number=2, before=application.Order(number=1, before=None))
    queue.publish(sent)
    assert [fired.message for fired in queue.main.peek()] == [sent]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("kind", CLASSES)
def test_a_message_type_that_cannot_be_known(module: Imports, memory_app: ignis.Ignis, kind: str, codec: str) -> None:
    """Nobody can check a field of a type that is not there: the queue is refused, with the name that is missing."""
    imports = f"{IMPORTS}\nif TYPE_CHECKING:\n    from somewhere import Clerk\n"
    application = module(f"{imports}\n{CLASSES[kind]}\n    number: int\n    clerk: Clerk\n")
    with pytest.raises(ConfigError, match=r"(?s)message type .*Order.*Clerk"):
        memory_app.queue("orders", application.Order, codec=codec)
