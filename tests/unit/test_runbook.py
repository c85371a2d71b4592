"""The alerts: Prometheus' own tool tests them, the runbook has each of them, and they use only what there is."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from ignis.cli import cli
from ignis.metric_catalogue import HISTOGRAM
from ignis.metrics import _METRICS
from tests.support.prometheus import promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "ignis" / "deploy" / "prometheus" / "ignis.rules.yml"
TESTS = ROOT / "ignis" / "deploy" / "prometheus" / "ignis.rules.test.yml"
DASHBOARD = ROOT / "ignis" / "deploy" / "grafana" / "ignis.json"
RUNBOOK = ROOT / "docs" / "runbook.md"
NAME = re.compile(r"\bignis_[a-z_]+\b")

pytestmark = pytest.mark.skipif(not RULES.is_file(), reason="no repository around the tests")


def alerts() -> list[str]:
    return re.findall(r"^ +- alert: (\w+)$", RULES.read_text("utf-8"), re.MULTILINE)


def sections() -> dict[str, str]:
    heads = re.split(r"^## (.*)$", RUNBOOK.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(heads[1::2], heads[2::2], strict=True))


def test_the_rules_are_right_for_prometheus() -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "rules", str(RULES))


def test_each_alert_fires_where_it_shall_and_nowhere_else() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(TESTS))
    text = TESTS.read_text("utf-8")
    for name in alerts():
        assert f"name: {name} fires\n" in text
        assert f"name: {name} is quiet\n" in text


def test_the_runbook_has_every_alert_and_no_other() -> None:
    assert list(sections()) == alerts()
    links = re.findall(r"runbook_url: .*/docs/runbook\.md#(\w+)$", RULES.read_text("utf-8"), re.MULTILINE)
    assert links == [name.lower() for name in alerts()]


def test_the_sample_of_scrape_configs_is_one(tmp_path: Path) -> None:
    """With the rules beside it, and the ports that the units open."""
    [sample] = re.findall(r"```yaml\n(.*?)```", RUNBOOK.read_text("utf-8"), re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(sample)
    (tmp_path / RULES.name).write_text(RULES.read_text("utf-8"))
    assert f"{len(alerts())} rules found" in promtool("check", "config", str(tmp_path / "prometheus.yml"))
    units = "".join(one.read_text("utf-8") for one in (RULES.parents[1] / "systemd").glob("*.service"))
    targets = re.findall(r'targets: \["([^"]+)"\]', sample)
    assert len(targets) == 2
    assert set(targets) == set(re.findall(r"HEALTH=(\S+)", units))
    assert all(re.match("ignis", job) for job in re.findall(r"job_name: (\S+)", sample)), "as the rules expect"


def test_each_section_says_what_to_check_and_what_to_do() -> None:
    for name, text in sections().items():
        meaning, _, rest = text.partition("\n* Check: ")
        assert meaning.strip(), name
        assert "\n* Do: " in rest, name


def test_every_metric_that_is_used_is_shown() -> None:
    shown = {
        f"{one.name}_{part}"
        for one in _METRICS.values()
        if one.kind == HISTOGRAM
        for part in ("bucket", "sum", "count")
    } | set(_METRICS)
    for path in (RULES, TESTS, DASHBOARD):
        assert set(NAME.findall(path.read_text("utf-8"))) - shown == set(), path.name


def test_the_dashboard_has_places_of_its_own_for_all_panels() -> None:
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for one in panels:
        place = one["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, one["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert one["type"] == "row" or (
            one["targets"] and one["description"] and one["fieldConfig"]["defaults"]["unit"]
        )


def test_every_command_of_the_runbook_is_there() -> None:
    found = [shlex.split(one) for one in re.findall(r"`ignis ([^`]+)`", RUNBOOK.read_text("utf-8"))]
    assert len(found) > 10
    for words in found:
        command: click.Command = cli
        while words and isinstance(command, click.Group) and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not cli, words
        options = {option for parameter in command.params for option in parameter.opts}
        for word in words:
            assert word in options if word.startswith("-") else word.isupper() or word == "error", (command.name, word)
