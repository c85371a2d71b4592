"""Imports point one way, and each driver is imported in one file.

The source text is walked, imports inside functions included. What stands under ``if TYPE_CHECKING:`` does not count: it
is never executed, so it cannot make a circle.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis

PACKAGE = Path(ignis.__file__).parent

# Bottom first. A unit (a module or folder directly below the package) may import the units of the layers under its own,
# and itself; never its neighbours.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"_version", "errors"}),
    frozenset(
        {"clock", "escaping", "exit_status", "file_lock", "log_limit", "near_names", "places", "regular_files", "urls"}
    ),
    frozenset({"config", "history", "hooks", "httpd", "main_guard", "native", "stacks", "stop_signals"}),
    frozenset({"body_plan", "handler_form", "pydantic_models", "upkeep"}),
    frozenset({"handler_log", "message"}),
    frozenset({"storage"}),
    frozenset({"pausing", "registration"}),
    frozenset({"array_queue", "locks", "magazine", "middleware", "outcome"}),
    frozenset({"clearing", "handler", "leader", "publisher", "sweep_clock"}),
    frozenset({"async_publisher", "depths", "recovery"}),
    frozenset({"consumer", "shovel", "sweeper"}),
    frozenset({"queue"}),
    frozenset({"autoscaler", "refresher", "template"}),
    frozenset({"app"}),
)

# They use the library and nothing in it uses them; the exceptions are named.
LEAVES: dict[str, frozenset[str]] = {
    "__main__": frozenset({"cli"}),
    "bench": frozenset(),
    "broker": frozenset({"metrics"}),
    "cli": frozenset({"broker", "demo", "relay", "spark", "supervisor"}),
    "console": frozenset(),
    "demo": frozenset({"spark"}),
    "metrics": frozenset(),
    "relay": frozenset(),
    "spark": frozenset(),
    "supervisor": frozenset({"metrics"}),
    "testing": frozenset(),
}

DRIVERS = ("aerospike", "kazoo", "prometheus_client", "psycopg", "pydantic", "pyspark", "pytest", "starlette")

# What only the commands need: a service that publishes does not pay for it at import.
TERMINAL = {"click": {"cli"}, "rich": {"cli", "demo"}}

LIBRARY = frozenset().union(*LAYERS)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}


def unit_of(path: Path) -> str:
    """The unit that a file belongs to; ``""`` for the package's own ``__init__``."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports(node: ast.AST) -> Iterator[str]:
    """Dotted names of what is imported when the code runs; ``from a import b`` gives ``a.b``."""
    if isinstance(node, ast.If) and is_type_checking(node.test):
        for other in node.orelse:
            yield from imports(other)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from (f"{module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def verdict(unit: str, name: str) -> str | None:
    """What is wrong with a unit's import of a name; None when nothing is."""
    if name.startswith("."):
        return f"{unit}: relative import {name}"
    parts = name.split(".")
    if parts[0] != "ignis":
        return None
    target = parts[1] if len(parts) > 1 else ""
    if target not in LIBRARY and target not in LEAVES:
        # `from ignis import Name`, or `import ignis`: the package itself, which imports the whole library.
        target = ""
    if unit == target:
        return None
    if unit in LEAVES:
        allowed = target in LIBRARY or target == "" or target in LEAVES[unit]
    elif unit == "":
        allowed = target in LIBRARY
    else:
        allowed = target in LIBRARY and RANK[target] < RANK[unit]
    return None if allowed else f"{unit or '__init__'} imports {name}"


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def test_every_unit_has_its_place() -> None:
    units = {unit_of(path) for path in PACKAGE.rglob("*.py")} - {""}
    assert units <= LIBRARY | set(LEAVES), "add the new unit to LAYERS or LEAVES"


def test_imports_point_down() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}: {problem}"
        for path, module in sources()
        for name in imports(module)
        if (problem := verdict(unit_of(path), name))
    ]
    assert wrong == []


def test_native_sources_know_only_errors() -> None:
    statement = re.compile(r"\s*(?:from|import|cimport)\s+ignis\b.*")
    rightful = re.compile(r"\s*(?:from\s+ignis\s+import\s+errors\b|(?:from|c?import)\s+ignis\.(?:native|errors)\b).*")
    files = [path for suffix in ("pyx", "pxd", "pxi") for path in (PACKAGE / "native").glob(f"*.{suffix}")]
    wrong = [
        f"{path.name}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if statement.fullmatch(line) and not rightful.fullmatch(line)
    ]
    assert wrong == []


def test_each_driver_is_imported_in_one_file() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path, module in sources():
        for name in imports(module):
            if (top := name.split(".")[0]) in DRIVERS:
                found[top].add(str(path.relative_to(PACKAGE)))
    assert {driver: files for driver, files in found.items() if len(files) > 1} == {}


@pytest.mark.parametrize("name", sorted(TERMINAL))
def test_terminal_libraries_stay_with_the_commands(name: str) -> None:
    users = {unit_of(path) for path, module in sources() for used in imports(module) if used.split(".")[0] == name}
    assert users <= TERMINAL[name]


@pytest.mark.parametrize(
    ("unit", "source"),
    [
        ("storage", "from ignis.magazine import Magazine"),
        ("storage", "def f():\n    import ignis.app"),
        ("errors", "import ignis.config"),
        ("consumer", "from ignis import Queue"),
        ("consumer", "from ignis import sweeper"),
        ("app", "from ignis.cli import main"),
        ("", "from ignis import demo"),
        ("demo", "from ignis.cli import render"),
        ("magazine", "from .queue import Queue"),
        ("queue", "try:\n    from ignis.app import Ignis\nexcept ImportError:\n    raise"),
        ("queue", "if TYPE_CHECKING:\n    pass\nelse:\n    from ignis.app import Ignis"),
    ],
)
def test_a_planted_import_is_found(unit: str, source: str) -> None:
    assert any(verdict(unit, name) for name in imports(ast.parse(source)))


@pytest.mark.parametrize(
    ("unit", "source"),
    [
        ("queue", "if TYPE_CHECKING:\n    from ignis.app import Ignis"),
        ("storage", "from ignis.storage.base import Store"),
        ("magazine", "from ignis.storage.base import Store"),
        ("cli", "from ignis import Ignis\nfrom ignis.demo import run"),
        ("native", "from ignis.errors import IgnisError"),
    ],
)
def test_a_rightful_import_passes(unit: str, source: str) -> None:
    assert [verdict(unit, name) for name in imports(ast.parse(source)) if verdict(unit, name)] == []
