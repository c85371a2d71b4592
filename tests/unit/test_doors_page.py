"""The table of docs/delays.md that says which time each way to publish takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ignis
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.sync_client import SyncClient
from ignis.cli.publish import publish as publish_command
from ignis.magazine import Magazine
from ignis.schedules.book import Schedules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "delays.md"
TIMES = ("delay", "at", "expires_in", "expires_at")


def arguments(*calls: Callable[..., Any]) -> set[str]:
    """What all of them take; they take the same."""
    found = [set(inspect.signature(one).parameters) & {*TIMES, "delay_s"} for one in calls]
    assert all(one == found[0] for one in found), found
    return {one.removesuffix("_s") for one in found[0]}


def options(names: Iterable[str | None]) -> set[str]:
    return set(TIMES) & {name for name in names if name}


def doors() -> dict[str, set[str]]:
    """What each door takes, from the code."""
    queue, publisher = ignis.Queue, ignis.Publisher
    found = {
        "`queue.publish`, `publish_many`, `apublish`": arguments(queue.publish, queue.publish_many, queue.apublish),
        "`publisher.send`, `asend`": arguments(publisher.send, publisher.asend),
        "`ignis publish`": options(one.name for one in publish_command.params),
        "`send_later` of a broker's client": arguments(SyncClient.send_later, AsyncClient.send_later),
        "`send`, `send_batch` of a broker's client": arguments(
            SyncClient.send, AsyncClient.send, SyncClient.send_batch, AsyncClient.send_batch
        ),
        "`magazine.load`, `load_many`": arguments(Magazine.load, Magazine.load_many),
        "`app.schedules.add`": arguments(Schedules.add),
    }
    console = pytest.importorskip("ignis.console.gateway", exc_type=ImportError)
    found["the console's `publish`"] = options(one.name for one in msgspec.structs.fields(console.Publish))
    return found


def spark_doors() -> dict[str, set[str]]:
    stages = pytest.importorskip("ignis.spark.stages", exc_type=ImportError)
    pandas_stages = pytest.importorskip("ignis.spark.pandas_stages", exc_type=ImportError)
    sink = pytest.importorskip("ignis.spark.sink", exc_type=ImportError)
    taken = options(inspect.signature(sink.Target).parameters)
    assert taken == arguments(stages.publish)
    return {
        "Spark's `publish` and sink, as columns": taken,
        "`publish_in_pandas`": arguments(pandas_stages.publish_in_pandas),
    }


def table() -> dict[str, set[str]]:
    """What the page says."""
    rows = re.findall(
        r"^\| (.+?) \| (yes|no) \| (yes|no) \| (yes|no) \| (yes|no) \|", PAGE.read_text("utf-8"), re.MULTILINE
    )
    return {door: {name for name, word in zip(TIMES, words, strict=True) if word == "yes"} for door, *words in rows}


def test_each_door_takes_what_the_page_says() -> None:
    said = {door: times for door, times in table().items() if "park" not in door and "pandas" not in door}
    assert said == doors()


def test_and_those_of_spark() -> None:
    assert {door: times for door, times in table().items() if "park" in door or "pandas" in door} == spark_doors()


def test_the_doors_of_a_queue_are_all_there() -> None:
    """A method that publishes and is in no row would be missed."""
    rows = " ".join(table())
    for kind, prefix in (
        (ignis.Queue, ("publish", "apublish")),
        (ignis.Publisher, ("send", "asend")),
        (SyncClient, ("send",)),
    ):
        for name, _ in inspect.getmembers(kind, callable):
            if name.startswith(prefix) and name not in ("publisher", "apublish_many"):  # the latter hands everything on
                assert f"{name}`" in rows, name
