"""What README and docs tell people to type works as it is written."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_blocks import PAGES, RUN, SHOWN, Block, Page, blocks

pytestmark = pytest.mark.integration

NEEDS = {"aerospike", "spark", "zookeeper", "docker", "repository", "cluster", "root"}
ELSEWHERE = {"aerospike", "zookeeper", "docker", "repository", "cluster", "root"}
"""Not run here: there is no such thing on every machine, or the tests have a way of their own (``repository``)."""
RELAY = "/dev/shm/orders"
"""The relay's directory on its page: shared memory has no place of the test's own."""
PRIVILEGED = re.compile(r"(?<![\w.])/(var|etc|data|opt|srv|mnt)/")

PIP = """#!/bin/sh
# Stands for pip: the packages are there already; that the extras exist is looked at.
exec {python} -c '
import importlib.metadata, re, sys
known = set(importlib.metadata.metadata("ignis-mq").get_all("Provides-Extra"))
for name, extras in re.findall(r"(ignis-mq)\\[([a-z,]*)\\]", " ".join(sys.argv)):
    missing = set(extras.split(",")) - known
    sys.exit(f"no extra {{missing}}") if missing else None
' "$@"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    commands = Path(sys.executable).parent
    if not (commands / "ignis").exists():
        pytest.skip("the command ignis is not installed beside this interpreter")
    shims = tmp_path / "bin"
    shims.mkdir()
    (shims / "pip").write_text(PIP.format(python=sys.executable))
    (shims / "pip").chmod(0o755)
    path = os.pathsep.join((str(shims), str(commands), os.environ["PATH"]))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("IGNIS", "PYTHON"))},
        "PATH": path, "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip


def every() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def test_every_fence_says_its_language() -> None:
    unknown = [str(block) for block in every() if block.language not in (*RUN, *SHOWN)]
    assert not unknown, f"one of {RUN} is run, one of {SHOWN} is shown"
    words = {word for block in every() for word in block.words} - {"file", "background", "continues", "needs"}
    assert not words
    assert {block.words["needs"] for block in every() if "needs" in block.words} <= NEEDS


def test_pages_that_are_followed_in_one_directory_do_not_replace_each_others_files() -> None:
    texts: dict[str, set[str]] = {}
    for block in every():
        if "file" in block.words:
            texts.setdefault(block.words["file"], set()).add(block.text)
    assert [name for name, some in texts.items() if len(some) > 1] == []


def test_who_follows_the_pages_needs_no_rights() -> None:
    asked = [
        f"{block}: {found[0]}"
        for block in every()
        if block.language in RUN and block.words.get("needs") not in ELSEWHERE
        for found in PRIVILEGED.finditer(block.text)
    ]
    assert not asked


def shown() -> Iterator[Any]:
    """Pages with what is run of them. What needs Spark takes a minute a page."""
    for page in PAGES:
        found = [block for block in blocks(page) if block.language in RUN or "file" in block.words]
        if not any(block.language in RUN for block in found):
            continue
        quick = [block for block in found if block.words.get("needs") != "spark"]
        if quick:
            slow = [pytest.mark.long] if page == "docs/performance.md" else []
            yield pytest.param(page, quick, id=page, marks=slow)
        if quick != found:
            yield pytest.param(page, found, id=f"{page} with Spark", marks=pytest.mark.long)


@pytest.mark.parametrize(("page", "found"), list(shown()))
def test_a_page_as_it_is_written(page: str, found: list[Block], environment: dict[str, str], tmp_path: Path) -> None:
    directory = tmp_path / "empty"
    directory.mkdir()
    shutil.rmtree(RELAY, ignore_errors=True)
    running = Page(directory, environment)
    try:
        for block in found:
            if block.words.get("needs") not in ELSEWHERE:
                running.run(block)
    finally:
        wrong = running.close()
        shutil.rmtree(RELAY, ignore_errors=True)
    assert not wrong
