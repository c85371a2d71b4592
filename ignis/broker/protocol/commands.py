"""The commands of the wire protocol, its version, and its fixed limits. ``docs/protocol.md`` explains each."""

from __future__ import annotations

import enum

__all__ = [
    "ANSWERS",
    "DEFAULT_PORT",
    "FEATURES",
    "MAGIC",
    "MAX_HEAD_BYTES",
    "OWN_TTL",
    "PRE_AUTH_FRAME_BYTES",
    "VERSION",
    "Command",
]

MAGIC = b"IGNB"
VERSION = 1
"""Raised when an older peer could not follow. What only adds is a feature bit, or a field at the end of a payload."""
FEATURES = 0
"""Bits for later additions. Each side states its own; what both have may be used."""
DEFAULT_PORT = 9710
PRE_AUTH_FRAME_BYTES = 8_192
"""Largest frame of a connection that has not said who it is."""
MAX_HEAD_BYTES = 256 * 1024
"""Largest head of a request, which MessagePack makes much larger in memory; see `Size`. What is behind it, the bulk,
is only bounded by the frame."""
OWN_TTL = 0xFFFF_FFFF_FFFF_FFFF
"""Stands in place of a time to live for the queue's own ``message_expiry_s``. 0 = never expires."""


class Command(enum.IntEnum):
    """What a frame asks for, or answers. Numbers are for ever; those not listed are refused with ``bad_request``."""

    CONNECT = 1
    DISCONNECT = 2
    PING = 3
    PONG = 4
    RESULT = 5
    ERROR = 6

    SEND = 10
    SEND_BATCH = 11
    SEND_ACK = 12

    SUBSCRIBE = 20
    UNSUBSCRIBE = 21
    CREDIT = 22
    CONSUME = 23
    DELIVER = 24
    ACK = 25
    NACK = 26

    CREATE_QUEUE = 30
    DELETE_QUEUE = 31
    LIST_QUEUES = 32
    QUEUE_INFO = 33
    CLUSTER_STATUS = 34
    NODE_STATUS = 35
    METRICS = 36

    DECLARE = 64
    FIRE = 65
    RELOAD = 66
    DELETE = 67
    PEEK = 68
    SCAN = 69
    TRANSFER = 70
    ABANDONED = 71
    EXPIRE = 72
    METADATA = 73
    OLDEST = 74
    WAIT = 75
    WAKE = 76
    DROP = 77
    NAMES = 78
    LOAD_ONCE = 79

    QUEUE_GET = 80
    QUEUE_PUT = 81
    QUEUE_REPLACE = 82
    QUEUE_LIST = 83
    QUEUE_REMOVE = 84

    CLAIM = 85
    HELD = 86
    RENEW = 87
    RENEW_CLAIMS = 88
    RESUME = 89

    LOCK_ACQUIRE = 90
    LOCK_RENEW = 91
    LOCK_RELEASE = 92
    LOCK_GET = 93
    LOCK_TOKEN = 94
    EPOCH_NEXT = 95
    EPOCH_GET = 96
    EPOCH_RAISE = 97

    PURGE = 98
    DELETE_WAITING = 99

    ARRAY_ENQUEUE = 100
    ARRAY_DEQUEUE = 101
    ARRAY_PEEK = 102
    ARRAY_SIZE = 103

    STATS = 110
    DROP_EMPTY = 111

    LOAD_LATER = 120
    DEFER = 121
    MOVE_DUE = 122
    LIST_LATER = 123
    RUN_NOW = 124
    CANCEL_LATER = 125
    DELAYED = 126
    CLOCK = 127


ANSWERS = frozenset({Command.RESULT, Command.ERROR, Command.PONG, Command.SEND_ACK, Command.DELIVER})
"""What a broker sends; a client that sends one of these breaks the protocol."""
