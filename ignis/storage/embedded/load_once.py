"""Loading each id once: the ids that a magazine remembers, beside its messages.

An id is remembered until an hour, counted from the Unix epoch: when it may be forgotten, rounded up to a power of two of at
most half the time it is to be remembered. So the ids of a time lie together, and a lookup has few times to ask.
"""

from __future__ import annotations

from collections.abc import Sequence

from ignis.errors import StoreBusyError
from ignis.native import PackedBatch, id_keys
from ignis.storage.clock import StoreClock
from ignis.storage.embedded.catalogue import Magazine
from ignis.storage.records import LoadedOnce
from ignis.storage.repeats import dues_of_left, without_repeats

__all__ = ["forget_hour", "load_once"]

_HOUR_MS = 3_600_000
_FORGOTTEN_AT_ONCE = 4_096
"""So many old ids are removed with one load: little work beside it, and what is left waits for the next."""
_ATTEMPTS = 64
_ID_BYTES = 16


def forget_hour(now_ms: int, remember_until_ms: int) -> int:
    """The hour until which an id is remembered."""
    hours = max(1, (remember_until_ms - now_ms) // _HOUR_MS)
    step = 1 << max(0, (hours // 2).bit_length() - 1)
    last = -(-remember_until_ms // _HOUR_MS)
    return -(-last // step) * step


def load_once(
    magazine: Magazine,
    batches: Sequence[tuple[int, PackedBatch]],
    clock: StoreClock,
    expires_at_ms: int,
    until_ms: int,
    later: Magazine | None = None,
    dues_ms: Sequence[Sequence[int]] = (),
) -> list[LoadedOnce]:
    """See `MagazineStore.load_once`. With ``dues_ms`` the records go to ``later``, the later magazine of this one, which knows
    the ids."""
    log, number = magazine.log, magazine.number
    target = magazine if later is None else later
    shards = [shard for shard, _ in batches]
    packed = [batch for _, batch in batches]
    keys, repeated = id_keys(packed, b"")
    # The ids alone are sorted, so that neighbours are met one after the other.
    every = b"".join(keys)
    for _ in range(_ATTEMPTS):
        now_ms = clock.now_ms()
        hour, until = now_ms // _HOUR_MS, forget_hour(now_ms, until_ms)
        log.forget_ids(number, hour, _FORGOTTEN_AT_ONCE)
        flags = log.known_ids(number, every, hour)
        known = {key for key, flag in zip(keys, flags, strict=True) if flag}
        left: Sequence[PackedBatch | None] = packed
        repeats = [0] * len(packed)
        if known or repeated:
            left, repeats = without_repeats(packed, known.__contains__)
        loading = [(shard, batch) for shard, batch in zip(shards, left, strict=True) if batch is not None]
        if not loading:
            if magazine.durable:
                log.flush()  # whoever loaded them may not have come to that yet
            return [LoadedOnce(0, 0, lost) for lost in repeats]
        if expires_at_ms:
            for _, batch in loading:
                batch.set_expiry(expires_at_ms)
        fresh = b"".join(key for key in keys if key not in known) if known else every
        firsts = log.load_once(
            target.number, loading, fresh, forget_hour=until, hour_now=hour, durable=magazine.durable,
            dues=None if later is None else dues_of_left(packed, left, dues_ms),
        )  # fmt: skip
        if firsts is not None:
            first = iter(firsts)
            return [
                LoadedOnce(0, 0, lost) if batch is None else LoadedOnce(next(first), batch.count, lost)
                for batch, lost in zip(left, repeats, strict=True)
            ]
    raise StoreBusyError(
        f"store: others loaded ids of the same messages into {magazine.name!r} {_ATTEMPTS} times in a row meanwhile"
    )
