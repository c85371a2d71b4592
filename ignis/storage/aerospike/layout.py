"""What stands where in Aerospike: sets, keys, bins, and the bytes of our own bins.

The layout is the one of the Java libraries IgnisMQ and Magazine, so that instances of both share queues. What a message
needs beyond it (id, key, headers, exact expiry, checksum) is in the bin ``ign_env`` beside ``data``, which stays the
bare payload. A record without ``ign_env`` was written by Java; `decode` makes an envelope for it.

``ign_env``, version 1, big-endian::

    offset size  field
         0    1  version        1, or 2 when `data` holds the whole record because it is none that can be split
         1    4  born           the life of the magazine that the record belongs to, see `Pointers.born`
         5    4  check          CRC32C of the record's key, born and expiry, then of the record
         9    8  expires_at_ms  milliseconds since the epoch, 0 = never
        17    .  the record without its body (csrc/ignis_record.h: header, key, meta)

Pure functions; thread-safe.
"""

from __future__ import annotations

import math
import struct
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ignis.errors import ConfigError
from ignis.native import CODEC_JSON, crc32c, encode_record

__all__ = [
    "DATA",
    "ENVELOPE",
    "FIRED_AT",
    "MODIFIED_AT",
    "MOVING",
    "OWNER",
    "SEALED",
    "Decoded",
    "Keys",
    "LaterKeys",
    "SetNames",
    "decode",
    "due_of",
    "encode",
    "ends_at_ms",
    "server_ttl",
]

DATA = "data"
MODIFIED_AT = "modified_at"
FIRED_AT = "fireTS"
ENVELOPE = "ign_env"
OWNER = "ign_owner"
SEALED = "ign_sealed"
"""A tombstone: the pointer is used up. `HOLE`: no record came in time. `VOID`: it was deleted before it was claimed. Where
``data`` stands beside it, a Java producer has written into it: then it is a record like any other."""
MOVING = "ign_move"
"""Who is moving the record at this moment, and since when: see `remove`."""
HOLE, VOID = 1, 2

LOAD_POINTER = "LOAD_POINTER"
FIRE_POINTER = "FIRE_POINTER"
LOAD_COUNTER = "LOAD_COUNTER"
FIRE_COUNTER = "FIRE_COUNTER"
EXPIRED = "ign_expired"
"""Beside the counters: records that one of us has retired because their time to live had run out."""
BORN = "ign_born"
VOIDS = "ign_voids"
OURS = "ign_loads"
"""How many pointers were reserved by ignis. Where that is not the load pointer, others load too."""
LEAVING = "ign_leaving"
"""Since when somebody deletes or moves messages that wait, milliseconds: see `trickle`."""
OPEN = "ign_open"
"""Pointers behind the low-water mark that never had a record: pointer -> since when, milliseconds."""
SHARDS = "SHARDS"

# Of messages that wait for their time: see `later_records`.
DELAYED = "ign_delayed"
"""In a pointers record: the last pointer of the shard's later magazine."""
NEXT_DUE = "ign_due"
"""In a pointers record: nothing of the shard's later magazine is due before; `NO_DUE` or none: nothing waits there."""
DUE_CHANGES = "ign_due_n"
"""In a pointers record: how often `NEXT_DUE` was lowered, so that nobody raises it who has not seen why."""
DELAYED_EXPIRED = "ign_due_exp"
"""Beside the counters: messages whose time to live ran out before they were due."""
DUE = "ign_due_at"
"""In a delayed message: `LaterKeys.number` of its magazine and its due time. An index of the server is over this bin."""
NO_DUE = 1 << 48

MAX_SET_BYTES = 63
TTL_NEVER = -1
TTL_KEEP = -2
MAX_TTL_S = 10 * 365 * 86_400
"""The server refuses more."""

_ENV = struct.Struct(">BIIQ")
_SALT = struct.Struct(">IQ")
_LENGTHS = struct.Struct(">HI")
_HEADER_BYTES = 36
_SPLIT, _WHOLE = 1, 2
_JAVA_IDS = uuid.UUID("6d9fd3c6-2f0b-5b6e-9a4b-0f2c3d1e7a58")


@dataclass(frozen=True)
class SetNames:
    """The sets of one application. Raises ConfigError when a name is longer than the server takes."""

    queues: str
    data: str
    meta: str
    magazines: str
    locks: str
    epochs: str
    later: str

    @classmethod
    def of(cls, client_id: str, farm_id: str, scope: str) -> SetNames:
        own = f"{farm_id}_{client_id}"
        shared = own if scope == "local" else client_id
        names = cls(
            queues=f"{own}_ignis_queues",
            data=f"{shared}_data_set",
            meta=f"{shared}_meta_set",
            magazines=f"{shared}_ignis_mags",
            locks=f"{own}_ignis_locks",
            epochs=f"{own}_ignis_epochs",
            later=f"{shared}_later_set",
        )
        longest = max(vars(names).values(), key=len)
        if len(longest) > MAX_SET_BYTES:
            raise ConfigError(
                f"client_id {client_id!r} and farm_id {farm_id!r} make the set name {longest!r} of {len(longest)} bytes; "
                f"the server takes {MAX_SET_BYTES}"
            )
        return names


class Keys:
    """User keys of one magazine's records.

    Args:
        magazine: its name.
        plain: it began with one shard, whose keys carry no shard number.
    """

    __slots__ = ("_magazine", "_plain")

    def __init__(self, magazine: str, plain: bool) -> None:
        self._magazine = magazine
        self._plain = plain

    def prefix(self, shard: int) -> str:
        """What the pointer is put behind."""
        return f"{self._magazine}_" if self._plain and not shard else f"{self._magazine}_SHARD_{shard}_"

    def pointers(self, shard: int) -> str:
        return self.prefix(shard) + "POINTERS"

    def counters(self, shard: int) -> str:
        return self.prefix(shard) + "COUNTERS"

    def open(self, shard: int) -> str:
        return self.prefix(shard) + "OPEN"

    @property
    def shards(self) -> str:
        """Of the record in which Java keeps the number of shards."""
        return f"{self._magazine}_{SHARDS}"

    @property
    def plain(self) -> bool:
        return self._plain


class LaterKeys:
    """User keys of the messages of one magazine that wait for their time, and their values of the bin `DUE`.

    Args:
        magazine: the main one's name.
    """

    __slots__ = ("_head", "number")

    def __init__(self, magazine: str) -> None:
        self._head = f"{magazine}@LATER_SHARD_"
        # Another magazine may have the same number: whoever asks by it looks at the keys too.
        self.number = crc32c(magazine.encode()) & 0x7FFF

    def key(self, shard: int, pointer: int) -> str:
        return f"{self._head}{shard}_{pointer}"

    def place(self, key: str | None) -> tuple[int, int] | None:
        """Shard and pointer of a key; None when it is another magazine's."""
        if key is None or not key.startswith(self._head):
            return None
        shard, _, pointer = key[len(self._head) :].partition("_")
        return int(shard), int(pointer)

    def due(self, due_ms: int) -> int:
        """The value of `DUE`: the magazine's number above 48 bits of time, so that a range of values is one of times."""
        return self.number << 48 | due_ms


def due_of(value: int) -> int:
    """The due time in a value of `DUE`."""
    return value & (NO_DUE - 1)


def is_record(bins: Mapping[str, Any]) -> bool:
    """Whether these are a record's and not a tombstone's or a mere claim's; needs only `MODIFIED_AT`, which whoever
    writes ``data`` writes with it."""
    return bins.get(MODIFIED_AT) is not None


class Decoded(NamedTuple):
    """A stored record. ``record`` is None when its checksum does not match."""

    record: bytes | None
    expires_at_ms: int
    born: int | None


def encode(key: str, record: bytes, expires_at_ms: int, born: int) -> tuple[str | bytes, bytes]:
    """The values of ``data`` and ``ign_env``. JSON is text there, as Java expects it; everything else is a blob."""
    check = crc32c(record, crc32c(_SALT.pack(born, expires_at_ms), crc32c(key.encode())))
    split = len(record)
    if split >= _HEADER_BYTES:
        key_bytes, meta_bytes = _LENGTHS.unpack_from(record, 6)
        split = _HEADER_BYTES + key_bytes + meta_bytes
    if not _HEADER_BYTES <= split <= len(record):
        return record, _ENV.pack(_WHOLE, born, check, expires_at_ms)
    body = record[split:]
    env = _ENV.pack(_SPLIT, born, check, expires_at_ms) + record[:split]
    # The client ends text at the first NUL, which JSON cannot have.
    if record[1] & 0x0F == CODEC_JSON and b"\0" not in body:
        try:
            return body.decode(), env
        except UnicodeDecodeError:
            pass
    return body, env


def decode(key: str, bins: Mapping[str, Any]) -> Decoded:
    """The record that the bins hold. Never raises for what is stored."""
    env = bins.get(ENVELOPE)
    data = bins.get(DATA)
    if env is None:
        return Decoded(_from_java(key, data, bins.get(MODIFIED_AT)), 0, None)
    if isinstance(data, str):
        data = data.encode()
    if len(env) < _ENV.size or not isinstance(data, bytes):
        return Decoded(None, 0, None)
    version, born, check, expires_at_ms = _ENV.unpack_from(env)
    record = data if version == _WHOLE else env[_ENV.size :] + data
    found = crc32c(record, crc32c(_SALT.pack(born, expires_at_ms), crc32c(key.encode())))
    if found != check:
        return Decoded(None, 0, None)
    return Decoded(record, expires_at_ms, born)


def ends_at_ms(bins: Mapping[str, Any], meta: Mapping[str, Any] | None) -> int:
    """When the record with these bins and this metadata expires, in milliseconds since the epoch; 0 = never. Of a record of
    ours its envelope says so exactly, of another, such as Java's, the server in whole seconds. Needs only `ENVELOPE`."""
    env = bins.get(ENVELOPE)
    if isinstance(env, bytes) and len(env) >= _ENV.size:
        return int(_ENV.unpack_from(env)[3])
    left_s = (meta or {}).get("ttl")
    if not isinstance(left_s, int) or not 0 < left_s <= MAX_TTL_S:
        return 0  # the server says of one that never expires that it has all the seconds that there are
    return int(time.time() * 1000) + left_s * 1000


def _from_java(key: str, data: Any, modified_at: Any) -> bytes:
    if isinstance(data, str):
        body = data.encode()
    elif isinstance(data, (bytes, bytearray)):
        body = bytes(data)
    else:
        body = msgspec.json.encode(data)
    at_ms = modified_at if isinstance(modified_at, int) and modified_at > 0 else 0
    # Made from the place, so that whoever looks at the record sees the same id.
    return encode_record(body, flags=CODEC_JSON, id=uuid.uuid5(_JAVA_IDS, key).bytes, enqueued_at_us=at_ms * 1_000)


def server_ttl(expires_at_ms: int) -> int:
    """The server's time to live for a record that ends at this time: whole seconds, never too short.

    The exact end stands in ``ign_env``; the server only clears away.
    """
    if not expires_at_ms:
        return TTL_NEVER
    left_s = math.ceil((expires_at_ms - time.time() * 1000) / 1000)
    # One more, because the server counts from the beginning of its second.
    return TTL_NEVER if left_s > MAX_TTL_S else max(1, left_s) + 1
