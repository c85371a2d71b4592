"""One model, every store: random calls, each answer compared, with reopening and crashing as moves.

A crash of the embedded store is played without its process: the directory is copied as it stands while it is open and
used from there, which is what ``kill -9`` leaves; half of the crashes are followed by another boot of the machine.
Short by default; ``IGNIS_TEST_MODEL_EXAMPLES`` sets the number of runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ignis.errors import StaleEpochError
from ignis.native import PackedBatch
from ignis.storage.base import Fence, Store, Transfer
from tests.contract.support import Kind, record, scanned, text

SHARDS = 3
NAMES = ("a", "b")
FOREVER_MS = 1 << 52
EXAMPLES = int(os.environ.get("IGNIS_TEST_MODEL_EXAMPLES", "10"))

names = st.sampled_from(NAMES)
shards = st.integers(0, SHARDS - 1)


class Shard:
    """What one shard must hold: pointer -> text, in pointer order."""

    def __init__(self) -> None:
        self.records: dict[int, str] = {}
        self.fired: set[int] = set()
        self.loaded = 0
        self.left_out = 0
        self.reloaded = 0
        self.highest_fired = 0

    def append(self, body: str) -> int:
        self.loaded += 1
        self.records[self.loaded] = body
        return self.loaded

    def remove(self, pointer: int) -> bool:
        self.fired.discard(pointer)
        return self.records.pop(pointer, None) is not None

    def unfired(self) -> list[int]:
        return [pointer for pointer in self.records if pointer not in self.fired]


class StoreMachine(RuleBasedStateMachine):
    kind_name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="ignis-model-"))
        self.kind = Kind(self.kind_name, self.root)
        self.shards: dict[str, list[Shard]] = {}
        self.epoch = 0
        self.serial = 0
        self.copies = 0
        self.store: Store = self.kind.open(**self.options())

    def options(self) -> dict[str, int]:
        # No flush in the background: what recovery finds must not depend on the time.
        return {"sync_interval_ms": 3_600_000} if self.kind.in_directory else {}

    @initialize(durabilities=st.tuples(*(st.sampled_from(["sync", "none"]) for _ in NAMES)))
    def declare(self, durabilities: tuple[str, ...]) -> None:
        for name, durability in zip(NAMES, durabilities, strict=True):
            self.store.magazines.declare(name, SHARDS, durability)
            self.shards[name] = [Shard() for _ in range(SHARDS)]
        self.all_sync = set(durabilities) == {"sync"}

    def teardown(self) -> None:
        self.kind.forget()
        shutil.rmtree(self.root, ignore_errors=True)

    def body(self) -> str:
        self.serial += 1
        return f"m{self.serial}"

    def pick(self, name: str, choices: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
        """Pointers by shard, some of them gone or never used."""
        wanted: dict[int, list[int]] = {}
        for shard, offset in choices:
            wanted.setdefault(shard, []).append(max(1, self.shards[name][shard].loaded + 2 - offset))
        return wanted

    # -- moves

    @rule(name=names, parts=st.lists(st.tuples(shards, st.integers(1, 5)), min_size=1, max_size=4))
    def load(self, name: str, parts: list[tuple[int, int]]) -> None:
        batches, firsts = [], []
        for shard, count in parts:
            many = [self.body() for _ in range(count)]
            batches.append((shard, PackedBatch.pack([record(one) for one in many])))
            firsts.append(self.shards[name][shard].append(many[0]))
            for one in many[1:]:
                self.shards[name][shard].append(one)
        assert self.store.magazines.load(name, batches, None) == firsts

    @rule(name=names, limit=st.integers(1, 9), only=st.none() | st.sets(shards, min_size=1))
    def fire(self, name: str, limit: int, only: set[int] | None) -> None:
        result = self.store.magazines.fire(name, limit, "me", None if only is None else sorted(only))
        looked_at = range(SHARDS) if only is None else sorted(only)
        pending = sum(len(self.shards[name][shard].unfired()) for shard in looked_at)
        assert result.total() == min(limit, pending)
        assert result.more == (pending > limit)
        assert (result.holes, result.expired) == ({}, 0)
        for claim in result.claims:
            shard = self.shards[name][claim.shard]
            for pointer, one in zip(claim.pointers, claim.records, strict=True):
                assert pointer == shard.unfired()[0], "the oldest first, none twice"
                assert text(one) == shard.records[pointer]
                shard.fired.add(pointer)
                shard.highest_fired = max(shard.highest_fired, pointer)

    @rule(name=names, choices=st.lists(st.tuples(shards, st.integers(0, 12)), max_size=6))
    def delete(self, name: str, choices: list[tuple[int, int]]) -> None:
        wanted = self.pick(name, choices)
        there = sum(self.shards[name][shard].remove(one) for shard, many in wanted.items() for one in many)
        assert self.store.magazines.delete(name, wanted) == there
        assert self.store.magazines.delete(name, wanted) == 0

    @rule(name=names, choices=st.lists(st.tuples(shards, st.integers(0, 12)), max_size=6))
    def delete_waiting(self, name: str, choices: list[tuple[int, int]]) -> None:
        wanted = self.pick(name, choices)
        there = 0
        for number, many in wanted.items():
            shard = self.shards[name][number]
            there += sum(shard.remove(one) for one in many if one not in shard.fired)
        assert self.store.magazines.delete_waiting(name, wanted) == there

    @rule(name=names, limit=st.integers(1, 7), in_flight=st.booleans())
    def purge(self, name: str, limit: int, in_flight: bool) -> None:
        one = self.store.magazines.purge(name, limit, in_flight=in_flight)
        found = [one]
        while one.left:
            one = self.store.magazines.purge(name, limit, in_flight=in_flight, left=one.left)
            found.append(one)
        waiting = claimed = 0
        for shard in self.shards[name]:
            for pointer in list(shard.records):
                fired = pointer in shard.fired
                if not fired or in_flight:
                    shard.remove(pointer)
                    waiting, claimed = waiting + (not fired), claimed + fired
        assert (sum(step.waiting for step in found), sum(step.in_flight for step in found)) == (waiting, claimed)

    @rule(name=names, choices=st.lists(st.tuples(shards, st.integers(0, 12)), max_size=6))
    def reload(self, name: str, choices: list[tuple[int, int]]) -> None:
        wanted = self.pick(name, choices)
        count = 0
        for number, many in wanted.items():
            shard = self.shards[name][number]
            for pointer in sorted(set(many)):
                if pointer in shard.fired:
                    body = shard.records[pointer]
                    shard.remove(pointer)
                    shard.append(body)
                    shard.reloaded += 1
                    count += 1
        assert self.store.magazines.reload(name, wanted) == count

    @rule(source=names, sink=names, stale=st.booleans(), target_shard=shards,
          choices=st.lists(st.tuples(shards, st.integers(0, 12)), max_size=5))  # fmt: skip
    def transfer(self, source: str, sink: str, stale: bool, target_shard: int, choices: list[tuple[int, int]]) -> None:
        items = [
            Transfer(shard, pointer, record(self.body()), target_shard)
            for shard, many in self.pick(source, choices).items()
            for pointer in many
        ]
        if stale and self.epoch:
            with pytest.raises(StaleEpochError):
                self.store.magazines.transfer(source, sink, items, None, Fence("s", self.epoch - 1))
            return
        moved = 0
        arriving: list[str] = []
        for item in items:
            if self.shards[source][item.shard].remove(item.pointer):
                moved += 1
                arriving.append(str(text(item.record)))
        for one in arriving:
            self.shards[sink][target_shard].append(one)
        assert self.store.magazines.transfer(source, sink, items, None, Fence("s", self.epoch)) == moved

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1
        assert self.store.locks.next_epoch("s") == self.epoch

    @rule()
    def reopen(self) -> None:
        self.store = self.kind.reopen(**self.options())
        self.look_again()

    def look_again(self) -> None:
        """After an opening, which may leave pointers out."""
        if self.kind.name != "embedded":
            return
        for name, many in self.shards.items():
            for state, shard in zip(self.store.magazines.metadata(name), many, strict=True):
                assert state.load_pointer > shard.loaded
                shard.left_out += state.load_pointer - shard.loaded
                shard.loaded = state.load_pointer

    @precondition(lambda self: self.kind.in_directory)
    @rule()
    def crash(self) -> None:
        self.copies += 1
        copy = self.root / f"copy{self.copies}"
        with ExitStack() as stack:
            self.store.directory.at_rest(stack)  # type: ignore[attr-defined]  # no file goes while it is copied
            # Files are laid out ahead: what nothing was written to is left out.
            subprocess.run(["cp", "-a", "--sparse=always", str(self.kind.directory), str(copy)], check=True, timeout=60)
        self.kind.close_all()
        self.kind.directory = copy
        self.kind.url = f"{self.kind.name}://{copy}"
        self.store = self.kind.open(**self.options())
        self.look_again()

    # -- what holds at all times

    @invariant()
    def everything_is_there(self) -> None:
        for name, many in self.shards.items():
            expected = [
                (number, pointer, body)
                for number, shard in enumerate(many)
                for pointer, body in sorted(shard.records.items())
            ]
            assert scanned(self.store.magazines.scan(name, limit=10_000)) == expected

    @invariant()
    def counters_agree(self) -> None:
        for name, many in self.shards.items():
            for state, shard in zip(self.store.magazines.metadata(name), many, strict=True):
                assert state.load_pointer == shard.loaded
                assert state.load_counter == shard.loaded - shard.left_out - shard.reloaded
                assert state.in_flight == len(shard.fired)
                assert state.pending >= len(shard.unfired())
                assert not shard.fired or state.fire_pointer >= max(shard.fired)

    @invariant()
    def what_is_fired_counts_as_abandoned_later(self) -> None:
        for name, many in self.shards.items():
            for number, shard in enumerate(many):
                found = self.store.magazines.abandoned(name, number, FOREVER_MS, 10_000)
                assert [one.pointer for one in found] == sorted(shard.fired)


@pytest.mark.parametrize("name", ["memory", "embedded", "aerospike", "broker"])
def test_stores_do_what_the_model_does(name: str) -> None:
    machine = type(f"{name.title()}Machine", (StoreMachine,), {"kind_name": name})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
