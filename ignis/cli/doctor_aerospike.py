"""What ``ignis doctor`` looks at on each server of an Aerospike cluster: version, clock, room and the namespace's settings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ignis.cli import output
from ignis.cli.findings import FULL, SKEW_S, Finding

if TYPE_CHECKING:
    from ignis.storage.aerospike.connection import Connection

__all__ = ["look_at_namespace", "look_at_room", "look_at_servers"]

_LEAST = (6, 0)
"""The first version with everything that the store asks for, see docs/aerospike.md."""
_EPOCH_S = 1_262_304_000
"""The servers count seconds from the beginning of 2010."""
_CLOCK_STEP_S = 1.0

Nodes = Mapping[str, Mapping[str, str]]


def look_at_servers(connection: Connection) -> Iterator[Finding]:
    """Versions and clocks."""
    builds = {node: answer.get("", "") for node, answer in connection.info_of_nodes("build").items()}
    versions = sorted(set(filter(None, builds.values())))
    what = f"{len(builds)} server(s) of Aerospike {', '.join(versions)}"
    if not versions:
        yield Finding("version", "note", "the servers do not tell their version", "ask with a user who may")
    elif any(_version(one) < _LEAST for one in versions):
        yield Finding("version", "problem", what, f"bring all to {'.'.join(map(str, _LEAST))} or later")
    elif len(versions) > 1:
        yield Finding("version", "note", what, "bring all to one version")
    else:
        yield Finding("version", "ok", what)
    before_s = time.time()
    told = {node: _int(one, "current_time") for node, one in _namespace(connection).items() if "current_time" in one}
    after_s = time.time()
    for node, count_s in told.items():
        theirs_s = count_s + _EPOCH_S
        # Read at some moment of the call, and cut to whole seconds: what is outside of that is certain.
        apart_s = max(before_s - theirs_s - _CLOCK_STEP_S, theirs_s - after_s, 0.0)
        if apart_s > SKEW_S:
            yield Finding(
                "clock", "problem", f"the clock of server {node} and this machine's are at least {output.age(apart_s)} apart",
                "have NTP set both: times to live, due times and locks go by them",
            )  # fmt: skip
            return
    if told:
        yield Finding("clock", "ok", f"the servers' clocks and this machine's agree to {SKEW_S:g} s")


def look_at_namespace(connection: Connection) -> Iterator[Finding]:
    """Settings without which the store does not work, or keeps less than is expected of it."""
    name = connection.namespace
    nodes = _namespace(connection)
    if any(one.get("nsup-period") == "0" and one.get("allow-ttl-without-nsup") != "true" for one in nodes.values()):
        what = f"nsup-period of namespace {name!r} is 0: the server refuses every record with a time to live"
        yield Finding("namespace", "problem", what, "set nsup-period above 0, see docs/aerospike.md")
        return
    limits = [bound for one in nodes.values() if (bound := _int(one, "max-record-size"))]
    limit = f", records of up to {output.size(min(limits))}" if limits else ""
    yield Finding("namespace", "ok", f"{name!r} takes times to live{limit}")
    if any(one.get("storage-engine") == "memory" and not _on_disk(one) for one in nodes.values()):
        yield Finding(
            "storage", "note", f"namespace {name!r} is in memory: it forgets everything when its servers stop",
            "use storage-engine device where messages must outlive that",
        )  # fmt: skip
    copies = min((_int(one, "effective_replication_factor") for one in nodes.values()), default=0)
    if len(nodes) > 1 and copies == 1:
        yield Finding(
            "replication", "note", f"namespace {name!r} keeps one copy of each record: what a lost server had is gone",
            "set replication-factor 2",
        )  # fmt: skip


def look_at_room(connection: Connection) -> Iterator[Finding]:
    """How much of the namespace is used, on the fullest server."""
    name = connection.namespace
    nodes = _namespace(connection)
    stopped = [
        node for node, one in nodes.items() if "true" in (one.get("stop_writes"), one.get("clock_skew_stop_writes"))
    ]
    do = "have consumers catch up, purge what nobody needs, or give the namespace more"
    if stopped:
        what = f"namespace {name!r} takes no more writes on {', '.join(stopped)}"
        if any(nodes[node].get("clock_skew_stop_writes") == "true" for node in stopped):
            do = "the servers' clocks are apart: have NTP set them"
        yield Finding("room", "problem", what, do)
        return
    used, most, node = max(
        ((_int(one, "data_used_pct"), _int(one, "storage-engine.stop-writes-used-pct") or 100, node)
         for node, one in nodes.items() if "data_used_pct" in one),
        key=lambda one: one[0] / one[1], default=(0, 0, ""),
    )  # fmt: skip
    if most:
        what = f"{used} % of the data of namespace {name!r} is used on {node}; writes stop at {most} %"
        yield Finding("room", "problem", what, do) if used >= FULL * most else Finding("room", "ok", what)


def _namespace(connection: Connection) -> Nodes:
    """Figures and settings of the namespace, by server."""
    return connection.info_of_nodes(f"namespace/{connection.namespace}")


def _on_disk(figures: Mapping[str, str]) -> bool:
    """Whether a namespace in memory is kept in files or on devices too."""
    return any(name.startswith(("storage-engine.file[", "storage-engine.device[")) for name in figures)


def _int(figures: Mapping[str, str], name: str) -> int:
    value = figures.get(name, "")
    return int(value) if value.isdigit() else 0


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(".")[:2] if one.isdigit())
