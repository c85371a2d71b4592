"""Fixtures of all tests: applications on fresh stores, closed at the end whatever happens."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from tests.support import Gate, Journal

MakeApp = Callable[..., ignis.Ignis]

_names = itertools.count(1)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("IGNIS_") and not name.startswith("IGNIS_TEST_"):
            monkeypatch.delenv(name)


def url_of(kind: str, tmp_path: Path) -> str:
    """A fresh store that several applications of this process can open."""
    return f"memory://test-{os.getpid()}-{next(_names)}" if kind == "memory" else f"embedded://{tmp_path}/store"


@pytest.fixture(params=["memory", "embedded"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every test that asks for it, or for an application, runs on both stores."""
    return url_of(request.param, tmp_path)


@pytest.fixture
def embedded_url(tmp_path: Path) -> str:
    return url_of("embedded", tmp_path)


@pytest.fixture
def memory_url(tmp_path: Path) -> str:
    return url_of("memory", tmp_path)


@pytest.fixture
def new_app() -> Iterator[MakeApp]:
    """``new_app(url, **options)``: an application that is closed after the test."""
    made: list[ignis.Ignis] = []

    def make(url: str, **options: Any) -> ignis.Ignis:
        made.append(ignis.Ignis(url, **options))
        return made[-1]

    yield make
    for app in reversed(made):
        app.close(timeout=5)


@pytest.fixture
def app(store_url: str, new_app: MakeApp) -> ignis.Ignis:
    return new_app(store_url)


@pytest.fixture
def memory_app(memory_url: str, new_app: MakeApp) -> ignis.Ignis:
    """For what does not depend on the store."""
    return new_app(memory_url)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A journal that this process and its worker processes find under ``IGNIS_TEST_JOURNAL``."""
    path = tmp_path / "journal"
    monkeypatch.setenv("IGNIS_TEST_JOURNAL", str(path))
    return Journal(path)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A handler that holds every message until the test, or its end, opens it."""
    gate = Gate()
    yield gate
    gate.open.set()


def pytest_configure() -> None:
    """A shell that starts the tests in the background lets them ignore SIGINT, and so would the processes that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_OF_SPARK = ("tests/integration/pipeline/", "tests/integration/spark/", "tests/integration/test_demo_spark.py")


_LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="run what is marked `long` too, which is left out otherwise (-m long: that alone)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `long`, unless `--long` or an expression of `-m` speaks of it.

    Where several processes share the tests, those of Spark come first: one process takes them all, and at the end the others
    would wait for it."""
    if not config.getoption("--long") and not re.search(r"\blong\b", config.option.markexpr):
        long = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        config.stash[_LEFT_OUT] = len(long)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(_OF_SPARK))


def pytest_collection_finish() -> None:
    """What eleven thousand collected tests are made of is not looked at again by each collection: that took half a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process has collected all tests, and the one that writes the summary none."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if left_out := config.stash.get(_LEFT_OUT, 0):
        how = "`make test-long` runs them, `--long` with a file or a test those too"
        terminalreporter.line(f"Of the tests {left_out} marked `long` were left out: {how}.")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A process takes whole files, and one of them all files that use Spark: its JVM is slow until it has run for a while, and
    takes a gigabyte."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler.loadfile import LoadFileScheduling

    class OneForSpark(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(_OF_SPARK) else super()._split_scope(nodeid)

    return OneForSpark(config, log)
