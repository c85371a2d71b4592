"""Picks the pool for a handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ignis.consumer.handler import HandlerSpec
from ignis.consumer.pools.base import Pool, Sink
from ignis.consumer.pools.coroutine import CoroutinePool, LoopFeeder
from ignis.consumer.pools.leading import Feeder
from ignis.consumer.pools.process import ProcessPool
from ignis.consumer.pools.thread import ThreadPool
from ignis.consumer.runner import Runner
from ignis.upkeep import Turns

__all__ = ["make_pool"]


def make_pool(
    spec: HandlerSpec,
    sink: Sink,
    make_runner: Callable[[], Runner],
    *,
    codec: str,
    max_record_bytes: int,
    give_back_s: float,
    start_timeout_s: float = 60.0,
    cancel_grace_s: float = 10.0,
    claims: object = None,
    turns: Turns | None = None,
) -> Pool:
    """The pool that ``spec.pool`` names, without workers yet.

    Args:
        codec: the name of the queue's body codec, for workers that cannot look into the store.
        max_record_bytes: the largest record that a worker process has room for.
        give_back_s: see `WorkLoop`.
        start_timeout_s: how long a worker process may take until it is ready.
        cancel_grace_s: how long one may go on with a message that was cancelled.
        turns: of the application's threads; None = all of them may run.
        claims: a `Feeder` for threads that claim, a `LoopFeeder` for coroutines; None = they are fed, as processes always are.
    """
    if spec.pool == "async":
        return CoroutinePool(spec, sink, make_runner, feeder=cast("LoopFeeder | None", claims))
    if spec.pool == "process":
        return ProcessPool(
            spec,
            sink,
            codec=codec,
            max_record_bytes=max_record_bytes,
            give_back_s=give_back_s,
            start_timeout_s=start_timeout_s,
            cancel_grace_s=cancel_grace_s,
        )
    return ThreadPool(
        spec,
        sink,
        make_runner,
        give_back_s=give_back_s,
        feeder=cast("Feeder | None", claims),
        turns=turns,
    )
