"""What a queue is: its type, settings, codec and handler, as the code says and as the store has it, and its two magazines."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ignis.config import QueueSettings, check_queue_name, given_names, resolve
from ignis.consumer.handler import HandlerSpec
from ignis.consumer.handler_pattern import HandlerTemplate
from ignis.context import AppContext
from ignis.deadlines import note_on_expiry, on_expiry_of
from ignis.errors import QueueMismatchError
from ignis.log_format import event_text
from ignis.magazine import SIDELINE_SUFFIX, Magazine
from ignis.message import BodyCodec
from ignis.registration import Registration
from ignis.shovel_rounds import SHOVEL_RETRY, note_shovel_retry, shovel_retry_of, stored_policy, with_policy
from ignis.storage.base import QueueRecord, QueueStore

__all__ = ["DECLARED", "QueueDefinition"]

log = logging.getLogger("ignis.queue")

DECLARED = "declared_concurrency"
"""Where the stored queue keeps the concurrency that its handler's code asked for last: what was set by hand since then
stays until the code asks for another."""

M = TypeVar("M")


class QueueDefinition(Generic[M]):
    """One queue's definition. Who changes it, or opens the queue by it, holds the queue's lock.

    Args:
        app: what the queue has of its application.
        name: of the queue.
        type: of its messages; None = any, or what the stored queue has.
        settings: those that were given; None stands for one that was left out.
    """

    def __init__(self, app: AppContext, name: str, type: Any, settings: dict[str, Any]) -> None:
        self._app = app
        self.name = check_queue_name(name)
        self.type = type
        self._given = {key: value for key, value in settings.items() if value is not None}
        if SHOVEL_RETRY in self._given:  # which need not be text
            self._given[SHOVEL_RETRY] = stored_policy(self._given[SHOVEL_RETRY], app.file)
        self.settings = self._resolved()
        """Those in force."""
        self.asked = self.settings
        """Those that were asked for, before the store was."""
        self.codec: BodyCodec[M] = BodyCodec(type, self.settings.codec, self.settings.strict)
        self.spec: HandlerSpec | None = None
        """The handler that is registered."""
        self.template: HandlerTemplate | None = None
        self.found = False
        """What made this queue when it was found in the store; None for one that the code names."""
        self.magazines: tuple[Magazine[M], Magazine[M]] | None = None
        """Main and sideline, once the queue is open."""
        self.registration = self._new_registration()
        self.unused = False
        """Whether the application was closed and the queue not opened since."""

    def _new_registration(self) -> Registration:
        return Registration(lambda: self._app.store().queues, self.name, self._app.look_s)

    def _resolved(self, stored: dict[str, Any] | None = None) -> QueueSettings:
        found = resolve(QueueSettings, self._given, self._app.file, name=self.name, stored=stored)
        return with_policy(found, self._app.file)

    # -- opening

    def open(self) -> QueueRecord | None:
        """Registers the queue in the store, or takes up what is stored of it. Returns its record; None where it is open already.

        Raises QueueMismatchError, StoreUnreachableError.
        """
        if self.magazines is not None:
            if not self.registration.removed:
                return None
            for name in (self.name, self.name + SIDELINE_SUFFIX):
                self._app.magazines().forget(name)
        queues = self._app.store().queues
        stored = queues.get(self.name)
        if stored is not None:
            self._take_stored(stored)
        elif "message_expiry_s" not in self._given_names():
            # As the store has it: where others share the queue they count on it.
            expiry_s = min(self._app.store().message_expiry_s, self.settings.queue_expiry_s)
            self.settings = dataclasses.replace(self.settings, message_expiry_s=expiry_s)
        magazines = self._declared()
        record = self._register(queues, stored)
        if stored is not None:
            self._warn_of_changes(stored)
        if self.spec is not None:
            self.spec.concurrency = min(record.concurrency, self.spec.limit[0])
        magazines[0].registration = self.registration
        self.registration.on_shards = magazines[0].follow_shards
        self.magazines = magazines
        self.registration.opened()
        self.unused = False
        return record

    def _take_stored(self, stored: QueueRecord) -> None:
        """Takes the settings that nobody gave, and the codec. Raises QueueMismatchError for what cannot change."""
        self.settings = self._resolved(_settings_of(stored))
        if self.settings.durability != stored.durability:
            raise QueueMismatchError(
                f"queue {self.name!r} is stored with durability {stored.durability!r}, "
                f"asked for {self.settings.durability!r}; {self._remedy('durability')}"
            )
        asked = self.settings.codec
        if self.type is not None and (self.codec.name == "raw") != (stored.codec == "raw"):
            asked = self.codec.name  # bytes and text are stored as they are, and nothing else is
        if asked not in ("auto", stored.codec):
            implied = asked != self.settings.codec
            raise QueueMismatchError(
                f"queue {self.name!r} is stored with codec {stored.codec!r}, asked for {asked!r}"
                f"{f', which messages of {_kind(self.type)} have' if implied else ''}; "
                f"{self._codec_remedy(stored.codec, implied)}"
            )
        self.take_codec(stored.codec)

    def take_codec(self, stored: str) -> None:
        """The codec that the stored queue has."""
        if self.codec.name != stored:
            type = bytes if self.type is None and stored == "raw" else self.type
            self.codec = BodyCodec(type, stored, self.settings.strict)

    def _given_names(self) -> set[str]:
        return given_names(QueueSettings, self._given, self._app.file, name=self.name)

    def _declared(self) -> tuple[Magazine[M], Magazine[M]]:
        """Both magazines. Where nobody chose a number of shards they keep what they have: somebody may have declared more
        than the queue's record says, and put messages there."""
        try:
            return self._magazine(self.name), self._magazine(self.name + SIDELINE_SUFFIX)
        except QueueMismatchError as exc:
            setting = "durability" if "has durability" in str(exc) else "shards"
            if setting in self._given_names():
                raise QueueMismatchError(f"{exc}; {self._remedy(setting)}") from exc
            names = (self.name, self.name + SIDELINE_SUFFIX)
            shards = max(self._app.magazines().stored_shards(name) or 0 for name in names)
            if shards <= self.settings.shards:
                raise
            log.warning(
                event_text("queue_shards_differ", "queue %s has %d shards, its record says %d"),
                self.name,
                shards,
                self.settings.shards,
            )
            self.settings = dataclasses.replace(self.settings, shards=shards)
            return self._magazine(self.name), self._magazine(self.name + SIDELINE_SUFFIX)

    def _remedy(self, setting: str) -> str:
        """What to do about a setting that cannot change."""
        instead = "drain it and remove it first: ignis queue delete"
        if setting == "shards":
            instead = "drain it or empty it first: ignis queue purge"
        return f"leave {setting} out to take the queue as it is, or {instead} {self.name}"

    def _codec_remedy(self, stored: str, implied: bool) -> str:
        """What to do about the codec. ``implied``: by the type, and not given."""
        if self.codec.name != "raw":
            return self._remedy("type" if implied else "codec")
        # Leaving a given codec out would not help: the type has it too.
        out = self._remedy("type" if implied else "type and codec")
        # Text can be a JSON or MessagePack string; bytes would be read as base64, which others do not write.
        return f'give codec="{stored}", or {out}' if self.type is str else out

    def _warn_of_changes(self, stored: QueueRecord) -> None:
        """What was replaced holds for everybody who uses the queue, and not only here."""
        changed = [
            f"{name} from {before} to {now}"
            for name, before in _settings_of(stored).items()
            if name != "codec" and (now := _as_stored(name, getattr(self.settings, name))) != before
        ]
        if changed:
            log.warning(
                event_text(
                    "queue_settings_replaced",
                    "queue %s was stored with other settings, which are now replaced for everybody: %s"),
                self.name, ", ".join(changed),
            )  # fmt: skip

    def _magazine(self, name: str) -> Magazine[M]:
        settings = self.settings
        return self._app.magazines().get(
            name,
            self.codec,
            shards=settings.shards,
            ttl_s=settings.message_expiry_s or None,
            durability=settings.durability,
            max_message_bytes=settings.max_message_bytes,
            max_headers_bytes=settings.max_headers_bytes,
            may_grow=True,
        )

    # -- changing

    def set_handler(self, spec: HandlerSpec) -> None:
        """Registers the handler; with the stored queue too, where it is open: what is stored since then does not know what the
        code asks for."""
        self.spec = spec
        if self.magazines is None:
            return
        try:
            queues = self._app.store().queues
            record = self._register(queues, queues.get(self.name), self._describe_handler)
        except BaseException:
            self.spec = None
            raise
        spec.concurrency = min(record.concurrency, spec.limit[0])

    def set_shovel(self, interval_s: float, concurrency: int, max_returns: int, retry: str | None = None) -> bool:
        """Takes stored settings of the shovel, in whole seconds; whether they are others. ``retry`` None = as it is."""
        settings = self.settings
        now = (
            math.ceil(settings.shovel_interval_s), settings.shovel_concurrency, settings.max_returns, settings.shovel_retry,
        )  # fmt: skip
        retry = settings.shovel_retry if retry is None else retry
        changed = (interval_s, concurrency, max_returns, retry) != now
        if changed:
            self.settings = dataclasses.replace(
                settings, shovel_interval_s=interval_s, shovel_concurrency=concurrency, max_returns=max_returns,
                shovel_retry=retry,
            )  # fmt: skip
        return changed

    def take_expiry_of(self, other: QueueDefinition[Any]) -> None:
        """The time to live that the store has chosen for the same queue."""
        self.settings = dataclasses.replace(self.settings, message_expiry_s=other.settings.message_expiry_s)

    def reset(self, made: QueueDefinition[Any] | None = None) -> None:
        """As it was made, with its handler; or with the type and settings of ``made``. The next `open` asks the store there is
        then."""
        self.magazines = None
        self.registration = self._new_registration()
        self.unused = True
        if made is not None:
            self.type, self._given, self.asked = made.type, made._given, made.asked
        # Not resolved again: closing must not fail because the environment was changed meanwhile.
        self.settings = self.asked
        self.codec = BodyCodec(self.type, self.settings.codec, self.settings.strict)
        if self.spec is not None and self.spec.declared is not None:
            self.spec.concurrency = self.spec.declared

    # -- the record

    def _register(
        self,
        queues: QueueStore,
        stored: QueueRecord | None,
        describe: Callable[[QueueRecord], None] | None = None,
    ) -> QueueRecord:
        """Stores what this process knows of the queue; ``describe`` says what that is of a queue that is there: all."""
        if stored is None:
            record = QueueRecord(self.name, created_at_ms=int(self._app.clock()() * 1000))
            self._describe(record)
            queues.chosen(self.name, self._given_names())
            queues.put(record)
            return record
        describe = describe or self._describe
        record = copy.deepcopy(stored)
        describe(record)
        # Applied to what is stored by then: others count and set there too.
        return stored if record == stored else queues.update(self.name, describe)

    def _describe(self, record: QueueRecord) -> None:
        """Writes what this process knows of the queue into its record."""
        settings = self.settings
        record.shards = settings.shards
        record.message_expiry_s = int(settings.message_expiry_s)
        record.queue_expiry_s = int(settings.queue_expiry_s)
        record.stuck_after_s = int(settings.stuck_after_s)
        record.durability = settings.durability
        record.codec = self.codec.name
        record.shovel_interval_s = math.ceil(settings.shovel_interval_s)
        record.shovel_concurrency = settings.shovel_concurrency
        record.max_returns = settings.max_returns
        note_on_expiry(record, settings.on_expiry)
        note_shovel_retry(record, settings.shovel_retry)
        record.active = True
        record.handler_type = settings.handler_type or record.handler_type
        self._describe_handler(record)

    def _describe_handler(self, record: QueueRecord) -> None:
        """Only what the handler says: the rest may have been set by others since the queue was opened."""
        spec = self.spec
        if spec is not None:
            record.handler_type = self.settings.handler_type or self._type_name(record, spec)
            if spec.declared is not None and record.extra.get(DECLARED) != spec.declared:
                record.extra[DECLARED] = spec.declared
                record.concurrency = spec.concurrency
            record.max_batch_size = spec.batch_size or 0
            record.max_wait_s = spec.batch_wait_s if spec.batch_size else 0

    def _type_name(self, record: QueueRecord, spec: HandlerSpec) -> str:
        if self.template is None:
            return spec.name
        return record.handler_type or self.template.handler_type


def _as_stored(name: str, value: Any) -> Any:
    """As `QueueDefinition._describe` writes it."""
    if name == "shovel_interval_s":
        return math.ceil(value)
    return int(value) if name.endswith("_s") else value


def _kind(type: Any) -> str:
    return getattr(type, "__qualname__", str(type))


def _settings_of(stored: QueueRecord) -> dict[str, Any]:
    names = (
        "shards", "message_expiry_s", "queue_expiry_s", "stuck_after_s", "durability", "codec", "shovel_interval_s",
        "shovel_concurrency", "max_returns",
    )  # fmt: skip
    kept = {name: getattr(stored, name) for name in names}
    return {**kept, "on_expiry": on_expiry_of(stored), SHOVEL_RETRY: shovel_retry_of(stored)}
