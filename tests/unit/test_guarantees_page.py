"""docs/guarantees.md: every statement has a mark, every mark leads to tests that exist, and no entry is left over."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.support.parsing import parse

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guarantees.md"
LONGEST_SENTENCE = 35

MARK = re.compile(r"\[(T[1-9]\d*)\]")
TEST = re.compile(r"`((?:tests|csrc/tests)/[\w/.]+)::((?:\w+::)?\w+)`")
LONG = "pytest.mark.long"
TESTS = "\n## The tests\n"
# A sentence that ends inside a statement: the next one has to have a mark of its own.
SECOND_SENTENCE = re.compile(r"[.!?][\"')*`]*\s+[A-Z`]")


def statements(page: str) -> list[str]:
    """Paragraphs, items and rows of tables, each on a line of its own, without headings and the heads of tables."""
    body = page.partition(TESTS)[0]
    found: list[str] = []
    lines = [line.strip() for line in body.splitlines()]
    for number, line in enumerate(lines):
        is_ruler = set(line) <= set("|-: ")
        is_head = line.startswith("|") and number + 1 < len(lines) and set(lines[number + 1]) <= set("|- ") != set()
        begins = line.startswith(("|", "* ", "- ")) or (
            number > 0 and (not lines[number - 1] or lines[number - 1][0] in "|#")
        )
        if not line or line.startswith("#") or is_ruler or (is_head and lines[number + 1]):
            continue
        if begins or not found:
            found.append(line)
        else:
            found[-1] += f" {line.removeprefix('> ')}"
    return found


@functools.cache
def functions(path: str) -> frozenset[str]:
    if path.endswith(".c"):
        return frozenset(re.findall(r"^static void (\w+)\(", (ROOT / path).read_text("utf-8"), re.MULTILINE))
    return frozenset(name for name, _ in owned(path))


@functools.cache
def owned(path: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of a file and of its classes."""
    module = parse((ROOT / path).read_text("utf-8"))
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    owners: list[tuple[str, ast.Module | ast.ClassDef]] = [("", module), *((f"{one.name}::", one) for one in classes)]
    return [
        (f"{prefix}{node.name}", node)
        for prefix, owner in owners
        for node in owner.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


@functools.cache
def left_out(path: str) -> frozenset[str]:
    """The tests of a file that are marked `long` as a whole, and so are no part of `make test`."""
    if path.endswith(".c") or not (ROOT / path).is_file():
        return frozenset()
    return frozenset(name for name, node in owned(path) if any(ast.unparse(one) == LONG for one in node.decorator_list))


def faults(page: str) -> list[str]:
    """What is wrong with the page, a line each."""
    found: list[str] = []
    used: set[str] = set()
    for statement in statements(page):
        used.update(MARK.findall(statement))
        if statement.startswith("|"):
            cells = statement.strip("| ").split(" | ")
            if MARK.sub("", cells[-1]).strip() or not MARK.search(cells[-1]):
                found.append(f"a row without a mark: {statement[:80]}")
            sentences = [part for cell in cells for part in re.split(r"(?<=\.)\s", cell)]
        else:
            *marked, last = re.split(r"(?:\s*\[T\d+\])+", statement)
            if last.strip("* "):
                found.append(f"a statement without a mark: {last.strip()[:80]}")
            found += [
                f"a sentence without a mark: {one.strip()[:80]}" for one in marked if SECOND_SENTENCE.search(lead(one))
            ]
            sentences = marked
        found += [
            f"over {LONGEST_SENTENCE} words: {one.strip()[:80]}"
            for one in sentences
            if len(lead(one).split()) > LONGEST_SENTENCE
        ]
    listed: list[str] = []
    for row in page.partition(TESTS)[2].splitlines():
        mark = re.match(r"\| (T\d+) \|", row)
        if mark is None:
            continue
        listed.append(mark[1])
        tests = TEST.findall(row)
        if not tests or TEST.sub("", row[mark.end() :]).replace("<br>", "").strip("| "):
            found.append(f"{mark[1]} names something that is no test: {row}")
        for path, name in tests:
            is_test = path.endswith(".c") or name.rpartition("::")[2].startswith("test_")
            if not (ROOT / path).is_file() or not is_test or name not in functions(path):
                found.append(f"{mark[1]}: there is no test {path}::{name}")
        if tests and all(name in left_out(path) for path, name in tests):
            found.append(f"{mark[1]}: `make test` leaves out each of its tests, which are marked long")
    found += [f"{mark} stands twice in the table" for mark in sorted(set(listed)) if listed.count(mark) > 1]
    found += [f"{mark} is not in the table" for mark in sorted(used - set(listed))]
    found += [f"{mark} is used nowhere" for mark in sorted(set(listed) - used)]
    return found


def lead(sentence: str) -> str:
    """Without the words in bold that head an item: they are its title."""
    return re.sub(r"^\s*[*-] (?:\*\*[^*]+\*\* ?)?", "", sentence)


def test_every_statement_has_its_tests() -> None:
    page = PAGE.read_text("utf-8")
    assert len(statements(page)) > 60
    assert faults(page) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("\n## Delivery\n", "\nNothing is ever lost.\n\n## Delivery\n", "a statement without a mark: Nothing is ever lost."),
        ("\n* **Order.** ", "\n* Ignis is fast.\n* **Order.** ", "a statement without a mark: * Ignis is fast."),
        ("\n* **Order.** ", "\n* **Order.** Ignis is fast. ", "a sentence without a mark: * **Order.** Ignis is fast."),
        ("\n| a queue is paused |", "\n| a comet falls | Nothing | |\n| a queue is paused |", "a row without a mark: | a comet"),
        ("\n| T1 | ", "\n| T1 | `tests/unit/test_no_such.py::test_a` <br> ", "T1: there is no test tests/unit/test_no_such.py"),
        ("\n| T1 | ", "\n| T1 | `tests/unit/test_queue.py::test_no_such` <br> ", "T1: there is no test tests/unit/test_queue.py"),
        ("\n| T1 | ", "\n| T1 | `tests/unit/test_guarantees_page.py::faults` <br> ", "T1: there is no test tests/unit/test_guar"),
        (
            "\n| T1 | ",
            "\n| T9999 | `tests/crash/test_mutants.py::test_planted_faults_are_caught` |\n| T1 | ",
            "T9999: `make test` leaves out each of its tests",
        ),
        ("\n| T1 | ", "\n| T1 | by reasoning ", "T1 names something that is no test"),
        ("\n| T1 | ", "\n| T1 | `tests/unit/test_queue.py::test_figures` |\n| T1 | ", "T1 stands twice in the table"),
        ("\n| T1 | ", "\n| T9999 | ", "T1 is not in the table"),
        ("\n| T1 | ", "\n| T9999 | `tests/unit/test_queue.py::test_figures` |\n| T1 | ", "T9999 is used nowhere"),
        ("\n* **Order.** ", f"\n* **Order.** {'very ' * 40}good. [T1] ", "over 35 words"),
    ],
)  # fmt: skip
def test_the_gate_can_fail(old: str, new: str, says: str) -> None:
    page = PAGE.read_text("utf-8")
    assert page.count(old) == 1
    assert any(one.startswith(says) for one in faults(page.replace(old, new))), faults(page.replace(old, new))
