"""A delivery that comes alone is taken where it was received, by the thread that waits for it. Nobody can tell."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.client.sync_connection import SyncConnection
from ignis.broker.client.sync_subscription import SyncSubscription
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.errors import failure_of
from ignis.broker.protocol.payloads import Delivery
from ignis.errors import ConfigError
from ignis.native import encode_frame
from ignis.native.wire import pack_claims
from tests.support import WAIT_S, eventually
from tests.support.puppet_broker import Puppet

pytestmark = pytest.mark.integration


def delivery(number: int, *, head: Delivery | None = None) -> bytes:
    claims = pack_claims([(number % 3, [number, number + 1], [b"body %d" % number, None])])
    return pack(head or Delivery(), claims)


class Frames:
    """What comes for a subscription, in the pieces in which it comes."""

    @staticmethod
    def one_by_one(number: int) -> list[bytes]:
        return [encode_frame(Command.DELIVER, number, delivery(one)) for one in range(3)]

    @staticmethod
    def with_another_head(number: int) -> list[bytes]:
        head = Delivery(True, 7, {1: [2, 3]})
        return [encode_frame(Command.DELIVER, number, delivery(one, head=head)) for one in range(2)]

    @staticmethod
    def two_together(number: int) -> list[bytes]:
        return [b"".join(Frames.one_by_one(number)[:2]), Frames.one_by_one(number)[2]]

    @staticmethod
    def in_parts(number: int) -> list[bytes]:
        frame = Frames.one_by_one(number)[0]
        return [frame[:11], frame[11:], *Frames.one_by_one(number)[1:]]

    @staticmethod
    def behind_another_frame(number: int) -> list[bytes]:
        return [encode_frame(Command.PONG, 1 << 40, b"late") + one for one in Frames.one_by_one(number)]

    @staticmethod
    def of_another_subscription(number: int) -> list[bytes]:
        return [encode_frame(Command.DELIVER, number + 1, delivery(9)), Frames.one_by_one(number)[0]]

    @staticmethod
    def its_end(number: int) -> list[bytes]:
        refusal = pack(failure_of(ConfigError("no more"), fatal=False))
        return [Frames.one_by_one(number)[0], encode_frame(Command.ERROR, number, refusal)]

    @staticmethod
    def unreadable(number: int) -> list[bytes]:
        return [encode_frame(Command.DELIVER, number, delivery(1)[:-1]), Frames.one_by_one(number)[0]]

    @staticmethod
    def without_a_head(number: int) -> list[bytes]:
        return [encode_frame(Command.DELIVER, number, b"\0")]

    @staticmethod
    def broken(number: int) -> list[bytes]:
        return [Frames.one_by_one(number)[0], b"\xff" * 20]

    @staticmethod
    def draining(number: int) -> list[bytes]:
        return [encode_frame(Command.DISCONNECT, 0, pack(None)), *Frames.one_by_one(number)]


NAMES = [name for name in vars(Frames) if not name.startswith("_")]


@contextlib.contextmanager
def subscribed(puppet: Puppet) -> Iterator[tuple[SyncClient, SyncSubscription]]:
    client = SyncClient(BrokerAddress("127.0.0.1", puppet.port), {"timeout_s": WAIT_S})
    try:
        yield client, client.subscribe("q", 8)
    finally:
        with contextlib.suppress(Exception):
            client.close(0.5)


def script(command: int, request_id: int, payload: bytes) -> bytes:
    return encode_frame(Command.RESULT, request_id, pack(request_id if command == Command.SUBSCRIBE else 1))


def outcome(name: str, alone: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """What the caller got, and what is left on the connection."""
    taken: list[bool] = []
    real = SyncConnection.delivery_alone

    def delivery_alone(self: SyncConnection, *arguments: Any) -> bytes | None:
        payload = real(self, *arguments) if alone else None
        taken.append(payload is not None)
        return payload

    with monkeypatch.context() as patched, Puppet(script) as puppet:
        patched.setattr(SyncConnection, "delivery_alone", delivery_alone)
        with subscribed(puppet) as (client, subscription):
            pieces: list[bytes] = getattr(Frames, name)(subscription.number)
            connection = client.connection
            assert connection is not None
            reader = connection.machine.reader
            got: list[object] = []
            other = puppet.connections[0]
            for number, piece in enumerate(pieces):
                other.sendall(piece)
                if name == "in_parts" and number == 0:
                    continue
                count = 2 if name == "two_together" and number == 0 else 1
                if name in ("of_another_subscription", "draining") and number == 0:
                    count = 0
                for _ in range(count):
                    try:
                        got.append(subscription.receive(WAIT_S))
                    except Exception as exc:
                        got.append((type(exc), str(exc)))
            machine = connection.machine
            left = machine.pending, machine.unknown_answers, machine.late_answers, machine.draining, connection.alive
            return got, left, reader.buffered_bytes, sum(taken)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_as_by_the_ordinary_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *ours, direct = outcome(name, True, monkeypatch)
    *theirs, none = outcome(name, False, monkeypatch)
    assert ours == theirs
    assert none == 0
    if name in ("one_by_one", "with_another_head", "unreadable"):
        assert direct >= 1


@pytest.mark.parametrize("alone", [True, False])
def test_what_comes_for_a_subscription_that_is_given_up_goes_back(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its thread waits; as if nobody had."""
    if not alone:
        monkeypatch.setattr(SyncConnection, "delivery_alone", lambda *_: None)
    got: list[object] = []
    with Puppet(script) as puppet, subscribed(puppet) as (client, subscription):
        connection = client.connection
        assert connection is not None

        def receive() -> None:
            try:
                got.append(subscription.receive(WAIT_S))
            except Exception as exc:
                got.append(type(exc))

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        eventually(lambda: connection._reader == thread.ident)
        connection.cancel(subscription.number, subscription._slot, subscription._request.undo)
        puppet.connections[0].sendall(encode_frame(Command.DELIVER, subscription.number, delivery(4)))
        eventually(lambda: any(command == Command.NACK for command, _ in puppet.seen))
        payload = puppet.payloads[[command for command, _ in puppet.seen].index(Command.NACK)]
        assert payload == requests.nack("q", {1: [4, 5]}).payload
        assert connection.machine.late_answers == 1
        connection.end_stream(subscription.number, subscription._slot)
        client.close(0.5)
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert got not in ([], [None])


def test_another_thread_gets_its_answer_from_who_waits_for_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    with Puppet(script) as puppet, subscribed(puppet) as (client, subscription):
        connection = client.connection
        assert connection is not None
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(subscription.receive(WAIT_S)), daemon=True)
        thread.start()
        eventually(lambda: connection._reader == thread.ident)
        assert client.ack("q", {0: [1]}) == 1
        puppet.connections[0].sendall(encode_frame(Command.DELIVER, subscription.number, delivery(6)))
        thread.join(WAIT_S)
        assert [list(claim.pointers) for claim in got[0].claims] == [[6, 7]]
