"""The one rule for ids that a user names: what 16 bytes a value stands for.

* 16 bytes are the id, other bytes are hashed;
* a whole number is the id as 16 bytes, big-endian: ids of numbers that follow each other lie side by side in the store;
* text that is a UUID in one of two forms, ``8-4-4-4-12`` hexadecimal digits or 32 of them without dashes, is that UUID;
* text that looks like one and is none (a digit too few or too many, dashes elsewhere, braces, spaces, ``urn:uuid:``) is
  refused: two of them may be meant as one id, or a short one be filled up to what another one is;
* all other text is hashed.

`id_of` says this for one value, `ids_of_column` for an Arrow column, `id_expression` for a column in the JVM, with
`ids_from_jvm` for what comes out of it. A test holds them together value by value.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ignis.errors import InvalidMessageError
from ignis.spark._pyspark import BinaryType, Column, IntegralType, StringType, TimestampType, functions

__all__ = ["id_expression", "id_of", "ids_from_jvm", "ids_of_column"]

_UUID = r"^(?:[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32})\z"
_APART = r"[-{}() \t\r\n\f\x0B]*"
_LIKE_UUID = rf"^(?:(?i:urn:uuid:).*|{_APART}(?:[0-9a-fA-F]{_APART}){{31,33}})\z"
"""As RE2 (Arrow) and Java read them; ``\\z`` is the end of the text, where ``$`` may leave a line break over."""
_is_uuid = re.compile(_UUID.replace(r"\z", r"\Z"))
_is_like_uuid = re.compile(_LIKE_UUID.replace(r"\z", r"\Z"), re.DOTALL)
_MOST_SHOWN = 100


def id_of(value: bytes | str | int) -> bytes:
    """The 16 bytes of one value. Raises InvalidMessageError for text that looks like a UUID and is none."""
    if isinstance(value, int):
        return bytes(8) + value.to_bytes(8, "big", signed=True)
    if isinstance(value, bytes):
        return value if len(value) == 16 else _md5(value)
    if _is_uuid.match(value):
        return bytes.fromhex(value.replace("-", ""))
    if _is_like_uuid.match(value):
        raise _refused(value)
    return _md5(value.encode())


def ids_of_column(column: pa.Array) -> pa.Array:
    """The ids of a column of text, binary or whole numbers, as values of 16 bytes.

    Raises InvalidMessageError: a null, or text that looks like a UUID and is none.
    """
    _no_null(column)
    if pa.types.is_integer(column.type):
        return _of_numbers(column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        uuids = pc.match_substring_regex(column, _UUID)
        if pc.all(uuids).as_py():  # without an object per row
            digits = pc.replace_substring(column, "-", "").cast(pa.string())
            return _from_hex(digits)
    return pa.array([id_of(value) for value in column.to_pylist()], pa.binary(16))


def id_expression(column: Column, kind: type) -> Column:
    """The ids of a column of that type, made in the JVM, for `ids_from_jvm`: 16 bytes, or the number; of text that is
    refused the text itself, so that whoever meets it can name it."""
    if issubclass(kind, BinaryType):
        return functions.when(functions.length(column) == 16, column).otherwise(functions.unhex(functions.md5(column)))
    if issubclass(kind, IntegralType):
        return column.cast("bigint")
    if issubclass(kind, TimestampType):
        column = functions.unix_micros(column)  # the text of a moment would depend on the session's time zone
    text = column.cast("string")
    hashed = functions.unhex(functions.md5(text.cast("binary")))
    if not issubclass(kind, StringType):
        return hashed
    uuid = functions.unhex(functions.replace(text, functions.lit("-"), functions.lit("")))
    # A text of 16 bytes never looks like a UUID, so none is taken for an id.
    like = text.rlike(f"(?s){_LIKE_UUID}")
    return functions.when(text.rlike(_UUID), uuid).when(like, text.cast("binary")).otherwise(hashed)


def ids_from_jvm(column: pa.Array) -> pa.Array:
    """What `id_expression` made, as values of 16 bytes. Raises InvalidMessageError: a null, or text that was refused."""
    _no_null(column)
    if pa.types.is_integer(column.type):
        return _of_numbers(column)
    try:
        return column.cast(pa.binary(16))
    except pa.ArrowInvalid:
        wrong = next(value for value in column.to_pylist() if len(value) != 16)
        raise _refused(wrong.decode("utf-8", "replace")) from None


def _no_null(column: pa.Array) -> None:
    if column.null_count:
        raise InvalidMessageError("id is null in a row: a row without an id could not be told from its repetition")


def _of_numbers(column: pa.Array) -> pa.Array:
    halves = np.zeros((len(column), 2), ">i8")
    halves[:, 1] = column.to_numpy()
    return pa.Array.from_buffers(pa.binary(16), len(column), [None, pa.py_buffer(halves)])


def _from_hex(digits: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(16), len(digits), [None, pa.py_buffer(bytes.fromhex("".join(digits.to_pylist())))]
    )


def _refused(text: str) -> InvalidMessageError:
    return InvalidMessageError(
        f"id = {text[:_MOST_SHOWN]!r} looks like a UUID and is none: write it as 32 hexadecimal digits, alone or as 8-4-4-4-12, "
        "or put a word before it to have it hashed as text"
    )


def _md5(value: bytes) -> bytes:
    return hashlib.md5(value, usedforsecurity=False).digest()
