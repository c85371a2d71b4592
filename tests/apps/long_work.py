"""Handlers for worker processes that import this module; a test registers them on queues of the same names of its own."""

from __future__ import annotations

import asyncio
import os
import time

import ignis
from tests.support import WAIT_S, Journal

app = ignis.Ignis("memory://")


def _note(text: str) -> None:
    Journal(os.environ["IGNIS_TEST_JOURNAL"]).note(text)


@app.queue("jobs", str).handler(pool="process")
def note(body: str) -> None:
    _note(body)


@app.queue("long", str).handler(pool="process")
def work(body: str, ctx: ignis.Context) -> None:
    """``polite`` ends when it is told, ``leaving`` with its process, ``deaf`` never looks; anything else is quick."""
    _note(f"begun {body}")
    until_s = time.monotonic() + WAIT_S
    while body in ("polite", "leaving", "deaf") and time.monotonic() < until_s:
        if body == "leaving" and ctx.stopping:
            break
        if body == "polite":
            ctx.progress(0.25, "on its way")
            if ctx.cancelled:
                return
        time.sleep(0.005)
    _note(f"ended {body}")


async def work_async(body: str, ctx: ignis.Context) -> None:
    """Ends with its process."""
    _note(f"begun {body}")
    while not ctx.stopping:  # noqa: ASYNC110 - a flag is what it has to look at
        await asyncio.sleep(0.005)
    _note(f"ended {body}")
