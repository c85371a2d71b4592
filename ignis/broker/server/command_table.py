"""The commands that are one call of the store each, by number."""

from __future__ import annotations

from ignis.broker.protocol.commands import Command
from ignis.broker.server.calls import Call
from ignis.broker.server.claim_commands import CLAIM_CALLS
from ignis.broker.server.lock_commands import LOCK_CALLS
from ignis.broker.server.queue_commands import QUEUE_CALLS
from ignis.broker.server.store_commands import STORE_CALLS

__all__ = ["BULKY", "CALLS"]

CALLS: dict[int, Call] = {**STORE_CALLS, **CLAIM_CALLS, **QUEUE_CALLS, **LOCK_CALLS}

BULKY = frozenset(
    {Command.FIRE, Command.PEEK, Command.SCAN, Command.ABANDONED, Command.ARRAY_DEQUEUE, Command.ARRAY_PEEK}
)
"""Their answers may be large: few of them at a time per connection."""
