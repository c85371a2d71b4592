"""The application of the fleet tests, in a module of its own because worker processes import it.

What it is told comes from the environment: `IGNIS_TORTURE_URL`, `IGNIS_TORTURE_LOG` (the file to which every handled
message is appended: that survives the death of whoever wrote it), `IGNIS_TORTURE_FAILING` (the share of messages that
fail), `IGNIS_TORTURE_PAUSE_S` (how long each takes at least), `IGNIS_TORTURE_HOLD` (`consumer.max_unacked` and
`max_chunk`), `IGNIS_TORTURE_MOVES` (not empty = moves between magazines are appended as well) and `IGNIS_TORTURE_PLANT`
(a fault to be found).
"""

from __future__ import annotations

import os
import random
import time

import ignis
import ignis.app_store as application
from tests.torture import actors, faults
from tests.torture.ledger import read_body
from tests.torture.process import id_lines, process_name

QUEUE = "torture"
SHARDS = 3
WORKERS = 2

_log = os.open(os.environ["IGNIS_TORTURE_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
_rng = random.Random()
_failing = float(os.environ.get("IGNIS_TORTURE_FAILING", "0"))
_pause_s = float(os.environ.get("IGNIS_TORTURE_PAUSE_S", "0"))
_max_unacked, _max_chunk = map(int, os.environ.get("IGNIS_TORTURE_HOLD", "256,32").split(","))
_name = process_name(os.getpid())

if os.environ.get("IGNIS_TORTURE_PLANT"):
    # Changes what the actors open; here it is the application that opens.
    getattr(faults, os.environ["IGNIS_TORTURE_PLANT"])()
    application.open_store = actors.open_store  # type: ignore[attr-defined]
if os.environ.get("IGNIS_TORTURE_MOVES"):
    faults.note_moves(os.environ["IGNIS_TORTURE_LOG"])
    application.open_store = actors.open_store  # type: ignore[attr-defined]

app = ignis.Ignis(
    os.environ["IGNIS_TORTURE_URL"],
    consumer={"idle_poll_s": 0.05, "max_claim": 64, "max_chunk": _max_chunk, "max_unacked": _max_unacked},
    sweeper={"interval_s": 86_400, "initial_delay_s": 86_400},
)
queue = app.queue(QUEUE, bytes, shards=SHARDS, shovel_interval_s=0)


class PlannedFailure(Exception):
    """Sends a message to the sideline."""


@queue.handler(concurrency=WORKERS)
def handle(body: bytes) -> None:
    """Notes what it got, unless it fails."""
    if _pause_s:
        time.sleep(_pause_s)
    if _failing and _rng.random() < _failing:
        raise PlannedFailure
    identity = read_body(body)
    if identity is None:
        os.write(_log, b"w 1\n")
        return
    for line in id_lines(f"h {_name} {time.monotonic():.6f}", [identity]):
        os.write(_log, line)
