"""The rules of names, numbers and types that every store applies alike, before it touches anything.

Each name that a caller gives becomes part of a key. The limits below are such that no key is longer than 511 bytes,
whatever is put together: a farm, a client and a magazine at their limits make 396 bytes, an array queue's value 412, an
epoch 459, a lock in a table 502.

| name | rule |
| --- | --- |
| queue, client_id, farm_id, array queue | ``[A-Za-z0-9._-]{1,128}`` |
| magazine | a queue's name, or one with ``_SIDELINE`` or ``@LATER`` behind it |
| lock and epoch of an application | ``[A-Za-z0-9._@-]{1,200}`` |
| lock in a table | text of 1 to 329 bytes: the longest client_id, ``#``, and an id of 200 bytes |
| table of locks | text of 1 to 170 bytes |
| bin of an array queue | text of 1 to 15 bytes |
| owner of a claim or a lock | text of 1 to 1,024 bytes |

No name is ``.`` or ``..``: names become parts of paths. *Text* is what can be printed: no line ends, no control or direction
characters, no halves of surrogate pairs.
"""

from __future__ import annotations

import dataclasses
import math
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ignis.config import APPLICATION, APPLICATION_HINT, QueueSettings, check_name, check_queue_name, number_text
from ignis.errors import ConfigError, InvalidNameError, StaleEpochError
from ignis.native import PackedBatch
from ignis.near_names import meant
from ignis.safe_msgpack import MAX_INTEGER_KEYS, decoder
from ignis.storage.records import Fence, QueueRecord

__all__ = [
    "DURABILITIES",
    "check_application",
    "check_array",
    "check_declaration",
    "check_dues",
    "check_epoch",
    "check_epoch_number",
    "check_limit",
    "check_lock",
    "check_lock_in_table",
    "check_magazine",
    "check_option_name",
    "check_owner",
    "check_printable",
    "check_queue",
    "check_record",
    "check_same_name",
    "check_scope",
    "check_settings",
    "check_table",
    "checked_options",
    "draw_incarnation",
    "expiry_ms",
    "shorten",
    "ttl_milliseconds",
]

DURABILITIES = ("sync", "interval", "none")
MAX_SHARDS = 65_535
MAX_KEY_BYTES = 511
MAX_LOCK_ID_BYTES = 200
MAX_TABLE_LOCK_BYTES = 128 + 1 + MAX_LOCK_ID_BYTES
MAX_TABLE_BYTES = 170
MAX_BIN_BYTES = 15
MAX_OWNER_BYTES = 1_024
MOST_DUE_MS = (1 << 48) - 1
"""The last due time that a store keeps; it is in the year 10889."""
MAX_TTL_S = 100 * 365 * 86_400
MAX_TTL_SAID = f"{MAX_TTL_S // 86_400:,} days (100 years)"
"""The same for people."""
MAX_MOMENT_MS = 253_402_300_799_999
"""The last of year 9999: what comes later no calendar shows."""
MAX_EPOCH = (1 << 63) - 1
MAX_EXTRA_BYTES = 64 << 10
_SIDELINE = "_SIDELINE"
_LATER = "@LATER"
_MOST = 1 << 62
_RANGES: dict[str, tuple[float, float]] = {
    **{
        spec.name: (spec.metadata["low"], spec.metadata["high"])
        for spec in dataclasses.fields(QueueSettings)
        if spec.metadata["low"] is not None
    },
    "concurrency": (0, 10_000),
    "max_batch_size": (0, 200_000),
    "max_wait_s": (0, 86_400),
    "created_at_ms": (0, MAX_MOMENT_MS),
    **dict.fromkeys(("swept_count", "sideline_swept_count"), (0, _MOST)),
}
"""Of a queue's record: those of the settings, and of what is stored beside them."""
_read_record: Callable[[bytes], QueueRecord] = decoder(QueueRecord, max_integers=MAX_INTEGER_KEYS)
_SECONDS = ("message_expiry_s", "queue_expiry_s", "stuck_after_s", "shovel_interval_s")
_CHOICES = {"durability": DURABILITIES, "codec": ("raw", "json", "msgpack")}
_MAGAZINE = re.compile(rf"(?!\.\.?\Z)[A-Za-z0-9._-]{{1,128}}(?:{_SIDELINE}|{_LATER})?\Z")
_LOCK = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._@-]{1,200}\Z")
_UP = re.compile(r"(?:^|/)\.\.(?:/|$)")


def shorten(value: object) -> str:
    """``repr`` for a message: of a value that somebody else has chosen, never more than some 80 characters."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"  # which Python would not even write out
    text = ascii(value) if isinstance(value, (str, bytes, int, float, bool)) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


# -- names


def check_magazine(name: object) -> str:
    """Returns the name, or raises InvalidNameError."""
    if not isinstance(name, str) or _MAGAZINE.match(name) is None:
        raise InvalidNameError(
            f"magazine name {shorten(name)} does not match [A-Za-z0-9._-]{{1,128}}, with or without {_SIDELINE} "
            f"or {_LATER} behind it, or is . or .."
        )
    return name


def check_queue(name: object) -> str:
    """Returns the name, or raises InvalidNameError: a sideline is no queue, nor is what would have another queue's keys."""
    return check_queue_name(name, "queue or magazine")


def check_application(client_id: object, farm_id: object) -> None:
    """Raises InvalidNameError."""
    check_name(client_id, "client_id")
    check_name(farm_id, "farm_id")


def check_array(name: object, bin_name: object) -> None:
    """An array queue. Raises InvalidNameError."""
    check_name(name, "array queue")
    check_printable(bin_name, "bin", MAX_BIN_BYTES)


def check_lock(name: object) -> None:
    """A lock of an application, outside of any table. Raises InvalidNameError."""
    _check_lock(name, "lock")


def check_scope(scope: object) -> None:
    """What an epoch counts. Raises InvalidNameError."""
    _check_lock(scope, "epoch")


def _check_lock(name: object, what: str) -> None:
    if not isinstance(name, str) or _LOCK.match(name) is None:
        raise InvalidNameError(f"{what} name {shorten(name)} does not match [A-Za-z0-9._@-]{{1,200}}, or is . or ..")


def check_table(name: object, farm_id: object) -> None:
    """A table of distributed locks. Raises InvalidNameError."""
    check_printable(name, "lock table", MAX_TABLE_BYTES)
    check_name(farm_id, "farm_id")


def check_lock_in_table(name: object) -> None:
    """The key of a lock in a table: the client_id, ``#`` and the lock's id. Raises InvalidNameError."""
    check_printable(name, "lock", MAX_TABLE_LOCK_BYTES)


def check_owner(owner: object) -> None:
    """Of a claim or a lock. Raises InvalidNameError."""
    check_printable(owner, "owner", MAX_OWNER_BYTES)


def check_printable(text: object, what: str, most_bytes: int) -> None:
    """Raises InvalidNameError unless it is text as the module says, of 1 to so many bytes, that leads no path upwards."""
    if not isinstance(text, str):
        raise InvalidNameError(f"{what} {shorten(text)} is no text")
    if not text.isprintable() or not 1 <= len(text.encode()) <= most_bytes or _UP.search(text) is not None:
        raise InvalidNameError(
            f"{what} {shorten(text)} is not text of 1 to {most_bytes} bytes without line ends, control and direction "
            "characters, and '..' between slashes"
        )


# -- declarations and records


def check_declaration(magazine: object, shards: object, durability: object) -> None:
    """Raises InvalidNameError, ConfigError. A later magazine is made by the first message that is put there."""
    check_queue_name(check_magazine(magazine).removesuffix(_SIDELINE), "queue or magazine")
    _check_int(shards, "shards", 1, MAX_SHARDS)
    if not isinstance(durability, str) or durability not in DURABILITIES:
        raise ConfigError(f"durability = {shorten(durability)} is not one of {', '.join(DURABILITIES)}")


def check_dues(dues_ms: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
    """Raises ConfigError, unless there is a due time for each of so many records."""
    if [len(dues) for dues in dues_ms] != list(counts):
        raise ConfigError(f"{sum(map(len, dues_ms))} due times were given for {sum(counts)} records")
    for dues in dues_ms:
        if not dues or (set(map(type, dues)) == {int} and min(dues) >= 0 and max(dues) <= MOST_DUE_MS):
            continue  # the loops of the interpreter take a third of the time, and a publisher has many
        for due_ms in dues:
            if type(due_ms) is not int or not 0 <= due_ms <= MOST_DUE_MS:
                raise ConfigError(
                    f"due time {shorten(due_ms)} is not a whole number of milliseconds in 0..{MOST_DUE_MS}"
                )


def check_shards(magazine: str, shards: Iterable[int], count: int) -> None:
    """Raises ConfigError for a shard that the magazine does not have; it has ``count``."""
    for shard in shards:
        if not 0 <= shard < count:
            raise ConfigError(f"shard {shard} of magazine {magazine!r}, which has {count}")


def check_loadable(magazine: str, batches: Sequence[tuple[int, PackedBatch]], count: int) -> None:
    """Raises ConfigError as `check_shards` does, and ValueError for a batch that was stored already."""
    for shard, batch in batches:
        if not 0 <= shard < count:
            check_shards(magazine, (shard,), count)
        if batch.sealed:
            raise ValueError("the batch is sealed already")


def check_record(record: QueueRecord, *, fractions: bool = False, any_name: bool = False) -> bytes:
    """A queue's record as it is stored, in MessagePack. ``fractions``: the store keeps parts of seconds; ``any_name``: it is
    stored already, under whatever name somebody else gave it.

    Raises InvalidNameError, and ConfigError for what could not be read again: it would stand in the way of every list.
    """
    if not any_name:
        check_queue(record.name)
    try:
        if fractions:
            whole: dict[str, Any] = {
                name: math.ceil(value) for name in _SECONDS if isinstance(value := getattr(record, name), float)
            }
            record = dataclasses.replace(record, **whole)
        packed = msgspec.msgpack.encode(record)
        extra_bytes = len(msgspec.msgpack.encode(record.extra))
        if extra_bytes <= MAX_EXTRA_BYTES:
            _read_record(packed)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise ConfigError(f"record of queue {record.name!r} cannot be stored: {exc}") from None
    if extra_bytes > MAX_EXTRA_BYTES:
        raise ConfigError(f"record of queue {record.name!r}: extra of {extra_bytes} bytes is over {MAX_EXTRA_BYTES}")
    return packed


def check_same_name(name: str, record: QueueRecord) -> None:
    """After a change of the queue's record: stored under its old name it would be another queue's. Raises ConfigError."""
    if record.name != name:
        raise ConfigError(f"the record of queue {name!r} was changed into one of {shorten(record.name)}")


def check_settings(fresh: QueueRecord, known: QueueRecord | None = None) -> None:
    """For records that others hand in: what differs from ``known`` must be what an application could have chosen, since
    sweepers, shovels and workers of everybody go by it. Raises ConfigError, InvalidNameError."""
    check_record(fresh)
    was = {} if known is None else vars(known)
    for name, value in vars(fresh).items():
        if name not in was or was[name] != value:
            _check_setting(f"{name} of queue {fresh.name!r}", name, value)
    if fresh.queue_expiry_s < fresh.message_expiry_s:
        raise ConfigError(
            f"queue_expiry_s = {fresh.queue_expiry_s} of queue {fresh.name!r} is below message_expiry_s = "
            f"{fresh.message_expiry_s}"
        )


def _check_setting(what: str, name: str, value: Any) -> None:
    if name in _RANGES:
        low, high = _RANGES[name]
        if not low <= value <= high:
            raise ConfigError(f"{what} = {shorten(value)} is outside {number_text(low)} to {number_text(high)}")
    elif name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigError(f"{what} = {shorten(value)} is not one of {', '.join(_CHOICES[name])}")
    elif name == "handler_type" and value:
        check_printable(value, what, 1_024)
    elif name in ("sweep_pointers", "sideline_sweep_pointers"):
        for shard, pointer in value.items():
            _check_int(shard, f"shard in {what}", 0, MAX_SHARDS)
            _check_int(pointer, what, 0, _MOST)


# -- numbers


def _check_int(value: object, what: str, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{what} = {shorten(value)} is not a whole number")
    if not low <= value <= high:
        raise ConfigError(f"{what} = {shorten(value)} is outside {low} to {high}")


def check_epoch_number(epoch: object, *, raised: bool = False) -> None:
    """``raised``: the scope is to begin there, so that there must be room for those that follow. A fence's may be one of those,
    and leaves room too: who writes under it leaves it in the log of a durability class. Raises ConfigError."""
    _check_int(epoch, "epoch", 0, MAX_EPOCH - (1 << (32 if raised else 31)))


def draw_incarnation() -> int:
    """Names one life of a magazine. Never 0; exact in JSON, whose numbers are doubles for many readers."""
    return secrets.randbits(52) | 1


def check_epoch(current: int, fence: Fence) -> None:
    """Raises StaleEpochError when the scope has seen a higher epoch than the fence's, ConfigError when that is none."""
    check_epoch_number(fence.epoch)
    if current > fence.epoch:
        raise StaleEpochError(f"epoch {fence.epoch} of {fence.scope!r} is old: the current one is {current}")


def check_limit(limit: int) -> None:
    """Raises ConfigError for what is no whole number, or below 1."""
    if type(limit) is not int:
        _check_int(limit, "limit", 1, 1 << 63)
    if limit < 1:
        raise ConfigError(f"limit = {shorten(limit)} is below 1")
    if limit > _MOST:
        raise ConfigError(f"limit = {shorten(limit)} is over {_MOST}")


def expiry_ms(ttl_s: float | None) -> int:
    """Milliseconds since the epoch, 0 = never. Raises ConfigError."""
    if ttl_s is None:
        return 0
    return int(time.time() * 1000) + ttl_milliseconds(ttl_s)


def ttl_milliseconds(ttl_s: object) -> int:
    """At least 1. Raises ConfigError for what is not a number above 0, or of more than a hundred years."""
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, (int, float)) or not ttl_s > 0:
        raise ConfigError(f"ttl_s = {shorten(ttl_s)} is not a number above 0")
    if ttl_s > MAX_TTL_S:
        raise ConfigError(f"ttl_s = {shorten(ttl_s)} is over {MAX_TTL_S}; give None for what never expires")
    return max(1, int(ttl_s * 1000))


def checked_options(options: type, given: Mapping[str, Any], parse: Callable[[str, Any, type], Any]) -> dict[str, Any]:
    """What a store was given, each value parsed for the type of its field in the dataclass ``options``. The ``_s`` at the end of
    a name may be left out.

    Raises ConfigError for a name that is none, and what ``parse(name, value, type)`` raises.
    """
    known = {spec.name: type(spec.default) for spec in dataclasses.fields(options)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        full = f"{name}_s" if f"{name}_s" in known else name
        check_option_name(full, known)
        values[full] = parse(full, value, known[full])
    return values


def check_option_name(name: str, known: Collection[str]) -> None:
    """Raises ConfigError for a store option that there is not."""
    if name in APPLICATION and name not in known:
        raise ConfigError(f"store option {name!r} is none: {APPLICATION_HINT}")
    if name not in known:
        raise ConfigError(
            f"unknown store option {shorten(name)}; {meant(name, known)}known: {', '.join(sorted(known))}"
        )
