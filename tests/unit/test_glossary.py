"""docs/glossary.md: words that are ours stand beside the field's, and what a user meets says both where the word belongs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import ignis
from ignis.broker.client.async_client import AsyncClient
from ignis.control.refresher import Refresher
from ignis.control.sweeper import Sweeper
from ignis.shovel import Shovel

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"
TABLE = PAGE.read_text("utf-8").partition("## If you know another queue")[2].partition("## All words")[0]
ROWS = re.findall(r"^\| \*\*`?(\w+)`?\*\* \| ([^|]+) \|", TABLE, re.MULTILINE)

WHERE = {
    "magazine": ignis.Magazine,
    "shard": ignis.Magazine,
    "pointer": ignis.Magazine,
    "load": ignis.Magazine,
    "fire": ignis.Magazine,
    "delete": ignis.Magazine,
    "reload": ignis.Magazine,
    "peek": ignis.Magazine,
    "sideline": ignis.Queue,
    "shovel": Shovel,
    "stuck_after": ignis.Queue,
    "sweeper": Sweeper,
    "refresher": Refresher,
    "farm": ignis.Ignis,
    "credit": AsyncClient.subscribe,
    "epoch": Sweeper,
}
"""Whose docstring says the word. A bell is seen by nobody but us."""


def test_each_word_has_its_place() -> None:
    assert {word for word, _ in ROWS} - {"bell"} == set(WHERE)


@pytest.mark.parametrize(("word", "fields"), [row for row in ROWS if row[0] in WHERE])
def test_the_docstring_says_both_words(word: str, fields: str) -> None:
    text = " ".join((inspect.getdoc(WHERE[word]) or "").lower().split())
    assert re.search(rf"\b{word}", text), f"{WHERE[word].__qualname__} does not say {word}"
    names = [name.strip() for name in fields.lower().split(",")]
    assert any(re.search(rf"\b{re.escape(name)}", text) for name in names), (
        f"{WHERE[word].__qualname__} says none of {names}"
    )
