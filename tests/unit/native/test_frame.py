"""Frames: literal bytes, every split, every truncation, flipped bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis import errors
from ignis.native import FRAME_HEADER_BYTES, FrameDecoder, decode_frames, encode_frame, encode_frames, encode_frames_ids

Frame = tuple[int, int, bytes]

frames_st = st.lists(
    st.tuples(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=60)), max_size=12
)


def encode(frames: list[Frame]) -> bytes:
    return b"".join(encode_frame(*frame) for frame in frames)


def test_the_byte_map() -> None:
    assert encode_frame(0x0102, 0x0304050607080910, b"abc").hex() == "0000000d01020304050607080910616263"
    assert encode_frame(-1, -1, b"").hex() == "0000000a" + "ff" * 10
    assert FRAME_HEADER_BYTES == 14


def test_bulk_encoding_is_the_sum_of_its_parts() -> None:
    payloads: list[bytes | bytearray | memoryview] = [b"", b"a", bytearray(b"bc"), memoryview(b"def"), b"x" * 100_000]
    assert encode_frames(7, 40, payloads) == b"".join(encode_frame(7, 40 + i, p) for i, p in enumerate(payloads))
    assert encode_frames_ids(7, [9, 8, 1, 2, 3], payloads) == b"".join(
        encode_frame(7, i, p) for i, p in zip([9, 8, 1, 2, 3], payloads, strict=True)
    )
    assert encode_frames_ids([1, 2], [3, 4], [b"a", b"b"]) == encode_frame(1, 3, b"a") + encode_frame(2, 4, b"b")
    assert encode_frames(7, 1, []) == b""


def test_encoding_refuses_what_does_not_fit() -> None:
    with pytest.raises(OverflowError):
        encode_frame(2**15, 1, b"")
    with pytest.raises(OverflowError):
        encode_frame(1, 2**63, b"")
    with pytest.raises(OverflowError):
        encode_frames(1, 2**63 - 1, [b"", b""])
    with pytest.raises(ValueError, match="2 payloads, 1 request ids"):
        encode_frames_ids(1, [1], [b"", b""])
    with pytest.raises(TypeError):
        encode_frames(1, 1, [5])  # type: ignore[list-item]


@given(frames_st, st.lists(st.integers(0, 2000), max_size=10))
@settings(max_examples=150, deadline=None)
def test_any_split_gives_the_same_frames(frames: list[Frame], cuts: list[int]) -> None:
    data = encode(frames)
    assert decode_frames(data) == (frames, len(data))
    decoder, got, last = FrameDecoder(), [], 0
    for cut in [*sorted(min(c, len(data)) for c in cuts), len(data)]:
        decoder.feed(data[last:cut])
        got += decoder.frames()
        last = cut
    assert got == frames
    assert decoder.buffered_bytes == 0


@given(frames_st, st.data())
@settings(max_examples=100, deadline=None)
def test_any_truncation_gives_a_prefix(frames: list[Frame], data: st.DataObject) -> None:
    whole = encode(frames)
    cut = data.draw(st.integers(0, len(whole)))
    got, used = decode_frames(whole[:cut])
    assert got == frames[: len(got)]
    assert used == len(encode(frames[: len(got)])) <= cut
    assert len(got) == len(frames) or used + len(encode_frame(*frames[len(got)])) > cut


@given(frames_st.filter(bool), st.data())
@settings(max_examples=150, deadline=None)
def test_a_flipped_byte_gives_frames_or_the_declared_error(frames: list[Frame], data: st.DataObject) -> None:
    damaged = bytearray(encode(frames))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    decoder = FrameDecoder(max_frame_bytes=200)
    failed = False
    try:
        for i in range(len(damaged)):  # one byte at a time
            decoder.feed(damaged[i : i + 1])
            for _command, _id, payload in decoder.frames():
                assert len(payload) <= 200
    except errors.MalformedFrameError:
        failed = True
    if failed:  # the stream is lost for good
        with pytest.raises(errors.MalformedFrameError):
            decoder.frames()
        with pytest.raises(errors.MalformedFrameError):
            decoder.feed(b"more")


@pytest.mark.parametrize("length", [0, 9, 0x80000000, 0xFFFFFFFF])
def test_malformed_lengths(length: int) -> None:
    bad = length.to_bytes(4, "big")
    with pytest.raises(errors.MalformedFrameError):
        decode_frames(bad)
    good = encode_frame(1, 1, b"x")
    assert decode_frames(good + bad) == ([(1, 1, b"x")], len(good))
    decoder = FrameDecoder()
    decoder.feed(good + bad)
    assert decoder.frames() == [(1, 1, b"x")]  # what came before the damage is delivered first
    with pytest.raises(errors.MalformedFrameError):
        decoder.frames()


def test_a_frame_over_the_limit_is_known_from_four_bytes() -> None:
    with pytest.raises(errors.FrameTooLargeError) as caught:
        decode_frames((1000).to_bytes(4, "big"), max_frame_bytes=1003)
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (1004, 1003)
    assert decode_frames((1000).to_bytes(4, "big"), max_frame_bytes=1004) == ([], 0)
    with pytest.raises(ValueError, match="at least 14"):
        FrameDecoder(max_frame_bytes=13)


@pytest.mark.parametrize("version", [1, 3])
def test_a_client_of_tls_is_said_to_be_one(version: int) -> None:
    """It was said to announce a frame of 369,295,622 bytes."""
    with pytest.raises(errors.FrameTooLargeError, match=r"the beginning of TLS .* speaks to a port without it"):
        decode_frames(bytes([0x16, 3, version, 2, 0, 1]), max_frame_bytes=1 << 26)


def test_thousands_of_frames_at_once() -> None:
    payloads = [b"%d" % i for i in range(5000)]
    frames, used = decode_frames(encode_frames(3, 100, payloads))
    assert frames == [(3, 100 + i, p) for i, p in enumerate(payloads)]
    assert used == sum(FRAME_HEADER_BYTES + len(p) for p in payloads)
