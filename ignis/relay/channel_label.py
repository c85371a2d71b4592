"""What a producer writes into its channel's header, so that the relay knows where the messages belong."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import msgspec

from ignis.config import check_name
from ignis.deadlines import DROP, ON_EXPIRY, note_on_expiry, on_expiry_of
from ignis.errors import ConfigError
from ignis.safe_msgpack import decoder
from ignis.shovel_rounds import SHOVEL_RETRY, note_shovel_retry, shovel_retry_of
from ignis.storage.base import QueueRecord

__all__ = ["CODEC_FLAGS", "DELAYED_VERSION", "VERSION", "Label", "record_of", "settings_of"]

VERSION = 1
DELAYED_VERSION = 2
"""Of a channel whose messages have due times: a relay that knows none refuses it by this number."""
MAX_BYTES = 2_048
CODEC_FLAGS = {"raw": 0, "json": 1, "msgpack": 2}

_SETTINGS = (
    "shards", "message_expiry_s", "queue_expiry_s", "stuck_after_s", "durability", "shovel_interval_s",
    "shovel_concurrency", "max_returns",
)  # fmt: skip
_DEFAULTS = QueueRecord("")


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """``settings`` are those of the queue that somebody chose: a queue that exists keeps its own for the rest. ``version`` says
    whether the messages have due times."""

    version: int
    queue: str
    codec: str
    client_id: str
    farm_id: str
    settings: dict[str, Any] = {}

    @property
    def delayed(self) -> bool:
        """Whether each message has a due time, see `ignis.relay.due_times`."""
        return self.version == DELAYED_VERSION

    def encoded(self) -> bytes:
        """Raises ConfigError when it is too long for a channel's header."""
        data = msgspec.msgpack.encode(self)
        if len(data) > MAX_BYTES:
            raise ConfigError(
                f"the name and settings of queue {self.queue!r} take {len(data)} bytes, the limit for a relay is {MAX_BYTES}"
            )
        return data

    @classmethod
    def parse(cls, data: bytes) -> Label:
        """Checks what a producer wrote. Raises ConfigError: nothing of it can be trusted."""
        try:
            label = _read(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise ConfigError(f"what the producer says of its queue cannot be read: {exc}") from exc
        if label.version not in (VERSION, DELAYED_VERSION):
            raise ConfigError(
                f"the producer is of another version of ignis (it writes version {label.version}, this relay reads {VERSION} "
                f"and {DELAYED_VERSION}): run the same on both sides"
            )
        if label.codec not in CODEC_FLAGS:
            raise ConfigError(f"the producer's codec {label.codec!r} is not one of {', '.join(CODEC_FLAGS)}")
        for name, what in ((label.queue, "queue"), (label.client_id, "client_id"), (label.farm_id, "farm_id")):
            check_name(name, what)
        unknown = set(label.settings) - {*_SETTINGS, ON_EXPIRY, SHOVEL_RETRY}
        if unknown:
            raise ConfigError(f"the producer gave its queue a setting {min(unknown)!r} that queues do not have")
        return label


_read: Callable[[bytes], Label] = decoder(Label)


def settings_of(record: QueueRecord, chosen: Set[str] = frozenset()) -> dict[str, Any]:
    """The queue's settings that are not the defaults, and those of these names."""
    settings = {name: getattr(record, name) for name in _SETTINGS}
    found = {name: value for name, value in settings.items() if name in chosen or value != getattr(_DEFAULTS, name)}
    kept = {ON_EXPIRY: (on_expiry_of(record), DROP), SHOVEL_RETRY: (shovel_retry_of(record), "")}
    return found | {name: value for name, (value, usual) in kept.items() if name in chosen or value != usual}


def record_of(name: str, state: dict[str, Any]) -> QueueRecord | None:
    """A queue as the relay wrote it down for producers; None when it is not there or makes no sense."""
    queues = state.get("queues")
    found = queues.get(name) if isinstance(queues, dict) else None
    if not isinstance(found, dict):
        return None
    settings = {"name": name, **found}
    on_expiry, shovel_retry = settings.pop(ON_EXPIRY, DROP), settings.pop(SHOVEL_RETRY, "")
    try:
        record = msgspec.convert(settings, QueueRecord)
    except msgspec.ValidationError:
        return None
    note_on_expiry(record, on_expiry)
    note_shovel_retry(record, shovel_retry)
    return record
