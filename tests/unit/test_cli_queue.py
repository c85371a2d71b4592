"""The commands that change queues and take messages: what they ask, what they print, and that nothing is lost on the way."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ignis.app import Ignis
from ignis.cli import main
from ignis.consumer.handler import Failure
from ignis.message import failed_record
from ignis.native import CODEC_MSGPACK, encode_record
from ignis.shovel_rounds import shovel_retry_of
from ignis.storage.base import Transfer
from tests.support import WAIT_S, eventually
from tests.support.disk import disk

Run = Callable[..., "tuple[int, list[str], str]"]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str) -> Run:
    """Calls the command line in this process, without a terminal: (exit code, lines of stdout, stderr)."""
    monkeypatch.setenv("IGNIS_URL", url)

    def call(*arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
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


def start(url: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ignis", "--url", url, *arguments]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})


def pending(app: Ignis, name: str = "orders") -> list[Any]:
    return sorted(one.message for one in app.queue(name).main.peek(10_000))


def fail_all(app: Ignis, *failures: Failure) -> None:
    queue = app.queue("orders")
    queue.publish_many([{"n": index} for index in range(len(failures))], keys=[f"k{n}" for n in range(len(failures))])
    items = [
        Transfer(one.shard, one.pointer, failed_record(one.record, failure.reason, failure.error), one.shard)
        for one, failure in zip(queue.main.fire(len(failures)), failures, strict=True)
        if one.record is not None
    ]
    assert queue.main.store.transfer("orders", "orders_SIDELINE", items, None) == len(failures)


# -- making and removing


def test_create(run: Run, app: Ignis) -> None:
    code, out, _ = run("queue", "create", "orders", "--shards", "3", "--durability", "none", "--message-expiry", "1h")
    assert (code, out) == (0, ["queue orders made: 3 shard(s), durability none, codec json"])
    record = app.store.queues.get("orders")
    assert record is not None
    assert (record.shards, record.durability, record.message_expiry_s) == (3, "none", 3_600)
    assert run("queue", "create", "orders", "--json")[1] == [
        '{"queue":"orders","created":false,"shards":3,"durability":"none","changed":{}}'
    ]
    code, _, err = run("queue", "create", "orders", "--durability", "sync")
    assert (code, "durability 'none'" in err) == (2, True)
    assert run("queue", "create", "or/ders")[0] == 2
    assert run("queue", "create", "raw", "--codec", "raw")[0] == 0
    assert app.queue("raw", bytes).publish(b"x").pointer >= 1


def test_delete_refuses_a_queue_with_messages(run: Run, app: Ignis) -> None:
    app.queue("orders", int).publish_many([1, 2])
    app.queue("orders", int).publish(3, delay=3_600)
    code, _, err = run("queue", "delete", "orders", "--yes")
    assert (code, "holds 3 message(s)" in err, "ignis later cancel" in err) == (1, True, True)
    code, _, err = run("queue", "delete", "orders", "--force")
    assert (code, "2 waiting" in err, "1 delayed" in err, "give --yes" in err) == (2, True, True, True)
    assert pending(app) == [1, 2]
    code, out, _ = run("queue", "delete", "orders", "--force", "--yes", "--json")
    assert (code, out) == (0, ['{"queue":"orders","removed":true,"messages":3}'])
    assert app.store.queues.get("orders") is None
    assert run("queue", "delete", "orders", "--yes")[0] == 5


@pytest.mark.parametrize(
    ("answer", "code", "left"), [(b"n\n", 1, [1]), (b"\n", 1, [1]), (b"y\n", 0, [])], ids=["no", "nothing", "yes"]
)
def test_at_a_terminal_it_asks(url: str, app: Ignis, answer: bytes, code: int, left: list[int]) -> None:
    app.queue("orders", int).publish(1)
    ours, theirs = pty.openpty()
    try:
        process = start(url, "queue", "purge", "orders", stdin=theirs, stderr=theirs)
        os.close(theirs)
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(ours, 1_000)
        assert b"Remove 1 waiting message(s) from queue orders?" in asked
        os.write(ours, answer)
        process.communicate(timeout=WAIT_S)
    finally:
        os.close(ours)
    assert process.returncode == code
    assert pending(app) == left


# -- purging


def test_purge(run: Run, app: Ignis) -> None:
    queue = app.queue("orders", int, shards=2)
    queue.publish_many(range(10))
    queue.main.fire(1)
    code, _, err = run("queue", "purge", "orders")
    assert (code, "9 waiting message(s)" in err, "give --yes" in err) == (2, True, True)
    assert run("queue", "purge", "orders", "--dry-run")[1] == ["9 message(s) would be removed from orders"]
    assert run("queue", "purge", "orders", "--yes")[:2] == (0, ["9 message(s) removed from orders"])
    assert (queue.main.pending(), queue.main.in_flight()) == (0, 1)
    code, out, _ = run("queue", "purge", "orders", "--yes", "--in-flight", "--json")
    assert (code, json.loads(out[0])) == (0, {"queue": "orders", "dry_run": False, "removed": 0, "in_flight": 1})
    assert queue.main.in_flight() == 0
    assert run("queue", "purge", "nowhere", "--yes")[0] == 5


def test_purge_with_a_filter(run: Run, app: Ignis) -> None:
    queue = app.queue("orders", int, shards=2)
    ids = queue.publish_many(range(10), keys=["a", "b"] * 5)
    assert run("queue", "purge", "orders", "--key", "a", "--limit", "2", "--yes")[0] == 0
    assert len(pending(app)) == 8
    code, out, _ = run("queue", "purge", "orders", "--id", ids[1], "--id", ids[3].upper(), "--yes", "--json")
    found = json.loads(out[0])
    assert (code, found["removed"], found["looked_at"]) == (0, 2, 8)
    assert run("queue", "purge", "orders", "--older-than", "1h", "--yes")[1] == [
        "0 message(s) of 6 that wait there removed from orders"
    ]
    assert run("queue", "purge", "orders", "--key", "b", "--dry-run")[1] == [
        "3 message(s) of 6 that wait there would be removed from orders"
    ]
    assert run("queue", "purge", "orders", "--older-than", "0s", "--key", "b", "--yes")[0] == 0
    assert len(pending(app)) == 3
    for wrong in (["--id", "x"], ["--older-than", "soon"], ["--key", "a", "--in-flight"], ["--limit", "1"]):
        assert run("queue", "purge", "orders", "--yes", *wrong)[0] == 2, wrong
    assert len(pending(app)) == 3


def test_sideline_drop(run: Run, app: Ignis) -> None:
    fail_all(
        app, *[Failure("exception", "ValueError: bad")] * 3, *[Failure("timeout", "slow")] * 2, Failure("rejected", "")
    )
    assert run("sideline", "drop", "orders")[0] == 2
    assert run("sideline", "drop", "orders", "--dry-run")[1] == [
        "6 message(s) would be removed from the sideline of orders"
    ]
    assert run("sideline", "drop", "orders", "--reason", "timeout", "--yes")[1] == [
        "2 message(s) of 6 that wait there removed from the sideline of orders"
    ]
    for options in (["--error", "other"], ["--reason", "exception", "--key", "none"], ["--older-than", "1d"]):
        assert json.loads(run("sideline", "drop", "orders", *options, "--yes", "--json")[1][0])["removed"] == 0
    assert (
        json.loads(run("sideline", "drop", "orders", "--error", "bad", "--limit", "2", "--yes", "--json")[1][0])[
            "removed"
        ]
        == 2
    )
    assert run("sideline", "drop", "orders", "--yes")[1] == ["2 message(s) removed from the sideline of orders"]
    assert app.queue("orders").sideline.pending() == 0


def test_sideline_show_says_which_message_it_is_and_that_there_are_more(run: Run, app: Ignis) -> None:
    fail_all(app, *[Failure("exception", f"ValueError: order {n} is late") for n in range(12)])
    ids = {one.envelope.id for one in app.queue("orders").sideline.peek(20)}
    code, out, err = run("sideline", "show", "orders")
    assert (code, err) == (0, "10 of 12: -n shows more, 'ignis sideline list orders' counts them\n")
    assert sum(id in line for line in out for id in ids) == 10
    assert run("sideline", "show", "orders", "--reason", "exception")[2].startswith("10, there are more: -n")
    assert [run("sideline", "show", "orders", *some)[2] for some in (["-n", "12"], ["-n", "2", "--json"])] == ["", ""]


def test_sideline_list_counts_errors_that_differ_in_an_id_as_one(run: Run, app: Ignis) -> None:
    fail_all(
        app,
        *[Failure("exception", f"ValueError: order o-{n}f is {n * 3} s late") for n in range(5)],
        *[Failure("exception", "KeyError: 'a'")] * 2,
        Failure("exception", "KeyError: 'b'"),
    )
    told = json.loads(run("sideline", "list", "orders", "--json")[1][0])["reasons"]["exception"]["errors"]
    assert sorted(one["count"] for one in told) == [1, 2, 5]
    assert told[0]["count"] == 5
    assert told[0]["error"].startswith("ValueError: order o-")


# -- pausing, and who works


def test_pause_and_resume(run: Run, app: Ignis) -> None:
    seen: list[int] = []
    queue = app.queue("orders", int)
    queue.handler(seen.append)
    app.start()
    assert run("queue", "pause", "orders")[:2] == (
        0,
        ["queue orders is paused: its consumers take nothing more within 5 s"],
    )
    app.refresh()
    assert queue.consumer is not None
    assert queue.consumer.paused
    queue.publish(1)
    assert run("queues")[1][1].startswith("orders (paused)")
    shown = json.loads(run("stats", "orders", "--json")[1][0])
    assert (shown["state"], shown["paused"]) == ("paused", True)
    assert run("queue", "resume", "orders", "--json")[1] == ['{"queue":"orders","paused":false}']
    app.refresh()
    eventually(lambda: seen == [1])
    assert run("queue", "pause", "nowhere")[0] == 5


def test_workers(run: Run, app: Ignis) -> None:
    queue = app.queue("orders", int, shards=2)
    queue.open()
    code, out, err = run("workers")
    assert (code, out, "nobody" in err) == (0, [], True)
    queue.publish_many(range(5))
    queue.main.fire(3)
    code, out, _ = run("workers", "--json")
    (found,) = json.loads(out[0])["workers"]
    assert (code, found["owner"], found["in_flight"], found["dead"]) == (0, app.store.owner, 3, False)
    assert run("workers", "orders")[1][1].split()[0] == "orders"
    assert run("workers", "nowhere")[0] == 5


def test_stats_again_and_again(url: str, app: Ignis) -> None:
    queue = app.queue("orders", int)
    queue.publish(1)
    with start(url, "stats", "orders", "--watch=0.1", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pending"] == 1
        queue.publish(2)
        assert 2 in (json.loads(process.stdout.readline())["pending"] for _ in range(100))
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(WAIT_S) == 0


# -- consuming


def test_consume(run: Run, app: Ignis) -> None:
    queue = app.queue("orders", int, shards=1)
    queue.publish_many(range(250), keys=["k"] * 250, headers={"h": 1})
    code, out, _ = run("consume", "orders", "--limit", "3")
    lines = [json.loads(line) for line in out]
    assert (code, [one["body"] for one in lines]) == (0, [0, 1, 2])
    assert (lines[0]["key"], lines[0]["headers"], lines[0]["pointer"]) == ("k", {"h": 1}, 1)
    assert (queue.main.pending(), queue.main.in_flight()) == (247, 0)
    code, out, _ = run("consume", "orders")
    assert (code, [json.loads(line)["body"] for line in out]) == (0, list(range(3, 250)))
    assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)
    code, out, err = run("consume", "orders")
    assert (code, out, "no message" in err) == (5, [], True)
    assert run("consume", "nowhere")[0] == 5


def test_a_record_that_no_json_holds_is_printed_and_holds_up_nobody(run: Run, app: Ignis) -> None:
    queue = app.queue("orders", bytes, shards=1)
    queue.publish(b"1", key="k")
    headers = b"\x81\xa7headers\x81\xc3\x01"
    records = [encode_record(b"2", key=b"\xff\x1b", meta=headers), encode_record(b"\x81\xc0\x01", flags=CODEC_MSGPACK)]
    queue.main.store.load_records("orders", 0, records)
    queue.publish(b"4")
    for command in (("peek", "--json"), ("consume", "--no-ack"), ("consume",)):
        code, out, err = run(*command, "orders")
        found = [json.loads(line) for line in out]
        assert (code, err, len(found)) == (0, "", 4)
        assert (found[1]["key"], found[1]["key_hex"], found[1]["meta_hex"]) == (None, "ff1b", headers.hex())
        assert (found[2]["body_hex"], found[3]["body"]) == ("81c001", "4")
    assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)


def test_what_messages_hold_cannot_steer_the_terminal(run: Run, app: Ignis) -> None:
    bad = "\x1b[31m\nforged \x9b2J \u202e \x7f"
    meta = {
        "reason": bad,
        "error": bad,
        "failed_at_ms": 1,
        "history": [[1, bad, bad, bad, bad, 1]],
        "headers": {bad: bad},
    }
    queue = app.queue("orders", str, shards=1)
    record = encode_record(bad.encode(), key=bad.encode(), meta=msgspec.msgpack.encode(meta))
    queue.main.store.load_records("orders", 0, [record])
    queue.main.store.load_records("orders_SIDELINE", 0, [record])
    commands = [
        ("peek", "orders"),
        ("sideline", "list", "orders"),
        ("sideline", "show", "orders", "--history"),
        ("consume", "orders"),
    ]
    if importlib.util.find_spec("pyspark") is not None:
        commands.append(("pipeline", "report", "orders"))
    for command in [*((*one, "--json") for one in commands[:3]), *commands]:
        code, out, err = run(*command)
        assert code == 0, command
        assert all(line.isprintable() and not line.startswith("forged") for line in [*out, *err.splitlines()]), command
        if "--json" in command or "consume" in command:
            assert repr(bad) in repr([json.loads(line) for line in out]), command


def test_consume_without_acknowledging(run: Run, app: Ignis) -> None:
    queue = app.queue("orders", int, shards=2)
    queue.publish_many(range(1_200))
    code, out, _ = run("consume", "orders", "--no-ack")
    assert (code, sorted(json.loads(line)["body"] for line in out)) == (0, list(range(1_200)))
    assert len(run("consume", "orders", "--no-ack", "-n", "5")[1]) == 5
    assert (queue.main.pending(), queue.main.in_flight()) == (1_200, 0)


def test_a_closed_standard_output_takes_nothing(url: str, app: Ignis) -> None:
    """As cron and some that start services leave it: every message was acknowledged, and nobody had read one."""
    app.queue("orders").publish_many([1, 2, 3])
    command = [sys.executable, "-m", "ignis", "--url", url, "consume", "orders"]
    told = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=WAIT_S, check=False
    )
    assert (told.returncode, "standard output is closed" in told.stderr) == (2, True), told
    assert pending(app) == [1, 2, 3]
    assert app.queue("orders").main.in_flight() == 0
    with open(os.devnull, "wb") as nowhere:  # on purpose
        assert subprocess.run(command, stdout=nowhere, timeout=WAIT_S, check=False).returncode == 0
    assert pending(app) == []


def test_a_corrupt_message_goes_to_the_sideline(run: Run, tmp_path: Path, url: str) -> None:
    with Ignis(url) as app:
        app.queue("orders", str, shards=1).publish_many(["a" * 40, "b" * 40])
        # Under an open store: the next that opens it alone would pass over all of the entry.
        (data,) = (one for one in (tmp_path / "store").rglob("log-*") if b"a" * 40 in one.read_bytes())
        with data.open("r+b") as log:
            log.seek(data.read_bytes().index(b"a" * 40))
            log.write(b"x")
        code, out, err = run("consume", "orders")
        assert (code, [json.loads(line)["body"] for line in out]) == (0, ["b" * 40])
        assert "1 corrupt message" in err
        assert [one.envelope.reason for one in app.queue("orders").sideline.peek()] == ["corrupt"]


@pytest.mark.parametrize("options", [[], ["--follow"]], ids=["once", "follow"])
def test_a_reader_that_goes_away_loses_nothing(url: str, app: Ignis, options: list[str]) -> None:
    queue = app.queue("orders", int, shards=2)
    queue.publish_many(range(300))
    with start(url, "consume", "orders", *options) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        seen = b""
        while seen.count(b"\n") < 3:
            seen += os.read(pipe, 1 << 16)
        process.stdout.close()
        assert process.wait(WAIT_S) == 141
    read = {json.loads(line)["body"] for line in seen.splitlines() if line.endswith(b"}")}
    assert read | set(pending(app)) == set(range(300))
    assert queue.main.in_flight() == 0


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
    ids=lambda one: one.name,
)
def test_a_signal_gives_back_what_nobody_has_read(url: str, app: Ignis, number: signal.Signals) -> None:
    queue = app.queue("orders", int, shards=2)
    queue.publish_many(range(300))
    with start(url, "consume", "orders", preexec_fn=_default_signals) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        seen = os.read(pipe, 1 << 16)
        eventually(lambda: queue.main.in_flight() > 0)
        process.send_signal(number)
        assert process.wait(WAIT_S) == 130, process.stderr.read() if process.stderr else ""
    read = {json.loads(line)["body"] for line in seen.splitlines()}
    assert read | set(pending(app)) == set(range(300))
    assert queue.main.in_flight() == 0


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_line_that_a_write_cuts_short_arrives_whole(url: str, app: Ignis, unbuffered: str) -> None:
    """A pipe that does not wait takes what fits."""
    queue = app.queue("orders", str, shards=1)
    queue.publish_many(["x" * 300_000, "y" * 300_000])
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb") as pipe:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with start(url, "consume", "orders", stdout=writing, env=environment) as process:
            os.close(writing)
            lines = pipe.read().splitlines()
            assert process.wait(WAIT_S) == 0
    assert [json.loads(line)["body"][:1] for line in lines] == ["x", "y"]
    assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)


def test_a_file_that_is_full_in_the_middle_of_a_line_loses_nothing(url: str, app: Ignis, tmp_path: Path) -> None:
    queue = app.queue("orders", int, shards=1)
    queue.publish_many(range(600))
    with disk(tmp_path / "disk", "64k") as place, open(place / "out", "wb") as file:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with start(url, "consume", "orders", stdout=file, env=environment) as process:
            assert process.wait(WAIT_S) == 1
        lines = (place / "out").read_bytes().split(b"\n")[:-1]
    assert 0 < len(lines) < 600
    assert sorted([json.loads(line)["body"] for line in lines] + pending(app)) == list(range(600))


def test_a_signal_ends_it_in_the_middle_of_a_line_that_nobody_reads(url: str, app: Ignis) -> None:
    queue = app.queue("orders", str, shards=1)
    queue.publish("x" * 300_000)
    with start(url, "consume", "orders", preexec_fn=_default_signals) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 130
    assert len(pending(app)) == 1
    assert queue.main.in_flight() == 0


def test_the_line_that_is_read_after_a_signal_is_acknowledged(url: str, app: Ignis) -> None:
    queue = app.queue("orders", int, shards=1)
    queue.publish_many(range(300))
    with start(url, "consume", "orders", preexec_fn=_default_signals) as process:
        assert process.stdout is not None
        pipe = process.stdout
        seen = os.read(pipe.fileno(), 1 << 16)
        eventually(lambda: bool(select.select([pipe], [], [], 0)[0]))  # the next one is in the pipe
        process.send_signal(signal.SIGTERM)
        while more := os.read(pipe.fileno(), 1 << 16):
            seen += more
        assert process.wait(WAIT_S) == 130
    assert sorted([json.loads(line)["body"] for line in seen.splitlines()] + pending(app)) == list(range(300))


def _default_signals() -> None:
    """A test runner in the background may ignore some."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


def test_follow_waits_for_more(url: str, app: Ignis) -> None:
    queue = app.queue("orders", int, shards=2)
    queue.open()
    with start(url, "consume", "orders", "--follow", preexec_fn=_default_signals) as process:
        assert process.stdout is not None
        for number in range(3):
            queue.publish(number)
            assert json.loads(process.stdout.readline())["body"] == number
        eventually(lambda: not queue.main.in_flight())
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    assert pending(app) == []


def test_follow_without_acknowledging_shows_each_once(url: str, app: Ignis) -> None:
    queue = app.queue("orders", int, shards=2)
    queue.publish_many([0, 1])
    with start(url, "consume", "orders", "--follow", "--no-ack", "-n", "4") as process:
        assert process.stdout is not None
        first = {json.loads(process.stdout.readline())["body"] for _ in range(2)}
        queue.publish_many([2, 3])
        rest = [json.loads(line)["body"] for line in process.stdout]
        assert process.wait(WAIT_S) == 0
    assert (first, sorted(rest)) == ({0, 1}, [2, 3])
    assert pending(app) == [0, 1, 2, 3]


def test_create_says_what_it_changes_of_a_queue_that_is_there(run: Run) -> None:
    assert run("queue", "create", "orders", "--shards", "8")[0] == 0
    assert run("queue", "create", "orders")[2] == "queue orders is there already, and stays as it is\n"
    code, _, err = run("queue", "create", "orders", "--shards", "16", "--message-expiry", "2d")
    assert (code, err) == (
        0,
        "queue orders is there already; changed: shards 8 -> 16, message expiry never -> 2 d\n",
    )
    code, [line], _ = run("queue", "create", "orders", "--stuck-after", "30m", "--json")
    assert json.loads(line) == {
        "queue": "orders",
        "created": False,
        "shards": 16,
        "durability": "sync",
        "changed": {"stuck_after_s": {"from": 1_200, "to": 1_800}},
    }
    assert run("queue", "create", "orders", "--on-expiry", "sideline")[2] == (
        "queue orders is there already; changed: on expiry drop -> sideline\n"
    )
    assert run("queue", "create", "orders")[2] == "queue orders is there already, and stays as it is\n"


def test_create_takes_what_is_stored_with_a_queue(run: Run, app: Ignis) -> None:
    asked = ["--max-returns", "2", "--shovel-interval", "1m", "--shovel-concurrency", "1", "--concurrency", "3"]
    policy = "attempts=3 base_s=1.0 factor=2.0 max_s=60.0 jitter=true"
    assert run("queue", "create", "orders", *asked, "--handler-type", "bill", "--shovel-retry", policy)[0] == 0
    record = app.store.queues.get("orders")
    assert record is not None
    assert (record.max_returns, record.shovel_interval_s, record.shovel_concurrency) == (2, 60, 1)
    assert (record.concurrency, record.handler_type, shovel_retry_of(record)) == (3, "bill", policy)
    code, _, err = run("queue", "create", "orders", "--shovel-retry", "", "--concurrency", "2", "--max-returns", "0")
    assert (code, err) == (
        0,
        f"queue orders is there already; changed: max returns 2 -> 0, concurrency 3 -> 2, shovel retry {policy} -> -\n",
    )
    assert run("queue", "create", "orders", "--max-returns", "-1")[0] == 2
    app.store.queues.update("orders", lambda record: setattr(record, "concurrency", 0))
    code, _, err = run("queue", "create", "orders", "--concurrency", "2", "--shards", "64")
    assert (code, "as its handler says (concurrency=0)" in err) == (2, True)
    record = app.store.queues.get("orders")
    assert record is not None
    assert record.shards == 32, "nothing was changed"


def test_watch_says_where_the_queue_goes(run: Run) -> None:
    assert run("queue", "create", "orders")[0] == 0
    code, _, err = run("stats", "--watch", "orders")
    assert code == 2
    assert "'orders' is no number of seconds. A queue goes before it: ignis stats orders --watch" in err
