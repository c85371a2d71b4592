"""Finding messages by the command line, and texts that name what a person is to type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ignis import errors
from ignis.app import Ignis
from ignis.cli import main
from ignis.message import failed_record, message_id
from ignis.native import Record, encode_record, id_text
from ignis.storage.base import Transfer
from tests.support.broker import RunningBroker

Run = Callable[..., "tuple[int, list[str], str]"]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str) -> Run:
    monkeypatch.setenv("IGNIS_URL", url)

    def call(*arguments: str) -> tuple[int, list[str], str]:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out.splitlines(), err

    return call


@pytest.fixture(params=["embedded", "broker"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        yield f"embedded://{tmp_path / 'store'}"
        return
    with RunningBroker(f"embedded://{tmp_path / 'store'}") as broker:
        yield broker.url


@pytest.fixture
def app(url: str) -> Iterator[Ignis]:
    with Ignis(url) as opened:
        yield opened


@pytest.fixture
def ids(app: Ignis) -> dict[str, str]:
    """A message in each state."""
    queue = app.queue("orders", shards=2)
    found = {}
    failing = queue.publish({"n": "failing"}, key="k-fail")
    (claimed,) = queue.main.fire(1)
    assert claimed.record is not None
    failed = failed_record(claimed.record, "timeout", "too long")
    moved = queue.main.store.transfer(
        "orders", "orders_SIDELINE", [Transfer(claimed.shard, claimed.pointer, failed, 0)]
    )
    assert moved == 1
    found["sideline"] = failing.id
    found["in flight"] = queue.publish({"n": "claimed"}, key="k1").id
    assert len(queue.main.fire(1)) == 1
    found["waiting"] = queue.publish({"n": "wäits"}, key="k1", headers={"trace": "t-1", "size": 7, "deep": [1, "a"]}).id
    found["delayed"] = queue.publish({"n": "later"}, delay="1h", headers={"trace": "t-1"}).id
    app.queue("bills", int).publish(1)
    return found


def documents(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def test_an_id_is_found_wherever_it_is(run: Run, ids: dict[str, str]) -> None:
    for state, id in ids.items():
        code, out, _ = run("find", id.upper(), "--json")
        (found,) = documents(out)
        assert (code, found["queue"], found["state"], found["id"]) == (0, "orders", state, id)
        assert ("due_at_ms" in found) == (state == "delayed")
    code, out, _ = run("find", ids["sideline"])
    assert (code, len(out), "timeout" in out[1]) == (0, 2, True)


def test_by_key_header_and_text(run: Run, ids: dict[str, str]) -> None:
    def states(*arguments: str) -> list[str]:
        code, out, _ = run("find", *arguments, "--json")
        assert code == (0 if out else 5)
        return sorted(one["state"] for one in documents(out))

    assert states("--key", "k1") == ["in flight", "waiting"]
    assert states("--key", "k1", "--text", "wä") == ["waiting"]
    assert states("--header", "trace=t-1") == ["delayed", "waiting"]
    assert states("--header", "trace=t-1", "--header", "size=7") == ["waiting"]
    assert states("--header", 'deep=[1,"a"]') == ["waiting"]
    assert states("--header", "trace=t") == []
    assert states("--text", "later", "--queue", "bills") == []
    assert states("--key", "k1", "--limit", "1") == ["in flight"]


def test_how_much_it_looks_at_is_bounded_and_said(run: Run, ids: dict[str, str]) -> None:
    code, out, err = run("find", ids["sideline"], "--most", "2", "--queue", "orders")
    assert (code, out, "only 2 messages were looked at" in err) == (5, [], True)
    assert run("find")[0] == 2
    assert run("find", "--limit", "3")[0] == 2
    assert run("find", "--header", "trace")[0] == 2
    assert run("find", "--key", "k1", "--queue", "nothing")[0] == 5


def test_a_queue_alone_shows_some_of_each_place(run: Run, app: Ignis, ids: dict[str, str]) -> None:
    code, out, _ = run("find", "--queue", "orders", "--json")
    assert (code, {one["state"]: one["id"] for one in documents(out)}) == (0, ids)
    app.queue("orders").publish_many([{"n": "more"}] * 50, delay="1h")
    code, out, err = run("find", "--queue", "orders", "--limit", "6")
    assert (code, [line.split()[1] for line in out[1:]]) == (0, ["delayed"] * 3 + ["in", "waiting", "sideline"])
    assert "orders: 51 delayed, 1 waiting, 1 in flight, 1 in the sideline; 6 of them shown" in err
    app.queue("empty", int).open()
    code, out, err = run("find", "--queue", "empty")
    assert (code, out, "empty: 0 delayed, 0 waiting" in err) == (5, [], True)


@pytest.mark.parametrize("url", ["embedded"], indirect=True)
def test_what_is_no_id_is_named(run: Run, app: Ignis) -> None:
    code, _, err = run("find", "order-7")
    assert (code, "'order-7' is not the id of a message, which is a UUID" in err) == (2, True)
    queue = app.queue("orders", int)
    queue.publish(1)
    for given in ("order-7", "", 7, None, b"x", "\ud800", ["a"], UUID):
        for call in (queue.later.find, queue.later.cancel, queue.later.run_now, queue.cancel, message_id):
            with pytest.raises(errors.InvalidMessageError, match="is not the id of a message, which is a UUID"):
                call(given)
        with pytest.raises(errors.InvalidMessageError, match="is not the id of a message, which is a UUID"):
            queue.delete(ids=[given])


def test_a_queue_that_holds_messages_is_refused_with_the_option(run: Run, ids: dict[str, str]) -> None:
    code, _, err = run("queue", "delete", "orders", "--yes")
    assert (code, "delete it with --force" in err) == (1, True)


def test_all_sidelines_are_listed(run: Run, app: Ignis, ids: dict[str, str]) -> None:
    code, out, _ = run("sideline", "list")
    assert (code, [line.split()[:3] for line in out]) == (0, [["queue", "reason", "count"], ["orders", "timeout", "1"]])
    (told,) = documents(run("sideline", "list", "--json")[1])
    assert [(one["queue"], one["total"]) for one in told["queues"]] == [("bills", 0), ("orders", 1)]
    assert "no message failed for that reason" in run("sideline", "list", "--reason", "crash")[2]
    assert "every sideline" not in run("sideline", "list", "orders")[2]


def test_a_message_whose_metadata_cannot_be_read_is_shown_as_that(app: Ignis, run: Run) -> None:
    queue = app.queue("orders", shards=1)
    queue.open()
    odd = encode_record(b"1", meta=b"\xc0")
    queue.main.store.load_records(
        "orders", 0, [encode_record(b'{"n": 1}'), odd, b"no record", encode_record(b'{"n": 2}')]
    )
    code, lines, _ = run("find", "--queue", "orders")
    assert code == 0
    assert sum("unreadable" in line for line in lines) == 2
    assert sum(id_text(Record(odd).id) in line for line in lines) == 1
    code, lines, _ = run("find", "--queue", "orders", "--json")
    found = [json.loads(line) for line in lines]
    assert [(one["reason"], one["failures"]) for one in found] == [
        (None, 0),
        ("unreadable", 0),
        ("unreadable", None),
        (None, 0),
    ]
