"""``docs/settings.md`` is generated: it must be what the code says."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from ignis.config import SECTIONS, QueueSettings, check_sections, load_file, resolve
from ignis.errors import ConfigError
from ignis.settings_page import EMBEDDED_OPTIONS, reference
from ignis.storage.embedded.options import RANGES, StoreOptions

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == reference(), "run: python -m ignis.settings_page > docs/settings.md"


def test_the_command_prints_the_page_and_nothing_else() -> None:
    command = [sys.executable, "-m", "ignis.settings_page"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, reference(), "")


def test_the_page_has_every_setting_in_columns() -> None:
    lines = reference().splitlines()
    for cls in SECTIONS:
        assert f"## [{cls.section}]" in lines
        for spec in dataclasses.fields(cls):
            row = next(line for line in lines if line.startswith(f"| `{spec.name}` |"))
            assert row.count("|") == 5, row


def test_the_options_of_the_embedded_store_are_as_they_are_said() -> None:
    said = {name: (default, bounds) for name, default, bounds, _ in EMBEDDED_OPTIONS}
    assert list(said) == [spec.name for spec in dataclasses.fields(StoreOptions)]
    for name, (default, bounds) in said.items():
        value = getattr(StoreOptions(), name)
        assert default == (str(value) if isinstance(value, bool) else f"{value:,g}" if value < 1e6 else f"{value:,}")
        if bounds:
            low, high = (float(one.replace(",", "")) for one in bounds.split(" to "))
            assert (low, high) == RANGES[name]
            assert StoreOptions.of({name: str(int(high))})
            with pytest.raises(ConfigError):
                StoreOptions.of({name: str(int(high) + 1)})


def test_the_example_is_a_settings_file(tmp_path: Path) -> None:
    example = PAGE.read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    path = tmp_path / "ignis.toml"
    path.write_text(example)
    file = load_file(path, {})
    check_sections(file, {})
    orders = resolve(QueueSettings, {}, file, name="orders", environ={})
    assert (orders.shards, orders.message_expiry_s, orders.durability) == (8, 172_800, "interval")
