"""The names in which a broker claims for its clients."""

from __future__ import annotations

import socket

import pytest

from ignis.broker.protocol.payloads import Connect
from ignis.broker.server.claimants import CLIENT_PREFIX, OWNER_PREFIX, broker_owner, claimant, owner_for
from ignis.errors import ConfigError
from ignis.storage.base import Owner, Process
from ignis.storage.process_identity import Identity, this_process

HERE = (socket.gethostname(), *this_process())


def hello(instance: str = "one", process: tuple[str, int, int, int, str] | None = HERE) -> Connect:
    return Connect("shop", "local", instance, process=process)


def test_the_same_client_has_the_same_name_everywhere() -> None:
    first = claimant("ann", hello())
    assert first == claimant("ann", hello())
    assert first.process == Process(*this_process())
    assert first.startswith(CLIENT_PREFIX)


def test_no_two_clients_have_one_name() -> None:
    processes = [HERE, None, (HERE[0], HERE[1] + 1, *HERE[2:]), (HERE[0], HERE[1], HERE[2] + 1, *HERE[3:])]
    names = {
        claimant(principal, hello(instance, process))
        for principal in ("ann", "bob", "", "ann\0one", "ann\0one\0")
        for instance in ("one", "two", "one\0one", "ne")
        for process in processes
    }
    assert len(names) == 5 * 4 * 4


def test_who_is_meant() -> None:
    me = claimant("ann", hello())
    other = claimant("bob", hello())
    assert owner_for("", me) is me
    assert owner_for(str(me), me) is me
    job = owner_for("job:nightly", me)
    assert (job, isinstance(job, Owner) and job.process) == ("job:nightly", me.process)
    for name in (other, broker_owner("b"), OWNER_PREFIX):
        with pytest.raises(ConfigError, match="given by brokers"):
            owner_for(str(name), me)


def test_an_aerospike_store_proves_their_death() -> None:
    pytest.importorskip("aerospike")
    from ignis.storage.aerospike.owner import provably_dead

    here = this_process()
    assert not provably_dead(claimant("ann", hello()), here)
    assert provably_dead(claimant("ann", hello(process=(HERE[0], HERE[1], HERE[2] + 1, *HERE[3:]))), here)
    assert not provably_dead(claimant("ann", hello(process=None)), here)
    assert not provably_dead(claimant("ann", hello(process=("elsewhere", HERE[1], HERE[2] + 1, *HERE[3:]))), here)
    assert not provably_dead(broker_owner("b"), here)


def test_a_process_that_cannot_be_seen_is_not_proved_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, where /proc hides those: it is there, and that is all that can be known."""
    here = Identity(*this_process())
    other = Identity(here.pid, here.start_time + 1, here.namespace, here.boot)
    assert other.provably_dead(here), "a later process has its number"

    def refused(pid: int, number: int) -> None:
        raise PermissionError

    def nobody(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr("ignis.storage.process_identity.process_start_time", lambda pid: 0)
    for kill, dead in ((refused, False), (nobody, True), (lambda pid, number: None, True)):
        monkeypatch.setattr("os.kill", kill)
        assert other.provably_dead(here) is dead
