"""What a pipeline makes of odd rows, odd files and a second run: kept as it stood, or put aside with its reason."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis, Message
from ignis.errors import ConfigError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from ignis.spark.pipeline import Progress, Step, Target, export, ingest, parse_description

pytestmark = pytest.mark.integration

ID_V: dict[str, Any] = {"id": {"required": True}, "v": {}}
DIGITS = "1234567890123456789012345678901234567890"


class Bench:
    """A pipeline in a directory of its own."""

    def __init__(self, spark: Any, directory: Path, url: str, new_app: Callable[..., Ignis]) -> None:
        self.spark, self.directory, self.url, self._new_app = spark, directory, url, new_app
        (directory / "in").mkdir()

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.directory / "in" / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def describe(self, schema: dict[str, Any], **parts: Any) -> Any:
        data: dict[str, Any] = {
            "name": parts.pop("name", "p"),
            "queue": {"name": "q", "settings": {"shards": 4, **parts.pop("settings", {})}},
            "schema": schema,
            "ingest": {"paths": ["in/*"], "format": "csv", **parts.pop("ingest", {})},
        }
        if "export" in parts:
            data["export"] = {"path": "out", **parts.pop("export")}
        return parse_description(data, self.directory)

    def ingest(self, schema: dict[str, Any], *, options: dict[str, Any] | None = None, **parts: Any) -> Any:
        return ingest(self.spark, self.describe(schema, **parts), target=Target(self.url, "", ""), **(options or {}))

    def export(self, schema: dict[str, Any], **parts: Any) -> Any:
        return export(self.spark, self.describe(schema, **parts), target=Target(self.url, "", ""))

    def messages(self) -> list[Message]:
        app = self._new_app(self.url)
        try:
            return [one.envelope for one in app.queue("q").main.peek(1_000_000)]
        finally:
            app.close()

    def texts(self) -> list[str]:
        return sorted(message.body.decode() for message in self.messages())

    def records(self) -> list[Path]:
        return list((self.directory / "runs").rglob("*.json"))

    @staticmethod
    def rejects(summary: Any) -> list[dict[str, Any]]:
        """The rows in the quarantine of a run, in the order of their lines."""
        found = []
        for path in Path(summary.quarantine).rglob("*.json") if summary.quarantine else ():
            reason = path.parent.name.removeprefix("reason=")
            found += [{"reason": reason, **json.loads(line)} for line in path.read_text().splitlines()]
        return sorted(found, key=lambda row: (row.get("file", ""), row.get("line", 0)))


@pytest.fixture
def bench(spark: Any, tmp_path: Path, embedded_url: str, new_app: Callable[..., Ignis]) -> Bench:
    return Bench(spark, tmp_path, embedded_url, new_app)


class Notes(Progress):
    def __init__(self, crash_at: str = "") -> None:
        self.texts: list[str] = []
        self.crash_at = crash_at

    def note(self, text: str) -> None:
        self.texts.append(text)

    def end(self, step: Step) -> None:
        if step.name == self.crash_at:
            raise KeyboardInterrupt


# -- what is kept


def test_numbers_are_kept_as_they_stood(bench: Bench) -> None:
    values = [DIGITS, f"{DIGITS[:-1]}1", "1.10", "1.1", "1e400", "-0.0", "0", "100", "1e2", '"1.1"', '{"a": [1.10]}']
    bench.write("a.jsonl", "".join(f'{{"id":{value},"v":"{n}"}}\n' for n, value in enumerate(values)))
    summary = bench.ingest(ID_V, ingest={"format": "jsonl", "dedup": ["id"]})
    assert (summary.read, summary.duplicates, summary.rejected) == (11, 1, {})  # 1.1 and "1.1" are the same text
    assert {json.loads(text)["id"] for text in bench.texts()} == {value.strip('"') for value in values}


def test_json_is_kept_byte_for_byte(bench: Bench) -> None:
    values = [
        DIGITS, "1.10", "1e400", "-0.0", "0.1234567890123456789012345678901234567890123", '{"b" : 1, "a":[1.50,{"c":null}]}',
        '"\\u00e9\\/"', "true", "[]", '"null"', '"1"',
    ]  # fmt: skip
    schema = {"id": {"type": "integer"}, "j": {"type": "json"}, "n": {"type": "integer"}}
    bench.write("a.jsonl", "".join(f'{{"id":{n},"j": {value} ,"n":1}}\n' for n, value in enumerate(values)))
    assert bench.ingest(schema, ingest={"format": "jsonl"}).published == len(values)
    expected = sorted(f'{{"id":{n},"j":{value},"n":1}}' for n, value in enumerate(values))
    assert bench.texts() == expected
    assert bench.export(schema, export={}).written == len(values)
    rows = bench.spark.read.parquet(str(bench.directory / "out")).collect()
    assert {row["id"]: row["j"] for row in rows} == dict(enumerate(values))


@pytest.mark.long
def test_json_in_a_csv(bench: Bench) -> None:
    bench.write("a.csv", 'id,j\n1,"{""a"": 1.10}"\n2,{\n3,1] [2\n4,\n')
    summary = bench.ingest({"id": {"type": "integer"}, "j": {"type": "json"}})
    assert bench.texts() == ['{"id":1,"j":{"a": 1.10}}', '{"id":4,"j":null}']
    assert [row["raw"] for row in bench.rejects(summary)] == ["2,{", "3,1] [2"]


def test_what_looks_like_a_value_and_is_none(bench: Bench) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "t": {"type": "timestamp"}, "d": {"type": "date"}, "n": {"type": "decimal", "precision": 6, "scale": 2},
        "f": {"type": "number"}, "i": {"type": "integer"},
    }  # fmt: skip
    bad = {
        "t": ["10:15:00", "T10", "2024", "2024-1-5", "0000-01-01T00:00:00", "2024-01-01T24:00:00", "+12024-01-01T00:00:00",
              "2024-01-01T10:00:00.1234567", "epoch"],
        "d": ["2024-1-5", "0000-01-01", "2024", "2024-02-30", "+12024-01-01", "2024-01-05T10:00:00", "today"],
        "n": ["1.239", "99999.99", "9999.999", "1e-3", "0x1p3", "1.2.3", "", ".", "12345e-3"],
        "f": ["0x1p3", "1d", "1f", "1e400", "NaN", "Infinity", "1_0", "1,5"],
        "i": ["1.0", "1e3", "0x10", "99999999999999999999", "1_0"],
    }  # fmt: skip
    good = {
        "t": {"2024-01-02T03:04:05.5000000": "2024-01-02T03:04:05.500000Z",
              "2024-01-02 03:04:00+01:00": "2024-01-02T02:04:00.000000Z",
              "2024-01-02": "2024-01-02T00:00:00.000000Z", "0001-01-01T00:00:00Z": "0001-01-01T00:00:00.000000Z"},
        "d": {"2024-01-05": "2024-01-05"},
        "n": {"1.2300": 1.23, "1e2": 100.0, "100e-2": 1.0, "-9999.99": -9999.99, "0e-9": 0.0, "1.": 1.0},
        "f": {"1e3": 1000.0, ".5": 0.5, " 5 ": 5.0},
        "i": {"+5": 5, "007": 7, " 7 ": 7},
    }  # fmt: skip
    lines, expected = [], {}
    for kind in kinds:
        for value in [*(one for one in bad[kind] if one), *good[kind]]:
            row = {"row": len(lines), kind: value}
            if value in good[kind]:
                expected[len(lines)] = good[kind][value]
            lines.append(json.dumps(row) + "\n")
    bench.write("a.jsonl", "".join(lines))
    summary = bench.ingest({"row": {"type": "integer"}, **kinds}, ingest={"format": "jsonl"})
    found = {}
    for text in bench.texts():
        row = json.loads(text)
        number = row.pop("row")
        found[number] = next(value for value in row.values() if value is not None)
    assert found == expected
    assert summary.rejected == {"type": len(lines) - len(expected)}


# -- bytes, quotes, sizes


@pytest.mark.long
def test_bytes_that_are_not_of_the_encoding(bench: Bench) -> None:
    bench.write(
        "a.jsonl", '{"id":"1","v":"é"}\n{"id":"2","v":"ü"}\n'.encode("latin-1") + '{"id":"3","v":"é"}\n'.encode()
    )
    summary = bench.ingest(ID_V, ingest={"format": "jsonl"})
    assert (summary.published, summary.rejected) == (1, {"encoding": 2})
    assert [base64.b64decode(row["raw_base64"]) for row in bench.rejects(summary)] == [
        '{"id":"1","v":"é"}'.encode("latin-1"),
        '{"id":"2","v":"ü"}'.encode("latin-1"),
    ]


def test_encodings_of_csv(bench: Bench) -> None:
    bench.write("a.csv", "id,v\r\n1,é€\r\n2,x\r\n".encode("cp1252") + b"3,\x81\r\n")
    summary = bench.ingest(ID_V, ingest={"csv": {"encoding": "windows-1252"}})
    assert bench.texts() == ['{"id":"1","v":"é€"}', '{"id":"2","v":"x"}']
    (reject,) = bench.rejects(summary)
    assert (reject["reason"], reject["line"], base64.b64decode(reject["raw_base64"])) == ("encoding", 4, b"3,\x81\r")


@pytest.mark.parametrize("name", ["UTF-16", "UTF-16LE", "utf-32", "utf-7", "shift_jis", "gbk", "nothing", "cp037"])
def test_encodings_that_cannot_be_read(bench: Bench, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' cannot be read"):
        bench.describe(ID_V, ingest={"csv": {"encoding": name}})


QUOTED = 'id,v\r\n0,x\r\n1,"first\r\nsecond, ""q"""\r\n2,"x"\r\n3,"stray\r\n4,y\r\n5,"a"b\r\n\r\n6,z"q\r\n'


def test_a_quoted_line_break(bench: Bench) -> None:
    bench.write("a.csv", QUOTED)
    summary = bench.ingest(ID_V)
    assert bench.texts() == ['{"id":"0","v":"x"}', '{"id":"2","v":"x"}', '{"id":"4","v":"y"}', '{"id":"6","v":"z\\"q"}']
    assert [(row["line"], row["raw"]) for row in bench.rejects(summary)] == [
        (3, '1,"first\r\nsecond, ""q"""'),
        (6, '3,"stray'),
        (8, '5,"a"b'),
    ]
    assert (summary.read, summary.rejected) == (7, {"malformed": 3})


def test_a_quoted_line_break_where_rows_have_several_lines(bench: Bench) -> None:
    bench.write("a.csv", QUOTED)
    summary = bench.ingest(ID_V, ingest={"csv": {"multiline": True}})
    assert (summary.published, summary.rejected) == (5, {"malformed": 2})
    assert '{"id":"1","v":"first\\r\\nsecond, \\"q\\""}' in bench.texts()


def test_raw_is_the_line_as_it_stood(bench: Bench) -> None:
    lines = ['x1,"1.50"', '"y", a ', 'z,"q""r"', "w,", 'u,""', "one", "1,2,3", "   "]
    bench.write("a.csv", "\ufeffid,v\n" + "\n".join(lines))
    summary = bench.ingest({"id": {"type": "integer", "required": True}, "v": {}})
    assert [row["raw"] for row in bench.rejects(summary)] == lines


def test_a_row_that_is_too_large(bench: Bench) -> None:
    rows = [{"id": str(n), "v": "x"} for n in range(30)] + [
        {"id": "large", "v": "é" * 600},
        {"id": "k" * 70_000, "v": ""},
    ]
    bench.write("a.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    settings = {"max_message_bytes": 1_024}
    summary = bench.ingest(ID_V, ingest={"format": "jsonl"}, settings=settings)
    assert (summary.published, summary.rejected) == (30, {"too_large": 2})
    assert "1024 (queue.max_message_bytes)" in bench.rejects(summary)[0]["problems"][0]


@pytest.mark.long
def test_a_key_that_is_too_large(bench: Bench) -> None:
    wide = {"max_message_bytes": 1 << 20}
    bench.write("b.jsonl", json.dumps({"id": "k" * 70_000, "v": ""}))
    by_key = bench.ingest(ID_V, ingest={"format": "jsonl", "key": ["id"]}, settings=wide)
    assert by_key.rejected == {"too_large": 1}


def test_keys_of_several_columns(bench: Bench) -> None:
    rows = [("x", None), (None, "x"), ("x/y", None), ("x", "y"), ("x%2Fy", None), ("", "x"), (None, None)]
    bench.write("a.jsonl", "".join(json.dumps({"id": str(n), "a": a, "b": b}) + "\n" for n, (a, b) in enumerate(rows)))
    bench.ingest({"id": {}, "a": {}, "b": {}}, ingest={"format": "jsonl", "key": ["a", "b"]})
    keys = {json.loads(message.body)["id"]: message.key for message in bench.messages()}
    assert keys == {"0": "x/%00", "1": "%00/x", "2": "x%2Fy/%00", "3": "x/y", "4": "x%252Fy/%00", "5": "/x", "6": None}


# -- files


@pytest.mark.long
def test_a_column_that_is_missing_leaves_nothing_behind(bench: Bench) -> None:
    bench.write("a.csv", "id,w\n1,x\n")
    with pytest.raises(ConfigError, match=r"a\.csv has no column 'v'; it has id, w"):
        bench.ingest(ID_V)
    assert bench.records() == []
    bench.write("a.csv", "id,v\n1,x\n")
    assert bench.ingest(ID_V).published == 1


def test_files_without_rows_do_not_stop_the_others(bench: Bench) -> None:
    for name, content in (("a.csv", ""), ("b.csv", "id,v\n1,x\n2,y\n"), ("c.csv", "id,v\n"), ("d.csv", "")):
        bench.write(name, content)
    summary = bench.ingest(ID_V)
    assert (summary.files, summary.read, summary.published) == (4, 2, 2)
    assert bench.ingest(ID_V).run == ""


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("b.csv", "v,id\n1,2\n", r"b\.csv: the header v, id is not that of .*a\.csv, id, v"),
        ("b.csv", "ID,V\n1,2\n", r"b\.csv: the header ID, V is not"),
        ("0.csv", "id,v,v\n1,2,3\n", r"0\.csv: the header names 'v' twice"),
        ("b.csv", 'id,"v\n1,2\n', r"b\.csv: the header .* is not one line of CSV"),
        ("a:b.csv", "id,v\n1,2\n", r"named 'a:b\.csv'"),
    ],
)
def test_files_that_cannot_be_read_are_named(bench: Bench, name: str, content: str, words: str) -> None:
    bench.write("a.csv", "id,v\n1,2\n")
    bench.write(name, content)
    with pytest.raises(ConfigError, match=words):
        bench.ingest(ID_V)
    assert bench.records() == []


@pytest.mark.long
def test_names_that_differ_in_case_alone(bench: Bench) -> None:
    bench.write("a.csv", "A,a\n1,2\n")
    bench.ingest({"A": {}, "a": {}})
    assert bench.texts() == ['{"A":"1","a":"2"}']


# -- again


def test_a_file_that_was_touched_or_has_grown(bench: Bench) -> None:
    path = bench.write("a.csv", "id,v\n1,x\n1,x\n")
    assert bench.ingest(ID_V).published == 2
    os.utime(path, (1, 1))
    notes = Notes()
    assert bench.ingest(ID_V, options={"progress": notes}).run == ""
    assert "touched" in notes.texts[0]
    with path.open("a") as file:
        file.write("3,z\n1,x\n")
    notes = Notes()
    summary = bench.ingest(ID_V, options={"progress": notes})
    assert (summary.read, summary.published, summary.known) == (2, 2, 0)
    assert "from line 4 on" in notes.texts[0]
    assert len(bench.messages()) == 4


@pytest.mark.long
def test_a_file_that_has_changed(bench: Bench) -> None:
    path = bench.write("a.csv", "id,v\n1,x\n1,x\n3,z\n1,x\n")
    assert bench.ingest(ID_V).published == 4
    everything = bench.ingest(ID_V, options={"everything": True})
    assert (everything.read, everything.published, everything.known) == (4, 0, 4)
    path.write_text("id,v\n1,x\n9,x\n")
    notes = Notes()
    changed = bench.ingest(ID_V, options={"progress": notes})
    assert (changed.read, changed.published, changed.known) == (2, 1, 1)
    assert "changed" in notes.texts[0]
    assert len(bench.messages()) == 5


def test_lines_have_the_same_ids_however_files_are_cut(bench: Bench) -> None:
    bench.write("a.csv", "id,v\n" + "".join(f"{n % 7},line\n" for n in range(300)))
    bench.write("b.csv", "id,v\n" + "".join(f"{n % 7},line\n" for n in range(50)))
    assert bench.ingest(ID_V).published == 350
    before = bench.spark.conf.get("spark.sql.files.maxPartitionBytes")
    bench.spark.conf.set("spark.sql.files.maxPartitionBytes", "777")
    try:
        again = bench.ingest(ID_V, options={"everything": True})
    finally:
        bench.spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    assert (again.read, again.published, again.known) == (350, 0, 350)


@pytest.mark.long
def test_a_new_run_doubles_nothing(bench: Bench) -> None:
    bench.write("a.csv", "id,v\n" + "1,x\n" * 50)
    with pytest.raises(KeyboardInterrupt):
        bench.ingest(ID_V, options={"progress": Notes("publish")})
    summary = bench.ingest(ID_V, options={"new_run": True})
    assert (summary.published, summary.known) == (0, 50)
    assert len(bench.messages()) == 50


def test_a_description_that_changed(bench: Bench) -> None:
    bench.write("a.csv", "id,v,w\n" + "".join(f"{n},x,{n}\n" for n in range(50)))
    with pytest.raises(KeyboardInterrupt):
        bench.ingest(ID_V, options={"progress": Notes("publish")})
    wider = {**ID_V, "w": {}}
    for options in ({}, {"new_run": True}):
        with pytest.raises(ConfigError, match=r"changed: schema, schema\.w.*stay as they are.*--accept-changes"):
            bench.ingest(wider, options=options)
    with pytest.raises(ConfigError, match=r"changed: ingest\.dedup.*published again, under other ids"):
        bench.ingest(ID_V, ingest={"dedup": ["id"]})
    summary = bench.ingest(wider, options={"accept_changes": True})
    assert (summary.resumed, summary.published, summary.known) == (True, 0, 50)
    assert len(bench.messages()) == 50
    with pytest.raises(ConfigError, match="another description"):
        bench.ingest(ID_V, options={"everything": True})


# -- out


@pytest.mark.long
def test_values_that_no_folder_can_hold(bench: Bench) -> None:
    lost = ["L" * 300, "nul\0l", "/" * 90]
    values = [*lost, "ok", None, "a/b", "..", " x ", "é", "%41", "a=b:c", "x\ty"]
    bench.write("a.jsonl", "".join(json.dumps({"id": str(n), "v": value}) + "\n" for n, value in enumerate(values)))
    parts: dict[str, Any] = {"ingest": {"format": "jsonl"}, "export": {"partition_by": ["v"]}}
    assert bench.ingest(ID_V, **parts).published == len(values)
    summary = bench.export(ID_V, **parts)
    assert (summary.read, summary.rejected) == (len(values), {"partition": 3})
    aside = {json.loads(row["raw"])["v"] for row in bench.rejects(summary)}
    assert aside == set(lost)
    reader = bench.spark.read.schema("id string, v string")
    rows = reader.parquet(str(bench.directory / "out" / f"run={summary.run}")).collect()
    assert {row["id"]: row["v"] for row in rows} == {
        str(n): value for n, value in enumerate(values) if value is None or value not in aside
    }
    assert bench.messages() == []


def test_folders_are_as_private_as_the_store(bench: Bench) -> None:
    bench.write("a.jsonl", '{"id":"1"}\n{"v":"x"}\n')
    parts: dict[str, Any] = {"ingest": {"format": "jsonl", "quarantine": "aside"}, "export": {}}
    bench.ingest(ID_V, **parts)
    bench.export(ID_V, **parts)
    for top in ("out", "aside", "runs"):
        for path in [bench.directory / top, *(bench.directory / top).rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
