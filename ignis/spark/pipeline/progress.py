"""What a pipeline says while it runs. The library prints nothing: whoever starts it gives a `Progress` that does."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from ignis import errors
from ignis.errors import IgnisError
from ignis.spark._pyspark import Py4JJavaError, PySparkException, SparkSession
from ignis.stacks import start_thread

__all__ = ["Progress", "Shown", "Step", "watched"]

_LOOK_S = 0.25
_OURS = re.compile(r"(?:ignis\.errors\.)?([A-Za-z]+): (.*)")


class Step:
    """One step that is done.

    Attributes: ``name`` (stable, for programs), ``title`` (for people), ``count`` (rows or files, None = not counted),
    ``seconds``.
    """

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self.count: int | None = None
        self.seconds = 0.0


class Progress:
    """Told about each step; this one says nothing. Its methods are called by one thread at a time."""

    def begin(self, step: Step) -> None:
        """The step begins."""

    def tasks(self, step: Step, done: int, total: int) -> None:
        """Of the Spark stages that run now, so many tasks are done. Called about four times a second."""

    def end(self, step: Step) -> None:
        """The step went well: what it promises is in place."""

    def note(self, text: str) -> None:
        """Something that is about to be done otherwise than may be expected, in words."""


class _Part(Protocol):
    def done(self, count: int, total: int | None = None, says: str | None = None) -> None: ...

    def end(self, count: int | None) -> None: ...


class _Display(Protocol):
    def phase(self, title: str, total: int | None = None) -> contextlib.AbstractContextManager[_Part]: ...

    def note(self, text: str) -> None: ...


class Shown(Progress):
    """Shows the steps on a display for people: `ignis.progress.Progress`."""

    def __init__(self, display: _Display) -> None:
        self._display = display
        self._open = contextlib.ExitStack()
        self._part: _Part | None = None

    def begin(self, step: Step) -> None:
        self._open.close()
        self._part = self._open.enter_context(self._display.phase(step.title))

    def tasks(self, step: Step, done: int, total: int) -> None:
        if self._part is not None:
            self._part.done(done, total, f"{done:,} of {total:,} tasks")

    def end(self, step: Step) -> None:
        if self._part is not None:
            self._part.end(step.count)
        self._open.close()

    def note(self, text: str) -> None:
        self._display.note(text)


@contextlib.contextmanager
def watched(progress: Progress, spark: SparkSession, name: str, title: str) -> Iterator[Step]:
    """Runs a step under the eyes of ``progress``.

    Raises IgnisError for what Spark raises, in one line; where an error of ours ended a task, one of its type.
    """
    step = Step(name, title)
    progress.begin(step)
    began = time.monotonic()
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(progress, spark, step, ended), daemon=True, name="ignis-progress")
    start_thread(watcher)
    try:
        yield step
    except (PySparkException, Py4JJavaError) as exc:
        raise _in_one_line(title, exc) from exc
    finally:
        ended.set()
        watcher.join(10)
    step.seconds = time.monotonic() - began
    progress.end(step)


def _in_one_line(title: str, exc: Exception) -> IgnisError:
    if isinstance(exc, Py4JJavaError):
        cause: Any = exc.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        return IgnisError(f"{title} failed: {cause.toString()}")
    lines = [line for line in str(exc).splitlines() if line.strip()] or [type(exc).__name__]
    raised = "Traceback (most recent call last):" in str(exc)
    # The last line of a traceback is what was raised; otherwise the first line says what is wrong.
    said = lines[-1].strip() if raised else lines[0].strip()
    found = _OURS.fullmatch(said) if raised else None
    kind = getattr(errors, found[1], None) if found is not None else None
    if found is not None and isinstance(kind, type) and issubclass(kind, IgnisError):
        with contextlib.suppress(TypeError):  # one that is made of more than a text
            return kind(f"{title} failed: {found[2]}")
    return IgnisError(f"{title} failed: {said}")


def _watch(progress: Progress, spark: SparkSession, step: Step, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not ended.wait(_LOOK_S):
        with contextlib.suppress(Exception):  # what is only shown must not end, nor disturb, what is done
            _look(progress, tracker, step, ended)


def _look(progress: Progress, tracker: Any, step: Step, ended: threading.Event) -> None:
    stages = [found for one in tracker.getActiveStageIds() if (found := tracker.getStageInfo(one)) is not None]
    total = sum(one.numTasks for one in stages)
    if total and not ended.is_set():
        progress.tasks(step, sum(one.numCompletedTasks for one in stages), total)
