"""Which server the bench of delayed messages takes for NATS."""

from __future__ import annotations

from pathlib import Path

import pytest

ALONE = "no repository around the tests"
nats_jetstream = pytest.importorskip("bench.peers.nats_jetstream", reason=ALONE)
base = pytest.importorskip("bench.peers.base", reason=ALONE)
nats_schedules = pytest.importorskip("bench.peers.nats_schedules", reason=ALONE)


@pytest.fixture(autouse=True)
def _with_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.nats_schedules.require_module", lambda *_: None)


def server(path: Path, version: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", ["v2.9.10", "v2.11.99", "v1.20.0"])
def test_an_older_server_has_no_row_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv(nats_jetstream.PROGRAM_VARIABLE, str(server(tmp_path / "old", f"nats-server: {version}")))
    with pytest.raises(base.MissingError, match=f"{version} has no delayed messages, 2.12 and later have"):
        nats_schedules.NatsSchedules(base.NONE).require()


@pytest.mark.parametrize("version", ["v2.12.0", "v2.15.2", "v3.0.1"])
def test_a_server_with_schedules_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv(nats_jetstream.PROGRAM_VARIABLE, str(server(tmp_path / "new", f"nats-server: {version}")))
    nats_schedules.NatsSchedules(base.NONE).require()


def test_the_one_in_path_is_taken_unless_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = server(tmp_path / "bin" / "nats-server", "nats-server: v2.15.2")
    named = server(tmp_path / "named", "nats-server: v2.9.10")
    monkeypatch.delenv(nats_jetstream.PROGRAM_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(inside.parent))
    assert nats_jetstream.nats_server() == str(inside)
    monkeypatch.setenv(nats_jetstream.PROGRAM_VARIABLE, str(named))
    assert nats_jetstream.nats_server() == str(named)
    named.unlink()
    with pytest.raises(base.MissingError, match=f"IGNIS_BENCH_NATS = {named} is no program"):
        nats_jetstream.nats_server()


def test_without_any_server_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(nats_jetstream.PROGRAM_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(base.MissingError, match="no program nats-server"):
        nats_schedules.NatsSchedules(base.NONE).require()
