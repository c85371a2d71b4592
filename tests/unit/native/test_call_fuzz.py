"""The short form of the random calls, see `call_fuzz`; and that it knows every name."""

from __future__ import annotations

import os

import pytest

from ignis import native
from tests.unit.native import call_fuzz

SEEDS = [int(seed) for seed in os.environ.get("IGNIS_TEST_FUZZ_SEEDS", "1,2,3,4").split(",")]
WITHOUT: tuple[str, ...] = ()
"""Not called at random yet."""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_calls(seed: int) -> None:
    done = call_fuzz.run_apart(seed, without=WITHOUT)
    assert done.returncode == 0, (
        f"python -m tests.unit.native.call_fuzz --seed {seed}\n{done.stdout}{done.stderr[-6000:]}"
    )
    assert f"seed {seed}: " in done.stdout


def test_every_public_name_is_called() -> None:
    others = {"BufferRef", "pool_classes", "sum_classes"}  # plain Python
    public = {name for name in native.__all__ if not name.isupper()}
    assert public - set(call_fuzz.CLASSES) - set(call_fuzz.FUNCTIONS) - others == set()
    named = set(call_fuzz.TAKES)
    methods = {f"{name}.{found}" for name, kind in call_fuzz.CLASSES.items() for found in dir(kind)}
    assert named - methods - set(call_fuzz.FUNCTIONS) == set()
