"""Transfers in parts, where the store has no room for all at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ignis.errors import RecordTooLargeError, StoreFullError
from ignis.message import STAYS, Message, bare_record, encode_meta, failed_record, unmarked_record
from ignis.native import Record, encode_record
from ignis.native.store import GrowthError
from ignis.shovel_choice import coming_back
from ignis.storage import transactions
from ignis.storage.base import Transfer
from ignis.storage.parts import in_parts, transfer_all, transfer_in_parts


def items(*sizes: int) -> list[Transfer]:
    return [Transfer(0, pointer, bytes(size), 0) for pointer, size in enumerate(sizes)]


class Store:
    """Takes so many bytes at a time."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.calls: list[list[int]] = []
        self.moved: list[int] = []

    def transfer(self, part: Sequence[Transfer]) -> int:
        self.calls.append([item.pointer for item in part])
        if sum(len(item.record) for item in part) > self.room:
            raise StoreFullError("no room")
        self.moved += [item.pointer for item in part]
        return len(part)


def test_all_at_once_where_there_is_room() -> None:
    store = Store(10)
    assert transfer_in_parts(list(reversed(items(1, 1, 1))), store.transfer) == 3
    assert store.calls == [[0, 1, 2]], "neighbours go together"


def test_halves_down_to_single_messages() -> None:
    store = Store(1)
    assert transfer_in_parts(items(*[1] * 9), store.transfer) == 9
    assert store.moved == list(range(9))


def test_no_part_is_larger_than_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MOST_BYTES", 250)
    store = Store(10_000)
    assert transfer_in_parts(items(50, 50, 50, 900, 50), store.transfer) == 5
    assert store.calls == [[0, 1], [2], [3], [4]], "one that is larger by itself goes alone"
    some = items(50, 50, 50, 900, 50)
    assert [len(part) for part in transactions.divided(some)] == [2, 1, 1, 1]
    assert [len(part) for part in transactions.divided(some, 1 << 20)] == [5]
    assert next(iter(transactions.divided(some, 1 << 20))) is some
    assert list(transactions.divided([])) == []
    monkeypatch.setattr(transactions, "MOST_RECORDS", 2)
    assert [len(part) for part in transactions.divided(some, 1 << 20)] == [2, 2, 1]


class SmallRecords(Store):
    """Takes records up to a size."""

    def transfer(self, part: Sequence[Transfer]) -> int:
        for item in part:
            if len(item.record) > self.room:
                raise RecordTooLargeError(len(item.record), self.room)
        self.records = [*getattr(self, "records", []), *(item.record for item in part)]
        return len(part)


def test_a_history_that_makes_a_record_too_large_is_left_out() -> None:
    """A message as large as the store takes must reach the sideline all the same."""
    plain = encode_record(b"x" * 1_000, flags=0)
    failed = plain
    for n in range(8):
        failed = failed_record(failed, "exception", f"KeyError: {n} " + "e" * 1_900, worker="w")
    store = SmallRecords(len(plain) + 300)
    assert transfer_in_parts([Transfer(0, n, failed, 0) for n in range(3)], store.transfer) == 3
    for record in store.records:
        message = Message.from_bytes(record)
        assert (message.reason, message.failures, message.history, message.body) == ("exception", 8, (), b"x" * 1_000)
        assert message.error is not None
        assert message.error.startswith("KeyError: 7")


def test_a_history_for_which_a_full_store_has_no_room_is_left_out() -> None:
    """Else each transfer needs more room than it frees, and the consumer stands still."""
    record = encode_record(b"body", flags=0)
    for _ in range(8):
        record = failed_record(record, "exception", "e" * 500, worker="w")
    store = Store(len(record) - 1)
    assert transfer_in_parts([Transfer(0, pointer, record, 0) for pointer in range(3)], store.transfer) == 3
    assert sorted(store.moved) == [0, 1, 2]


class Full(Store):
    """Moves whatever is no larger than it was, in one call."""

    def __init__(self, plain: Sequence[Transfer]) -> None:
        super().__init__(0)
        self.plain = {item.pointer: len(item.record) for item in plain}

    def transfer(self, part: Sequence[Transfer]) -> int:
        self.calls.append([item.pointer for item in part])
        if sum(len(item.record) for item in part) > sum(self.plain[item.pointer] for item in part):
            raise GrowthError("may not grow")
        self.moved += [item.pointer for item in part]
        return len(part)


def test_what_may_not_grow_goes_together_without_what_it_may_spare() -> None:
    record = failed_record(encode_record(b"body"), "exception", "x" * 400)
    failed = [Transfer(0, pointer, record, 0) for pointer in range(4)]
    store = Full([item._replace(record=bare_record(record)) for item in failed])
    assert transfer_in_parts(failed, store.transfer) == 4
    assert store.calls[-1] == [0, 1, 2, 3], "no halves: each of them has as much to spare"


def test_what_may_not_grow_and_has_nothing_to_spare_is_refused() -> None:
    plain = [Transfer(0, pointer, encode_record(b"body"), 0) for pointer in range(3)]
    store = Full([item._replace(record=b"") for item in plain])
    with pytest.raises(StoreFullError):
        transfer_in_parts(plain, store.transfer)
    assert store.moved == []
    assert len(store.calls) < 20


def test_where_there_is_room_for_no_more_than_before_nothing_of_the_failure_goes_along() -> None:
    """Room for the reason alone may be what is missing. What follows goes so at once, and tells its counters all the same."""
    plain = encode_record(b"body", flags=0, meta=encode_meta({"kind": "a"}))
    failed = failed_record(plain, "exception", "e" * 500, handler="h", worker="w")
    store = SmallRecords(len(plain))
    assert transfer_in_parts([Transfer(0, pointer, failed, 0) for pointer in range(3)], store.transfer) == 3
    for record in store.records:
        message = Message.from_bytes(record)
        assert (len(record), message.failures, message.reason, message.headers) == (len(plain), 1, None, {"kind": "a"})

    full = Store(len(plain))
    assert transfer_in_parts([Transfer(0, pointer, failed, 0) for pointer in range(50)], full.transfer) == 50
    assert len(full.calls) <= 2 * 50 + 10, "bare from the first one on that needs it"


@pytest.mark.parametrize("meta", [b"", b"\xc1 no map", encode_meta({"a": 1})])
def test_a_bare_record_is_what_was_there_before_it_failed(meta: bytes) -> None:
    plain = encode_record(b"body", flags=0, meta=meta)
    assert Record(bare_record(failed_record(plain, "exception", "E"))).meta == meta
    assert bare_record(b"no record") == b"no record"


@pytest.mark.parametrize("meta", [b"", encode_meta({"a": 1})])
@pytest.mark.parametrize("reason", ["exception", *STAYS])
def test_what_is_to_stay_in_the_sideline_stays_there_without_its_failure(meta: bytes, reason: str) -> None:
    """A store takes 32 bytes more for each message without asking for room. What a policy had given up came back from a full
    disk, and was tried again."""
    plain = encode_record(b"body", flags=0, meta=meta)
    failed = failed_record(plain, reason, "e" * 500, tried=4, given_up=reason == "exception")
    bare = bare_record(failed)
    assert len(bare) <= len(plain) + 32
    assert (Message.from_bytes(bare).history, Message.from_bytes(bare).error) == ((), None)
    assert coming_back(bare, None, max_returns=5) is None
    assert (coming_back(bare, None, max_returns=None) is None) == (reason == "corrupt"), (
        "a person brings the others back"
    )
    assert coming_back(bare_record(failed_record(plain, "exception", "e")), None, max_returns=5) is not None

    full = Store(len(bare))
    assert transfer_in_parts([Transfer(0, pointer, failed, 0) for pointer in range(9)], full.transfer) == 9
    small = SmallRecords(len(unmarked_record(failed)))
    assert transfer_in_parts([Transfer(0, 0, failed, 0)], small.transfer) == 1, "nothing is left to spare"


def test_who_needs_all_of_them_hears_what_kept_the_rest() -> None:
    store = Store(2)
    with pytest.raises(StoreFullError):
        transfer_all(items(1, 9, 1, 1), store.transfer)
    assert sorted(store.moved) == [0, 2, 3]


def test_a_record_that_is_too_large_holds_up_no_other() -> None:
    store = SmallRecords(500)
    with pytest.raises(RecordTooLargeError):
        list(in_parts(items(1, 900, 1, 1), store.transfer))
    assert [len(record) for record in store.records] == [1, 1, 1]


def test_one_that_does_not_fit_keeps_none_of_the_others() -> None:
    store = Store(2)
    parts = in_parts(items(1, 9, 1, 1), store.transfer)
    moved = []
    with pytest.raises(StoreFullError):
        moved += [item.pointer for part, _ in parts for item in part]
    assert sorted(store.moved) == [0, 2, 3]
    assert transfer_in_parts(items(1, 9, 1, 1), Store(2).transfer) == 3


def test_tries_without_any_room_are_bounded_and_begin_elsewhere() -> None:
    store = Store(0)
    with pytest.raises(StoreFullError):
        transfer_in_parts(items(*[1] * 1_000), store.transfer)
    assert len(store.calls) < 30
    other = Store(0)
    with pytest.raises(StoreFullError):
        list(in_parts(items(*[1] * 1_000), other.transfer, begin=1_500))
    assert (store.calls[-1], other.calls[-1]) == ([7], [507])


def test_nothing() -> None:
    assert transfer_in_parts([], Store(0).transfer) == 0
