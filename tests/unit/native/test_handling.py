"""The innermost loop of a worker: what it calls, when it comes back, and what it leaves behind."""

from __future__ import annotations

import copy
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from ignis.consumer.handler import Context
from ignis.errors import UnreadableMessageError
from ignis.native import encode_record, new_id
from ignis.native.handling import ANSWERED, RAISED, UNREADABLE, WENT_ON, Progress, handle_records
from ignis.native.histogram import Histogram
from ignis.testing import make_context

LATER_S = 3_600.0
FIRST = 7 << 16


def records(*bodies: bytes) -> list[bytes]:
    return [encode_record(body, id=new_id()) for body in bodies]


def run(
    fn: Callable[..., Any], held: Any, at: int = 0, *, decode: Any = None, kind: Any = None,
    progress: Progress | None = None, until_s: float | None = None,
) -> tuple[int, int, Any]:  # fmt: skip
    until_s = time.monotonic() + LATER_S if until_s is None else until_s
    before_s = time.monotonic()
    place, what, value, began_s = handle_records(
        fn, decode, kind, "q", {"a": 1}, held, at, FIRST, progress or Progress(), until_s, Histogram([1.0])
    )
    assert before_s <= began_s <= time.monotonic()
    return place, what, value


def test_each_body_once_in_order_and_none_or_true_goes_on() -> None:
    seen: list[bytes] = []
    held = records(b"a", b"", b"c")

    def handle(body: bytes) -> bool | None:
        seen.append(body)
        return True if body else None

    assert run(handle, held) == (3, WENT_ON, None)
    assert run(handle, held, 1) == (3, WENT_ON, None)
    assert run(handle, held, 3) == (3, WENT_ON, None)
    assert seen == [b"a", b"", b"c", b"", b"c"]
    assert run(handle, tuple(held)) == (3, WENT_ON, None)


@pytest.mark.parametrize("answer", [False, 0, "text", object()])
def test_any_other_answer_comes_back_with_its_place(answer: object) -> None:
    assert run(lambda body: answer if body == b"b" else None, records(b"a", b"b", b"c")) == (1, ANSWERED, answer)


class _OwnExit(BaseException):
    pass


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, StopIteration, _OwnExit])
def test_what_is_raised_comes_back_with_the_handler_s_frame_first(kind: type[BaseException]) -> None:
    def handle(body: bytes) -> None:
        raise kind("why")

    place, what, value = run(handle, records(b"a"))
    assert (place, what, type(value)) == (0, RAISED, kind)
    assert [frame.name for frame in traceback.extract_tb(value.__traceback__)] == ["handle"]
    assert sys.exc_info() == (None, None, None)


def test_a_handler_that_takes_other_arguments_raises() -> None:
    place, what, value = run(lambda: None, records(b"a"))
    assert (place, what, type(value)) == (0, RAISED, TypeError)


def test_the_context() -> None:
    seen: list[Context] = []
    (record,) = records(b"a")
    assert run(lambda body, ctx: seen.append(ctx), [record], kind=Context) == (1, WENT_ON, None)
    (ctx,) = seen
    assert (ctx.body, ctx.queue, ctx.attempt, ctx.resources, ctx.items) == (b"a", "q", 1, {"a": 1}, {})
    assert ctx.message.body == b"a"
    assert ctx.messages[0] is ctx.message
    assert type(ctx) is Context


def test_a_kind_that_is_no_delivery_is_refused() -> None:
    with pytest.raises(TypeError):
        run(lambda body, ctx: None, records(b"a"), kind=dict)


def test_a_context_is_copied_with_what_it_has() -> None:
    """As a middleware does that hands a changed one down."""
    ctx = make_context({"a": 1}, queue="q", resources={"r": 2})
    ctx.items["mine"] = 3
    again = copy.copy(ctx)
    again.attempt = 4
    assert (again.body, again.queue, again.resources, again.items) == (ctx.body, ctx.queue, ctx.resources, {"mine": 3})
    assert again.messages is ctx.messages
    assert ctx.attempt == 1


def test_bodies_are_decoded_and_what_cannot_be_is_not_handed_over() -> None:
    seen: list[Any] = []

    def decode(body: bytes) -> int:
        try:
            return int(body)
        except ValueError as exc:
            raise UnreadableMessageError(str(exc)) from exc

    held = [*records(b"1", b"x", b"3"), b"no record"]
    assert run(seen.append, held, decode=decode) == (1, UNREADABLE, None)
    assert run(seen.append, held, 2, decode=decode) == (3, UNREADABLE, None)
    assert seen == [1, 3]
    with pytest.raises(ZeroDivisionError):
        run(seen.append, held, decode=lambda body: 1 // 0)


def test_it_comes_back_when_the_time_is_over_or_somebody_wants_the_rest() -> None:
    progress, at = Progress(), []

    def handle(body: bytes) -> None:
        at.append(progress.at_id)
        progress.returning = body == b"b"

    held = records(b"a", b"b", b"c")
    assert run(handle, held, progress=progress) == (2, WENT_ON, None)
    assert run(handle, held, 2, progress=progress) == (2, WENT_ON, None), "and begins nothing"
    assert at == [FIRST, FIRST + 1]
    progress.returning = False
    assert run(handle, held, until_s=0.0, progress=progress) == (1, WENT_ON, None)


@pytest.mark.parametrize("odd", [None, "text", 7, bytearray(b"x")])
def test_what_is_no_record_at_all_is_refused(odd: Any) -> None:
    with pytest.raises(TypeError):
        run(lambda body: None, [odd])


def test_a_list_that_others_shorten_ends_where_it_ends() -> None:
    held = records(*[b"x"] * 1_000)

    def handle(body: bytes) -> None:
        held.clear()

    assert run(handle, held) == (1, WENT_ON, None)
    assert run(handle, held, 5) == (5, WENT_ON, None)
    with pytest.raises(ValueError, match="no record -1"):
        run(handle, records(b"x"), -1)


def test_nothing_is_kept() -> None:
    answer, error, kept = object(), ValueError("one"), records(b"x" * 50)

    def raises(body: bytes) -> None:
        raise error

    for fn, kind in ((lambda body: answer, None), (lambda body, ctx: answer, Context), (raises, None)):
        run(fn, kept, kind=kind)
        counts = [sys.getrefcount(one) for one in (answer, error, kept[0], fn, None)]
        for _ in range(2_000):
            run(fn, kept, kind=kind)
            error.__traceback__ = None
        after = [sys.getrefcount(one) for one in (answer, error, kept[0], fn, None)]
        assert all(abs(now - before) < 500 for now, before in zip(after, counts, strict=True)), (counts, after)


def test_a_body_ends_with_its_call() -> None:
    class Body:
        alive = 0

        def __init__(self, raw: bytes) -> None:
            Body.alive += 1

        def __del__(self) -> None:
            Body.alive -= 1

    most: list[int] = []
    run(lambda body: most.append(Body.alive), records(b"a", b"b", b"c"), decode=Body)
    assert most == [1, 1, 1]
    assert Body.alive == 0


def test_what_is_taken_from_a_worker_is_not_begun() -> None:
    progress = Progress()
    progress.open(10, 15)
    assert progress.begin(10) and (progress.at_id, progress.next_id, progress.end_id) == (10, 11, 15)
    assert progress.cut() == (11, 15)
    assert progress.cut() == (11, 11), "once"
    assert not progress.begin(11) and progress.at_id == 10
    progress.open(20, 21)
    assert progress.begin(20) and not progress.begin(21)
    assert progress.cut() == (21, 21)
