"""Locks on a real Aerospike server: the layout that Java shares, and calls whose answers are lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ignis.errors import ConfigError, LockConnectionError, LockLostError, LockRetriesExhaustedError, StoreError
from ignis.locks import LockLevel, LockManager
from ignis.storage import open_store
from ignis.storage.aerospike.store import AerospikeStore
from tests.support import WAIT_S, eventually
from tests.support import aerospike as aerospike_support

pytestmark = pytest.mark.integration

NAMESPACE = "test"


@pytest.fixture
def store() -> Iterator[AerospikeStore]:
    client_id = f"k{os.getpid()}"
    with open_store(aerospike_support.url(client_id=client_id)) as store:
        assert isinstance(store, AerospikeStore)
        yield store
    aerospike_support.forget(aerospike_support.address(), [client_id])


@pytest.fixture
def client() -> Iterator[Any]:
    """The bare driver: what another program sees and does."""
    client = aerospike_support.raw_client()
    yield client
    client.close()


@pytest.fixture
def app() -> str:
    return f"app{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def manager(store: AerospikeStore, app: str) -> Iterator[LockManager]:
    with LockManager(app, "FARMNINE9", store, suffix="test_lock", poll_s=0.01) as manager:
        yield manager


def namespace() -> str:
    return aerospike_support.address().partition("/")[2]


def read(client: Any, set_name: str, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    _, meta, bins = client.get((namespace(), set_name, key))
    return meta, bins


@pytest.mark.parametrize(
    ("level", "set_name"),
    [(LockLevel.DC, "DC#FARMNINE9#test_lock"), (LockLevel.XDC, "XDC#test_lock")],
)
def test_the_layout(client: Any, manager: LockManager, app: str, level: LockLevel, set_name: str) -> None:
    before_ms = int(time.time() * 1000)
    lock = manager.lock("orders", level)
    lock.acquire()
    after_ms = int(time.time() * 1000)
    meta, bins = read(client, set_name, f"{app}#orders")
    assert meta["gen"] == 1
    assert 88 <= meta["ttl"] <= 90
    owner = bins.pop("ign_owner")
    assert str(os.getpid()) in owner
    assert before_ms <= bins.pop("FARMNINE9##uat") <= after_ms
    assert bins == {"FARMNINE9##data": 1}
    token = lock.token
    meta, bins = read(client, set_name, f"{app}#orders")
    assert (bins["ign_token"], bins["ign_owner"]) == (token, owner)
    assert 88 <= meta["ttl"] <= 90
    meta, bins = read(client, f"{set_name}#tokens", f"{app}#orders")
    assert bins == {"token": token}
    assert meta["ttl"] == 0xFFFF_FFFF, "for ever"
    assert lock.renew(300)
    meta, bins = read(client, set_name, f"{app}#orders")
    assert 298 <= meta["ttl"] <= 300
    assert bins["ign_owner"] == owner
    assert before_ms <= bins["FARMNINE9##uat"] <= after_ms
    assert lock.release()
    assert client.exists((namespace(), set_name, f"{app}#orders"))[1] is None
    assert read(client, f"{set_name}#tokens", f"{app}#orders")[1] == {"token": token}


def test_a_part_of_a_second_is_rounded_up(client: Any, manager: LockManager, app: str) -> None:
    assert manager.lock("l").try_acquire(1.2)
    meta, _ = read(client, "DC#FARMNINE9#test_lock", f"{app}#l")
    assert meta["ttl"] in (1, 2)


def put_as_java(client: Any, set_name: str, key: str, farm: str, ttl_s: int = 60) -> None:
    """What the Java lock manager writes: the generation that it expects is 0, that is, no record."""
    import aerospike

    bins = {f"{farm}##data": 1, f"{farm}##uat": int(time.time() * 1000)}
    how = {"gen": aerospike.POLICY_GEN_EQ, "ttl": ttl_s, "commit_level": aerospike.POLICY_COMMIT_LEVEL_MASTER}
    client.put((namespace(), set_name, key), bins, policy=how)


def test_a_java_holder_is_respected(client: Any, manager: LockManager, app: str) -> None:
    put_as_java(client, "DC#FARMNINE9#test_lock", f"{app}#l", "FARMNINE9")
    put_as_java(client, "XDC#test_lock", f"{app}#l", "OTHER")
    for level in LockLevel:
        lock = manager.lock("l", level)
        assert not lock.try_acquire()
        found = manager.holder("l", level)
        assert found is not None
        assert (found.owner, found.token) == ("", 0)
        assert abs(found.acquired_at_ms - time.time() * 1000) < 60_000
    client.remove((namespace(), "XDC#test_lock", f"{app}#l"))
    assert manager.lock("l", LockLevel.XDC).try_acquire()


def test_java_respects_us(client: Any, manager: LockManager, app: str) -> None:
    import aerospike

    lock = manager.lock("l")
    lock.acquire()
    with pytest.raises(aerospike.exception.RecordGenerationError):
        put_as_java(client, "DC#FARMNINE9#test_lock", f"{app}#l", "FARMNINE9")
    lock.release()
    put_as_java(client, "DC#FARMNINE9#test_lock", f"{app}#l", "FARMNINE9")


def test_java_that_took_our_lock_over_keeps_it(client: Any, manager: LockManager, app: str) -> None:
    """A Java release removes whatever is there. We learn of it, and do not do the same."""
    key = (namespace(), "DC#FARMNINE9#test_lock", f"{app}#l")
    lock = manager.lock("l")
    lock.acquire()
    client.remove(key)
    put_as_java(client, key[1], key[2], "FARMNINE9")
    with pytest.raises(LockLostError):
        lock.token  # noqa: B018 - that it raises is the point
    assert lock.lost.is_set()
    assert not lock.renew()
    assert not lock.release()
    assert client.exists(key)[1] is not None


def test_a_token_stays_with_its_lock_whatever_happens_in_between(client: Any, manager: LockManager, app: str) -> None:
    """Tokens that others drew and never used only leave numbers out."""
    key = (namespace(), "DC#FARMNINE9#test_lock#tokens", f"{app}#l")
    lock = manager.lock("l")
    lock.acquire()
    first = lock.token
    client.increment(key, "token", 10)
    assert lock.token == first
    lock.release()
    lock.acquire()
    assert lock.token == first + 11


def test_what_an_uncontended_lock_costs(store: AerospikeStore, manager: LockManager) -> None:
    lock = manager.lock("l")
    before = sum(store.connection.calls.values())
    lock.acquire()
    lock.release()
    assert sum(store.connection.calls.values()) - before == 2
    lock.acquire()
    assert lock.token == lock.token
    lock.release()
    assert sum(store.connection.calls.values()) - before == 6


@pytest.mark.parametrize("farm_id", ["FARMNINE10", "data-centre-7"])
def test_a_farm_that_does_not_fit(store: AerospikeStore, farm_id: str) -> None:
    with pytest.raises(ConfigError, match=rf"farm_id '{farm_id}' of {len(farm_id)} bytes .* takes 15, .* may have 9"):
        LockManager("app", farm_id, store)
    with LockManager("app", "FARMNINE9", store, suffix="x" * 32):
        pass


def test_other_bins_in_the_record_survive_a_renewal(client: Any, manager: LockManager, app: str) -> None:
    lock = manager.lock("l")
    lock.acquire()
    client.put((namespace(), "DC#FARMNINE9#test_lock", f"{app}#l"), {"theirs": 5}, policy={"ttl": -2})
    assert lock.renew()
    assert lock.token
    assert read(client, "DC#FARMNINE9#test_lock", f"{app}#l")[1]["theirs"] == 5
    assert lock.release()


# -- a server that does not answer


@pytest.fixture
def server() -> Iterator[aerospike_support.Asd]:
    server = aerospike_support.new_server()
    yield server
    server.remove()


@pytest.fixture
def impatient(server: aerospike_support.Asd) -> Iterator[LockManager]:
    """A manager whose calls wait for 300 ms."""

    def opened() -> Any:
        try:
            return open_store(
                f"aerospike://{server.address()}", client_id="impatient", retries=1, total_timeout_ms=300, socket_timeout_ms=300
            )  # fmt: skip
        except StoreError:
            return None

    store = eventually(opened)
    with LockManager("app", "fa", store, poll_s=0.01, tries=60) as manager:
        manager.lock("warm").acquire()
        yield manager
    store.close(10)


def paused(server: aerospike_support.Asd) -> int:
    assert server._process is not None
    server._process.send_signal(signal.SIGSTOP)
    return server._process.pid


def test_an_acquisition_whose_answer_was_lost_is_recognised(
    server: aerospike_support.Asd, impatient: LockManager
) -> None:
    """The server gets the first try, cannot answer in time, and carries it out when it runs again."""
    lock = impatient.lock("l")
    got: list[bool] = []
    pid = paused(server)
    try:
        thread = threading.Thread(target=lambda: got.append(lock.try_acquire(60)))
        thread.start()
        time.sleep(1)
        assert not got
    finally:
        os.kill(pid, signal.SIGCONT)
    thread.join(WAIT_S)
    assert got == [True]
    found = impatient.holder("l")
    assert found is not None
    assert lock.token
    assert not impatient.lock("l").try_acquire()
    assert lock.release()


def test_a_release_whose_answer_was_lost_is_recognised(server: aerospike_support.Asd, impatient: LockManager) -> None:
    lock = impatient.lock("l")
    lock.acquire(60)
    got: list[bool] = []
    pid = paused(server)
    try:
        thread = threading.Thread(target=lambda: got.append(lock.release()))
        thread.start()
        time.sleep(1)
        assert not got
    finally:
        os.kill(pid, signal.SIGCONT)
    thread.join(WAIT_S)
    assert got == [True]
    assert impatient.holder("l") is None


def test_a_server_that_is_gone(server: aerospike_support.Asd) -> None:
    def opened() -> Any:
        try:
            return open_store(f"aerospike://{server.address()}", retries=1, total_timeout_ms=300, socket_timeout_ms=300)
        except StoreError:
            return None

    store = eventually(opened)
    manager = LockManager("app", "fa", store, tries=2, retry_wait_s=0.01)
    lock = manager.lock("l")
    lock.acquire()
    server.kill()
    with pytest.raises(LockConnectionError) as caught:
        manager.lock("m").try_acquire()
    assert caught.value.code == "CONNECTION_ERROR"
    with pytest.raises(LockRetriesExhaustedError) as exhausted:
        lock.release()
    assert exhausted.value.code == "RETRIES_EXHAUSTED"
    server.start()
    # Its memory is gone with it, and so is the lock.
    eventually(lambda: not_failing(lock.release))
    assert manager.lock("l").try_acquire()
    manager.close()
    store.close(10)


def not_failing(call: Any) -> bool:
    try:
        call()
    except (LockConnectionError, LockRetriesExhaustedError):
        return False
    return True
