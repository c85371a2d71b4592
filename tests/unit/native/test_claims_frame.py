"""Claims that are written straight into their frame: the same bytes as those that are made record by record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ignis.native import FRAME_HEADER_BYTES, FrameDecoder, PackedBatch, encode_record
from ignis.native.wire import ClaimsFrame, pack_claims, unpack_claims
from ignis.storage.base import Claim, FireResult, MagazineStore, Store
from ignis.storage.embedded.store import EmbeddedStore
from ignis.storage.memory.store import MemoryStore

HEAD = b"head of the payload"


def claims_in(frame: ClaimsFrame) -> list[tuple[int, list[int], list[bytes | None]]]:
    """As a client reads them."""
    decoder = FrameDecoder()
    decoder.feed(bytes(frame.frame(20, -7, HEAD)))
    ((command, request_id, payload),) = decoder.frames()
    assert (command, request_id) == (20, -7)
    assert payload.startswith(HEAD)
    return plain([Claim(*one) for one in unpack_claims(payload, len(HEAD))])


def plain(claims: list[Claim]) -> list[tuple[int, list[int], list[bytes | None]]]:
    return [(claim.shard, list(claim.pointers), claim.records) for claim in claims]


def test_claims_that_are_added_come_out_as_they_were() -> None:
    frame = ClaimsFrame()
    many = [Claim(1, range(3, 5), [b"a", None]), Claim(2, [1, 2, 9], [b"", b"b" * 5_000, b"c"])]
    frame.add(many)
    frame.add([Claim(2, [10], [b"d"])])
    assert claims_in(frame) == plain([*many, Claim(2, [10], [b"d"])])
    assert frame.runs == [(1, 3, 5), (2, 1, 3), (2, 9, 11)]
    assert frame.messages == 6
    assert bytes(frame.frame(20, 1, HEAD))[FRAME_HEADER_BYTES + len(HEAD) :][4 : 4 + frame.nbytes] != b""


def test_a_frame_of_nothing_holds_no_claim() -> None:
    assert claims_in(ClaimsFrame()) == []


def test_a_head_may_be_of_any_size_and_another_one_each_time() -> None:
    frame = ClaimsFrame()
    frame.add([Claim(1, range(3, 5), [b"a", b"b"])])
    for head in (b"", b"x" * 10_000, b"y" * 110, HEAD):
        view = frame.frame(20, 1, head)
        assert bytes(view)[FRAME_HEADER_BYTES:] == head + pack_claims([(1, range(3, 5), [b"a", b"b"])])
        view.release()


def test_a_batch_is_added_with_the_pointers_that_it_gets() -> None:
    records = [b"a" * 10, b"", b"b" * 9_000]
    frame = ClaimsFrame()
    frame.add_batch(7, 5, PackedBatch.pack(records))
    assert claims_in(frame) == [(7, [5, 6, 7], records)]
    assert frame.runs == [(7, 5, 8)]
    for shard, first in ((1 << 16, 5), (-1, 5), (0, 1 << 63), (0, -1)):
        with pytest.raises((ValueError, OverflowError)):
            frame.add_batch(shard, first, PackedBatch.pack(records))
    assert frame.messages == 3


def test_nothing_is_added_to_a_frame_that_is_read_and_none_is_read_before_it_is_whole() -> None:
    frame = ClaimsFrame()
    with pytest.raises(BufferError):
        memoryview(frame)
    view = frame.frame(20, 1, HEAD)
    for change in (lambda: frame.add([]), lambda: frame.frame(20, 1, HEAD)):
        with pytest.raises(BufferError):
            change()
    view.release()
    frame.add([Claim(0, range(1, 2), [b"a"])])
    with pytest.raises(BufferError):
        memoryview(frame)


def test_claims_that_cannot_be_are_refused_and_nothing_is_added() -> None:
    frame = ClaimsFrame()
    for claims in ([(0, [1], [])], [(1 << 16, [1], [b"a"])], [(0, [1], ["text"])]):
        with pytest.raises((ValueError, TypeError)):
            frame.add(claims)  # type: ignore[arg-type]
    assert (frame.messages, frame.runs, claims_in(frame)) == (0, [], [])


# -- from stores


@pytest.fixture(params=["memory", "embedded"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else EmbeddedStore(tmp_path / "store")
    yield made
    made.close()


def fill(magazines: MagazineStore, seed: int) -> None:
    """Twice the same: in ``a`` and in ``b``."""
    rnd = random.Random(seed)
    for name in ("a", "b"):
        magazines.declare(name, 3, "none")
    for _ in range(12):
        shard, count = rnd.randrange(3), rnd.choice((1, 2, 30, 700))
        most = rnd.choice((10, 200, 3_000))
        records = [encode_record(rnd.randbytes(rnd.randrange(most))) for _ in range(count)]
        for name in ("a", "b"):
            magazines.load_records(name, shard, records)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_claimed_into_a_frame_is_what_a_claim_finds(store: Store, seed: int) -> None:
    magazines, rnd = store.magazines, random.Random(seed)
    fill(magazines, seed)
    at_once = bool(seed % 2)
    while True:
        limit, size = rnd.choice((1, 3, 50, 5_000)), rnd.choice((1, 5_000, 100_000, 1 << 30))
        frame = ClaimsFrame()
        if at_once:
            expected = magazines.try_fire("a", limit, "me", size)
            found = magazines.try_fire_into(frame, "b", limit, "me", size)
        else:
            expected = magazines.fire("a", limit, "me", max_bytes=size)
            found = magazines.fire_into(frame, "b", limit, "me", max_bytes=size)
        assert isinstance(expected, FireResult)
        assert found is not None
        assert claims_in(frame) == plain(expected.claims)
        assert (found.holes, found.expired, found.more) == expected[1:]
        assert frame.messages == expected.total()
        if not expected.claims:
            return


def test_a_writer_of_another_kind_gets_the_claims_of_any_store(store: Store) -> None:
    class Plain:
        def __init__(self) -> None:
            self.claims: list[Claim] = []

        def add(self, claims: list[Claim]) -> None:
            self.claims += claims

        def add_batch(self, shard: int, first: int, batch: PackedBatch) -> None:
            raise AssertionError

    fill(store.magazines, 1)
    expected = store.magazines.fire("a", 10, "me")
    writer = Plain()
    found = store.magazines.fire_into(writer, "b", 10, "me")  # type: ignore[arg-type]
    assert plain(writer.claims) == plain(expected.claims)
    assert found == expected[1:]


@pytest.mark.parametrize("wanted", [4, 400])
def test_expired_records_are_passed_over(store: Store, wanted: int) -> None:
    store.magazines.declare("m", 2, "none")
    for shard in (0, 1):
        store.magazines.load("m", [(shard, PackedBatch.pack([b"old"] * 5))], 0.001)
        store.magazines.load("m", [(shard, PackedBatch.pack([b"new"] * 50))], None)
    frames = []
    expired = messages = 0
    while messages < min(wanted, 100):
        frame = ClaimsFrame()
        found = store.magazines.fire_into(frame, "m", wanted - messages, "me")
        expired, messages = expired + found.expired, messages + frame.messages
        frames.append(frame)
    records = [one for frame in frames for _, _, many in claims_in(frame) for one in many]
    assert records.count(b"new") + records.count(b"old") == len(records) == messages
    assert expired + records.count(b"old") <= 10


@pytest.mark.parametrize("nbytes", [20, 3_000])
@pytest.mark.parametrize("what", ["record", "index"])
def test_a_damaged_record_is_none_and_its_neighbours_are_whole(tmp_path: Path, nbytes: int, what: str) -> None:
    records = [encode_record(bytes([65 + number]) * nbytes) for number in range(5)]
    with EmbeddedStore(tmp_path / "store") as store:
        for name in ("a", "b"):
            store.magazines.declare(name, 1, "none")
            store.magazines.load_records(name, 0, records)
        (log,) = (tmp_path / "store" / "none").glob("log-*")
        content = bytearray(log.read_bytes())
        at = -1
        for _ in range(2):  # of both magazines
            at = content.index(b"C" * nbytes, at + 1)
            # The index ends where the first record begins.
            place = at if what == "record" else content.rindex(records[0], 0, at) - 4 * 8
            content[place] ^= 1
            at += nbytes
        with log.open("r+b") as file:
            file.write(content)
        expected = store.magazines.fire("a", 9, "me")
        frame = ClaimsFrame()
        store.magazines.fire_into(frame, "b", 9, "me")
        assert claims_in(frame) == plain(expected.claims)
        lost = [one is None for _, _, many in claims_in(frame) for one in many]
        # An index that is damaged is made anew from the records.
        assert lost == [False, False, what == "record", False, False]
