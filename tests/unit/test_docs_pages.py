"""The pages: every one is in the index, no link is dead, and no name of a module or file in them is old."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "index.md"
# A wheel is tried with docs/ beside the tests, but without what belongs to the repository.
HOME = [page for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md") if (page := ROOT / name).is_file()]
PAGES = [*HOME, *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\S\n]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]*)\)")
FILE = re.compile(r"`([\w./-]+\.(?:pyx|pxi|pxd|py|c|h|lua))\b")
FOLDERS = ("ignis", "csrc", "tests", "scripts", "bench")
NAME = re.compile(r"`(ignis(?:\.\w+)+)")
FROM = re.compile(r"^ *from (ignis[\w.]*) import ([\w, ]+)", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As the forge makes them of headings."""
    found = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", one).lower()).strip().replace(" ", "-") for one in found}


def dead_links(page: Path) -> list[str]:
    dead = []
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            dead.append(f"{page.name}: {link}: there is no such file")
        elif anchor and anchor not in anchors(target):
            dead.append(f"{page.name}: {link}: there is no such heading")
    return dead


def old_names(page: Path) -> list[str]:
    text = page.read_text("utf-8")
    # Files of an example are made by its own fences.
    files = {name for name in FILE.findall(text) if f"file={name}" not in text and not is_file(name)}
    old = [f"{page.name}: there is no {name}" for name in sorted(files)]
    dotted = {*NAME.findall(text), *(f"{module}.{name.split()[0]}" for module, names in FROM.findall(text)
                                     for name in names.split(","))}  # fmt: skip
    return old + [
        f"{page.name}: there is no {name}" for name in sorted(dotted) if not is_there(name) and not is_told(name)
    ]


TRACED = [
    *(ROOT / "ignis" / "tracing").glob("*.py"),
    *(ROOT / "ignis" / "spark").glob("*.py"),
    ROOT / "ignis" / "consumer" / "traced.py",
]


def is_told(dotted: str) -> bool:
    """Whether spans have an attribute or an event of that name."""
    return any(f'"{dotted}"' in path.read_text("utf-8") for path in TRACED)


def is_file(name: str) -> bool:
    """Whether the repository has the file; one without a folder may be anywhere in it."""
    if name.startswith(FOLDERS) and "/" in name:
        return (ROOT / name).is_file()
    return (ROOT / name).is_file() or any(next((ROOT / folder).rglob(name), None) for folder in FOLDERS)


def is_there(dotted: str) -> bool:
    """Whether a module, or something in one, has that name."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name and not error.name.startswith("ignis"):
                return True  # an extra that is not installed: the module is there
            continue
        for name in parts[count:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def test_every_page_is_in_the_index() -> None:
    linked = set(LINK.findall(INDEX.read_text("utf-8")))
    missing = {page.name for page in (ROOT / "docs").glob("*.md")} - linked - {"index.md"}
    assert not missing, "docs/index.md says what each page is for"


def test_the_readme_leads_to_the_index() -> None:
    if not HOME:
        pytest.skip("no repository around the tests")
    assert "docs/index.md" in LINK.findall((ROOT / "README.md").read_text("utf-8"))


def test_no_link_is_dead() -> None:
    if not HOME:
        pytest.skip("no repository around the tests")
    assert [dead for page in PAGES for dead in dead_links(page)] == []


def test_no_name_is_old() -> None:
    if not HOME:
        pytest.skip("no repository around the tests")
    assert [old for page in PAGES for old in old_names(page)] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a](no-such.md)", "no-such.md: there is no such file"),
        ("# One heading\n[a](#another)", "#another: there is no such heading"),
        ("`ignis/no_such.py`", "there is no ignis/no_such.py"),
        ("`ignis.queue.NoSuch`", "there is no ignis.queue.NoSuch"),
        ("```python\nfrom ignis.queue import Queue, NoSuch\n```", "there is no ignis.queue.NoSuch"),
    ],
)
def test_the_gate_can_fail(text: str, says: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert [one.partition(": ")[2] for one in (*dead_links(page), *old_names(page))] == [says]


def test_the_readme_names_every_extra_for_users() -> None:
    text = (
        (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    )
    extras = set(re.findall(r"^([a-z]+) = ", text, re.MULTILINE)) - {"bench", "demo", "dev", "test"}
    [named] = re.findall(r"# extras: (.*)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert set(named.split(", ")) == extras
