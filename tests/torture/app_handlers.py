"""The handler of the app-level tests, in a module of its own because worker processes import it.

What it is told comes from the environment of the process: `IGNIS_TORTURE_URL`, `IGNIS_TORTURE_POOL`,
`IGNIS_TORTURE_DURABILITY`, `IGNIS_TORTURE_HOLD` (`consumer.max_unacked` and `consumer.max_chunk`) and
`IGNIS_TORTURE_LOG`, the file to which every handled message is appended: that survives the death of whoever wrote it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time

import ignis
from tests.torture.ledger import read_body
from tests.torture.process import id_lines

QUEUE = "torture"
SHARDS = 3

_log = os.open(os.environ["IGNIS_TORTURE_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
_rng = random.Random()
_max_unacked, _max_chunk = map(int, os.environ["IGNIS_TORTURE_HOLD"].split(","))

app = ignis.Ignis(
    os.environ["IGNIS_TORTURE_URL"],
    # It is called after loads, and looks for itself as seldom as it may.
    consumer={"idle_poll_s": 1.0, "max_claim": 64, "max_chunk": _max_chunk, "max_unacked": _max_unacked},
    sweeper={"interval_s": 0.1, "initial_delay_s": 0},
)
queue = app.queue(QUEUE, bytes, shards=SHARDS, durability=os.environ["IGNIS_TORTURE_DURABILITY"], shovel_interval_s=0)


class PlannedFailure(Exception):
    """Sends a message to the sideline."""


class PlannedRetry(Exception):
    """Sends a message to the later magazine, and to the sideline at the third time."""


def handle(body: bytes) -> None:
    """Fails now and then, is slow now and then, and otherwise notes what it got."""
    luck = _rng.random()
    if luck < 0.05:
        raise PlannedFailure
    if luck < 0.15:
        raise PlannedRetry
    if luck < 0.18:
        time.sleep(0.003)
    if luck > 0.997:
        time.sleep(0.12)  # what was claimed behind it goes to others
    identity = read_body(body)
    if identity is None:
        os.write(_log, b"w 1\n")
        return
    for line in id_lines(f"d -1 {time.monotonic():.6f}", [identity]):
        os.write(_log, line)


async def handle_on_loop(body: bytes) -> None:
    """The same in a coroutine, of which others run meanwhile."""
    await asyncio.sleep(0.001)
    handle(body)


_RETRY = ignis.Retry(attempts=3, base=0.005, max=0.02, on=PlannedRetry)
_POOL = os.environ["IGNIS_TORTURE_POOL"]
queue.handler(handle_on_loop if _POOL == "async" else handle, concurrency=2, pool=_POOL, retry=_RETRY)
