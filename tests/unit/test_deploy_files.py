"""The deployment files: whatever they name, a command, an option, a setting, a port, a path or a metric, is there in the code."""

from __future__ import annotations

import configparser
import dataclasses
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

import ignis
from ignis import deploy
from ignis.cli import cli, main
from ignis.config import SECTIONS, BrokerSettings, ConsumerSettings, RelaySettings, SupervisorSettings, check_variables
from ignis.errors import ConfigError, IgnisError
from ignis.http_endpoint import parse_bind
from ignis.metrics import _METRICS
from ignis.supervisor.http_routes import app_endpoint

FILES = {name: content.decode() for name, content in deploy.files().items()}
UNITS = {name: text for name, text in FILES.items() if name.endswith(".service")}
MANIFESTS = [
    document
    for name, text in FILES.items()
    if name.startswith("kubernetes/")
    for document in yaml.safe_load_all(text)
]  # fmt: skip
PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
SETTINGS = {f"{cls.section}.{spec.name}" for cls in SECTIONS for spec in dataclasses.fields(cls)}
"""As the comments name them: ``consumer.stop_timeout_s``."""


class Unit(configparser.RawConfigParser):
    """A unit of systemd: names as they stand; of a name that comes twice all values, in lines."""

    def __init__(self, text: str) -> None:
        super().__init__(strict=False, comment_prefixes="#", delimiters="=", interpolation=None)
        self.optionxform = str  # type: ignore[assignment, method-assign]
        self.read_string(text)
        self.all = {key: re.findall(rf"^{re.escape(key)}=(.*)$", text, re.MULTILINE) for key in self["Service"]}

    @property
    def command(self) -> list[str]:
        """The words of ExecStart, variables put in their places."""
        environment = dict(one.partition("=")[::2] for line in self.all["Environment"] for one in shlex.split(line))
        line = self["Service"]["ExecStart"].replace("%i", "shop.tasks").replace("%d", "/run/credentials")
        for name, value in environment.items():
            line = line.replace(f"${{{name}}}", value).replace(f"${name}", value)
        assert "$" not in line
        return shlex.split(line)


UNIT = {name.removeprefix("systemd/"): Unit(text) for name, text in UNITS.items()}


def pods() -> Iterator[dict[str, Any]]:
    yield from (one["spec"]["template"]["spec"] for one in MANIFESTS if "template" in one.get("spec", {}))


def commands() -> dict[str, list[str]]:
    """The words behind ``ignis`` wherever a file starts it."""
    found = {name: unit.command[1:] for name, unit in UNIT.items()}
    found["Dockerfile"] = json.loads(re.findall(r"^CMD (\[.*)$", FILES["docker/Dockerfile"], re.MULTILINE)[0])
    for pod in pods():
        found.update({one["name"]: one["args"] for one in pod["containers"]})
    return found


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command's name and what its options say. Raises UsageError for what the command does not take."""
    command = cli.commands[words[0]]
    # A group without a command of its own behind it, as `ignis broker`, is parsed as one.
    context = click.Context(command, info_name=words[0])
    values, rest, _ = command.make_parser(context).parse_args(list(words[1:]))
    assert not rest, rest
    return words[0], values


def test_they_are_written_and_what_somebody_changed_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "new" / "files"
    assert main(["deploy-files", str(directory)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(directory / name) for name in FILES]
    assert {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()} == set(FILES)
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_file()} == {0o644}
    changed, gone = directory / "docker" / "Dockerfile", directory / "systemd" / "ignis-relay.service"
    changed.write_text("FROM scratch\n")
    gone.unlink()
    with pytest.raises(ConfigError, match="Dockerfile"):
        deploy.write(directory)
    assert changed.read_text() == "FROM scratch\n"
    assert not gone.exists()
    assert main(["deploy-files", "--replace", str(directory)]) == 0
    assert changed.read_text() == FILES["docker/Dockerfile"]
    assert main(["deploy-files", str(directory)]) == 0


@pytest.mark.parametrize("options", [[], ["--replace"]])
def test_no_link_below_the_directory_is_followed(tmp_path: Path, options: list[str]) -> None:
    directory, elsewhere = tmp_path / "files", tmp_path / "elsewhere"
    directory.mkdir()
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(directory)
    (directory / "systemd").symlink_to(elsewhere)
    assert main(["deploy-files", *options, str(tmp_path / "link")]) == 2
    assert (list(directory.iterdir()), list(elsewhere.iterdir())) == ([directory / "systemd"], [])
    (directory / "systemd").unlink()
    assert main(["deploy-files", *options, str(tmp_path / "link")]) == 0, "the directory itself was named"
    linked, kept = directory / "docker" / "Dockerfile", elsewhere / "kept"
    kept.write_bytes(linked.read_bytes())
    linked.unlink()
    linked.symlink_to(kept)
    assert main(["deploy-files", *options, str(directory)]) == (0 if options else 2)
    assert linked.is_symlink() is not bool(options)
    assert kept.read_text() == FILES["docker/Dockerfile"]


@pytest.mark.parametrize("folder", ["", "docker"])
def test_a_directory_that_everybody_may_write_is_refused(
    tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "files"
    opened = target / folder
    opened.mkdir(parents=True)
    opened.chmod(0o777)
    assert main(["deploy-files", str(target)]) == 2
    assert f"chmod +t {opened}" in capsys.readouterr().err.replace("\n", " ")
    assert list(target.rglob("*")) == ([target / folder] if folder else [])
    opened.chmod(0o1777)
    assert main(["deploy-files", str(target)]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's links")
def test_the_link_of_another_user_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim, shared = tmp_path / "victim", tmp_path / "shared"
    victim.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "link"
    link.symlink_to(victim)
    os.lchown(link, 12_345, -1)
    assert main(["deploy-files", str(link)]) == 2
    assert "belongs to user 12345" in capsys.readouterr().err.replace("\n", " ")
    assert list(victim.iterdir()) == []
    os.lchown(link, 0, -1)
    assert main(["deploy-files", str(link)]) == 0


@pytest.mark.parametrize("where", commands())
def test_every_command_and_option_is_there(where: str) -> None:
    name, values = parsed(commands()[where])
    assert name in ("worker", "broker", "relay", "console")
    if health := values.get("health_bind"):
        parse_bind(health, public=bool(values.get("public_bind")))
    if name == "broker":
        assert values["users"], "a broker that others reach"
        assert values["tls_cert"]
    assert name != "worker" or values["target"], values


def test_a_wrong_option_is_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(["worker", "shop", "--no-such-option"])


def test_every_variable_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        one["name"]: one.get("value", "x") for pod in pods() for c in pod["containers"] for one in c.get("env", ())
    }
    given.update(re.findall(r"\b(IGNIS_[A-Z_]+)=(\S+)", "\n".join([*UNITS.values(), FILES["docker/Dockerfile"]])))
    assert {"IGNIS_URL", "IGNIS_TOKEN", "IGNIS_CONFIG", "IGNIS_CONSUMER_STOP_TIMEOUT_S"} <= set(given)
    monkeypatch.setattr("ignis.config._seen_variables", set())
    check_variables(given)
    from ignis import config

    assert config._seen_variables == set(), "logged as no setting of ignis"
    with pytest.raises(ConfigError):
        check_variables({"IGNIS_CONSUMER_STOP_TIMOUT_S": "30"})


def test_every_setting_that_is_named_is_there() -> None:
    named = {
        one
        for text in FILES.values()
        for one in re.findall(rf"\b(?:{'|'.join(cls.section for cls in SECTIONS)})\.[a-z]+_[a-z_]+", text)
    }
    assert {"consumer.stop_timeout_s", "broker.drain_timeout_s"} <= named
    assert named <= SETTINGS


def test_the_settings_file_is_one(tmp_path: Path) -> None:
    from ignis.config import load_file

    (tmp_path / "ignis.toml").write_text(FILES["systemd/ignis.toml"])
    loaded = load_file(tmp_path / "ignis.toml", {})
    assert loaded.pop("url").startswith("embedded:///var/lib/ignis/")
    for section, values in loaded.items():
        cls = next(one for one in SECTIONS if one.section == section)
        assert {name: getattr(cls(), name) for name in values} == values, "the defaults, so that the units' times hold"


def test_a_service_has_longer_to_end_than_its_drain_takes() -> None:
    worker_s = ConsumerSettings().stop_timeout_s + SupervisorSettings().kill_after_s
    drains_s = {
        "ignis-worker@.service": worker_s,
        "ignis-broker.service": BrokerSettings().drain_timeout_s,
        "ignis-relay.service": RelaySettings().stop_timeout_s,
        "ignis-console.service": 0,
    }
    assert set(drains_s) == set(UNIT)
    for name, drain_s in drains_s.items():
        assert float(UNIT[name]["Service"]["TimeoutStopSec"]) > drain_s + 5, name
    for pod in pods():
        (one,) = pod["containers"]
        waits_s = one.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        drain_s = worker_s if one["name"] == "worker" else BrokerSettings().drain_timeout_s
        assert pod["terminationGracePeriodSeconds"] > waits_s + drain_s + 5
        values = {entry["name"]: entry.get("value") for entry in one["env"]}
        if one["name"] == "worker":
            assert float(values["IGNIS_CONSUMER_STOP_TIMEOUT_S"]) == ConsumerSettings().stop_timeout_s
            assert float(values["IGNIS_SUPERVISOR_KILL_AFTER_S"]) == SupervisorSettings().kill_after_s
        else:
            assert float(values["IGNIS_BROKER_DRAIN_TIMEOUT_S"]) == BrokerSettings().drain_timeout_s


@pytest.mark.parametrize("name", UNIT)
def test_a_unit_is_told_how_its_service_is_and_gives_it_little(name: str) -> None:
    unit = UNIT[name]["Service"]
    assert (unit["Type"], unit["NotifyAccess"], unit["Restart"]) == ("notify", "main", "on-failure")
    assert float(unit["WatchdogSec"]) >= 10
    assert unit["User"] == "ignis"
    assert unit["StateDirectoryMode"] == unit.get("LogsDirectoryMode", "0700") == "0700"
    assert unit["RestartPreventExitStatus"] == "2"
    for option in ("NoNewPrivileges", "PrivateTmp", "RestrictSUIDSGID", "ProtectKernelTunables", "LockPersonality"):
        assert unit[option] == "yes"
    assert unit["ProtectSystem"] == "strict"
    assert unit["CapabilityBoundingSet"] == ""
    # The store asks /proc/sys for the machine's boot: without it no store opens.
    assert "ProcSubset" not in unit
    families = set(unit["RestrictAddressFamilies"].split())
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} <= families
    assert ("AF_NETLINK" in families) == (parsed(UNIT[name].command[1:])[0] in ("broker", "console"))


def test_the_supervisor_alone_is_told_to_stop_and_reloads_on_a_signal() -> None:
    unit = UNIT["ignis-worker@.service"]
    assert unit["Service"]["KillMode"] == "mixed"
    assert "--processes" in unit.command
    assert unit["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_every_file_that_a_unit_needs_is_said_where_it_comes_from() -> None:
    page = PAGE.read_text("utf-8")
    wanted = {one for text in UNITS.values() for one in re.findall(r"/etc/ignis/[\w.%-]+", text)}
    assert "/etc/ignis/users.json" in wanted
    for path in wanted:
        assert path.replace("%i", "shop.tasks") in page, path


def test_ports_and_paths_are_those_of_the_program() -> None:
    ports = {
        "broker": next(one for one in cli.commands["broker"].params if one.name == "bind").default,
        "console": next(one for one in cli.commands["console"].params if one.name == "bind").default,
    }
    broker_port, console_port = (int(str(ports[one]).rpartition(":")[2]) for one in ("broker", "console"))
    for name in ("broker", "console"):
        assert parse_bind(parsed(UNIT[f"ignis-{name}.service"].command[1:])[1]["bind"], public=True)[1] == (
            broker_port if name == "broker" else console_port
        )
    (exposed,) = re.findall(r"^EXPOSE (.*)$", FILES["docker/Dockerfile"], re.MULTILINE)
    assert {broker_port, console_port} < {int(one) for one in exposed.split()}
    for pod in pods():
        for one in pod["containers"]:
            _, values = parsed(one["args"])
            opened = {entry["name"]: entry["containerPort"] for entry in one["ports"]}
            assert opened["health"] == parse_bind(values["health_bind"], public=True)[1]
            assert (
                one["name"] != "broker" or opened["ignis"] == parse_bind(values["bind"], public=True)[1] == broker_port
            )
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert one[probe]["httpGet"]["port"] == "health"
    policies = [one for one in MANIFESTS if one["kind"] == "NetworkPolicy"]
    allowed = {port["port"] for one in policies for rule in one["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == {broker_port, 9100}


def test_the_probes_ask_for_paths_that_are_answered(app: Any) -> None:
    endpoint = app_endpoint("0", app)
    try:
        answered = {path for path in ("/livez", "/readyz", "/healthz", "/metrics") if path in endpoint._server.routes}
    finally:
        endpoint.close()
    asked = {
        c[probe]["httpGet"]["path"] for pod in pods() for c in pod["containers"] for probe in c if "Probe" in probe
    }
    asked |= set(re.findall(r"http://127\.0\.0\.1:9100(/\w+)", FILES["docker/Dockerfile"]))
    assert asked == {"/livez", "/readyz"}
    assert asked <= answered


def test_the_scaler_asks_for_metrics_that_there_are() -> None:
    queries = [
        one["metadata"]["query"]
        for one in next(m for m in MANIFESTS if m["kind"] == "ScaledObject")["spec"]["triggers"]
    ]
    used = [set(re.findall(r"\bignis_\w+", one)) for one in queries]
    assert used == [{"ignis_queue_pending"}, {"ignis_oldest_age_seconds"}]
    for names in used:
        assert all("queue" in _METRICS[one].labels for one in names)
        assert names <= set(_METRICS)


def test_what_a_manifest_names_is_made_by_another_or_by_the_page() -> None:
    page = PAGE.read_text("utf-8")
    made = {(one["kind"], one.get("metadata", {}).get("name")) for one in MANIFESTS}
    for pod in pods():
        volumes = {one["name"] for one in pod["volumes"]}
        for one in (*pod["containers"], *pod.get("initContainers", ())):
            missing = {mount["name"] for mount in one["volumeMounts"]} - volumes - {"data"}
            assert not missing
        for secret in [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one]:
            assert f"generic {secret} " in page
    assert "generic ignis-worker-token " in page
    (scaled,) = (one for one in MANIFESTS if one["kind"] == "ScaledObject")
    assert ("Deployment", scaled["spec"]["scaleTargetRef"]["name"]) in made
    worker = next(one for one in MANIFESTS if one["kind"] == "Deployment")
    url = next(
        one["value"] for one in worker["spec"]["template"]["spec"]["containers"][0]["env"] if one["name"] == "IGNIS_URL"
    )
    host = urlsplit(url).hostname
    assert ("Service", host) in made
    kustomization = next(one for one in MANIFESTS if one["kind"] == "Kustomization")
    named = {f"kubernetes/{one}" for one in kustomization["resources"]}
    assert named | {"kubernetes/keda.yaml", "kubernetes/kustomization.yaml"} == {
        name for name in FILES if name.startswith("kubernetes/")
    }


def test_no_container_may_do_more_than_it_must() -> None:
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for one in (*pod["containers"], *pod.get("initContainers", ())):
            limits = one["securityContext"]
            assert limits["capabilities"] == {"drop": ["ALL"]}
            assert limits["readOnlyRootFilesystem"] is True
            assert limits["allowPrivilegeEscalation"] is False
            assert limits.get("runAsUser", 10001) == 10001 or one["name"] == "sticky"


def test_a_volume_that_everybody_may_write_is_made_fit_for_a_store(tmp_path: Path) -> None:
    """An emptyDir has mode 0777; with fsGroup all that is in a volume is given to the group at the next mount. The containers
    that run before the broker make both good, and the users file readable by its owner alone."""
    volume, secret = tmp_path / "volume", tmp_path / "secret"
    volume.mkdir()
    volume.chmod(0o777)
    secret.mkdir()
    (secret / "users.json").write_text("{}")
    (secret / "users.json").chmod(0o440)
    broker = next(pod for pod in pods() if pod["containers"][0]["name"] == "broker")
    before = {one["name"]: one["command"] for one in broker["initContainers"]}
    assert list(before) == ["sticky", "private", "users"]
    url = f"embedded://{volume}/store"

    def start() -> None:
        places = {"/var/lib/ignis": str(volume), "/etc/ignis/users": str(secret), "10001": str(os.getuid())}
        for command in before.values():
            words = list(command)
            for place, here in places.items():
                words = [here + one.removeprefix(place) if one.startswith(place) else one for one in words]
            subprocess.run(words, check=True, timeout=60)
        with ignis.Ignis(url) as app:
            app.queue("orders", str).open()
        assert stat.S_IMODE((volume / "users.json").stat().st_mode) == 0o600

    with pytest.raises(IgnisError), ignis.Ignis(url) as app:
        app.queue("orders", str).open()
    start()
    for path in (volume, *volume.rglob("*")):  # as a kubelet does it
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode | (0o2770 if path.is_dir() else 0o660))
    with pytest.raises(IgnisError, match="others could replace"), ignis.Ignis(url) as app:
        app.queue("orders", str).open()
    start()


@pytest.mark.parametrize("version", ["1.30", "1.34", "1.37"])
def test_the_manifests_are_what_kubernetes_takes(version: str) -> None:
    """By the schemas of Kubernetes itself."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    core = [one for one in MANIFESTS if not one["apiVersion"].startswith(("keda.sh", "kustomize"))]
    assert {one["kind"] for one in core} == {
        "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet",
    }  # fmt: skip
    for one in core:
        kubernetes_validate.validate(one, version, strict=True)
    wrong = {**core[0], "spec": {**core[0]["spec"], "no_such_field": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: it comes with systemd")
def test_the_units_are_what_systemd_takes(tmp_path: Path) -> None:
    """A key or a section that systemd does not know is a line of its own, and so is a program that is not there."""
    for name, unit in UNITS.items():
        # An instance has a name: what is verified without one is the template.
        path = tmp_path / Path(name).name.replace("@.", "@shop.tasks.")
        path.write_text(unit.replace("/opt/ignis/bin/ignis", sys.executable))

    def said(*paths: Path) -> list[str]:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *map(str, paths)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        # What else is installed on this machine is verified with them, as they depend on it.
        ours = [path.name for path in paths]
        return [line for line in done.stderr.splitlines() if any(name in line for name in ours)]

    assert said(*sorted(tmp_path.iterdir())) == []
    wrong = tmp_path / "wrong.service"
    wrong.write_text((tmp_path / "ignis-broker.service").read_text() + "\n[Service]\nNoSuchKey=1\n")
    assert any("NoSuchKey" in line for line in said(wrong)), "what is wrong is found"
