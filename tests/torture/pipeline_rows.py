# ruff: noqa: E501 - samples are read better on one line
"""Generated files through ingest and export: every row is found once, as Python's own readers say, or put aside.

Many generated files are one ingest, so that an example costs a file and not a Spark job. The readers that judge are not
those of the pipeline: ``json`` with decimals kept, and ``csv`` over the whole file.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import decimal
import io
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ignis import Ignis
from tests.torture.report import Outcome

__all__ = ["Example", "check", "examples", "rows_property"]

LIMIT_BYTES = 4_096
SCHEMA: dict[str, Any] = {
    "id": {"required": True},
    "i": {"type": "integer"},
    "n": {"type": "decimal", "precision": 12, "scale": 2},
    "d": {"type": "date"},
    "j": {"type": "json"},
    "v": {},
}
NAMES = list(SCHEMA)
ENCODINGS = ("utf-8", "latin-1", "cp1252")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

Example = tuple[str, bytes]
"""What the file's name ends with, and what it holds."""

_letters = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=12)
_texts = st.one_of(
    st.sampled_from(
        ["", "x", 'a"b', '"', "a,b", " x ", "é", "ü", "NULL", "-", "'", "\\", "a\tb", "=1", "0" * 31, "L" * 5_000]
    ),
    _letters,
)
_numbers = st.one_of(
    st.integers(-(10**45), 10**45).map(str),
    st.integers(-(2**64), 2**64).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**6), max_value=10**6).map(str),
    st.sampled_from(
        ["1.10", "1e400", "-0.0", "-0", "1e2", "100e-2", "1.2300", "1.239", "0", "1E+2", "0.5", "9999999999.99", "1e-9"]
    ),
)
_dates = st.one_of(
    st.dates().map(str),
    st.sampled_from(["2024-1-5", "0000-01-01", "2024-02-30", "today", "10:15:00", "2024", "9999-12-31"]),
)
_json_leaves = st.one_of(_numbers, st.sampled_from(["null", "true", '"a"', '"\\u00e9"', '"1"', "[]", "{}"]))
_jsons = st.recursive(
    _json_leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda found: f"[{' , '.join(found)}]"),
        st.lists(inner, max_size=3).map(
            lambda found: "{" + ",".join(f'"k{n}": {one}' for n, one in enumerate(found)) + "}"
        ),
    ),
    max_leaves=5,
)


def _json_value(name: str) -> st.SearchStrategy[str]:
    quoted = _texts.map(lambda text: json.dumps(text, ensure_ascii=False))
    return {
        "i": st.one_of(_numbers, st.just("null"), quoted),
        "n": st.one_of(_numbers, st.just("null")),
        "d": st.one_of(_dates.map(json.dumps), st.just("null")),
        "j": _jsons,
    }.get(name, st.one_of(quoted, _numbers, st.just("null"), _jsons))


@st.composite
def _json_line(draw: Any) -> bytes:
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.sampled_from([b"", b"  ", b"[1]", b"{", b'{"id":1}}', b'{"id":1} {"id":2}', b'{"id":"\xe9"}', b'{"id":1,"id":2}',
                             b'{"id":NaN}', b"{'id':1}", b'{"id":"\\ud800"}', b"null", b'{"id":01}', b'{"id":"a\x00"}', b'{"id":1}] [2'])
        )  # fmt: skip
    names = draw(st.lists(st.sampled_from([*NAMES, "other"]), unique=True, max_size=7))
    fields = [f'"{name}"{draw(st.sampled_from([":", ": "]))}{draw(_json_value(name))}' for name in names]
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "latin-1"]))
    return ("{" + draw(st.sampled_from([",", ", "])).join(fields) + "}").encode(encoding)


@st.composite
def _csv_line(draw: Any) -> str:
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.sampled_from(
                [
                    "",
                    "   ",
                    "1",
                    "1,2,3",
                    '"a"b,,,,,',
                    "x" * 50,
                    ",,,,,",
                    ",,,,,,",
                    '1,,,,"{""a"": 1.10}",',
                    'a,,,,"{",',
                ]
            )
        )
    values = [draw(_texts), draw(_numbers), draw(_numbers), draw(_dates), draw(_jsons), draw(_texts)]
    out = io.StringIO()
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    csv.writer(out, lineterminator="", quoting=quoting).writerow(
        [draw(st.sampled_from([value, ""])) for value in values]
    )
    line = out.getvalue()
    if draw(st.integers(0, 14)) == 0:
        return line.replace("x", "x\n", 1) if '"' in line else line
    return line


@st.composite
def _file(draw: Any, kind: str) -> Example:
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    last = draw(st.sampled_from([b"", end]))
    if kind == "jsonl":
        return kind, end.join(draw(st.lists(_json_line(), max_size=6))) + last
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "latin-1"]))
    lines = draw(st.lists(_csv_line(), max_size=6))
    return kind, end.join([",".join(NAMES).encode(), *(line.encode(encoding) for line in lines)]) + last


def examples(kind: str, count: int, rng: random.Random) -> list[Example]:
    """So many generated files of a kind."""
    found: list[Example] = []

    @seed(rng.randrange(1 << 30))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_file(kind))
    def collect(one: Example) -> None:
        found.append(one)

    collect()
    return found[:count]


# -- what Python's readers say


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


class _Number(str):
    """A number as it stood."""

    __slots__ = ()


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _read_json(text: str) -> Any:
    found = json.loads(
        text, parse_float=_Number, parse_int=_Number, parse_constant=_no_constant, object_pairs_hook=_once
    )
    json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    return found


def _json_rows(data: bytes) -> Iterator[dict[str, Any] | None]:
    for line in data.split(b"\n"):
        try:
            text = line.decode()
            if not text.strip(" \t\r\n"):
                continue
            found = _read_json(text)
        except (ValueError, UnicodeEncodeError):
            yield None
            continue
        yield found if isinstance(found, dict) else None


def _csv_rows(data: bytes) -> Iterator[dict[str, Any] | None]:
    """By csv over the whole file, where a line break within quotes makes a row that is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Line by line then; the generator breaks no line of such a file.
        lines = data.split(b"\n")[1:]
        for line in lines:
            if line.removesuffix(b"\r"):
                yield from _csv_alone(line)
        return
    lines = text.split("\n")[1:]
    index = 0
    while index < len(lines):
        reader = csv.reader((f"{line}\n" for line in lines[index:]), strict=True)
        try:
            fields = next(reader)
            used = reader.line_num
        except (csv.Error, StopIteration):
            fields, used = None, 1
        if used > 1 or fields is None:
            yield None
        elif lines[index].removesuffix("\r"):
            yield dict(zip(NAMES, (one or None for one in fields), strict=True)) if len(fields) == len(NAMES) else None
        index += used


def _csv_alone(line: bytes) -> Iterator[dict[str, Any] | None]:
    try:
        fields = next(csv.reader([line.decode()], strict=True))
    except (UnicodeDecodeError, csv.Error):
        yield None
        return
    yield dict(zip(NAMES, (one or None for one in fields), strict=True)) if len(fields) == len(NAMES) else None


def _expected(row: dict[str, Any] | None, kind: str) -> dict[str, Any] | None:
    """The body that a row is to become; None for one that is to be put aside."""
    if row is None or row.get("id") is None:
        return None
    body: dict[str, Any] = {}
    try:
        for name in NAMES:
            body[name] = _typed(name, row.get(name), kind)
    except (ValueError, decimal.InvalidOperation):
        return None
    return body


def _typed(name: str, value: Any, kind: str) -> Any:
    """A value, as text that is the same for the same value. Raises ValueError for one that is not of its type."""
    if value is None:
        return None
    if name == "j":
        return _read_json(value) if kind == "csv" else value
    text = _as_text(value)
    if name in ("id", "v"):
        return text
    if not isinstance(text, str):
        raise ValueError(text)
    text = text.strip(" ")
    if name == "i":
        if not _INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
            raise ValueError(text)
        return int(text)
    if name == "n":
        if not _DECIMAL.fullmatch(text):
            raise ValueError(text)
        number = decimal.Decimal(text)
        if abs(number) >= 10**10 or number != round(number, 2):
            raise ValueError(text)
        return number
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    return str(dt.date.fromisoformat(text))


def _as_text(value: Any) -> Any:
    """A string, or the text of a number; an object or a list stays, to be compared with what its text says."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str) else value


def _found(body: str, kind: str) -> dict[str, Any]:
    """A published body in the terms of `_expected`."""
    row = _read_json(body)
    found: dict[str, Any] = {}
    for name in NAMES:
        value = row[name]
        if value is None or name == "j":
            found[name] = value
        elif name == "i":
            found[name] = int(value)
        elif name == "n":
            found[name] = decimal.Decimal(value)
        else:
            found[name] = str(value)
    return found


def _mark(body: dict[str, Any]) -> str:
    return repr([_frozen(body[name]) for name in NAMES])


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _frozen(one)) for name, one in value.items()]
    if isinstance(value, list):
        return [_frozen(one) for one in value]
    if isinstance(value, decimal.Decimal):
        return ("decimal", str(value.quantize(decimal.Decimal("0.01")) + 0))
    if isinstance(value, _Number):
        return ("number", str(value))
    return value


# -- the check


def check(
    spark: Any, directory: Path, kind: str, files: list[Example], *, kill: str = "", withheld: int = 0
) -> list[str]:
    """What is wrong after these files went through; with ``kill`` a run is ended at that step and taken up again. So many
    files are ``withheld`` from the pipeline, which must be seen."""
    from ignis.spark.pipeline import Progress, Target, export, ingest, parse_description

    class Killed(Progress):
        def end(self, step: Any) -> None:
            if step.name == kill:
                raise KeyboardInterrupt

    (directory / "in").mkdir()
    rows: list[dict[str, Any] | None] = []
    for index, (_, data) in enumerate(files):
        if index >= withheld:
            (directory / "in" / f"{index:05} %{index % 7}.{kind}").write_bytes(data)
        rows += _json_rows(data) if kind == "jsonl" else _csv_rows(data)
    described = parse_description(
        {
            "name": "rows",
            "queue": {"name": "rows", "settings": {"shards": 4, "max_message_bytes": LIMIT_BYTES}},
            "schema": SCHEMA,
            "ingest": {"paths": ["in/*"], "format": kind},
            "export": {"path": "out"},
        },
        directory,
    )
    url = f"embedded://{directory / 'store'}"
    target = Target(url, "", "")
    if kill:
        with contextlib.suppress(KeyboardInterrupt):
            ingest(spark, described, target=target, progress=Killed())
    summary = ingest(spark, described, target=target)
    faults = []
    if not summary.accepted or not summary.rejected:
        faults.append(f"the files say nothing: {summary.accepted} accepted, {summary.rejected} rejected")
    expected = Counter(_mark(body) for row in rows if (body := _expected(row, kind)) is not None and _fits(body))
    with Ignis(url) as app:
        bodies = [
            one.envelope.body.decode() for one in app.queue("rows", max_message_bytes=LIMIT_BYTES).main.peek(10_000_000)
        ]
    found = Counter(_mark(_comparable(_found(body, kind), expected)) for body in bodies)
    if summary.read != len(rows):
        faults.append(f"{summary.read} rows read, Python reads {len(rows)}")
    if summary.accepted + sum(summary.rejected.values()) != summary.read:
        faults.append(f"{summary.accepted} accepted, {summary.rejected} rejected, {summary.read} read")
    faults += [f"{count} lost: {mark}" for mark, count in (expected - found).items()]
    faults += [f"{count} too many: {mark}" for mark, count in (found - expected).items()]
    written = export(spark, described, target=target)
    if written.written != len(bodies) or written.rejected:
        faults.append(f"{len(bodies)} messages, {written.written} in the files, {written.rejected} put aside")
    return faults


def _comparable(body: dict[str, Any], expected: Counter[str]) -> dict[str, Any]:
    """A text that holds an object or a list is taken for it where the file had one there."""
    if _mark(body) in expected:
        return body
    for name in ("id", "v"):
        value = body[name]
        if isinstance(value, str) and value[:1] in "[{":
            try:
                read = _read_json(value)
            except ValueError:
                continue
            one = {**body, name: read}
            if _mark(one) in expected:
                return one
            body = one if name == "id" else body
    return body


def _fits(body: dict[str, Any]) -> bool:
    """Generated values are far below the limit or far above it."""
    return len(json.dumps({name: str(value) for name, value in body.items()}).encode()) <= LIMIT_BYTES


def rows_property(rounds: int, rng: random.Random, deadline: Callable[[], bool], *, batch: int = 250) -> Outcome:
    """So many generated files, in batches, every other one with a run that is ended and taken up."""
    from ignis.spark.places import close_stores
    from tests import spark_support

    outcome = Outcome("pipeline/rows")
    with tempfile.TemporaryDirectory(prefix="ignis-rows-") as top:
        spark = spark_support.start(Path(top) / "spark")
        done = 0
        while done < rounds and not deadline():
            kind = ("jsonl", "csv")[done // batch % 2]
            files = examples(kind, min(batch, rounds - done), rng)
            directory = Path(top) / f"batch-{done}"
            directory.mkdir()
            kill = rng.choice(["", "check", "quarantine", "publish"])
            for fault in check(spark, directory, kind, files, kill=kill):
                outcome.fault(f"{kind}: {fault}")
            done += len(files)
            outcome.rounds += len(files)
            outcome.add(files=len(files), kills=int(bool(kill)))
        blind = Path(top) / "blind"
        blind.mkdir()
        files = examples("jsonl", 60, rng)
        outcome.plant("files that were not read", bool(check(spark, blind, "jsonl", files, withheld=30)))
        spark.stop()
        close_stores()  # before their directories go
    return outcome.finish()
