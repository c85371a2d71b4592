"""What ``ignis doctor`` looks at where the store is a service, a broker or Aerospike: the way there and what is on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from ignis._version import __version__
from ignis.cli import exit_codes, output
from ignis.cli.findings import FULL, SKEW_S, Finding
from ignis.cli.state import State
from ignis.config import LeaderSettings, load_file, resolve
from ignis.errors import (
    CoordinatorError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreUnreachableError,
    UnauthenticatedError,
)
from ignis.leader import Deciders
from ignis.storage.base import Store
from ignis.storage.embedded.room import LARGEST_SEGMENT_BYTES

if TYPE_CHECKING:
    from ignis.broker.client.store import BrokerStore

__all__ = ["examine_service"]


def examine_service(state: State) -> int:
    """Looks at the store of the URL and at the ZooKeeper of the settings, shows what it finds and returns the exit code."""
    code, findings = exit_codes.OK, []
    try:
        with state.store() as store:
            findings += [Finding("reach", "ok", f"{store.url} answers"), *_look(store)]
            findings += _zookeeper(store, resolve(LeaderSettings, {}, load_file(state.config)))
    except (StoreError, UnauthenticatedError) as exc:
        code = exit_codes.code_of(exc)
        findings.append(_refusal(exc))
    if any(one.grade == "problem" for one in findings):
        code = code or exit_codes.ERROR
    if any(one.code == "zookeeper" and one.grade == "problem" for one in findings):
        code = exit_codes.UNREACHABLE
    if state.json:
        output.document({"sound": code == exit_codes.OK, "findings": [asdict(one) for one in findings]})
        return code
    for one in findings:
        grade = one.grade.upper() if one.grade == "problem" else one.grade
        output.line(f"{grade} {one.code}: {one.what}" + (f"; {one.do}" if one.do else ""))
    return code


def _refusal(exc: StoreError | UnauthenticatedError) -> Finding:
    if isinstance(exc, UnauthenticatedError):
        return Finding(
            "login", "problem", str(exc), "check user, password or token; 'ignis broker user list' at the broker"
        )
    if isinstance(exc, NamespaceNotFoundError):
        do = "name one that is there in the URL, or add it to the configuration of every server"
        return Finding("namespace", "problem", str(exc), do)
    if not isinstance(exc, StoreUnreachableError):
        return Finding(
            "open", "problem", str(exc), "check user, password and TLS of the URL, and the user's roles there"
        )
    return Finding("reach", "problem", str(exc), "check that it runs, its host and port, TLS, and firewalls in between")


def _look(store: Store) -> Iterator[Finding]:
    looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("queues", lambda: _queues(store)),
        ("room", lambda: _room(store)),
    ]
    if store.url.startswith("ignis"):  # its client is an extra
        from ignis.broker.client.store import BrokerStore

        assert isinstance(store, BrokerStore)
        looks[:0] = [("login", lambda: _login(store)), ("version", lambda: _version(store))]
    if store.url.startswith("aerospike"):
        from ignis.cli import doctor_aerospike
        from ignis.storage.aerospike.store import AerospikeStore

        assert isinstance(store, AerospikeStore)
        connection = store.connection
        looks[:0] = [("version", lambda: doctor_aerospike.look_at_servers(connection))]
        looks += [
            ("namespace", lambda: doctor_aerospike.look_at_namespace(connection)),
            ("room", lambda: doctor_aerospike.look_at_room(connection)),
        ]
    if store.asks_clock and store.magazines.keeps_later:  # else it would be compared with itself
        looks.append(("clock", lambda: _clock(store)))
    for code, look in looks:
        try:
            yield from look()
        except PermissionDeniedError as exc:
            yield Finding(code, "note", f"not looked at: {exc}", "ask with a user who may")
        except StoreUnreachableError:
            raise
        except StoreError as exc:
            yield Finding(code, "problem", str(exc), "check the user's roles at the server, and its log")


def _login(store: BrokerStore) -> Iterator[Finding]:
    broker = store.calls.broker
    if broker is not None:
        yield Finding("login", "ok", f"the broker knows this client as {broker.principal!r}")


def _version(store: BrokerStore) -> Iterator[Finding]:
    from ignis.broker.client import requests

    status = store.calls.ask(requests.node_status())
    version = status["version"]
    if version == __version__:
        yield Finding("version", "ok", f"the broker and this client are {version}")
    else:
        yield Finding(
            "version", "note", f"the broker is {version}, this client {__version__}", "bring both to one version"
        )


def _queues(store: Store) -> Iterator[Finding]:
    unknown, count = store.queues_unknown, len(store.queues.list())
    if unknown:
        yield Finding("queues", "note", unknown)
    else:
        yield Finding("queues", "ok", f"{count} queue(s) of {store.farm_id}/{store.client_id}")


def _room(store: Store) -> Iterator[Finding]:
    figures = store.stats()
    most = figures.get("max_store_bytes", 0)
    # The bound counts for each durability by itself.
    used = max((value for name, value in figures.items() if name.startswith("used_bytes_")), default=0, key=_number)
    if _number(most) > 0:
        share = _number(used) / _number(most)
        what = f"{output.size(_number(used))} of {output.size(_number(most))} (max_store_bytes) are used"
        if share >= FULL:
            yield Finding(
                "room", "problem", what, "have consumers catch up, purge what nobody needs, or raise the bound"
            )
        else:
            yield Finding("room", "ok", what)
    free = _number(figures.get("free_bytes", LARGEST_SEGMENT_BYTES))
    if free < LARGEST_SEGMENT_BYTES:
        what = f"{output.size(free)} are free on the store's disk: loads are refused, or will be soon"
        yield Finding("disk", "problem", what, "free space there, or give it more")
    if damaged := int(_number(figures.get("damaged_bytes", 0))):
        what = f"{output.size(damaged)} of the log are damaged"
        yield Finding(
            "damaged", "problem", what, "stop what uses the store, copy it, then run ignis doctor DIRECTORY there"
        )


def _number(value: float | str) -> float:
    return 0.0 if isinstance(value, str) else value


def _clock(store: Store) -> Iterator[Finding]:
    before_s = time.time()
    theirs_s = store.now_s()
    # It was read at some moment of the call, so what is outside of the call's time is certain.
    skew_s = max(before_s - theirs_s, theirs_s - time.time(), 0.0)
    if skew_s > SKEW_S:
        what = f"the store's clock and this machine's are at least {output.age(skew_s)} apart"
        yield Finding("clock", "problem", what, "have NTP set both: due times, deadlines and ages go by them")
    else:
        yield Finding("clock", "ok", f"the store's clock and this machine's agree to {SKEW_S:g} s")


def _zookeeper(store: Store, settings: LeaderSettings) -> Iterator[Finding]:
    if settings.kind != "zookeeper" and not (settings.kind == "auto" and settings.zookeeper):
        return
    with closing(Deciders(store, settings)) as deciders:
        leader = deciders.of("sweeper")
        status = leader.status()
        try:
            may = not status.available or leader.may_take_part()
        except CoordinatorError:
            may = True  # it went away meanwhile: nothing is known of it
    own = (
        "give the user that its nodes are open to: leader.user and leader.password, or user:password@ before the hosts"
    )
    if not may:
        what = "ZooKeeper lets this user look and not take part in the election"
        yield Finding("election", "problem", what, f"{own}; publishing and consuming go on")
    elif status.refused:
        yield Finding("election", "problem", status.trouble, f"{own}; publishing and consuming go on")
    elif not status.available:
        do = "check that it runs, leader.zookeeper, and firewalls in between; publishing and consuming go on"
        yield Finding("zookeeper", "problem", status.trouble, do)
    elif status.trouble:
        yield Finding("election", "problem", status.trouble, "see docs/leader.md")
    else:
        yield Finding("zookeeper", "ok", f"answers; {status.leader or 'nobody'} leads the sweeper")
