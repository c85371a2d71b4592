"""What an application gives its queues, and what a queue gives the parts that work for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ignis.clock import Clock
from ignis.config import ConsumerSettings, PublisherSettings, QueueSettings
from ignis.figures import QueueTimes
from ignis.hooks import Hooks
from ignis.magazine import Magazine, MagazineManager
from ignis.message import BodyCodec
from ignis.storage.base import Store
from ignis.sweep_result import SweepResult

if TYPE_CHECKING:
    from ignis.tracing.otel import Tracing
    from ignis.upkeep import Turns

__all__ = ["AppContext", "QueueContext"]

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class AppContext:
    """What queues need of the application that makes them.

    Attributes:
        app: the application itself, for a user who has only the queue. No part of the library calls it.
        file: the parsed settings file.
        hooks, layers, resources: as registered with the application; ``layers`` is its middleware, the outermost first.
        consumer_settings: of every consumer.
        look_s: seconds between two looks whether a queue that is published to is still there.
        store, magazines: open the store on first use. Raise StoreUnreachableError, StoreFormatError, ConfigError.
        clock: the time by which the application acts.
        publisher_settings: the settings of a publisher from those that were given. Raises ConfigError.
        paused: whether consumers of this process claim nothing for now.
        take_back: recovers what dead processes hold of the queue of that name; how many are set aside now, by queue and reason.
        sweep: sweeps the queue of that name by hand. Raises LockHeldError.
        start_late: a handler of the queue of that name was registered: it runs now if the application does.
        failed: told of the error by which a consumer ended.
        close: closes the application in a process that ends anyway.
        turns: of the threads in its handlers.
        tracing: makes its spans; None = it does not trace.
    """

    app: Any
    file: Mapping[str, Any]
    hooks: Hooks
    layers: Sequence[Callable[..., Any]]
    resources: Mapping[str, Any]
    consumer_settings: ConsumerSettings
    look_s: float
    store: Callable[[], Store]
    magazines: Callable[[], MagazineManager]
    clock: Callable[[], Clock]
    publisher_settings: Callable[[Mapping[str, Any]], PublisherSettings]
    paused: Callable[[], bool]
    take_back: Callable[[str], Mapping[tuple[str, str], int]]
    sweep: Callable[[str], SweepResult]
    start_late: Callable[[str], None]
    failed: Callable[[BaseException], None]
    close: Callable[[], None]
    turns: Turns
    tracing: Tracing | None = None


@dataclass(frozen=True, slots=True)
class QueueContext(Generic[M]):
    """An open queue as its consumer and its shovel see it: both magazines and what belongs to them.

    Settings are those of the moment at which it was made; whoever follows changes asks for another.
    """

    name: str
    main: Magazine[M]
    sideline: Magazine[M]
    codec: BodyCodec[M]
    settings: QueueSettings
    store: Store
    clock: Clock
    hooks: Hooks
    times: QueueTimes
    tracing: Tracing | None = None
