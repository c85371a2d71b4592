"""Redis streams with a consumer group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bench.peers.base import Handle
from bench.peers.redis_server import RedisPeer, RedisSession

_STREAM, _GROUP, _FIELD = "stream", "group", b"b"


class RedisStreams(RedisPeer):
    label = "Redis stream"
    how_publish = "XADD"
    how_batch = "pipelined XADD in one MULTI/EXEC"
    how_drain = "XREADGROUP COUNT n; ack: one XACK (what is acknowledged stays in the stream until it is trimmed)"
    how_listen = "XREADGROUP BLOCK; ack: XACK"
    can_listen = True

    def prepare(self, client: Any) -> None:
        client.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)

    def session(self) -> _RedisStream:
        return _RedisStream(self._where)


class _RedisStream(RedisSession):
    def publish(self, body: bytes) -> None:
        self._redis.xadd(_STREAM, {_FIELD: body})

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        # A transaction, so that one fsync covers the batch where appendfsync is always.
        with self._redis.pipeline(transaction=True) as pipeline:
            for body in bodies:
                pipeline.xadd(_STREAM, {_FIELD: body})
            pipeline.execute()

    def drain(self, limit: int, handle: Handle) -> int:
        return self._read(limit, handle, None)

    def receive(self, handle: Handle, timeout_s: float) -> int:
        return self._read(100, handle, int(timeout_s * 1000))

    def _read(self, limit: int, handle: Handle, block_ms: int | None) -> int:
        answer = self._redis.xreadgroup(_GROUP, f"consumer-{os.getpid()}", {_STREAM: ">"}, count=limit, block=block_ms)
        if not answer:
            return 0
        # RESP2 answers with a list of pairs, RESP3 with a mapping whose values hold lists of entries.
        entries = answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))
        if entries and isinstance(entries[0], list):
            entries = entries[0]
        for _, fields in entries:
            handle(fields[_FIELD])
        if entries:
            self._redis.xack(_STREAM, _GROUP, *[entry_id for entry_id, _ in entries])
        return len(entries)
