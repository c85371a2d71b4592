"""An application whose handler takes every queue of a name: for worker processes, which import it."""

from __future__ import annotations

import os
from typing import Any

import ignis
from tests.support import Journal

app = ignis.Ignis("memory://")


def handle(message: dict[str, Any], ctx: ignis.Context) -> None:
    """Notes where the message came from and which process had it."""
    Journal(os.environ["IGNIS_TEST_JOURNAL"]).note(f"{ctx.queue} {message['n']} {os.getpid()}")


def register(of: ignis.Ignis) -> None:
    of.handler("orders.*", dict, pool="process", concurrency=1)(handle)


register(app)
