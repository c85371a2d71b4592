"""The lines of a dump, and the commands that write and load them."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis.app import Ignis
from ignis.cli import main, output
from ignis.dump.lines import BadLineError, MessageLine, line_of_record, parse_line, record_of_line
from ignis.native import encode_record
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker

Run = Callable[..., "tuple[int, list[str], str]"]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out.splitlines(), err

    return call


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path / 'store'}"


@pytest.fixture
def app(url: str) -> Iterator[Ignis]:
    with Ignis(url) as opened:
        yield opened


# -- the lines

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
envelopes = st.builds(msgspec.msgpack.encode, st.dictionaries(st.text(max_size=12), values, max_size=5)) | st.binary(
    max_size=60
)
stored = st.builds(
    encode_record,
    st.binary(max_size=300) | st.text(max_size=100).map(str.encode),
    flags=st.integers(0, 15),
    key=st.binary(max_size=40) | st.text(max_size=20).map(str.encode),
    meta=envelopes,
    id=st.binary(min_size=16, max_size=16),
    enqueued_at_us=st.integers(0, 2**63 - 1),
    attempts=st.integers(0, 65_535),
    crashes=st.integers(0, 65_535),
)


odd = st.builds(
    lambda record, at, byte: record[:at] + bytes([byte]) + record[at + 1 :],
    stored,
    st.integers(0, 35),
    st.integers(0, 255),
)


@settings(max_examples=80, deadline=None)
@given(stored | odd | st.binary(max_size=200))
def test_a_record_comes_back_to_the_byte(record: bytes) -> None:
    text = output.to_json(line_of_record("orders", "main", 3, record))
    assert text.isprintable()  # one line, and nothing that could steer a terminal
    line = parse_line(text.encode())
    assert isinstance(line, MessageLine)
    assert record_of_line(line) == record


def made(data: bytes) -> bytes:
    line = parse_line(data)
    assert isinstance(line, MessageLine)
    return record_of_line(line)


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=120))
def test_whatever_stands_in_a_line_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(BadLineError, match=r"\S"):
        made(data)


GOOD = {"queue": "q", "magazine": "main", "shard": 0, "id": "01a20b31-68e0-7922-891a-fbe9459a82c4", "codec": "json"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "7"}, "'7' is not the id of a message, which is a UUID"),
        ({"id": None}, "no id"),
        ({"codec": "yaml"}, "'yaml' is none of raw, json, msgpack"),
        ({"codec": None}, "no codec"),
        ({"failures": 65_536}, "failures = 65536 is outside 0..65535"),
        ({"enqueued_at_us": -1}, "enqueued_at_us = -1"),
        ({"body": "a", "body_base64": "YQ=="}, "both body and body_base64"),
        ({"body_base64": "?"}, "body_base64 is no base64"),
        ({"key": "k" * 70_000}, "key"),
        ({"envelope": {}, "envelope_base64": ""}, "both envelope and envelope_base64"),
        ({"magazine": "front"}, "front"),
        ({"colour": 1}, "colour"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_a_line_that_cannot_be_loaded_says_why(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadLineError) as caught:
        made(json.dumps({**GOOD, **change}).encode())
    assert said in str(caught.value)


def test_a_line_that_is_cut_short_says_so() -> None:
    with pytest.raises(BadLineError, match="it may be cut short"):
        parse_line(json.dumps(GOOD).encode()[:40])


# -- the commands


def test_a_queue_moves_through_a_broker_and_back(run: Run, app: Ignis, url: str, tmp_path: Path) -> None:
    queue = app.queue("orders", shards=4, max_returns=1)
    queue.publish_many([{"n": n} for n in range(50)], keys=[f"k{n % 5}" for n in range(50)], headers={"h": "ä"})
    queue.publish({"late": True}, delay="2h")
    first = tmp_path / "first"
    code, out, err = run("-u", url, "dump", "orders", "--out", str(first))
    assert (code, out, "dumped 51 message(s) of 1 queue(s)" in err) == (0, [], True)
    assert first.stat().st_mode & 0o777 == 0o600
    with RunningBroker(f"embedded://{tmp_path / 'behind'}") as broker:
        code, out, err = run("-u", broker.url, "load", str(first))
        assert (code, out) == (0, ["loaded 51 message(s); made orders"])
        code, out, _ = run("-u", broker.url, "load", "--json", stdin=first.read_bytes())
        assert (code, json.loads(out[0])["repeats"], json.loads(out[0])["loaded"]) == (0, 51, 0)
        code, second, _ = run("-u", broker.url, "dump", "--all")
        assert code == 0
    assert _messages(second) == _messages(first.read_text().splitlines())
    third = f"embedded://{tmp_path / 'third'}"
    assert run("-u", third, "load", "-", stdin="\n".join(second).encode())[0] == 0
    assert _messages(run("-u", third, "dump", "--all")[1]) == _messages(second)


def _messages(lines: list[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in lines[2:-1]]
    return [{name: value for name, value in one.items() if name != "due_at_ms"} for one in found]


def test_a_dump_goes_into_no_file_that_is_there(run: Run, app: Ignis, url: str, tmp_path: Path) -> None:
    app.queue("orders", int).publish(1)
    (tmp_path / "there").write_text("mine")
    code, _, err = run("-u", url, "dump", "orders", "-o", str(tmp_path / "there"))
    assert (code, "is there already" in err, (tmp_path / "there").read_text()) == (2, True, "mine")
    code, _, err = run("-u", url, "dump", "orders", "-o", str(tmp_path / "no" / "where"))
    assert (code, "cannot be made" in err) == (2, True)
    assert run("-u", url, "dump")[0] == 2
    assert run("-u", url, "dump", "orders", "--all")[0] == 2
    assert run("-u", url, "dump", "bills")[0] == 5


def test_one_magazine_alone(run: Run, app: Ignis, url: str) -> None:
    queue = app.queue("orders", int)
    queue.publish_many([1, 2])
    queue.publish(3, delay="1h")
    assert [
        one["magazine"] for one in map(json.loads, run("-u", url, "dump", "orders", "--magazine", "later")[1][2:-1])
    ] == ["later"]
    assert len(run("-u", url, "dump", "orders", "--magazine", "main")[1]) == 5


@pytest.fixture
def lines(run: Run, app: Ignis, url: str) -> list[str]:
    app.queue("orders", int, shards=1).publish_many(range(5))
    code, lines, _ = run("-u", url, "dump", "orders")
    assert (code, len(lines)) == (0, 8)
    return lines


def test_a_bad_line_is_named(run: Run, lines: list[str], tmp_path: Path) -> None:
    lines[4] = lines[4][:30]
    data = "\n".join(lines).encode()
    there = f"embedded://{tmp_path / 'there'}"
    code, out, err = run("-u", there, "load", stdin=data)
    assert (code, out) == (1, ["loaded 2 message(s); made orders"])
    assert "everything up to line 4 is stored" in err
    assert "line 5: " in err
    assert "cut short" in err
    code, out, err = run("-u", there, "load", "--skip-bad", "--json", stdin=data)
    told = json.loads(out[0])
    assert (code, told["loaded"], told["repeats"], told["bad"]) == (1, 2, 2, 1)
    assert "line 5: " in err


def test_loading_goes_on_behind_a_line(run: Run, lines: list[str], tmp_path: Path) -> None:
    there = f"embedded://{tmp_path / 'there'}"
    code, out, _ = run("-u", there, "load", "--from-line", "6", "--json", stdin="\n".join(lines).encode())
    assert (code, json.loads(out[0])["loaded"]) == (0, 2)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "there is no line"),
        (b'{"n":1}\n', "line 1: "),
        (b'{"format":"csv","version":1}\n', "line 1: no dump"),
        (b'{"format":"ignis-dump","version":9,"ignis":"4.0"}\n', "version 9, made by ignis 4.0; this ignis reads version 1"),
        (b'{"format":"ignis-dump","version":1}\n{"queue":"q","settings":{"shards":0}}\n', "line 2: the settings of queue 'q'"),
        (b'{"format":"ignis-dump","version":1}\n{"queue":"q","settings":{"colour":1}}\n', "no setting 'colour'"),
        (b'{"format":"ignis-dump","version":1}\n' + json.dumps(GOOD).encode(), "no line before it has the settings of queue 'q'"),
    ],
)  # fmt: skip
def test_what_is_no_dump_makes_no_queue(run: Run, tmp_path: Path, data: bytes, said: str) -> None:
    there = f"embedded://{tmp_path / 'there'}"
    code, _, err = run("-u", there, "load", stdin=data)
    assert (code, said in err) == (1, True), err
    with Ignis(there) as app:
        assert app.store.queues.list() == []


def test_a_dump_without_its_end_is_told(run: Run, lines: list[str], tmp_path: Path) -> None:
    code, out, err = run("-u", f"embedded://{tmp_path / 'there'}", "load", stdin="\n".join(lines[:-1]).encode())
    assert (code, out, "has no last line" in err) == (1, ["loaded 5 message(s); made orders"], True)


def test_a_queue_in_use_is_told(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    from ignis.dump import writing

    queue = app.queue("orders", int, shards=1)
    queue.publish_many(range(40))
    done = writing.Dumped()
    seen = 0
    for line in writing.dump_queues(app.store, app.store.queues.list(), ("main",), done):
        if isinstance(line, MessageLine):
            seen += 1
            queue.publish(seen)  # it ends though somebody publishes as fast as it reads
    assert (seen, done.changed) == (40, ["orders"])


def test_an_interrupted_dump_leaves_whole_lines(app: Ignis, url: str, tmp_path: Path) -> None:
    app.queue("orders", bytes, shards=1).publish_many([b"x" * 3_000] * 20_000)
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "ignis", "-u", url, "dump", "orders", "-o", str(out)], stderr=subprocess.PIPE
    )
    try:
        assert eventually(lambda: out.exists() and out.stat().st_size > 0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (130, 0)  # a quick machine has ended before the signal comes
    data = out.read_bytes()
    assert data.endswith(b"\n")
    for line in data.splitlines():
        parse_line(line)
    assert (process.returncode == 0) == (b'"messages":20000' in data.splitlines()[-1]), err


def test_a_bar_is_shown_at_a_terminal_only(app: Ignis, url: str, tmp_path: Path) -> None:
    app.queue("orders", int).publish_many(range(3_000))
    ours, theirs = pty.openpty()
    out = tmp_path / "out"
    try:
        command = [sys.executable, "-m", "ignis", "-u", url, "dump", "orders", "-o", str(out)]
        process = subprocess.Popen(command, stderr=theirs, stdout=theirs)
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4_096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        assert process.wait(WAIT_S) == 0
    finally:
        os.close(ours)
    assert b"dumping" in shown
    assert b"dumped 3,000 message(s)" in shown


def test_a_line_that_is_gone_is_missed(run: Run, app: Ignis, url: str, tmp_path: Path) -> None:
    """By the number in the last line: a dump that lost a line in between loaded with success."""
    app.queue("gone", bytes).publish_many([b"a", b"b", b"c"])
    assert run("dump", "gone", "--out", str(tmp_path / "dump"), "-u", url)[0] == 0
    lines = (tmp_path / "dump").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "less").write_text("".join(lines[:3] + lines[4:]), "utf-8")
    code, _, err = run("load", str(tmp_path / "less"), "-u", f"embedded://{tmp_path}/new")
    assert (code, "3 message(s), and has 2" in err) == (1, True)
