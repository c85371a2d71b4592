"""Prints the requirements that pyproject.toml lists, so that they stand in one place.

Arguments: ``build`` (what building needs), ``core`` (what the package needs) or the name of an extra; one requirement a
line, for ``pip install -r``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(project: dict[str, Any], group: str) -> list[str]:
    """The requirements of one group; an extra that names another extra of this project is followed."""
    if group == "build":
        return list(project["build-system"]["requires"])
    metadata = project["project"]
    if group == "core":
        return list(metadata["dependencies"])
    found: list[str] = []
    own = re.compile(rf"{re.escape(metadata['name'])}\[([^]]+)\]")
    for requirement in metadata["optional-dependencies"][group]:
        if match := own.fullmatch(requirement):
            for extra in match[1].split(","):
                found += requirements(project, extra.strip())
        else:
            found.append(requirement)
    return found


def main() -> None:
    project = tomllib.loads(PYPROJECT.read_text())
    for group in sys.argv[1:]:
        for requirement in requirements(project, group):
            sys.stdout.write(f"{requirement}\n")


if __name__ == "__main__":
    main()
