"""Redis lists as a reliable queue: what is taken moves to a processing list in one step and is removed when done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bench.peers.base import Handle
from bench.peers.redis_server import RedisPeer, RedisSession

_QUEUE, _PROCESSING = "queue", "processing"
# Lua's unpack is limited to about 8,000 values, so a claim is at most this large.
_MAX_CLAIM = 5_000
_CLAIM = """
local taken = redis.call('LPOP', KEYS[1], ARGV[1])
if not taken then return {} end
redis.call('RPUSH', KEYS[2], unpack(taken))
return taken
"""


class RedisLists(RedisPeer):
    label = "Redis list"
    how_publish = "RPUSH"
    how_batch = "one variadic RPUSH"
    how_drain = "claim: a script, LPOP n + RPUSH to the consumer's processing list; ack: DEL of that list"
    how_listen = "BLMOVE to the processing list; ack: LREM"
    can_listen = True

    def session(self) -> _RedisList:
        return _RedisList(self._where)


class _RedisList(RedisSession):
    def __init__(self, where: str | int) -> None:
        super().__init__(where)
        # A consumer has a list of its own: what it holds nobody else removes.
        self._processing = f"{_PROCESSING}:{os.getpid()}"
        self._claim: Any = self._redis.register_script(_CLAIM)

    def publish(self, body: bytes) -> None:
        self._redis.rpush(_QUEUE, body)

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        self._redis.rpush(_QUEUE, *bodies)

    def drain(self, limit: int, handle: Handle) -> int:
        taken = self._claim(keys=[_QUEUE, self._processing], args=[min(limit, _MAX_CLAIM)])
        for body in taken:
            handle(body)
        if taken:
            # The list holds this batch and nothing else.
            self._redis.delete(self._processing)
        return len(taken)

    def receive(self, handle: Handle, timeout_s: float) -> int:
        body = self._redis.blmove(_QUEUE, self._processing, timeout_s, "LEFT", "RIGHT")
        if body is None:
            return 0
        handle(body)
        self._redis.lrem(self._processing, 1, body)
        return 1
