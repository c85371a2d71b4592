"""The drawing of the packages in ``docs/architecture.md`` is made from the imports: it must be what they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("package_drawing", ROOT / "scripts" / "package_drawing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawing_is_current(script: ModuleType) -> None:
    page = script.PAGE.read_text("utf-8")
    assert script.page_with(page, script.drawing()) == page, "run: python scripts/package_drawing.py"


def test_an_import_is_an_arrow(script: ModuleType, tmp_path: Path) -> None:
    for name, text in {
        "errors.py": "import os\n",
        "config.py": "from ignis.errors import One\n",
        "low/__init__.py": "",
        "low/deep.py": "from ignis.config import two\n",
        "high/__init__.py": "",
        "high/deep.py": "def f():\n    import ignis.low.deep\n    import ignis.errors\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    lines = script.drawing(tmp_path).splitlines()
    assert [line.strip() for line in lines if "-->" in line] == ["high --> low", "low --> basics"]
    (tmp_path / "low" / "more.py").write_text("if TYPE_CHECKING:\n    from ignis.high.deep import f\n")
    with pytest.raises(ValueError, match="a circle: high -> low -> high"):
        script.drawing(tmp_path)
