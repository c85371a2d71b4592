"""CSV lines into columns, in the tasks: a batch of lines at a time, each by the rules of Python's ``csv`` module.

A line without a quote is split by Arrow for the whole batch; only one with a quote, an escape or a carriage return is
parsed alone. A line that opens a quoted value and does not close it is `OPEN`: whether the next lines belong to it shows
only when the file is read in order, see `CsvLines.in_order`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ignis.spark.pipeline.description import Csv

__all__ = ["BLANK", "ENCODING", "INPUT", "MALFORMED", "OPEN", "CsvLines", "fields_of_line"]

MALFORMED, ENCODING, OPEN, BLANK = "malformed", "encoding", "open", "blank"
"""Why a line is no row. ``blank`` lines are passed over; the others are put aside."""

INPUT = ("value", "file", "block", "order")
"""The columns that are read: the line's bytes, and where it stands."""

_MOST_LINES = 10_000
"""A quoted value that is not closed after so many lines is a stray quote: its line alone is malformed."""

Line = tuple[bytes, str, int, int]


class _Feed:
    """The lines of one record for ``csv.reader``; tells whether it asked for more than there are."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.used = 0
        self.asked = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        for line in self._lines:
            self.used += 1
            return line
        self.asked = True
        raise StopIteration


def _record(lines: Iterable[str], options: dict[str, Any]) -> tuple[list[str] | None, int, bool]:
    """(the fields of the first record, None when it is none; lines it takes; whether it is open at the end of them)."""
    csv.field_size_limit(min(sys.maxsize, 2147483647))
    feed = _Feed(lines)
    try:
        fields = next(csv.reader(feed, **options), None)
    except csv.Error:
        return None, feed.used, feed.asked
    return fields, feed.used, feed.asked


def _options(layout: Csv) -> dict[str, Any]:
    """The layout as ``csv.reader`` takes it."""
    if not layout.quote:
        return {"delimiter": layout.delimiter, "quoting": csv.QUOTE_NONE, "strict": True}
    same = layout.escape == layout.quote
    return {
        "delimiter": layout.delimiter,
        "quotechar": layout.quote,
        "doublequote": same,
        "escapechar": None if same else layout.escape,
        "strict": True,
    }


def fields_of_line(line: str, layout: Csv) -> list[str] | None:
    """The values of one line that stands alone; None when it is malformed or open."""
    fields, _, opened = _record([line], _options(layout))
    return None if opened else fields


@dataclass(frozen=True)
class CsvLines:
    """The function of a ``mapInArrow`` over the columns `INPUT`.

    It gives these columns, and one of text for each of ``columns``:

    * ``raw``: text; null where the bytes are not of the encoding, which ``raw_bytes`` has then, and only then;
    * ``file``, ``block``, ``order``, and ``lines``, which says how many the record takes;
    * ``malformed``: one of the words above, or null.

    Args:
        layout: how the files are written.
        width: values of a line.
        columns: which of them are wanted.
        in_order: whether a task sees whole files, line after line: a record may then take several.
    """

    layout: Csv
    encoding: str
    width: int
    columns: tuple[int, ...]
    in_order: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        options = _options(self.layout)
        if self.in_order:
            yield from (self._taken_apart(batch, lines, options) for batch, lines in self._stitched(batches, options))
        else:
            for batch in batches:
                if batch.num_rows:
                    yield self._taken_apart(batch, None, options)

    # -- one record, one row

    def _taken_apart(self, batch: pa.RecordBatch, lines: list[int] | None, options: dict[str, Any]) -> pa.RecordBatch:
        count = batch.num_rows
        values = batch.column(0)
        text = self._decoded(values)
        ends = pc.fill_null(pc.ends_with(text, "\r"), False)
        if pc.any(ends).as_py():
            text = pc.if_else(ends, pc.utf8_slice_codeunits(text, 0, -1), text)
        reasons = np.full(count, None, object)
        broken = text.is_null().to_numpy(zero_copy_only=False)
        reasons[broken] = ENCODING
        blank = _mask(pc.equal(text, ""))
        reasons[blank] = BLANK
        odd = self._odd(text) & ~broken & ~blank
        plain = np.flatnonzero(~odd & ~broken & ~blank)
        split = pc.split_pattern(text.take(pa.array(plain)) if len(plain) < count else text, self.layout.delimiter)
        fits = pc.list_value_length(split).to_numpy(zero_copy_only=False) == self.width
        reasons[plain[~fits]] = MALFORMED
        good = plain[fits]
        flat = split.flatten() if fits.all() else split.filter(pa.array(fits)).flatten()
        alone: list[tuple[int, list[str]]] = []
        for index in np.flatnonzero(odd).tolist():
            fields = self._alone(text[index].as_py(), 1 if lines is None else lines[index], options, reasons, index)
            if fields is not None:
                alone.append((index, fields))
        where = np.full(count, len(good) + len(alone))
        where[good] = np.arange(len(good))
        where[[index for index, _ in alone]] = len(good) + np.arange(len(alone))
        in_place = len(good) == count
        columns = []
        for column in self.columns:
            found = flat.take(pa.array(np.arange(column, len(flat), self.width)))
            if not in_place:
                others = pa.array([*(fields[column] for _, fields in alone), None], pa.string())
                found = pa.concat_arrays([found, others]).take(pa.array(where))
            columns.append(found)
        kept = pa.nulls(count, pa.binary())
        if broken.any():
            kept = pc.if_else(pa.array(broken), values, pa.scalar(None, pa.binary()))
        spans = pa.array(np.ones(count, np.int32) if lines is None else lines, pa.int32())
        why = pa.array(reasons, pa.string())
        return pa.RecordBatch.from_arrays(
            [text, kept, batch.column(1), batch.column(2), batch.column(3), spans, why, *columns],
            names=["raw", "raw_bytes", "file", "block", "order", "lines", "malformed", *_names(self.columns)],
        )

    def _decoded(self, values: pa.Array) -> pa.Array:
        """Text, null where the bytes are not of the encoding."""
        if self.encoding == "utf-8":
            try:
                return values.cast(pa.string())
            except pa.ArrowInvalid:
                pass
        return pa.array([_text(value, self.encoding) for value in values.to_pylist()], pa.string())

    def _odd(self, text: pa.Array) -> np.ndarray[Any, Any]:
        """Where splitting is not enough."""
        found: np.ndarray[Any, Any] = _mask(pc.match_substring(text, "\r")) | _mask(pc.match_substring(text, "\n"))
        if self.layout.quote:
            found |= _mask(pc.match_substring(text, self.layout.quote))
            if self.layout.escape != self.layout.quote:
                found |= _mask(pc.match_substring(text, self.layout.escape))
        return found

    def _alone(
        self, text: str, lines: int, options: dict[str, Any], reasons: np.ndarray[Any, Any], index: int
    ) -> list[str] | None:
        fields, used, opened = _record(_with_ends(text), options)
        if opened:
            reasons[index] = MALFORMED if self.in_order else OPEN
            return None
        if fields is None or len(fields) != self.width or used != lines or (lines > 1 and not self.layout.multiline):
            reasons[index] = MALFORMED
            return None
        return fields

    # -- several lines, one record

    def _stitched(
        self, batches: Iterable[pa.RecordBatch], options: dict[str, Any]
    ) -> Iterator[tuple[pa.RecordBatch, list[int] | None]]:
        """The batches with the lines of each record put together, and how many those are (None: one each)."""
        quote = self.layout.quote.encode(self.encoding)
        held: list[Line] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            if not quote or (not held and not pc.any(pc.match_substring(batch.column(0), quote)).as_py()):
                yield batch, None
                continue
            held += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            done, held = self._records(held, options, quote, False)
            if done:
                yield _batch(done)
        if held:
            yield _batch(self._records(held, options, quote, True)[0])

    def _records(
        self, lines: list[Line], options: dict[str, Any], quote: bytes, at_end: bool
    ) -> tuple[list[tuple[Line, int]], list[Line]]:
        """(the records, each with the lines it takes; the lines from which on it is not known yet)."""
        done: list[tuple[Line, int]] = []
        index = 0
        while index < len(lines):
            line = lines[index]
            used = self._length(lines, index, options, at_end) if quote in line[0] else 1
            if not used:
                return done, lines[index:]
            value = line[0] if used == 1 else b"\n".join(one[0] for one in lines[index : index + used])
            done.append(((value, *line[1:]), used))
            index += used
        return done, []

    def _length(self, lines: Sequence[Line], index: int, options: dict[str, Any], at_end: bool) -> int:
        """How many lines the record takes; 1 for one that is never closed, 0 when that is not known yet."""
        file = lines[index][1]
        stop = min(len(lines), index + _MOST_LINES)
        ended = at_end or stop - index == _MOST_LINES

        def same_file() -> Iterator[str]:
            nonlocal ended
            for one in lines[index:stop]:
                text = _text(one[0], self.encoding)
                if one[1] != file or text is None:
                    ended = True
                    return
                yield f"{text}\n"

        fields, used, opened = _record(same_file(), options)
        if opened:
            return 1 if ended else 0
        return max(1, used) if fields is not None else 1


def _names(columns: Sequence[int]) -> list[str]:
    return [f"c{column}" for column in columns]


def _mask(column: pa.Array) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = pc.fill_null(column, False).to_numpy(zero_copy_only=False).copy()
    return found


def _text(value: bytes, encoding: str) -> str | None:
    try:
        return value.decode(encoding)
    except UnicodeDecodeError:
        return None


def _with_ends(text: str) -> list[str]:
    """Lines as ``csv`` takes them. Not `str.splitlines`, which also cuts at signs that are no line's end."""
    lines = text.split("\n")
    return [*(f"{line}\n" for line in lines[:-1]), lines[-1]]


def _batch(records: list[tuple[Line, int]]) -> tuple[pa.RecordBatch, list[int]]:
    columns = list(zip(*(line for line, _ in records), strict=True))
    kinds = (pa.binary(), pa.string(), pa.int64(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(INPUT)), [used for _, used in records]
