"""A handler for worker processes that import this module; a test registers it on a queue of the same name of its own."""

from __future__ import annotations

import os

import ignis
from tests.support import Journal

app = ignis.Ignis("memory://")


@app.queue("jobs", str).handler(pool="process")
def note(body: str) -> None:
    Journal(os.environ["IGNIS_TEST_JOURNAL"]).note(body)
