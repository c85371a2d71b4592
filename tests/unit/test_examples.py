"""The examples in the docstrings of what a user meets run as they stand, and say what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

import ignis
from ignis.async_publisher import AsyncPublisher
from ignis.testing import ManualClock

CLASSES = [
    ignis.Ignis, ignis.Queue, ignis.Message, ignis.Context, ignis.Publisher, AsyncPublisher, ignis.Magazine,
    ignis.ArrayQueue, ignis.Lock, ignis.LockManager, ManualClock,
]  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_example_runs(cls: type) -> None:
    module = importlib.import_module(cls.__module__)
    found = doctest.DocTestFinder(recurse=False).find(cls, cls.__name__, module)
    assert sum(len(one.examples) for one in found) >= 1, "the docstring has no example"
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found[0], out=said.append)
    assert result.failed == 0, "".join(said)


def public_properties(cls: type) -> dict[str, property]:
    return {
        name: value
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and isinstance(value, property)
    }


@pytest.mark.parametrize("cls", [*CLASSES, ignis.Fired], ids=lambda cls: cls.__name__)
def test_what_is_public_says_what_it_is(cls: type) -> None:
    assert inspect.getdoc(cls)
    silent = [name for name, value in public_properties(cls).items() if not value.__doc__]
    assert not silent, f"{cls.__name__}: properties without a line"
