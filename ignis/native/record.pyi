from collections.abc import Iterable, Sequence
from typing import Final, Protocol, final, type_check_only

from typing_extensions import Buffer

CODEC_RAW: Final[int]
CODEC_JSON: Final[int]
CODEC_MSGPACK: Final[int]
ANY_SHARD: Final[int]

@type_check_only
class ArrowColumn(Protocol):
    def __arrow_c_array__(self, requested_schema: object = None, /) -> tuple[object, object]: ...

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def new_id() -> bytes: ...
def id_text(id: bytes) -> str: ...
def only_bytes(items: object) -> bool: ...
def total_bytes(items: list[bytes], begin: int = 0) -> int: ...
def unsafe_keys(data: Buffer, max_integers: int) -> str | None: ...
def shard_for_key(key: bytes, shards: int) -> int: ...
def encode_record(
    body: Buffer,
    *,
    flags: int = 0,
    key: bytes = b"",
    meta: bytes = b"",
    id: bytes | None = None,
    enqueued_at_us: int | None = None,
    attempts: int = 0,
    crashes: int = 0,
) -> bytes: ...

@final
class Record:
    def __new__(cls, data: bytes) -> Record: ...
    @property
    def id(self) -> bytes: ...
    @property
    def flags(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def crashes(self) -> int: ...
    @property
    def enqueued_at_us(self) -> int: ...
    @property
    def key(self) -> bytes: ...
    @property
    def meta(self) -> bytes: ...
    @property
    def body(self) -> bytes: ...
    def replace(
        self, *, attempts: int | None = None, crashes: int | None = None, meta: bytes | None = None
    ) -> bytes: ...

@final
class PackedBatch:
    def __init__(self, /, *args: object, **kwargs: object) -> None: ...
    @staticmethod
    def pack(records: Sequence[bytes], expires_at_ms: int = 0) -> PackedBatch: ...
    @staticmethod
    def pack_bodies(
        bodies: Sequence[bytes],
        *,
        flags: int,
        keys: Sequence[bytes | None] | None,
        shards: int,
        any_shard: int,
        metas: Sequence[bytes] | None = None,
        max_body_bytes: int = ...,
        max_records: int = 256,
        max_bytes: int = 32768,
    ) -> tuple[list[tuple[int, PackedBatch]], bytes]: ...
    @staticmethod
    def pack_columns(
        bodies: ArrowColumn,
        *,
        flags: int,
        shards: int,
        any_shard: int,
        keys: ArrowColumn | None = None,
        ids: ArrowColumn | None = None,
        metas: ArrowColumn | None = None,
        max_body_bytes: int = ...,
        max_records: int = 8192,
        max_bytes: int = 1048576,
    ) -> list[tuple[int, PackedBatch]]: ...
    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def sealed(self) -> bool: ...
    def set_expiry(self, expires_at_ms: int) -> None: ...
    def seal(self, magazine_id: int, shard: int, first_pointer: int) -> None: ...
    def ids(self) -> list[bytes]: ...
    def records(self) -> list[bytes]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def unpack_segment(
    data: Buffer,
    magazine_id: int,
    shard: int,
    last_pointer: int,
    start: int,
    stop: int,
    skip: bytes | None = None,
) -> list[bytes | None]: ...
def segment_info(data: Buffer) -> tuple[int, int]: ...
def record_columns(
    records: Sequence[bytes | None],
    *,
    lines: bool = False,
) -> tuple[int, list[int], bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]: ...
def segment_columns(
    parts: Iterable[tuple[Buffer, int, int, int, int, bytes | None]],
    magazine_id: int,
    shard: int,
    *,
    lines: bool = False,
) -> tuple[int, list[int], bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]: ...
def position_ids(prefix: bytes, first: int, bodies: ArrowColumn) -> bytes: ...
def id_keys(batches: Iterable[PackedBatch], prefix: bytes) -> tuple[list[bytes], int]: ...
