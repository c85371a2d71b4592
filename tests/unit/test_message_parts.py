"""Messages in what one transaction takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ignis.message_parts import encoded_parts, source_of, stops
from ignis.native import total_bytes


def as_they_are(messages: Sequence[Any]) -> Sequence[bytes]:
    return messages


def sizes(messages: Any, most_bytes: int, beside_bytes: int = 1) -> list[int]:
    """How many messages each transaction has."""
    found: list[int] = []
    for _, keys, bodies, nbytes in encoded_parts(
        source_of(messages, None, None), as_they_are, beside_bytes, most_bytes
    ):
        assert bodies is not None
        assert nbytes == sum(map(len, bodies)) + beside_bytes * len(bodies)
        begin = 0
        for stop in stops(bodies, keys, nbytes, beside_bytes, most_bytes):
            found.append(stop - begin)
            begin = stop
    return found


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_small_ones_are_bounded_by_their_number(kind: Any) -> None:
    assert sizes(kind([b"x"] * 20_000), 64 << 20) == [8_192, 8_192, 3_616]
    assert sizes(kind([]), 64 << 20) == []


@pytest.mark.parametrize("kind", [list, iter])
def test_large_ones_are_bounded_by_their_bytes(kind: Any) -> None:
    assert sizes(kind([bytes(99)] * 1_000), 10_000) == [100] * 10
    assert sizes(kind([bytes(999)] * 7), 10), "each alone, where one is more than the bound"
    assert sizes(kind([bytes(999)] * 7), 10) == [1] * 7


def test_no_transaction_is_larger_whatever_comes_behind_small_ones() -> None:
    bodies = [b"x"] * 500 + [bytes(99)] * 500
    found = sizes(bodies, 1_000)
    assert sum(found) == 1_000
    begin = 0
    for count in found:
        assert sum(len(body) + 1 for body in bodies[begin : begin + count]) <= 1_000
        begin += count


def test_what_is_read_ahead_is_bounded_by_bytes() -> None:
    read = 0

    def messages() -> Iterator[bytes]:
        nonlocal read
        for _ in range(1_000):
            read += 1
            yield bytes(99)

    parts = encoded_parts(source_of(messages(), None, None), as_they_are, 1, 1_000)
    for number, (part, *_) in enumerate(parts, 1):
        assert len(part) == 10
        assert read == 10 * number


def test_one_that_cannot_be_encoded_is_left_to_whoever_stores_it() -> None:
    def encode_all(messages: Sequence[Any]) -> list[bytes]:
        return [message.encode() for message in messages]

    (part, keys, bodies, _), *_ = encoded_parts(source_of(["a", "b", 3], None, ["k", None, "k"]), encode_all, 1, 1_000)
    assert (part, keys, bodies) == (["a", "b", 3], ["k", None, "k"], None)


def test_keys_count_as_well() -> None:
    assert list(stops([b"x"] * 4, [b"k" * 97] * 4, 8, 1, 200)) == [2, 4]


def test_the_lengths_of_a_list() -> None:
    class Other(bytes):
        pass

    assert total_bytes([]) == 0
    assert total_bytes([b"a", b"", Other(b"bcd")]) == 4
    assert total_bytes([b"a", b"bc", b"def"], 1) == 5
    assert total_bytes([b"a"], 9) == 0
    assert total_bytes([b"a", b"bc", b"def", b"g"], 1, 3) == 5 and total_bytes([b"a", b"bc"], 1, 9) == 2
    assert total_bytes([None, b"bc", None]) == 2
    with pytest.raises(TypeError):
        total_bytes((b"a",))  # type: ignore[arg-type]
