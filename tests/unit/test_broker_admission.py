"""Places for connections: in all, for each address, and for those who have not said who they are."""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
from collections.abc import Iterator

import pytest

from ignis.broker.server import descriptors
from ignis.broker.server.admission import Admission, Visitor
from ignis.broker.server.descriptors import room_for_connections
from ignis.config import BrokerSettings
from ignis.errors import ConfigError, TooManyRequestsError
from ignis.places import network_of, network_of_connection
from tests.support import WAIT_S


def nothing() -> None:
    """Closes nothing."""


def admission(**limits: int) -> Admission:
    return Admission(BrokerSettings(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        (("10.1.2.3", 5), "10.1.2.3"),
        (("::ffff:10.1.2.3", 5, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        (("127.0.0.1", 5), "this machine"),
        (("127.9.8.7", 5), "this machine"),
        (("::1", 5, 0, 0), "this machine"),
        (("::ffff:127.0.0.1", 5, 0, 0), "this machine"),
        ("", ""),
    ],
)
def test_what_an_address_is_counted_under(address: object, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.skipif(sys.platform != "linux", reason="sock_diag")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_users_of_this_machine_are_counted_apart(host: str) -> None:
    """Whatever address they come from, of which each has millions."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    def counted(user: int, source: str) -> str:
        ready, done = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            try:
                if user != os.geteuid():
                    os.setuid(user)
                with socket.socket(family) as sock:
                    sock.bind((source, 0))
                    sock.connect((host, port))
                    os.write(ready[1], b".")
                    os.close(done[1])
                    os.read(done[0], 1)
            finally:
                os._exit(0)
        os.read(ready[0], 1)
        try:
            sock, address = listening.accept()
            with sock:
                return network_of_connection(sock, address)
        finally:
            for one in (*ready, *done):
                os.close(one)
            os.waitpid(child, 0)

    with socket.create_server((host, 0), family=family) as listening:
        listening.settimeout(WAIT_S)
        port = listening.getsockname()[1]
        sources = [host] if family == socket.AF_INET6 else [host, "127.0.0.9"]
        for user in (os.geteuid(), *((65_534,) if os.geteuid() == 0 else ())):
            assert {counted(user, source) for source in sources} == {f"user {user} of this machine"}


@pytest.mark.skipif(sys.platform != "linux", reason="sock_diag")
def test_a_connection_that_its_maker_has_closed_is_nobodys() -> None:
    """Of such a one the system says that it is root's: everybody could fill what is root's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname(), WAIT_S) as gone:
            gone.sendall(b"x")
        sock, address = listening.accept()
        with sock:
            assert network_of_connection(sock, address) == "this machine"


def test_a_user_has_a_share_of_the_connections() -> None:
    places = admission(max_connections=8)
    mine = [places.enter("a", nothing) for _ in range(3)]
    for visitor in mine[:2]:
        places.known(visitor, "user ann")
    with pytest.raises(TooManyRequestsError, match=r"broker\.max_connections_per_user"):
        places.known(mine[2], "user ann")
    assert places.refused == 1
    places.known(mine[2], "user bob")
    places.leave(mine[0])
    places.leave(mine[0])
    again = [places.enter("b", nothing) for _ in range(5)]
    places.known(again[0], "user ann")
    with pytest.raises(TooManyRequestsError):
        places.known(again[1], "user ann")
    for visitor in again[1:]:
        places.known(visitor)  # of a broker without users, from its own machine
    for visitor in (*mine, *again):
        places.leave(visitor)
    assert (places.count, places.strangers) == (0, 0)
    assert not places._shares


def test_the_share_can_be_set() -> None:
    places = admission(max_connections=8, max_connections_per_user=8)
    for _ in range(8):
        places.known(places.enter("a", nothing), "user ann")
    assert places.count == 8


def test_one_address_keeps_nobody_out() -> None:
    places = admission(max_unauthenticated=8, max_unauthenticated_per_address=8)
    closed: list[int] = []
    for number in range(8):
        places.enter("a", lambda number=number: closed.append(number))  # type: ignore[misc]
    with pytest.raises(TooManyRequestsError, match="per_address"):
        places.enter("a", nothing)
    for _ in range(4):
        places.enter("b", nothing)
    assert closed == [0, 1, 2, 3]
    with pytest.raises(TooManyRequestsError, match=r"broker\.max_unauthenticated$|broker\.max_unauthenticated\b"):
        places.enter("b", nothing)
    places.enter("c", nothing)
    assert (places.strangers, places.count, places.displaced, places.refused) == (8, 8, 5, 2)


def test_a_place_is_free_again() -> None:
    places = admission(max_unauthenticated=2, max_unauthenticated_per_address=1, max_connections_per_address=2)
    first = places.enter("a", nothing)
    with pytest.raises(TooManyRequestsError, match="max_unauthenticated_per_address"):
        places.enter("a", nothing)
    places.known(first)
    second = places.enter("a", nothing)
    places.known(second)
    with pytest.raises(TooManyRequestsError, match="max_connections_per_address"):
        places.enter("a", nothing)
    for _ in range(2):
        places.leave(first)
    places.leave(second)
    assert (places.count, places.strangers, places.of("a")) == (0, 0, 0)
    assert not places._all._holders
    assert not places._strangers._holders


def test_strangers_make_room_for_another_address_when_all_places_are_taken() -> None:
    places = admission(max_connections=4)
    visitors = [places.enter("a", nothing) for _ in range(4)]
    with pytest.raises(TooManyRequestsError, match=r"broker\.max_connections"):
        places.enter("a", nothing)
    places.enter("b", nothing)
    for visitor in visitors:
        places.known(visitor)
    with pytest.raises(TooManyRequestsError, match=r"broker\.max_connections"):
        places.enter("c", nothing)
    assert places.count == 4


def test_a_displaced_one_that_leaves_once_more_is_counted_once() -> None:
    places = admission(max_unauthenticated=3, max_unauthenticated_per_address=3)
    left: list[Visitor] = []
    visitors: list[Visitor] = []
    for number in range(3):
        visitors.append(places.enter("a", lambda number=number: left.append(visitors[number])))  # type: ignore[misc]
    places.enter("b", nothing)
    places.leave(left[0])
    assert (places.count, places.strangers) == (3, 3)


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_of_files_is_raised_as_far_as_needed(limits: tuple[int, int]) -> None:
    hard = limits[1]
    taken = descriptors._open_files()
    low = taken + 50
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    assert room_for_connections(20, 100) == 20
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert low < soft <= taken + 20 + 100 + 100
    assert room_for_connections(20, 100) == 20
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft


def test_limits_that_do_not_fit_are_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 1_024))
    monkeypatch.setattr(descriptors, "_open_files", lambda: 30)
    with caplog.at_level(logging.WARNING, "ignis.broker"):
        assert room_for_connections(12_000, 256) == 1_024 - 256 - 30 - 64
    assert "broker.max_connections = 12000" in caplog.text
    with pytest.raises(ConfigError, match=r"broker\.reserved_files = 1000"):
        room_for_connections(12_000, 1_000)
