"""Handlers that do what a message tells them to, for every kind of worker.

The application of this module exists for the worker processes, which import it to find the handlers; a test registers
the same functions on a queue of the same name of its own application. ``JOBS`` holds the handlers' settings for both.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import ignis
from tests.support import WAIT_S, Journal
from tests.support.interpreter import hold_interpreter

NAP_S = 0.25


class IgnoredError(Exception):
    """Told to be ignored."""


def note(text: object) -> None:
    Journal(os.environ["IGNIS_TEST_JOURNAL"]).note(text)


def _hold(name: str) -> None:
    """Waits until the file appears that lets it go on."""
    deadline = time.monotonic() + WAIT_S
    while not _released(name) and time.monotonic() < deadline:
        time.sleep(0.005)


async def _hold_async(name: str) -> None:
    while not _released(name):  # noqa: ASYNC110 - another process makes the file
        await asyncio.sleep(0.005)


def _released(name: str) -> bool:
    return os.path.exists(f"{os.environ['IGNIS_TEST_JOURNAL']}.{name}")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def act(job: dict[str, Any], ctx: ignis.Context) -> Any:
    """Answers as ``job["do"]`` says. Notes the job's number before and after."""
    do = job["do"]
    note(f"start {job['n']}")
    if do == "raise":
        raise RuntimeError(f"job {job['n']} failed")
    if do == "odd bytes":
        raise OSError(os.fsdecode(b"caf\xe9"))
    if do == "ignore":
        raise IgnoredError
    if do == "exit":
        sys.exit(3)
    if do == "die":
        _die()
    if do == "nap":
        time.sleep(NAP_S)
    if do == "hold":
        if "tell" in job:
            note(f"held by {os.getpid()}")
        _hold(job["until"])
    if do == "hold the interpreter":
        with open(job["until"], "r+b", buffering=0) as pipe:
            hold_interpreter(pipe.fileno())
    note(f"end {job['n']}")
    if do == "coroutine":
        return _never()
    if do == "generator":
        return (_never() for _ in range(1))
    return {"none": None, "true": True, "false": False, "text": "yes", "zero": 0, "dropped": ignis.DROPPED}.get(do)


async def _never() -> None:
    note("never")


async def act_async(job: dict[str, Any], ctx: ignis.Context) -> Any:
    """`act` for coroutine workers."""
    if job["do"] == "hold":
        note(f"start {job['n']}")
        await _hold_async(job["until"])
        note(f"end {job['n']}")
        return None
    if job["do"] == "nap":
        return await asyncio.sleep(NAP_S)
    return act(job, ctx)


def act_timed(job: dict[str, Any], ctx: ignis.Context) -> Any:
    """`act` under another name, because a process finds a handler by its name."""
    return act(job, ctx)


async def act_timed_async(job: dict[str, Any], ctx: ignis.Context) -> Any:
    return await act_async(job, ctx)


def act_again(job: dict[str, Any], ctx: ignis.Context) -> Any:
    """Fails until the attempt that the job names; takes its process with it at the one that it names for that."""
    note(f"try {job['n']} {ctx.attempt}")
    if ctx.attempt == job.get("dies"):
        _die()
    if job.get("defers") and ctx.last_error is None:
        return ignis.RetryLater(0, "no room", counts=False)
    if ctx.attempt == job.get("asks"):
        return ignis.RetryLater(0, "not yet")
    if ctx.attempt < job["good"]:
        raise RuntimeError(f"attempt {ctx.attempt}")
    return None


async def act_again_async(job: dict[str, Any], ctx: ignis.Context) -> Any:
    act_again(job, ctx)


def act_batch(jobs: list[dict[str, Any]], ctx: ignis.Context) -> Any:
    """One answer per message, or what the first message of the batch says for all."""
    note(f"batch {len(jobs)}")
    assert [message.id for message in ctx.messages]
    for job in jobs:
        note(f"start {job['n']}")
    whole = jobs[0].get("whole")
    if whole == "raise":
        raise RuntimeError("whole batch failed")
    if whole == "ignore":
        raise IgnoredError
    if whole == "die":
        _die()
    if whole == "nap":
        time.sleep(NAP_S)
    if whole == "short":
        return [None]
    if whole is not None:
        return {"none": None, "true": True, "false": False}[whole]
    if any(job["do"] == "raise" for job in jobs):
        raise RuntimeError("one of the batch failed")
    answers = {"none": None, "true": True, "false": False, "text": "yes", "dropped": ignis.DROPPED}
    return [answers[job["do"]] for job in jobs]


async def act_batch_async(jobs: list[dict[str, Any]], ctx: ignis.Context) -> Any:
    return act_batch(jobs, ctx)


JOBS: dict[str, dict[str, Any]] = {
    "jobs": {"ignore": IgnoredError},
    "timed": {"ignore": IgnoredError, "timeout_s": 0.4},
    "timed-again": {"timeout_s": 0.4, "retry": ignis.Retry(attempts=2, base=0)},
    "again": {"attempts": 3},
    "retried": {"retry": {RuntimeError: ignis.Retry(attempts=3, base=0), Exception: ignis.Retry(attempts=2, base=0)}},
    "batches": {"ignore": IgnoredError, "batch_size": 5, "batch_wait_s": 1.0},
}

HANDLERS: dict[str, tuple[Any, Any]] = {
    "jobs": (act, act_async),
    "timed": (act_timed, act_timed_async),
    "timed-again": (act_timed, act_timed_async),
    "again": (act_again, act_again_async),
    "retried": (act_again, act_again_async),
    "batches": (act_batch, act_batch_async),
}


def register(app: ignis.Ignis, name: str, pool: str, concurrency: int = 1, **settings: Any) -> ignis.Queue[Any]:
    """The queue of that name with its handler."""
    queue: ignis.Queue[Any] = app.queue(name, dict, shards=4, **settings)
    plain, coroutine = HANDLERS[name]
    queue.handler(coroutine if pool == "async" else plain, pool=pool, concurrency=concurrency, **JOBS[name])
    return queue


def wrap(ctx: ignis.Context, call_next: Any) -> Any:
    """Middleware of the worker processes' application."""
    ctx.items["wrapped"] = True
    return call_next(ctx)


app = ignis.Ignis("memory://", resources={"where": "worker"})
app.middleware(wrap)
for _name in JOBS:
    register(app, _name, "process")
