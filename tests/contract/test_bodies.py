"""A message that has a body alone, where the store takes it without a batch: the same as `load` of a batch of it."""

from __future__ import annotations

import contextlib
import time

from ignis.errors import ConfigError, QueueNotFoundError
from ignis.native import CODEC_JSON, CODEC_RAW, Record, id_text
from ignis.storage.base import MagazineStore


def test_it_is_stored_like_any_other(magazines: MagazineStore) -> None:
    if not magazines.takes_bodies:
        assert magazines.load_body("m", 2, b"one", CODEC_RAW, None) is None
        return
    bodies = [b"", b"one", bytes(range(256)) * 16, b"x" * 60_000]
    told = [magazines.load_body("m", 2, body, CODEC_JSON, None) for body in bodies]
    claims = magazines.fire("m", 10, "a").claims
    stored = [
        (pointer, Record(record))
        for claim in claims
        for pointer, record in zip(claim.pointers, claim.records, strict=True)
        if record
    ]
    assert [claim.shard for claim in claims] == [2] * len(claims)
    assert [record.body for _, record in stored] == bodies
    assert told == [(id_text(record.id), 2, pointer) for pointer, record in stored]
    assert {(record.flags, record.key, record.meta, record.attempts) for _, record in stored} == {
        (CODEC_JSON, b"", b"", 0)
    }
    assert abs(time.time() * 1e6 - stored[0][1].enqueued_at_us) < 60e6


def test_it_expires(magazines: MagazineStore) -> None:
    if not magazines.takes_bodies:
        return
    assert magazines.load_body("m", 0, b"gone", CODEC_RAW, 0.001) is not None
    assert magazines.load_body("m", 0, b"stays", CODEC_RAW, 3_600.0) is not None
    time.sleep(0.05)
    result = magazines.fire("m", 10, "a")
    assert [Record(record).body for claim in result.claims for record in claim.records if record] == [b"stays"]
    assert result.expired == 1


def test_what_is_not_there_goes_the_ordinary_way(magazines: MagazineStore) -> None:
    """Which says what is wrong. Nothing is stored."""
    with contextlib.suppress(QueueNotFoundError):
        assert magazines.load_body("nowhere", 0, b"x", CODEC_RAW, None) is None
    with contextlib.suppress(ConfigError):
        assert magazines.load_body("m", 4, b"x", CODEC_RAW, None) is None
    assert sum(state.pending for state in magazines.metadata("m")) == 0
