"""The command that tries each wheel where it is built, as pyproject.toml has it, without the container: an environment that
holds the wheel and the extras of ``test-extras`` alone, and a directory that holds nothing but ``test-sources``.

`make test` looks at what the tests import. `make test-long` collects every test there, which shows what cannot be imported.
``make wheel-tests`` runs all of them (``IGNIS_TEST_WHEEL=all``), which also shows the files that are missing.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.support.parsing import parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
GENERATED = shutil.ignore_patterns("__pycache__", "build", "*.so", ".hypothesis")
ALL = os.environ.get("IGNIS_TEST_WHEEL") == "all"
INSTALL_S, COLLECT_S, ALL_S = 300, 120, 3_600

if not (ROOT / ".github").is_dir():
    pytest.skip("wants the repository", allow_module_level=True)


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["cibuildwheel"]
    return table


def wheel() -> Path:
    """The wheel of this Python that `make wheel` has left, when it is one of this tree."""
    sources = [
        path
        for folder in ("ignis", "csrc")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h")
    ]
    newest = max(path.stat().st_mtime for path in (*sources, ROOT / "pyproject.toml", ROOT / "setup.py"))
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for path in (ROOT / "dist").glob(f"*-{tag}-*.whl"):
        if path.stat().st_mtime >= newest:
            return path
    pytest.skip(f"no wheel of this tree and this Python in dist/: make wheel IGNIS_PYTHON={sys.executable}")


def run(command: str | list[str], where: Path, environment: dict[str, str], limit_s: float) -> str:
    done = subprocess.run(
        command,
        cwd=where,
        env=environment,
        shell=isinstance(command, str),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-8_000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell in which that environment is active."""
    path = wheel()
    place = tmp_path_factory.mktemp("wheel") / "venv"
    venv.create(place, with_pip=True, symlinks=True)
    outside = ("PYTHON", "PYTEST_", "IGNIS_", "VIRTUAL_ENV", "MAKE")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    variables["PATH"] = f"{place / 'bin'}{os.pathsep}{variables['PATH']}"
    wanted = f"{path}[{','.join(settings['test-extras'])}]"
    pip = ["python", "-m", "pip", "--disable-pip-version-check", "install", "-q", wanted]
    run([str(place / "bin" / "python"), *pip[1:]], place, variables, INSTALL_S)
    return variables


@pytest.fixture
def directory(settings: dict[str, Any], tmp_path: Path) -> Path:
    for name in settings["test-sources"]:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=GENERATED)
        else:
            shutil.copy2(source, tmp_path / name)
    return tmp_path


@pytest.mark.long
@pytest.mark.timeout(INSTALL_S + (ALL_S if ALL else COLLECT_S) + 30)
def test_the_command_that_tries_a_wheel(settings: dict[str, Any], environment: dict[str, str], directory: Path) -> None:
    if not ALL:
        environment = {**environment, "PYTEST_ADDOPTS": "--collect-only"}
    told = run(settings["test-command"], directory, environment, ALL_S if ALL else COLLECT_S)
    assert "smoke: ignis" in told
    assert str(ROOT) not in told.partition("\n")[0]  # the line of the smoke test says where it was imported from
    assert " error" not in told.splitlines()[-1]
    sys.stdout.write(told[-4_000:])


def test_every_file_of_the_command_is_among_the_sources(settings: dict[str, Any]) -> None:
    named = [word for word in settings["test-command"].split() if "/" in word]
    assert named
    for word in named:
        assert (ROOT / word).exists(), f"test-command names {word}, which is not there"
        assert word.split("/")[0] in settings["test-sources"], f"test-command names {word}, which is not copied"


def test_what_the_tests_of_the_command_import_is_among_the_sources(settings: dict[str, Any]) -> None:
    """Of the repository there is nothing else beside the wheel: not `bench`, and no script."""
    folders = [ROOT / word for word in settings["test-command"].split() if word.startswith("tests/")]
    files = [file for one in folders for file in (one.rglob("*.py") if one.is_dir() else [one])]
    repository = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"ignis", *settings["test-sources"]}
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for node in parse(file.read_text("utf-8")).body
        for name in imported(node)
        if name.partition(".")[0] in repository
    ]
    assert len(files) > 200
    assert found == []


def imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []
