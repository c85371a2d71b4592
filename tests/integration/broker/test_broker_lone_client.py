"""A load of one batch is sent without being put together where nobody else waits on the connection. Neither a broker nor the
caller can tell."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ignis.broker.client import requests, store_magazines
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.store import BrokerStore
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.client.sync_connection import SyncConnection
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.errors import failure_of
from ignis.broker.protocol.payloads import pack_send_ack
from ignis.config import ClientSettings, resolve
from ignis.errors import ClosedError, DrainingError, MalformedFrameError, StoreFullError
from ignis.native import PackedBatch, encode_frame, encode_record
from tests.support import WAIT_S, eventually
from tests.support.puppet_broker import Puppet

pytestmark = pytest.mark.integration

ACK = pack_send_ack([(3, 17, 1)])


def batch(nbytes: int = 0) -> PackedBatch:
    return PackedBatch.pack([encode_record(b"body".ljust(nbytes), id=b"i" * 16, enqueued_at_us=1)])


@contextlib.contextmanager
def store_of(puppet: Puppet, **settings: Any) -> Iterator[BrokerStore]:
    given = {"timeout_s": WAIT_S, "retry_wait_s": 0.01, **settings}
    store = BrokerStore(BrokerAddress("127.0.0.1", puppet.port), resolve(ClientSettings, given))
    try:
        yield store
    finally:
        with contextlib.suppress(Exception):
            store.close(0.5)


class Scripts:
    """What the broker answers to the loads that come, in order."""

    @staticmethod
    def answered(number: int, request_id: int) -> bytes:
        return encode_frame(Command.SEND_ACK, request_id, ACK)

    @staticmethod
    def refused(number: int, request_id: int) -> bytes:
        return encode_frame(Command.ERROR, request_id, pack(failure_of(StoreFullError("disk full"), fatal=False)))

    @staticmethod
    def behind_another_frame(number: int, request_id: int) -> bytes:
        return encode_frame(Command.PONG, 1 << 40, b"late") + encode_frame(Command.SEND_ACK, request_id, ACK)

    @staticmethod
    def before_another_frame(number: int, request_id: int) -> bytes:
        return encode_frame(Command.SEND_ACK, request_id, ACK) + encode_frame(Command.DISCONNECT, 0, pack(None))

    @staticmethod
    def unreadable(number: int, request_id: int) -> bytes:
        return encode_frame(Command.SEND_ACK, request_id, ACK[:-1])

    @staticmethod
    def of_no_batch(number: int, request_id: int) -> bytes:
        return encode_frame(Command.SEND_ACK, request_id, b"\0\0")

    @staticmethod
    def broken(number: int, request_id: int) -> bytes:
        return b"\xff" * 20

    @staticmethod
    def closed(number: int, request_id: int) -> bytes | None:
        return None

    @staticmethod
    def draining(number: int, request_id: int) -> bytes:
        if number:
            return encode_frame(Command.SEND_ACK, request_id, ACK)
        return encode_frame(Command.ERROR, request_id, pack(failure_of(DrainingError("going"), fatal=False)))

    @staticmethod
    def silent(number: int, request_id: int) -> bytes:
        return b""


NAMES = [name for name in vars(Scripts) if not name.startswith("_")]


def outcome(name: str, alone: bool, monkeypatch: pytest.MonkeyPatch, nbytes: int) -> tuple[object, ...]:
    """What the caller got, what the broker saw, and what is left on the connection."""
    answer: Callable[[int, int], bytes | None] = getattr(Scripts, name)
    loads: list[int] = []
    taken: list[bool] = []
    real = store_magazines.exchange_alone

    def script(command: int, request_id: int, payload: bytes) -> bytes | None:
        if command != Command.SEND_BATCH:
            return encode_frame(Command.RESULT, request_id, pack(None))
        loads.append(request_id)
        return answer(len(loads) - 1, request_id)

    def exchange_alone(client: SyncClient, outgoing: Any) -> bytes | None:
        taken.append(True)
        return real(client, outgoing) if alone else None

    with monkeypatch.context() as patched, Puppet(script) as puppet:
        patched.setattr(store_magazines, "exchange_alone", exchange_alone)
        with store_of(puppet, timeout_s=0.6 if name == "silent" else WAIT_S) as store:
            one = batch(nbytes)
            got: object
            try:
                got = store.magazines.load("q", [(3, one)], 60.0)
            except Exception as exc:
                said = "" if isinstance(exc, ValueError) else re.sub(r"\d+ ms", "so many ms", str(exc))
                got = type(exc), said, getattr(exc, "sent", None)
            connection = store.client.connection
            machine = None if connection is None else connection.machine
            left = None if machine is None else (machine.pending, machine.unknown_answers, machine.draining)
            sent = [
                payload for (command, _), payload in zip(puppet.seen, puppet.payloads, strict=True) if command == 11
            ]
            assert taken
            return got, one.sealed, left, len(puppet.connections), sent


@pytest.mark.parametrize("nbytes", [0, 900_000], ids=["small", "large"])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_as_by_the_ordinary_way(name: str, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = outcome(name, True, monkeypatch, nbytes)
    assert ours == outcome(name, False, monkeypatch, nbytes)
    if name in ("answered", "behind_another_frame", "before_another_frame", "draining"):
        assert ours[:2] == ([17], True)


def outcome_of_body(name: str) -> tuple[object, ...]:
    """`outcome` of a message that is a body alone, as a magazine loads it."""
    answer: Callable[[int, int], bytes | None] = getattr(Scripts, name)
    loads: list[int] = []

    def script(command: int, request_id: int, payload: bytes) -> bytes | None:
        if command != Command.SEND_BATCH:
            return encode_frame(Command.RESULT, request_id, pack(None))
        loads.append(request_id)
        return answer(len(loads) - 1, request_id)

    with Puppet(script) as puppet, store_of(puppet, timeout_s=0.6 if name == "silent" else WAIT_S) as store:
        got: object
        try:
            found = store.magazines.load_body("q", 3, b"body", 0, 60.0)
            got = store.magazines.load("q", [(3, batch())], 60.0) if found is None else [found[2]]
            sealed = True
        except Exception as exc:
            said = "" if isinstance(exc, ValueError) else re.sub(r"\d+ ms", "so many ms", str(exc))
            got, sealed = (type(exc), said, getattr(exc, "sent", None)), False
        connection = store.client.connection
        machine = None if connection is None else connection.machine
        left = None if machine is None else (machine.pending, machine.unknown_answers, machine.draining)
        return got, sealed, left, len(puppet.connections), len(loads)


@pytest.mark.parametrize("name", NAMES)
def test_a_body_goes_as_by_the_ordinary_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got, sealed, left, connections, sent = outcome(name, False, monkeypatch, 0)
    assert isinstance(sent, list)
    ours = outcome_of_body(name)
    if name in ("of_no_batch", "unreadable"):
        assert isinstance(ours[0], tuple)
        assert ours[0][0] is MalformedFrameError
        ours = got, *ours[1:]
    assert ours == (got, sealed, left, connections, len(sent))


def test_a_large_body_and_a_shard_that_no_magazine_has_go_the_ordinary_way() -> None:
    with Puppet(lambda *_: b"") as puppet, store_of(puppet) as store:
        assert store.magazines.load_body("q", 3, b"x" * 65_537, 0, None) is None
        assert store.magazines.load_body("q", 1 << 20, b"x", 0, None) is None
        assert Command.SEND_BATCH not in [command for command, _ in puppet.seen]


def test_an_answer_that_comes_in_parts() -> None:
    part = threading.Event()
    with Puppet(lambda *_: b"") as puppet, store_of(puppet) as store:

        def answer() -> None:
            eventually(lambda: any(command == Command.SEND_BATCH for command, _ in puppet.seen))
            frame = encode_frame(Command.SEND_ACK, puppet.seen[-1][1], ACK)
            puppet.connections[0].sendall(frame[:9])
            eventually(
                lambda: (
                    store.client.connection is not None and store.client.connection.machine.reader.buffered_bytes == 9
                )
            )
            puppet.connections[0].sendall(frame[9:])
            part.set()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert store.magazines.load("q", [(3, batch())], None) == [17]
        thread.join(WAIT_S)
        assert part.is_set()


def test_where_another_thread_waits_it_goes_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[int] = []
    begun: list[int] = []
    real = SyncConnection.begin

    def script(command: int, request_id: int, payload: bytes) -> bytes:
        if command == Command.PING:
            waiting.append(request_id)
            return b""
        pongs = b"".join(encode_frame(Command.PONG, one, b"") for one in waiting)
        return encode_frame(Command.SEND_ACK, request_id, ACK) + pongs

    def begin(self: SyncConnection, command: int, *arguments: Any, **options: Any) -> int:
        begun.append(command)
        return real(self, command, *arguments, **options)

    with Puppet(script) as puppet, store_of(puppet) as store:
        monkeypatch.setattr(SyncConnection, "begin", begin)
        thread = threading.Thread(target=lambda: store.client.ask(requests.ping()), daemon=True)
        thread.start()
        eventually(lambda: bool(waiting))
        assert store.magazines.load("q", [(3, batch())], None) == [17]
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert Command.SEND_BATCH in begun


def test_a_store_that_is_closed_says_so() -> None:
    with Puppet(lambda *_: b"") as puppet, store_of(puppet) as store:
        store.close(0.5)
        with pytest.raises(ClosedError):
            store.magazines.load("q", [(3, batch())], None)
