"""Every error code of the C header has its exception, and the exception's text names the object."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ignis import errors
from ignis.native import Channel
from ignis.native.channel import _error_for_code

HEADER = Path(__file__).resolve().parents[3] / "csrc" / "ignis_error.h"

EXPECTED = {
    "IGN_E_INVALID": ValueError,
    "IGN_E_NOMEM": MemoryError,
    "IGN_E_IO": errors.RegionIOError,
    "IGN_E_MAGIC": errors.RegionFormatError,
    "IGN_E_VERSION": errors.RegionFormatError,
    "IGN_E_SIZE": errors.RegionFormatError,
    "IGN_E_TRUNCATED": errors.RegionTruncatedError,
    "IGN_E_BUSY": errors.RegionBusyError,
    "IGN_E_NO_CLASS": errors.NoSizeClassError,
    "IGN_E_EXHAUSTED": errors.PoolExhaustedError,
    "IGN_E_DOUBLE_RELEASE": errors.DoubleReleaseError,
    "IGN_E_STALE": errors.StaleReferenceError,
    "IGN_E_FOREIGN": errors.ForeignReferenceError,
    "IGN_E_MALFORMED": errors.MalformedFrameError,
    "IGN_E_TOO_LARGE": errors.MalformedFrameError,
    "IGN_E_PEER_DEAD": errors.PeerDiedError,
    "IGN_E_CLOSED": errors.ClosedError,
    "IGN_E_FORKED": errors.ForkedHandleError,
    "IGN_E_CORRUPT": errors.NativeError,
    "IGN_E_THREAD": errors.NativeError,
    "IGN_E_NO_ROOM": errors.StoreFullError,
    "IGN_E_FAILED": errors.StoreFailedError,
    "IGN_E_MOVED": errors.StoreFailedError,
    "IGN_E_UNKNOWN": errors.QueueNotFoundError,
    "IGN_E_MISMATCH": errors.QueueMismatchError,
    "IGN_E_IN_DOUBT": errors.StoreFailedError,
    "IGN_E_LOST": errors.StoreFormatError,
    "IGN_E_LEFT": errors.StoreFailedError,
}

CODES = {name: int(value) for name, value in re.findall(r"(IGN_E_\w+) = (-\d+)", HEADER.read_text())}


def test_the_table_covers_the_header() -> None:
    assert set(CODES) == set(EXPECTED)
    assert sorted(CODES.values()) == list(range(-len(CODES), 0))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_code_has_its_exception(name: str) -> None:
    error = _error_for_code(CODES[name], "the thing")
    assert type(error) is EXPECTED[name]
    assert "the thing" in str(error)


def test_an_unknown_code_says_so() -> None:
    assert "-99" in str(_error_for_code(-99, "the thing"))


def test_classes_are_not_made_directly() -> None:
    with pytest.raises(TypeError, match="use Channel"):
        Channel()
