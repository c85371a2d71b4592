"""The table of docs/security.md: which word of a rule allows which command, and what of it."""

from __future__ import annotations

import re
from pathlib import Path

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.table import TABLE, WORDS, About

DOC = Path(__file__).parents[2] / "docs" / "security.md"
COLUMNS = (*WORDS, "all", "none")


def documented() -> dict[str, dict[str, str]]:
    """Command -> word -> what its cell says."""
    found: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in DOC.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[:2] == ["command", "about"]:
            columns = cells[2:]
        elif columns and re.fullmatch(r"[A-Z_]+", cells[0]):
            found[cells[0]] = dict(zip(columns, cells[2:], strict=True))
        elif columns and not line.startswith("|"):
            break
    return found


def derived() -> dict[str, dict[str, str]]:
    """The same from the table of commands."""
    return {Command(number).name: {word: _cell(number, word) for word in COLUMNS} for number in TABLE}


def rows() -> list[str]:
    """The lines of the table, to be put into the document."""
    lines = [f"| command | about | {' | '.join(COLUMNS)} |", f"| --- | --- {'| --- ' * len(COLUMNS)}|"]
    for number, row in TABLE.items():
        cells = " | ".join(_cell(number, word) for word in COLUMNS)
        lines.append(f"| {Command(number).name} | {row.about.value} | {cells} |")
    return lines


def _cell(number: int, word: str) -> str:
    row = TABLE[number]
    if row.about is About.CONNECTION:
        return "yes"
    words = row.words.split()
    if word == "none" or (word != "all" and word not in words and f"{word}*" not in words):
        return "-"
    if row.about is About.BROKER:
        return "*"
    if row.about is About.LIST:
        return "list"
    if row.about is About.SUBSCRIPTION:
        return "own"
    if f"{word}*" in words:
        return "lead"
    return "name, lead" if word == "all" and "work*" in words else "name"


if __name__ == "__main__":
    print("\n".join(rows()))
