"""``ignis schedules``: what it prints, what it changes, and how it ends."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ignis.app import Ignis
from ignis.cli import main

Run = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path / 'store'}"


@pytest.fixture
def app(url: str) -> Iterator[Ignis]:
    with Ignis(url) as opened:
        opened.queue("reports", dict).open()
        opened.queue("lines", str).open()
        yield opened


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str) -> Run:
    monkeypatch.setenv("IGNIS_URL", url)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        capfd.readouterr()
        code = main(["schedules", *arguments])
        return (code, *capfd.readouterr())

    return call


NIGHTLY = ("add", "nightly", "reports", '{"kind": "sales"}', "--cron", "0 3 * * *", "--timezone", "Europe/Berlin")


def test_none_is_there(app: Ignis, run: Run) -> None:
    assert run("list") == (0, "", "no schedule is stored\n")
    assert run("list", "--json") == (0, "[]\n", "")


def test_added_listed_and_shown(app: Ignis, run: Run) -> None:
    code, out, _ = run(*NIGHTLY)
    assert code == 0
    assert "0 3 * * * Europe/Berlin" in out
    assert '{"kind":"sales"}' in out
    assert run("add", "beat", "lines", "hello, world", "--every", "5m", "--missed", "skip")[0] == 0
    code, out, _ = run("list")
    head, *rows = out.splitlines()
    assert head.split() == ["schedule", "queue", "times", "next", "last", "fired"]
    assert [row.split()[0] for row in rows] == ["beat", "nightly"]
    assert "every 5 min" in rows[0]
    assert run("add", "tick", "lines", "x", "--every", "5s")[0] == 0
    assert "every 5 s  " in run("list")[1]
    app.schedules.remove("tick")
    assert app.schedules.get("beat").message == b"hello, world"
    code, out, _ = run("show", "beat", "--json")
    shown = json.loads(out)
    assert (code, shown["every_s"], shown["cron"], shown["missed"]) == (0, 300.0, None, "skip")
    assert [one["schedule"] for one in json.loads(run("list", "--json")[1])] == ["beat", "nightly"]


def test_added_again_it_is_changed(app: Ignis, run: Run) -> None:
    run(*NIGHTLY)
    assert run("add", "nightly", "reports", "{}", "--every", "1h")[0] == 0
    assert app.schedules.get("nightly").every_s == 3_600


def test_paused_resumed_run_and_removed(app: Ignis, run: Run) -> None:
    run(*NIGHTLY)
    assert run("pause", "nightly") == (0, "schedule nightly paused\n", "")
    assert "paused" in run("list")[1]
    assert run("resume", "nightly", "--json") == (0, '{"schedule":"nightly","resumed":true}\n', "")
    code, out, _ = run("run", "nightly", "--json")
    made = json.loads(out)
    assert code == 0
    (message,) = app.queue("reports", dict).main.peek()
    assert (made["queue"], made["id"], message.message) == ("reports", message.envelope.id, {"kind": "sales"})
    assert run("run", "nightly")[1].startswith("schedule nightly: message ")
    assert run("remove", "nightly")[0] == 2, "it asks, and nobody is there to answer"
    assert run("remove", "nightly", "--yes") == (0, "schedule nightly removed\n", "")
    assert app.schedules.list() == []


@pytest.mark.parametrize("command", ["show", "pause", "resume", "remove", "run"])
def test_a_name_that_is_not_there(app: Ignis, run: Run, command: str) -> None:
    run(*NIGHTLY)
    code, out, err = run(command, "daily")
    assert (code, out) == (5, "")
    assert "schedule 'daily' does not exist; there is nightly" in err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("s", "reports", "{}"), 2, "give --cron or --every"),
        (("s", "reports", "{}", "--cron", "* * * * *", "--every", "5m"), 2, "give --cron or --every"),
        (("s", "reports", "{}", "--cron", "often"), 2, "has 1 fields"),
        (("s", "reports", "{}", "--every", "1ms"), 2, "is outside 0.1 s to 365 days"),
        (("s", "reports", "hello", "--every", "5m"), 2, "is no JSON value"),
        (("s", "nowhere", "{}", "--every", "5m"), 5, "queue 'nowhere' does not exist"),
    ],
)
def test_what_is_refused(app: Ignis, run: Run, arguments: tuple[str, ...], code: int, says: str) -> None:
    found, out, err = run("add", *arguments)
    assert (found, out) == (code, "")
    assert says in err
    assert app.schedules.list() == []
