"""The native core: the names that the rest of the package uses. The C sources are in ``csrc``."""

from ignis.native._pools import pool_classes, sum_classes
from ignis.native.channel import Channel, View
from ignis.native.frame import (
    DEFAULT_MAX_FRAME_BYTES,
    FRAME_HEADER_BYTES,
    FrameDecoder,
    decode_frames,
    encode_frame,
    encode_frames,
    encode_frames_ids,
)
from ignis.native.intake import Bell, Intake, pack
from ignis.native.outbox import MappedOutbox, Outbox, Receipt, SendRing
from ignis.native.record import (
    ANY_SHARD,
    CODEC_JSON,
    CODEC_MSGPACK,
    CODEC_RAW,
    PackedBatch,
    Record,
    crc32c,
    encode_record,
    id_keys,
    id_text,
    new_id,
    position_ids,
    record_columns,
    segment_columns,
    segment_info,
    shard_for_key,
    unpack_segment,
)
from ignis.native.ring import Ring
from ignis.native.slab import BufferRef, Slab
from ignis.native.wait import EventBoard, ProcessMutex, Watch, process_alive, process_start_time, set_spin

__all__ = [
    "ANY_SHARD",
    "CODEC_JSON",
    "CODEC_MSGPACK",
    "CODEC_RAW",
    "DEFAULT_MAX_FRAME_BYTES",
    "FRAME_HEADER_BYTES",
    "Bell",
    "BufferRef",
    "Channel",
    "EventBoard",
    "FrameDecoder",
    "Intake",
    "MappedOutbox",
    "Outbox",
    "PackedBatch",
    "ProcessMutex",
    "Receipt",
    "Record",
    "Ring",
    "SendRing",
    "Slab",
    "View",
    "Watch",
    "crc32c",
    "decode_frames",
    "encode_frame",
    "encode_frames",
    "encode_frames_ids",
    "encode_record",
    "id_keys",
    "id_text",
    "new_id",
    "pack",
    "pool_classes",
    "position_ids",
    "process_alive",
    "process_start_time",
    "record_columns",
    "segment_columns",
    "segment_info",
    "set_spin",
    "shard_for_key",
    "sum_classes",
    "unpack_segment",
]
