"""An uncontended lock on Aerospike: acquire and release, beside the two bare client calls that they cannot do without.

The server is the one that ``IGNIS_BENCH_AEROSPIKE=host:port/namespace`` names. All take turns in one process, a block of
pairs each, so that whatever else the machine does meets them alike. Every pair is timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from bench.measure import Options, Recorder, Result
from bench.peers.base import MissingError, require_module
from bench.tables import Goal, latency_table

VARIABLE = "IGNIS_BENCH_AEROSPIKE"
FARM = "bench"
TTL_S = 90
_BLOCK = 200
_LIMIT = 1.5

Pair = Callable[[], object]


def pairs_of(address: str, key: str) -> tuple[tuple[Pair, Pair, Pair], Callable[[], None]]:
    """The bare driver, a lock, a lock with its token; and how to close them."""
    import aerospike

    from ignis.locks import LockManager
    from ignis.storage import open_store
    from ignis.storage.aerospike.store import AerospikeStore

    store = open_store(f"aerospike://{address}", client_id=key, farm_id=FARM)
    assert isinstance(store, AerospikeStore)
    # The store's own client, and so the same connection: what a round trip takes depends on which of the server's threads
    # a connection got, by far more than on what is compared here.
    client: Any = store.connection.call("bench", lambda client: client)
    place = (address.partition("/")[2], f"DC#{FARM}#bare", key)
    how = {
        "exists": aerospike.POLICY_EXISTS_CREATE, "commit_level": aerospike.POLICY_COMMIT_LEVEL_MASTER,
        "key": aerospike.POLICY_KEY_SEND, "ttl": TTL_S,
    }  # fmt: skip
    manager = LockManager(key, FARM, store, ttl_s=TTL_S)
    plain, fenced = manager.lock("plain"), manager.lock("fenced")

    def bare() -> None:
        client.put(place, {f"{FARM}##data": 1, f"{FARM}##uat": int(time.time() * 1000)}, policy=how)
        client.remove(place)

    def acquire_and_release() -> None:
        plain.acquire()
        if not plain.release():
            raise AssertionError("the lock was not ours")

    def with_token() -> int:
        fenced.acquire()
        token = fenced.token
        fenced.release()
        return token

    def close() -> None:
        manager.close()
        store.close()

    return (bare, acquire_and_release, with_token), close


def timed(pair: Pair, count: int) -> list[int]:
    """Nanoseconds of each call."""
    clock, times = time.perf_counter_ns, []
    for _ in range(count):
        began = clock()
        pair()
        times.append(clock() - began)
    return times


def run(options: Options, recorder: Recorder) -> None:
    """One table. The goal compares medians of the same run."""
    results = {
        name: Result(name, note=note)
        for name, note in (
            ("bare driver", "create-only put with a time to live, remove"),
            ("ignis lock", "acquire, release"),
            ("ignis lock, fenced", "acquire, token, release: four client calls"),
        )
    }
    ratios: list[float] = []
    try:
        measure(options, results, ratios)
    except (MissingError, AssertionError) as exc:
        for result in results.values():
            result.problem = str(exc)
    latency_table("Uncontended lock on Aerospike, acquire and release", list(results.values()))
    Goal(
        "lock / the two bare calls, medians",
        sorted(ratios)[len(ratios) // 2] if ratios else float("nan"),
        _LIMIT,
        at_most=True,
    ).show()
    recorder.write_all("locks", results.values())


def measure(options: Options, results: dict[str, Result], ratios: list[float]) -> None:
    """Fills the results. Raises MissingError."""
    require_module("aerospike", "ignis-mq[aerospike]")
    address = os.environ.get(VARIABLE)
    if not address:
        raise MissingError(f"MISSING: no Aerospike server; set {VARIABLE}=host:port/namespace")
    key = f"bench{os.getpid()}"
    made, close = pairs_of(address, key)
    try:
        pairs: dict[str, Pair] = dict(zip(results, made, strict=True))
        for pair in pairs.values():
            timed(pair, _BLOCK)
        for _ in range(options.runs):
            times: dict[str, list[int]] = {name: [] for name in pairs}
            end = time.monotonic() + len(pairs) * options.seconds
            while time.monotonic() < end:
                for name, pair in pairs.items():
                    times[name] += timed(pair, _BLOCK)
            for name, result in results.items():
                result.n += len(times[name])
                result.add_latencies(times[name])
            ratios.append(
                results["ignis lock"].latency_ns["p50"].values[-1] / results["bare driver"].latency_ns["p50"].values[-1]
            )
    finally:
        close()
