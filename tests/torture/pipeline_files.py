# ruff: noqa: E501 - samples are read better on one line
"""Generated files for the pipeline, how they are written, and the description of a pipeline that reads them."""

from __future__ import annotations

import csv
import io
import json
import random
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

__all__ = ["LIMIT_BYTES", "ROLES", "File", "Layout", "description", "draw", "files_of", "layouts", "telling"]

T = TypeVar("T")

LIMIT_BYTES = 4_096
_SIMPLE = 5
"""Hypothesis begins with the simplest examples, always the same."""
ROLES: dict[str, dict[str, Any]] = {
    "id": {"required": True},
    "i": {"type": "integer"},
    "n": {"type": "decimal", "precision": 12, "scale": 2},
    "f": {"type": "number"},
    "d": {"type": "date"},
    "j": {"type": "json"},
    "p": {},
    "v": {},
}
"""What a column is; a layout gives each a name in the schema and one in the files."""

ENCODINGS = ("utf-8", "latin-1", "cp1252", "ascii")
_NAMES = (
    "Customer No",
    "ü",
    "x,y",
    'q"q',
    "a/b",
    "50%",
    "a=b",
    "ID",
    "Id",
    "semi;colon",
    "a'b",
    "n" * 90,
    "{x}",
    "tab\tname",
    "$1",
    "back\\slash",
)
_SOURCES = (*_NAMES, "dotted.name", "_under", "back`tick", " spaces ", "id ", "日本", "back\\slash", "n\u2028n")
_FILE_NAMES = (
    "plain",
    "with space",
    "50% off",
    "%41",
    "ü",
    "a=b",
    "[x]",
    "{x}",
    "q?",
    "star*",
    "a+b",
    "#1",
    "a&b",
    "'q'",
)
_FOLDERS = (
    "a",
    "b",
    "x/y",
    "50%",
    "a=b",
    " ",
    "ü",
    ".",
    "..",
    ".hidden",
    "_x",
    "",
    "__HIVE_DEFAULT_PARTITION__",
    "n" * 300,
    "A",
    "null",
    "1",
    "01",
    "x" * 255,
    "ü" * 40,
)

File = tuple[str, bytes]
"""A file's name without its end, and what it holds."""


@dataclass(frozen=True)
class Layout:
    """How the files of one pipeline are written, and what is done with them.

    ``names`` and ``sources``: role -> the column's name in the schema, and in the files.
    """

    kind: str
    encoding: str
    delimiter: str
    quote: str
    escape: str
    multiline: bool
    nulls: tuple[str, ...]
    names: dict[str, str]
    sources: dict[str, str]
    partition: str
    key: tuple[str, ...]
    dedup: bool

    @classmethod
    def read(cls, data: dict[str, Any]) -> Layout:
        """Of what `asdict` made and JSON has kept."""
        return cls(**{**data, "nulls": tuple(data["nulls"]), "key": tuple(data["key"])})

    def options(self) -> dict[str, Any]:
        """As Python's ``csv`` takes it."""
        if not self.quote:
            return {"delimiter": self.delimiter, "quoting": csv.QUOTE_NONE, "strict": True}
        same = self.escape == self.quote
        return {
            "delimiter": self.delimiter,
            "quotechar": self.quote,
            "doublequote": same,
            "escapechar": None if same else self.escape,
            "strict": True,
        }


def draw(strategy: st.SearchStrategy[T], count: int, rng: random.Random) -> list[T]:
    """So many examples of a strategy."""
    found: list[T] = []

    @seed(rng.randrange(1 << 30))
    @settings(
        max_examples=count + _SIMPLE,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(one: T) -> None:
        found.append(one)

    while len(found) < count + _SIMPLE:
        collect()
    return found[-count:]


@st.composite
def layouts(draw: Any, kind: str) -> Layout:
    """Layouts of a kind: ``csv`` or ``jsonl``."""
    is_csv = kind == "csv"
    encoding = draw(st.sampled_from(ENCODINGS)) if is_csv else "utf-8"
    odd = [name for name in _SOURCES if _encodable(name, encoding)]
    quote = draw(st.sampled_from(['"', '"', "'", ""])) if is_csv else '"'
    names = _named(draw, _NAMES)
    sources = _named(draw, odd if quote else [name for name in odd if not set(name) & set(",;\t|\"'")])
    return Layout(
        kind=kind,
        encoding=encoding,
        delimiter=draw(st.sampled_from([",", ",", ";", "\t", "|"])) if is_csv else ",",
        quote=quote,
        escape=draw(st.sampled_from([quote or '"', "\\"])),
        multiline=is_csv and draw(st.booleans()),
        nulls=draw(st.sampled_from([(), ("NULL", "-")])) if is_csv else (),
        names=names,
        sources=sources,
        partition=draw(st.sampled_from(["", "d", "p"])),
        key=draw(st.sampled_from([(), ("v",), ("id", "v")])),
        dedup=draw(st.sampled_from([False, False, True])),
    )


def _named(draw: Any, odd: Any) -> dict[str, str]:
    others = draw(st.lists(st.sampled_from(list(odd)), unique=True, min_size=len(ROLES), max_size=len(ROLES)))
    plain = draw(st.booleans())
    return {role: role if plain else other for role, other in zip(ROLES, others, strict=True)}


def _encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def description(layout: Layout, *, queue: str, out: str) -> dict[str, Any]:
    """Of a pipeline that reads ``in/*`` into ``queue``, and writes the queue ``out`` into ``out/``; of each its half."""
    names = layout.names
    part: dict[str, Any] = {"paths": ["in/*"], "format": layout.kind, "key": [names[role] for role in layout.key]}
    if layout.dedup:
        part["dedup"] = [names["id"]]
    if layout.kind == "csv":
        part["csv"] = {
            name: getattr(layout, name) for name in ("delimiter", "quote", "escape", "encoding", "nulls", "multiline")
        }
    return {
        "name": "rows",
        "queue": {"name": queue, "settings": {"shards": 4, "max_message_bytes": LIMIT_BYTES, "shovel_interval_s": 0.2}},
        "schema": {names[role]: {**rules, "source": layout.sources[role]} for role, rules in ROLES.items()},
        "ingest": part,
        "export": {"path": out, "partition_by": [names[layout.partition]] if layout.partition else []},
    }


# -- values


def _mostly(usual: st.SearchStrategy[str], odd: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(usual, usual, usual, usual, usual, odd)


_letters = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=12)
_texts = st.one_of(
    st.sampled_from(
        ["", "x", 'a"b', '"', "a,b", " x ", "é", "ü", "€", "日本", "NULL", "-", "'", "\\", "a\\", "a\tb", "=1", "0" * 31,
         "L" * 5_000, "a\u2028b", "a\x0bb", "a\x85b", "😀", "\ufeff", "a/b", "%2F", "%00", "null", "true", "{", "[1,  2]"]
    ),
    _letters,
)  # fmt: skip
_numbers = st.one_of(
    st.integers(-(10**45), 10**45).map(str),
    st.integers(-(2**64), 2**64).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**6), max_value=10**6).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["1.10", "1e400", "-0.0", "-0", "1e2", "100e-2", "1.2300", "1.239", "0", "1E+2", "0.5", "9999999999.99", "1e-9",
         "1e-400", "9" * 600, "9" * 1_001, "9007199254740993", "9223372036854775808", "-9223372036854775808"]
    ),
)  # fmt: skip
_written = st.one_of(
    _numbers,
    st.sampled_from(
        ["01", "+1", ".5", "5.", "1_0", "0x1p3", "1e", "Infinity", "NaN", " 1 ", "1d", "1f", "½", "\u0661"]
    ),
)
_whole = _mostly(st.integers(-(2**63), 2**63 - 1).map(str), _written)
_money = _mostly(
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9).map(str), _written
)
_double = _mostly(st.floats(allow_nan=False, allow_infinity=False).map(repr), _written)
_days = st.dates().map(str)
_dates = st.one_of(
    _days,
    st.sampled_from(
        ["2024-1-5", "0000-01-01", "2024-02-30", "today", "10:15:00", "2024", "9999-12-31", " 2024-02-29 "]
    ),
)
_folders = st.sampled_from(_FOLDERS)
_json_leaves = st.one_of(
    _numbers,
    st.sampled_from(["null", "true", '"a"', '"\\u00e9"', '"\\/"', '"1"', "[]", "{}", '""', '"é"', '{"a":1,"a":2}']),
)
_jsons = st.one_of(
    st.recursive(
        _json_leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda found: f"[{' , '.join(found)}]"),
            st.lists(inner, max_size=3).map(
                lambda found: "{" + ",".join(f'"k{n}": {one}' for n, one in enumerate(found)) + "}"
            ),
        ),
        max_leaves=5,
    ),
    st.sampled_from(["[" * 200 + "]" * 200, "[" * 3_000 + "]" * 3_000, '{"a":' * 100 + "1" + "}" * 100]),
)

_quoted = st.tuples(_texts, st.booleans()).map(lambda one: json.dumps(one[0], ensure_ascii=one[1]))
_AS_JSON: dict[str, st.SearchStrategy[str]] = {
    "i": _mostly(_whole, st.one_of(_numbers, st.just("null"), _quoted, _written.map(json.dumps))),
    "n": _mostly(_money, st.one_of(_numbers, st.just("null"), _written.map(json.dumps))),
    "f": _mostly(_double, st.one_of(_numbers, st.just("null"), _written.map(json.dumps), st.just("true"))),
    "d": st.one_of(_days.map(json.dumps), _days.map(json.dumps), _dates.map(json.dumps), st.just("null")),
    "j": _jsons,
    "p": st.one_of(_folders, st.just("a\0b")).map(json.dumps),
}
_ANY_JSON = st.one_of(_quoted, _numbers, st.just("null"), _jsons)


@st.composite
def _json_line(draw: Any, layout: Layout) -> bytes:
    sign = json.dumps(layout.sources["id"]).encode()
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.sampled_from([b"", b"  ", b"[1]", b"{", b"%s:1}}", b'{%s:1} {"id":2}', b'{%s:"\xe9"}', b"{%s:1,%s:2}",
                             b"{%s:NaN}", b"{'id':1}", b'{%s:"\\ud800"}', b"null", b"{%s:01}", b'{%s:"a\x00"}', b"{%s:1}] [2",
                             b'{"other":"\\udc00",%s:1}', b"{%s:1}\r", b"\xef\xbb\xbf{%s:1}", b"{%s:1,}", b"{%s:-}", b"{%s:1}\x00",
                             b"\x0b{%s:1}", b"{%s:\xa01}", b'{%s:"\\x41"}', b"{%s:tru}", b"//{%s:1}", b"{%s:1/**/}", b'{%s:"a\tb"}'])
        ).replace(b"%s", sign)  # fmt: skip
    roles = draw(st.lists(st.sampled_from([*ROLES, "other"]), unique=True, max_size=9))
    if draw(st.integers(0, 7)):
        roles = ["id", *(role for role in roles if role != "id")]  # without it every row is a reject
    fields = []
    for role in roles:
        name = json.dumps(layout.sources.get(role, role), ensure_ascii=draw(st.booleans()))
        value = draw(_AS_JSON.get(role, _ANY_JSON))
        fields.append(f"{name}{draw(st.sampled_from([':', ': ', ' :']))}{value}")
    encoding = draw(st.sampled_from(["utf-8"] * 9 + ["latin-1"]))
    return ("{" + draw(st.sampled_from([",", ", "])).join(fields) + "}").encode(encoding, "replace")


@st.composite
def _csv_line(draw: Any, layout: Layout) -> str:
    cut, quote = layout.delimiter, layout.quote or '"'
    if draw(st.integers(0, 9)) == 0:
        line = draw(
            st.sampled_from(["", "   ", "1", "1,2,3", '"a"b,,,,,,,', "x" * 50, ",,,,,,,", ",,,,,,,,", '1,,,,,"{""a"": 1.10}",,',
                             'a,,,,,"{",,', "a\rb,,,,,,,", '"a', 'a,"b\nc",,,,,,', '"a\r\nb",,,,,,,', '"', "a\x00b,,,,,,,"])
        )  # fmt: skip
        return line.replace(",", cut).replace('"', quote)
    by_role = {"i": _whole, "n": _money, "f": _double, "d": _mostly(_days, _dates), "j": _jsons, "p": _folders}
    values = []
    for role in ROLES:
        wanted = role == "id" or draw(st.integers(0, 2))
        values.append(draw(by_role.get(role, _texts)) if wanted else draw(st.sampled_from(["", *layout.nulls])))
    values = [value.replace("\n", " ") for value in values]
    if layout.quote and draw(st.integers(0, 9)) == 0:
        values[-1] = draw(st.sampled_from(["two\nlines", "a\r\nb", "\n", f"a\n{quote}b", "one\ntwo\n\nthree"]))
    return _csv_row(layout, values, draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])) if layout.quote else 0)


def _csv_row(layout: Layout, values: list[str], quoting: int = csv.QUOTE_MINIMAL) -> str:
    if not layout.quote:
        return layout.delimiter.join(values)
    out = io.StringIO()
    options = {name: value for name, value in layout.options().items() if name != "strict"}
    csv.writer(out, lineterminator="", **{**options, "quoting": quoting}).writerow(values)
    return out.getvalue()


def _bytes(line: str, encoding: str, odd: str) -> bytes:
    try:
        return line.encode(odd or encoding)
    except UnicodeEncodeError:
        return line.encode(odd or encoding, "replace")


@st.composite
def files_of(draw: Any, layout: Layout) -> File:
    """Files that are written like this, more or less."""
    name = draw(st.sampled_from(_FILE_NAMES))
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    last = draw(st.sampled_from([b"", end]))
    if layout.kind == "jsonl":
        return name, end.join(draw(st.lists(_json_line(layout), max_size=6))) + last
    if draw(st.integers(0, 19)) == 0:
        return name, b""
    header = _csv_row(layout, list(layout.sources.values()))
    # Some lines are of another encoding: bytes that are none of this one, or others than were meant.
    lines = [
        _bytes(line, layout.encoding, draw(st.sampled_from([""] * 9 + ["utf-8", "latin-1"])))
        for line in draw(st.lists(_csv_line(layout), max_size=6))
    ]
    mark = b"\xef\xbb\xbf" if layout.encoding == "utf-8" and draw(st.integers(0, 9)) == 0 else b""
    return name, mark + end.join([header.encode(layout.encoding), *lines]) + last


def telling(layout: Layout) -> File:
    """One row that is good, and one that is to be put aside: each mistake shows in one of them, whatever else was drawn."""
    text = "x" if layout.encoding == "ascii" else "é"
    rows = [{"id": "fixed", "j": '{"a" : 1.10}', "v": text}, {"id": "no", "n": "1.239"}]
    lines = []
    if layout.kind == "jsonl":
        for row in rows:
            pairs = [(json.dumps(layout.sources[role]), role, one) for role, one in row.items()]
            fields = [f"{name}:{one if role in 'jn' else json.dumps(one)}" for name, role, one in pairs]
            lines.append("{" + ",".join(fields) + "}")
    else:
        values = [list(layout.sources.values()), *([row.get(role, "") for role in ROLES] for row in rows)]
        lines = [_csv_row(layout, one) for one in values]
    return "fixed", "\n".join(lines).encode(layout.encoding)


def kept(layout: Layout) -> dict[str, Any]:
    """The layout as JSON keeps it."""
    return asdict(layout)
