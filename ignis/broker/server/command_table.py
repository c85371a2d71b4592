"""The commands that are one call of the store each, by number."""

from __future__ import annotations

from ignis.broker.server.calls import Call
from ignis.broker.server.claim_commands import CLAIM_CALLS
from ignis.broker.server.later_commands import LATER_CALLS
from ignis.broker.server.lock_commands import LOCK_CALLS
from ignis.broker.server.queue_commands import QUEUE_CALLS
from ignis.broker.server.store_commands import STORE_CALLS

__all__ = ["CALLS"]

CALLS: dict[int, Call] = {**STORE_CALLS, **LATER_CALLS, **CLAIM_CALLS, **QUEUE_CALLS, **LOCK_CALLS}
