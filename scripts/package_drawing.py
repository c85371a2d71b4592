"""Draws the packages of ``ignis`` and their arrows, made from the imports, into ``docs/architecture.md``.

Run ``python scripts/package_drawing.py`` after a package or an import between packages came or went. ``--print`` writes the
drawing to stdout and changes nothing. A test compares the page with the imports.

A node is a folder of ``ignis/`` or a module directly in it. Modules that import no folder, directly or through others, are one
node, ``basics``. An arrow goes from who imports to what is imported, and is left out where others lead there too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ignis"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- packages: drawn by scripts/package_drawing.py -->"
END = "<!-- packages: end -->"
BASICS = "basics"

Arrows = dict[str, set[str]]
"""Node -> what it imports."""


def imported(tree: ast.AST) -> Iterator[str]:
    """The units of ``ignis`` that a module imports, wherever in its text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "ignis":
                yield parts[1] if len(parts) > 1 else ""


def units(package: Path = PACKAGE) -> Arrows:
    """Every unit of the package with what it imports, itself left out."""
    found: Arrows = {}
    for path in sorted(package.rglob("*.py")):
        unit = path.relative_to(package).with_suffix("").parts[0]
        if unit != "__init__":
            found.setdefault(unit, set()).update(imported(ast.parse(path.read_text("utf-8"), str(path))))
    # `from ignis import Name` gives what the package's own module has gathered: it counts as the unit `app`.
    for unit, names in found.items():
        found[unit] = {one if one in found else "app" for one in names} - {unit}
    return found


def merged(arrows: Arrows, folders: Iterable[str]) -> Arrows:
    """With the modules that reach no folder as one node."""
    basics = set(arrows) - set(folders)
    while outside := {unit for unit in basics if not arrows[unit] <= basics}:
        basics -= outside

    def node(unit: str) -> str:
        return BASICS if unit in basics else unit

    found: Arrows = {}
    for unit, names in arrows.items():
        found.setdefault(node(unit), set()).update(set(map(node, names)) - {node(unit)})
    return found


def reduced(arrows: Arrows) -> Arrows:
    """Without the arrows that a longer way replaces. Raises ValueError for a circle."""
    reach: Arrows = {}

    def reached(unit: str, way: tuple[str, ...] = ()) -> set[str]:
        if unit in way:
            raise ValueError(f"a circle: {' -> '.join((*way[way.index(unit) :], unit))}")
        if unit not in reach:
            below = [reached(name, (*way, unit)) for name in sorted(arrows[unit])]
            reach[unit] = set(arrows[unit]).union(*below)
        return reach[unit]

    return {
        unit: {name for name in names if not any(name in reached(other) for other in names if other != name)}
        for unit, names in arrows.items()
        if reached(unit) is not None
    }


def drawing(package: Path = PACKAGE) -> str:
    """The drawing, as it stands in the page between the two marks."""
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    arrows = reduced(merged(units(package), folders))
    lines = ["```mermaid", "graph TD"]
    lines += [f"    {unit}[{unit}/]" if unit in folders else f"    {unit}([{unit}])" for unit in sorted(arrows)]
    lines += [f"    {unit} --> {name}" for unit in sorted(arrows) for name in sorted(arrows[unit])]
    return "\n".join([*lines, "```"])


def page_with(text: str, drawn: str) -> str:
    """The page with this drawing in it. Raises ValueError where the marks are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: no line {BEGIN if not begin else END}")
    return f"{before}{BEGIN}\n{drawn}\n{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(drawing())
    else:
        PAGE.write_text(page_with(PAGE.read_text("utf-8"), drawing()), "utf-8")
