"""What a queue is made of: its definition, its two magazines in the store, and what works on it in this process."""

from __future__ import annotations

import threading
from typing import Any, Generic, NoReturn, SupportsIndex, TypeVar

from ignis.config import QueueSettings
from ignis.consumer.handler import HandlerSpec
from ignis.consumer.handler_pattern import HandlerTemplate
from ignis.context import AppContext, QueueContext
from ignis.figures import QueueTimes
from ignis.magazine import Magazine
from ignis.message import BodyCodec
from ignis.pausing import PAUSED
from ignis.queue_definition import QueueDefinition
from ignis.queue_handling import QueueHandling

__all__ = ["QueueParts"]

M = TypeVar("M")


class QueueParts(Generic[M]):
    """The parts of a queue. It opens the magazines on first use, and knows when they have to be opened anew. Thread-safe."""

    def __init__(self, app: AppContext, name: str, type: Any, settings: dict[str, Any]) -> None:
        self._app = app
        self._definition: QueueDefinition[M] = QueueDefinition(app, name, type, settings)
        self.name = self._definition.name
        self.type = type
        self._lock = threading.RLock()
        self._main: Magazine[M] | None = None
        self._sideline: Magazine[M] | None = None
        self._handling: QueueHandling[M] = QueueHandling(app, self._definition, self._lock, self.context)
        self._times = QueueTimes()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"queue {self.name!r} is not pickled or copied: it is of its application, which is of its process; make the "
            "application in the child, by importing the module that makes it, and hand over the queue's name"
        )

    @property
    def app(self) -> Any:
        """The application that made it."""
        return self._app.app

    def context(self) -> QueueContext[M]:
        """The parts that its consumer and its shovel work with, as they are now. Opens the queue."""
        main, sideline = self.main, self.sideline
        return QueueContext(
            self.name,
            main,
            sideline,
            self._definition.codec,
            self._definition.settings,
            self._app.store(),
            self._app.clock(),
            self._app.hooks,
            self._times,
            self._app.tracing,
        )

    @property
    def settings(self) -> QueueSettings:
        """The settings in force. Those that were not given are the stored queue's, once the store was used."""
        return self._definition.settings

    @property
    def codec(self) -> BodyCodec[M]:
        """Encodes and decodes the bodies of the queue's messages."""
        return self._definition.codec

    @property
    def spec(self) -> HandlerSpec | None:
        """Its handler's registration; None where it has none here."""
        return self._definition.spec

    @property
    def template(self) -> HandlerTemplate | None:
        """The pattern subscription whose handler this queue has; None for one with a handler of its own, or none."""
        return self._definition.template

    @template.setter
    def template(self, template: HandlerTemplate | None) -> None:
        self._definition.template = template

    @property
    def found(self) -> bool:
        """Whether it was made because the queue was found in the store; False for a queue that the code names."""
        return self._definition.found

    @found.setter
    def found(self, found: bool) -> None:
        self._definition.found = found

    @property
    def main(self) -> Magazine[M]:
        """The main magazine."""
        return self._main or self._opened()[0]

    @property
    def sideline(self) -> Magazine[M]:
        """The sideline magazine, where failures wait: the queue's dead-letter queue."""
        return self._sideline or self._opened()[1]

    def _opened(self) -> tuple[Magazine[M], Magazine[M]]:
        with self._lock:
            self.open()
            assert self._main is not None
            assert self._sideline is not None
            return self._main, self._sideline

    def open(self) -> None:
        """Registers the queue in the store, or takes over its stored settings. Idempotent; called on first use.

        A queue that was removed since it was opened here is made anew; only this call does that.

        Raises QueueMismatchError when the stored queue has another durability or codec, StoreUnreachableError.
        """
        with self._lock:
            record = self._definition.open()
            if record is not None:
                assert self._definition.magazines is not None
                self._main, self._sideline = self._definition.magazines
                self._handling.pause(PAUSED in record.extra)

    @property
    def opened(self) -> bool:
        """Whether the queue was opened in the store."""
        return self._main is not None

    @property
    def asked(self) -> QueueSettings:
        """The settings as they were asked for, before the store was."""
        return self._definition.asked

    def take_expiry_of(self, other: QueueParts[Any]) -> None:
        """Takes over the time to live that the store chose for the same queue, from another object of it."""
        self._definition.take_expiry_of(other._definition)

    def note_removed(self) -> None:
        """Notes that the queue was removed from the store. Publishing raises QueueRemovedError until `open` is called here or
        another process makes the queue again."""
        self._definition.registration.note_removed()

    @property
    def unused(self) -> bool:
        """Whether the queue was not opened since the application was closed. Then other settings may be given for it."""
        return self._definition.unused

    def reset(self, made: QueueParts[Any] | None = None) -> None:
        """Resets the queue, after the application was closed, to how it was made; its handler stays. The next use opens the store
        anew.

        ``made``: an unopened queue of the same name, whose type and settings are taken over.
        """
        with self._lock:
            self._main = self._sideline = None
            self._definition.reset(None if made is None else made._definition)
            self.type = self._definition.type
            self._handling.paused = False
