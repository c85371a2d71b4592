"""What the parts of a broker, and those of one of its applications, have in common. Both are made once and never change; what
changes is within what they name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ignis.broker.server.flush_plan import FlushPlan
from ignis.broker.server.load_notifier import LoadNotifier, Watches
from ignis.broker.server.long_work import Steps
from ignis.broker.server.queue_facts import QueueFacts
from ignis.broker.server.receive_limits import ReceiveLimits
from ignis.broker.server.request_turns import RequestTurns
from ignis.broker.server.send_limits import SendLimits
from ignis.broker.server.state import BrokerState
from ignis.broker.server.threads import BrokerThreads
from ignis.broker.server.waiting_limit import WaitingLimit
from ignis.config import BrokerSettings
from ignis.log_limit import LimitedLog
from ignis.native.lone import LoneAck, LoneRequest, LoopSpin
from ignis.native.wire import ReadArea
from ignis.storage.base import MagazineStore, Store

__all__ = ["ApplicationContext", "BrokerContext"]


@dataclass(frozen=True)
class BrokerContext:
    """What the parts of a started broker share: its settings, its loop, its threads and its counters.

    Attributes:
        id: of the broker.
        owner: in whose name the broker itself keeps claims.
        area: what its connections read into.
        lone: what one of them has just received there, if it is a request that is loaded on the spot.
        lone_ack: the same of an acknowledgement.
        spin: looks for what comes next before the loop sleeps.
    """

    id: str
    owner: str
    settings: BrokerSettings
    loop: asyncio.AbstractEventLoop
    state: BrokerState
    threads: BrokerThreads
    flushes: FlushPlan
    steps: Steps
    watchers: LoadNotifier
    area: ReadArea
    lone: LoneRequest
    lone_ack: LoneAck
    spin: LoopSpin
    receiving: ReceiveLimits
    turns: RequestTurns
    unread: SendLimits
    waiting: WaitingLimit


@dataclass(frozen=True)
class ApplicationContext:
    """What the parts of one application at a broker share: its store, its queues and what is known of them.

    Attributes:
        magazines: the store's.
        said: what is said about its queues, each at most so often.
        poke: a magazine may have messages, or room for deliveries. Belongs to the event loop.
    """

    broker: BrokerContext
    store: Store
    magazines: MagazineStore
    facts: QueueFacts
    watches: Watches
    said: LimitedLog
    poke: Callable[[str], None]
