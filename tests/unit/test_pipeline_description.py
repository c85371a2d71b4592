"""A pipeline's description: what is refused, and that the words say what would be right."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from ignis.errors import ConfigError, LockHeldError
from ignis.spark.pipeline import load_description, parse_description
from ignis.spark.pipeline.description import Description
from ignis.spark.pipeline.files import File
from ignis.spark.pipeline.runs import Runs
from ignis.spark.pipeline.target import Target, resolve_target

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
WHOLE = """
name = "orders"
folder = "state"

[queue]
name = "orders"
settings = { shards = 8, durability = "interval" }

[store]
url = "embedded:///var/lib/orders"

[spark]
master = "local[2]"
conf = { "spark.driver.memory" = "2g", "spark.sql.shuffle.partitions" = 8 }

[schema]
id = { required = true, pattern = "[0-9]+" }
total = { type = "decimal", precision = 12, scale = 2, min = 0 }
day = { type = "date", format = "dd.MM.yyyy", min = "2020-01-01" }

[ingest]
paths = ["in/*.csv", "hdfs://name/in", "/data/in"]
format = "csv"
key = ["id"]
dedup = ["id"]
csv = { delimiter = ";" }

[export]
path = "out"
partition_by = ["day"]
"""


def minimal(**parts: Any) -> dict[str, Any]:
    return {"name": "p", "queue": {"name": "q"}, "schema": {"a": {}, "n": {"type": "integer"}}, **parts}


def test_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(WHOLE)
    found = load_description(file)
    assert list(found.schema) == ["id", "total", "day"]
    assert found.ingest is not None
    assert found.ingest.paths == (f"{tmp_path}/in/*.csv", "hdfs://name/in", "/data/in")
    assert found.ingest.quarantine == f"{tmp_path}/quarantine"
    assert found.ingest.csv.delimiter == ";"
    assert found.export is not None
    assert (found.export.path, found.export.target_file_mb) == (f"{tmp_path}/out", 128)
    assert found.folder == f"{tmp_path}/state"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"sparkk": {}},
            r"unknown key sparkk; allowed there: export, folder, ingest, name, queue, schema, spark, store",
        ),
        ({"schema": {"a": {"typ": "string"}}}, r"unknown key schema\.a\.typ; allowed there: format, max"),
        (
            {"ingest": {"paths": ["x"], "format": "csv", "csv": {"sep": ";"}}},
            r"unknown key ingest\.csv\.sep; .*delimiter",
        ),
        ({"schema": {"a": {"type": "text"}}}, r"schema\.a\.type: Invalid enum value 'text'"),
        ({"ingest": {"paths": [], "format": "csv"}}, r"ingest\.paths: Expected `array` of length >= 1"),
        ({"ingest": {"paths": ["x"], "format": "xml"}}, r"ingest\.format: Invalid enum value 'xml'"),
        ({"ingest": {"paths": ["x"]}}, r"ingest: .*missing required field `format`"),
        (
            {"ingest": {"paths": ["x"], "format": "csv", "max_rejected": 2}},
            r"ingest\.max_rejected: Expected `float` <= 1",
        ),
        ({"ingest": {"paths": ["x"], "format": "csv", "key": ["b"]}}, r"ingest\.key: 'b' is not a column.*it has a, n"),
        ({"ingest": {"paths": ["x"], "format": "csv", "key": ["a", "a"]}}, r"ingest\.key names a column twice"),
        ({"ingest": {"paths": ["x"], "format": "csv", "dedup": ["a"]}}, r"ingest\.dedup: column 'a' is not required"),
        ({"ingest": {"paths": ["x"], "format": "csv", "prefer": "a"}}, r"ingest\.prefer .* wants ingest\.dedup"),
        ({"ingest": {"paths": ["x"], "format": "csv", "body": "n"}}, r"ingest\.body names one column of type string"),
        ({"ingest": {"paths": ["x"], "format": "csv"}, "schema": {}}, r"\[ingest\] wants a \[schema\]"),
        ({"export": {"path": "o", "target_file_mb": 0}}, r"export\.target_file_mb: Expected `int` >= 1"),
        ({"export": {"path": "o", "partition_by": ["x"]}}, r"export\.partition_by: 'x' is not a column"),
        ({"export": {"path": "o", "partition_by": ["a", "n"]}}, r"names every column"),
        ({"export": {"path": "o"}, "schema": {"run": {}}}, r"schema\.run: .*run=<id>"),
        (
            {"schema": {"n": {"type": "integer", "pattern": "x"}}},
            r"schema\.n\.pattern: not for a column of type integer",
        ),
        ({"schema": {"n": {"type": "integer", "min": 3, "max": 2}}}, r"schema\.n\.min = 3 is above max = 2"),
        ({"schema": {"n": {"type": "integer", "min": "3"}}}, r"schema\.n\.min = '3' is not a number"),
        ({"schema": {"d": {"type": "date", "min": 3}}}, r"schema\.d\.min = 3 is not text"),
        ({"schema": {"d": {"type": "date", "min": "soon"}}}, r"schema\.d\.min = 'soon' is not a date"),
        ({"schema": {"a": {"min_length": 3, "max_length": 2}}}, r"schema\.a\.min_length = 3 is above"),
        ({"schema": {"a": {"pattern": "("}}}, r"schema\.a\.pattern = '\(' is not a regular expression"),
        (
            {"schema": {"d": {"type": "decimal", "precision": 3, "scale": 4}}},
            r"schema\.d\.scale = 4 is above precision",
        ),
        ({"schema": {"_id": {}}}, r"schema\._id: .*does not begin with _"),
        ({"schema": {"a.b": {}}}, r"schema\.a\.b: .*no dot"),
        ({"queue": {"name": "q", "settings": {"shads": 3}}}, r"unknown queue setting 'shads'.*known: codec"),
        ({"queue": {"name": "q", "settings": {"shards": 0}}}, r"queue\.shards = 0 is outside 1 to 512"),
        ({"queue": {"name": "a b"}}, r"queue name 'a b' does not match"),
        ({"name": "a/b"}, r"pipeline name 'a/b' does not match"),
        ({"store": {"client_id": ""}}, r"client_id name '' does not match"),
    ],
)
def test_what_is_refused(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_description(minimal(**parts))


def test_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load_description(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ")
    with pytest.raises(ConfigError, match=r"broken\.toml: "):
        load_description(broken)
    broken.write_text('name = "p"\nqueue = { name = "q", nam = 1 }\n')
    with pytest.raises(ConfigError, match=r"broken\.toml: unknown key queue\.nam; allowed there: name, settings"):
        load_description(broken)


@pytest.mark.parametrize("place", ["docs/spark.md", "ignis/demo/flights.toml", "ignis/demo/results.toml"])
def test_the_ones_that_are_shown(place: str, tmp_path: Path) -> None:
    """What the documentation and the demo show is right."""
    text = (Path(__file__).parents[2] / place).read_text("utf-8")
    if place.endswith(".md"):
        text = text.split("```toml\n")[1].split("```")[0]
    (tmp_path / "p.toml").write_text(text)
    found = load_description(tmp_path / "p.toml")
    assert found.ingest or found.export


@pytest.mark.parametrize("part", ["ingest", "export"])
def test_a_part_that_is_not_described(part: Any) -> None:
    with pytest.raises(ConfigError, match=rf"no \[{part}\]"):
        parse_description(minimal()).wanted(part)


# -- where the queue is


def test_the_store_is_the_arguments_the_environments_or_the_descriptions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    described = parse_description(minimal(store={"url": "embedded:///c", "client_id": "c", "farm_id": "f"}))
    assert resolve_target(described) == ("embedded:///c", "c", "f", None)
    monkeypatch.setenv("IGNIS_URL", "embedded:///b")
    assert resolve_target(described) == ("embedded:///b", "c", "f", None)
    assert resolve_target(described, Target("embedded:///a", "x", "")) == ("embedded:///a", "x", "f", None)
    file = tmp_path / "settings.toml"
    file.write_text('url = "embedded:///d"')
    monkeypatch.delenv("IGNIS_URL")
    bare = parse_description(minimal())
    assert resolve_target(bare, Target("", "", "", str(file))) == ("embedded:///d", "ignis", "local", str(file))


def test_a_store_that_the_environment_puts_in_the_place_of_the_descriptions_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    described = parse_description(minimal(store={"url": "embedded:///c"}))
    monkeypatch.setenv("IGNIS_URL", "ignis://ada:secret@b:1")
    resolve_target(described)
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    told = caplog.text
    assert "ignis://b:1, not embedded:///c" in told
    assert "secret" not in told
    caplog.clear()
    resolve_target(described, Target("embedded:///a", "", ""))  # asked for
    monkeypatch.setenv("IGNIS_URL", "embedded:///c")
    resolve_target(described)  # the same
    resolve_target(parse_description(minimal()))  # nothing to go before
    assert not caplog.records


@pytest.mark.parametrize(("url", "words"), [("", "no store"), ("memory://x", "lives in one process")])
def test_a_store_that_workers_cannot_open(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_target(parse_description(minimal(store={"url": url})))


# -- records of runs


def test_runs_are_found_again(tmp_path: Path) -> None:
    runs = Runs(tmp_path, "p")
    with runs.locked():
        files = [File("file:/a", 1, 2)]
        first = runs.begin("ingest", None, files)
        assert runs.unfinished("export") is None
        again = Runs(tmp_path, "p").unfinished("ingest")
        assert again is not None
        assert (again.id, again.files, again.done) == (first.id, files, False)
        again.pointers = [(0, 1, 9)]
        runs.save(again)
        runs.finish(again, {"read": 3})
        assert runs.unfinished("ingest") is None
        found = runs.get("ingest", first.id)
        assert found is not None
        assert (found.done, found.summary, found.pointers) == (True, {"read": 3}, [(0, 1, 9)])
        with pytest.raises(ConfigError, match="exists already"):
            runs.begin("ingest", first.id)
        runs.forget(found)
        assert runs.all("ingest") == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(LockHeldError, match="another process runs pipeline 'p'")
    with Runs(tmp_path, "p").locked(), Runs(tmp_path, "other").locked(), refused, Runs(tmp_path, "p").locked():
        pass
    with Runs(tmp_path, "p").locked():
        pass


@pytest.mark.parametrize("content", ["", "{", '{"id":"r","kind":"ingest","pipeline":"p","format":2}', '{"id":1}'])
def test_a_record_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    runs = Runs(tmp_path, "p")
    with runs.locked():
        (runs.folder / "ingest-r.json").write_text(content)
        with pytest.raises(ConfigError, match=r"ingest-r\.json"):
            runs.unfinished("ingest")


def test_a_runs_name_stays_in_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run name"):
        Runs(tmp_path, "p").get("export", "../x")


def test_an_interpreter_without_pyarrow_is_named() -> None:
    """It may be one of Spark's workers, which run another one than the driver unless PYSPARK_PYTHON says so."""
    script = "import sys; sys.modules['pyarrow'] = None; import ignis.spark"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    said = done.stderr.splitlines()[-1]
    assert f"in {sys.executable}): {shlex.quote(sys.executable)} -m pip install 'ignis-mq[spark]'" in said
    assert "set PYSPARK_PYTHON" in said


def keys(kind: Any, before: str = "") -> dict[str, tuple[str, set[str]]]:
    """Every key of a table and of those in it -> its default as TOML, and what its range must name."""
    found: dict[str, tuple[str, set[str]]] = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        inner, name = hints[field.name], f"{before}{field.name}"
        if get_origin(inner) in (Union, UnionType) and len(get_args(inner)) == 2:  # or None
            inner = get_args(inner)[0]
        if name == "schema":
            found |= keys(get_args(inner)[1], "schema.COLUMN.")
        elif isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            found |= keys(inner, f"{name}.")
        else:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            found[name] = (as_toml(default), set(bounds(inner)))
    return found


def bounds(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from (f"`{one}`" for one in get_args(kind))
    elif get_origin(kind) is tuple:
        yield from bounds(get_args(kind)[0])
    elif get_origin(kind) is Annotated:
        for meta in get_args(kind)[1:]:
            yield from (f"{one:,}" for one in (meta.ge, meta.le) if one is not None)


def as_toml(value: Any) -> str:
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None:
        return "none"
    return f"`{json.dumps(value)}`"


def test_the_page_has_every_key_with_its_default_and_range() -> None:
    lines = PAGE.read_text("utf-8").split("\n### Keys\n")[1].split("\n### ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]
    said = {row[0].strip("`"): row[1:] for row in rows}
    wanted = keys(Description)
    assert {key: cells[0] for key, cells in said.items()} == {key: default for key, (default, _) in wanted.items()}
    for key, (_, parts) in wanted.items():
        named = set(re.findall(r"`[^`]*`|\d[\d,]*\d|\d", said[key][1]))
        assert parts <= named, (key, parts - named)
