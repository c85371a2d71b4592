"""The lists of supported Pythons stand in several files; they must say the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]

if not (ROOT / ".github").is_dir():
    pytest.skip("wants the repository", allow_module_level=True)


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_classifiers_name_the_supported_pythons(pyproject: dict[str, Any]) -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [f"3.{c.removeprefix(prefix)}" for c in pyproject["project"]["classifiers"] if c.startswith(prefix)]
    assert named == PYTHONS
    assert pyproject["project"]["requires-python"] == f">={PYTHONS[0]}"


def test_tools_aim_at_the_oldest_python(pyproject: dict[str, Any]) -> None:
    assert pyproject["tool"]["mypy"]["python_version"] == PYTHONS[0]
    assert pyproject["tool"]["ruff"]["target-version"] == "py" + PYTHONS[0].replace(".", "")


def test_wheels_are_built_for_the_supported_pythons(pyproject: dict[str, Any]) -> None:
    assert pyproject["tool"]["cibuildwheel"]["build"] == [f"cp{p.replace('.', '')}-*" for p in PYTHONS]


def test_ci_covers_the_supported_pythons() -> None:
    ci = (ROOT / ".github/workflows/ci.yml").read_text()
    matrix = re.search(r"^\s+python: \[(.*)\]$", ci, re.MULTILINE)
    assert matrix is not None
    assert re.findall(r"[\d.]+", matrix[1]) == PYTHONS


def test_test_all_covers_the_supported_pythons() -> None:
    script = (ROOT / "scripts/test-all").read_text()
    assert f"for version in {' '.join(PYTHONS)}; do" in script


def test_version_comes_from_one_place(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["dynamic"] == ["version", "readme"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ignis._version.__version__"}


def test_no_generated_file_is_tracked() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    generated = re.compile(r"ignis/.*\.(c|so|html)$|\.(pyc|o|a)$|^(build|dist)/")
    assert [name for name in listed.stdout.splitlines() if generated.search(name)] == []
