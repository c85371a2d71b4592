"""A Java instance as the Aerospike server sees it, played with the bare driver: the keys, bins, types and steps of
Magazine 1.0 (scope LOCAL) and IgnisMQ, written down from their sources and from what they store."""

from __future__ import annotations

import time
from typing import Any

from tests.support import aerospike as aerospike_support

__all__ = ["FARM", "META_TTL_S", "SHARDS", "Java"]

FARM = "west"
SHARDS = 2
META_TTL_S = 5_184_000
"""Of pointers and counters; each of Java's writes begins it anew."""


class Java:
    """One Java instance of IgnisMQ 1.x with Magazine 1.x, as far as the server sees it."""

    def __init__(self, client_id: str) -> None:
        self.address = aerospike_support.address()
        self.namespace = self.address.partition("/")[2]
        self.client_id = client_id
        self.client = aerospike_support.raw_client()

    def key(self, kind: str, name: str) -> tuple[str, str, str]:
        sets = {"data": "data_set", "meta": "meta_set", "queues": "ignis_queues"}
        return self.namespace, f"{FARM}_{self.client_id}_{sets[kind]}", name

    def bins(self, kind: str, name: str) -> dict[str, Any] | None:
        import aerospike

        try:
            return dict(self.client.get(self.key(kind, name))[2])
        except aerospike.exception.RecordNotFound:
            return None

    def put(self, kind: str, name: str, bins: dict[str, Any], ttl: int = 3_600) -> None:
        import aerospike

        self.client.put(
            self.key(kind, name), bins, None,
            {"key": aerospike.POLICY_KEY_SEND, "commit_level": aerospike.POLICY_COMMIT_LEVEL_ALL, "ttl": ttl},
        )  # fmt: skip

    def increment(self, name: str, bin_name: str, by: int = 1) -> int:
        from aerospike_helpers.operations import operations

        ops = [operations.increment(bin_name, by), operations.read(bin_name)]
        return int(self.client.operate(self.key("meta", name), ops, None, {"ttl": META_TTL_S})[2][bin_name])

    def load(self, magazine: str, shard: int, message: str) -> int:
        """Magazine.load: a pointer, the record, the counter."""
        pointer = self.reserve(magazine, shard)
        self.write(magazine, shard, pointer, message)
        return pointer

    def reserve(self, magazine: str, shard: int) -> int:
        """The first step of a load."""
        return self.increment(f"{magazine}_SHARD_{shard}_POINTERS", "LOAD_POINTER")

    def write(self, magazine: str, shard: int, pointer: int, message: str) -> None:
        """The rest of a load: written whatever stands there."""
        bins = {"data": message, "modified_at": int(time.time() * 1000)}
        self.put("data", f"{magazine}_SHARD_{shard}_{pointer}", bins)
        self.increment(f"{magazine}_SHARD_{shard}_COUNTERS", "LOAD_COUNTER")

    def fire(self, magazine: str, shard: int) -> tuple[int, str] | None:
        """Magazine.fire, which gives up a pointer without a record and counts only what it returns; then
        addFireTimestamp."""
        while True:
            meta = self.bins("meta", f"{magazine}_SHARD_{shard}_POINTERS") or {}
            counts = self.bins("meta", f"{magazine}_SHARD_{shard}_COUNTERS") or {}
            if counts.get("LOAD_COUNTER", 0) <= counts.get("FIRE_COUNTER", 0):
                return None
            if meta.get("FIRE_POINTER", 0) >= meta.get("LOAD_POINTER", 0):
                return None
            pointer = self.increment(f"{magazine}_SHARD_{shard}_POINTERS", "FIRE_POINTER")
            bins = self.bins("data", f"{magazine}_SHARD_{shard}_{pointer}")
            if bins is not None:
                break
        self.increment(f"{magazine}_SHARD_{shard}_COUNTERS", "FIRE_COUNTER")
        self.put("data", f"{magazine}_SHARD_{shard}_{pointer}", {"fireTS": int(time.time() * 1000)}, ttl=-2)
        return pointer, bins["data"]

    def delete(self, magazine: str, shard: int, pointer: int) -> None:
        self.client.remove(self.key("data", f"{magazine}_SHARD_{shard}_{pointer}"))

    def make(self, magazine: str, shards: int) -> None:
        """Magazine's constructor. Raises ValueError where it would not start."""
        stored = (self.bins("meta", f"{magazine}_SHARDS") or {}).get("SHARDS")
        if stored is None:
            self.put("meta", f"{magazine}_SHARDS", {"SHARDS": shards}, ttl=31_536_000)
        elif stored > shards:
            raise ValueError("Cannot decrease shards of a magazine.")
        elif stored <= 1 < shards:
            raise ValueError("Cannot convert unsharded to sharded magazine.")

    def counts(self, magazine: str, shard: int) -> tuple[int, int]:
        """(loaded, fired)."""
        bins = self.bins("meta", f"{magazine}_SHARD_{shard}_COUNTERS") or {}
        return bins.get("LOAD_COUNTER", 0), bins.get("FIRE_COUNTER", 0)

    def register(self, queue: str) -> None:
        """The queue's record with the bins and types of the Java library."""
        self.put(
            "queues", queue,
            {
                "handlerType": "ORDER", "shards": SHARDS, "queueExpiry": 172_800, "messageExpiry": 86_400, "concurrency": 3,
                "shovelConcur": 4, "shovelInterval": 600, "createdAt": 1_700_000_000_000, "active": "true",
                "sweepPointers": {"0": 0, "1": 0}, "sidelineSweep": {"0": 0, "1": 0}, "sweptCounter": 0, "sidelineSwept": 0,
                "sweepDuration": 1_200_000, "maxBatchSize": 0, "maxWaitTime": 0,
            },
        )  # fmt: skip

    def sweep(self, queue: str, shard: int, till_ms: int, sideline: str) -> int:
        """AerospikeQueueService.sweep: from the sweep pointer to the fire pointer, 1,000 a batch, up to the boundary."""
        from aerospike_helpers.operations import map_operations

        meta = self.bins("meta", f"{queue}_SHARD_{shard}_POINTERS")
        record = self.bins("queues", queue) or {}
        if meta is None:
            return 0
        pointer, swept = record["sweepPointers"].get(str(shard), 0), 0
        while pointer < meta["FIRE_POINTER"]:
            last = min(pointer + 1_000, meta["FIRE_POINTER"])
            names = {one: f"{queue}_SHARD_{shard}_{one}" for one in range(pointer + 1, last + 1)}
            advanced = 0
            for one, name in names.items():
                bins = self.bins("data", name)
                if bins is not None:
                    if bins["fireTS"] >= till_ms:
                        break
                    self.load(sideline, shard, bins["data"])
                    self.delete(queue, shard, one)
                    swept += 1
                advanced += 1
            ops = [map_operations.map_increment("sweepPointers", str(shard), advanced)]
            self.client.operate(self.key("queues", queue), ops)
            pointer += advanced
            if advanced < len(names):
                break
        return swept
