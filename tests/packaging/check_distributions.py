"""Checks what is in the source distribution and in the wheel.

``python tests/packaging/check_distributions.py dist``: exit status 1 and one line per mistake. The expectation is made
from the repository's own tree, so that a new module or C file is covered on the day it appears.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]

# Never in either: caches, generated C, compiled files that belong to a machine.
GENERATED = ("*.pyc", "*.pyo", "*.o", "*.a", "*/__pycache__/*", "*/.*cache/*", "*/.hypothesis/*")
NOT_IN_SDIST = (
    *GENERATED, "*.so", "*.dylib", "build/*", "dist/*", ".venv*", "csrc/build/*", "ignis/*.c", "ignis/*.html",
)  # fmt: skip
NOT_IN_WHEEL = (
    *GENERATED, "*.c", "*.h", "*.pyx", "*.pxd", "*.pxi", "*.html",
    "csrc/*", "tests/*", "bench/*", "scripts/*", "docs/*",
)  # fmt: skip
RELATIVE = re.compile(r"\]\((?!https?:|mailto:|#)[^)]*\)")
SHIPPED = (".py", ".pyi", ".typed", ".lua", ".jinja", ".properties", ".toml", ".htm", ".css", ".js", ".svg")
"""What of the package is in both."""
SDIST_FILES = (
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "PKG-INFO", "README.md", "SECURITY.md",
    "pyproject.toml", "setup.py",
    "csrc/Makefile", ".ci/run",
)  # fmt: skip


def tree(folder: str, *suffixes: str) -> Iterator[str]:
    """The repository's files below a folder, but no caches and nothing generated."""
    for path in sorted((ROOT / folder).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and path.suffix in suffixes and not any(fnmatch.fnmatch(name, p) for p in NOT_IN_SDIST):
            yield name


def deployment() -> Iterator[str]:
    """The files that `ignis deploy-files` writes, whatever they are called."""
    folder = ROOT / "ignis" / "deploy"
    yield from (
        path.relative_to(ROOT).as_posix() for path in sorted(folder.glob("*/*")) if path.parent.name != "__pycache__"
    )


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def check_sdist(path: Path) -> Iterator[str]:
    """What is wrong with the source distribution."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    names = {str(PurePosixPath(*PurePosixPath(member.name).parts[1:])) for member in members if member.isfile()}
    expected = {
        *SDIST_FILES,
        *tree("ignis", ".pyx", ".pxd", ".pxi", *SHIPPED),
        *tree("csrc", ".c", ".h"),
        *tree("tests", ".py", ".json", ".bin", ".txt"),
        *tree("bench", ".py", ".sh", ".txt"),
        *deployment(),
        *tree("docs", ".md"),
        *tree("scripts", ".py", ""),
    }
    yield from (f"sdist lacks {name}" for name in sorted(expected - names))
    yield from (f"sdist must not hold {name}" for name in matching(sorted(names), NOT_IN_SDIST))


def check_wheel(path: Path) -> Iterator[str]:
    """What is wrong with the wheel."""
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata_name = next((name for name in names if name.endswith(".dist-info/METADATA")), "")
        metadata = archive.read(metadata_name).decode() if metadata_name else ""
        entry_points = "".join(
            archive.read(name).decode() for name in names if name.endswith(".dist-info/entry_points.txt")
        )
        compiled_modules = {name: archive.read(name) for name in names if name.endswith(".so")}
    yield from (f"wheel lacks {name}" for name in sorted({*tree("ignis", *SHIPPED), *deployment()} - names))
    yield from (f"wheel must not hold {name}" for name in matching(sorted(names), NOT_IN_WHEEL))
    for source in tree("ignis/native", ".pyx"):
        stem = source.removesuffix(".pyx")
        compiled = [name for name in names if name.startswith(f"{stem}.") and name.endswith(".so")]
        if len(compiled) != 1:
            yield f"wheel holds {len(compiled)} compiled modules for {source}, 1 is right"
        if f"{stem}.pyi" not in names:
            yield f"wheel lacks {stem}.pyi"
    tops = {name.split("/", 1)[0] for name in names}
    yield from (
        f"wheel installs {top} beside the package"
        for top in sorted(tops)
        if top != "ignis" and not top.endswith(".dist-info")
    )
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        yield "wheel lacks the license"
    if "ignis = ignis.cli:main" not in entry_points:
        yield "wheel lacks the command `ignis`"
    yield from (
        f"wheel's README has a link that works in the repository only: {link}" for link in RELATIVE.findall(metadata)
    )
    for name, content in sorted(compiled_modules.items()):
        if b".debug_info" in content:
            yield f"wheel's {name} holds debug information"
    for line in ("Name: ignis-mq", "License-Expression: Apache-2.0", "Requires-Python: >=3.10"):
        if line not in metadata.splitlines():
            yield f"wheel's metadata lack {line!r}"


def main() -> int:
    dist = Path(sys.argv[1])
    sdists, wheels = sorted(dist.glob("*.tar.gz")), sorted(dist.glob("*.whl"))
    problems = []
    if len(sdists) != 1 or len(wheels) != 1:
        problems.append(f"{dist} holds {len(sdists)} source distributions and {len(wheels)} wheels, 1 of each is right")
    for sdist in sdists:
        problems += check_sdist(sdist)
    for wheel in wheels:
        problems += check_wheel(wheel)
    for problem in problems:
        sys.stderr.write(f"distributions: {problem}\n")
    if not problems:
        sys.stdout.write(f"distributions: {sdists[0].name} and {wheels[0].name} hold what they should\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
