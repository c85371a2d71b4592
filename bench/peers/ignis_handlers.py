"""The handler that worker processes import; where its store is comes from the environment."""

from __future__ import annotations

import os
from typing import Any

from bench.peers.ignis_embedded import DURABILITY_VARIABLE, QUEUE, SHARDS, URL_VARIABLE
from ignis import Ignis

app = Ignis(os.environ[URL_VARIABLE])
queue: Any = app.queue(QUEUE, bytes, shards=SHARDS, durability=os.environ[DURABILITY_VARIABLE])


def ignore(body: bytes, ctx: Any) -> None:
    """Does nothing."""


queue.handler(concurrency=1, pool="process")(ignore)
