"""Batches of which nobody looks at a single message: what a batch handler gets, and what a failure makes of it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from ignis.consumer.handler import Context, Failure, HandlerSpec
from ignis.consumer.pools.gathered import Gathered, records_of
from ignis.consumer.runner import Runner
from ignis.message import BodyCodec
from ignis.native import CODEC_JSON, encode_record
from ignis.native.handling import all_done, open_bodies
from tests.conftest import MakeApp
from tests.support import eventually


def records(count: int) -> list[bytes]:
    return [encode_record(b"%d" % one, flags=CODEC_JSON) for one in range(count)]


def runner_of(fn: Any, **options: Any) -> Runner:
    return Runner(HandlerSpec(fn, "jobs", batch_size=10, **options), BodyCodec(int), {})


@pytest.mark.parametrize("answer", [None, True, [None, True, None]])
def test_a_batch_that_is_done_needs_no_list(answer: Any) -> None:
    assert runner_of(lambda messages: answer).run_batch(records(3)) is None


@pytest.mark.parametrize("answer", [False, [None], [None, None, 1], (None, None, None), "done", 1])
def test_any_other_answer_is_looked_at(answer: Any) -> None:
    assert runner_of(lambda messages: answer).run_batch(records(3)) is not None
    assert not all_done(answer, 3)


def test_a_further_call_gets_what_the_first_one_got() -> None:
    got: list[list[int]] = []

    def handle(messages: list[int]) -> Any:
        got.append(list(messages))
        messages.clear()
        return [None, False, None] if len(got) == 1 else None

    assert runner_of(handle, attempts=2).run_batch(records(3)) == [None, None, None]
    assert got == [[0, 1, 2], [1]]


def test_a_handler_may_empty_its_list() -> None:
    def handle(messages: list[int]) -> None:
        messages.clear()
        raise ValueError

    outcomes = runner_of(handle).run_batch(records(3))
    assert outcomes is not None and len(outcomes) == 3
    assert all(isinstance(one, Failure) for one in outcomes)


def test_one_that_cannot_be_read_fails_alone() -> None:
    got: list[int] = []
    outcomes = runner_of(got.extend).run_batch([*records(2), encode_record(b"x", flags=CODEC_JSON), b""])
    assert got == [0, 1]
    assert outcomes is not None and [one and one.reason for one in outcomes] == [None, None, "unreadable", "unreadable"]


def test_envelopes_are_made_for_who_asks() -> None:
    found: list[Context] = []
    runner_of(lambda messages, ctx: found.append(ctx)).run_batch(records(3))
    for ctx in (found[0], copy.copy(found[0]), pickle.loads(pickle.dumps(found[0]))):
        assert (len(ctx.messages), ctx.message.id, ctx.attempt, ctx.body) == (3, ctx.messages[0].id, 1, [0, 1, 2])
    untouched: list[Context] = []
    runner_of(lambda messages, ctx: untouched.append(ctx)).run_batch(records(2))
    assert not untouched[0].cancelled
    assert len(pickle.loads(pickle.dumps(untouched[0])).messages) == 2


def test_bodies_are_opened_in_one_call() -> None:
    assert open_bodies(None, [encode_record(b"a"), encode_record(b"b")]) == [b"a", b"b"]
    assert open_bodies(int, [encode_record(b"1"), encode_record(b"b")]) is None
    assert open_bodies(None, [b"", encode_record(b"b")]) is None
    with pytest.raises(TypeError):
        open_bodies(None, [None])  # type: ignore[list-item]


def test_what_is_gathered_is_cut_where_a_batch_ends() -> None:
    one, two, three, four, five = records(5)
    gathered = Gathered()
    assert not gathered and gathered.take(3) == []
    gathered.add((100, [one, two, three]))
    gathered.add((200, [four, five]))
    assert gathered.take(2) == [(100, [one, two])]
    assert gathered.head() == (100, [one, two, three], 2)
    both = gathered.take(2)
    assert both == [(102, [three]), (200, [four])] and records_of(both) == [three, four]
    assert gathered.count == 1
    assert gathered.runs() == [(201, 1)] and not gathered
    gathered.add((300, [one, two]))
    gathered.skip(1)
    assert (gathered.count, gathered.runs(), gathered.count) == (1, [(301, 1)], 0)


@pytest.mark.parametrize("size", [2, 30, 700, 2_000])
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_every_message_is_in_one_batch_and_in_order(store_url: str, new_app: MakeApp, size: int, kind: str) -> None:
    app = new_app(store_url)
    queue = app.queue("jobs", int, shards=1)
    got: list[list[int]] = []

    def handle(messages: list[int]) -> Any:
        got.append(messages)
        return [one % 100 != 5 for one in messages] if messages[0] % 3 else None

    async def handle_async(messages: list[int]) -> Any:
        return handle(messages)

    queue.handler(batch_size=size, batch_wait_s=1)(handle if kind == "thread" else handle_async)
    queue.publish_many(range(1_500))
    app.start()
    eventually(lambda: queue.main.pending() == 0 and queue.main.in_flight() == 0)
    assert [one for batch in got for one in batch] == list(range(1_500))
    assert max(map(len, got)) <= size
    failed = sum(one % 100 == 5 for batch in got if batch[0] % 3 for one in batch)
    assert queue.sideline.pending() == failed
