"""A request to load that comes alone is carried out where it is read. Nobody can tell: not by an answer, not by what is stored,
and not by a figure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.auth.principal import Credentials
from ignis.broker.client import requests
from ignis.broker.protocol.commands import OWN_TTL, Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.payloads import pack_send, pack_send_batch
from ignis.broker.server.session import Session
from ignis.native import ANY_SHARD, PackedBatch, Record, encode_frame, encode_record
from ignis.storage.embedded.magazines import EmbeddedMagazines
from tests.support import WAIT_S
from tests.support.broker import RunningBroker, Wire

pytestmark = pytest.mark.integration

_FIGURES = ("messages_in", "bytes_in", "bytes_out", "errors", "denied", "refused", "protocol_errors")


class Some:
    """May send to ``none`` and ``sync``, and nothing else."""

    open = True
    name = "some"

    def authenticate(self, credentials: Credentials) -> Some:
        return self

    def allows(self, command: str, queue: str) -> bool:
        return command not in ("SEND", "SEND_BATCH") or queue in ("none", "sync")

    def allows_some(self, command: str) -> bool:
        return True


def record(number: int, key: bytes = b"") -> bytes:
    return encode_record(b"body %d" % number, key=key, id=bytes([number]) * 16, enqueued_at_us=1)


def batch(*numbers: int, key: bytes = b"") -> PackedBatch:
    return PackedBatch.pack([record(number, key) for number in numbers])


def damaged(payload: bytes, at: int) -> bytes:
    changed = bytearray(payload)
    changed[at] ^= 1
    return bytes(changed)


def payloads(queue: bytes) -> list[tuple[int, bytes]]:
    """Commands and payloads, each of which comes alone."""
    send, several = Command.SEND, Command.SEND_BATCH
    one = pack_send_batch(queue, 0, [(1, batch(1, 2, 3))])
    made: list[tuple[int, bytes]] = [
        *((send, pack_send(queue, ttl, shard, record(4))) for ttl in (0, 60_000, OWN_TTL) for shard in (0, 1, ANY_SHARD)),
        (send, pack_send(queue, 0, ANY_SHARD, record(5, b"key"))),
        (send, pack_send(queue, (1 << 62) + 1, 0, record(6))),
        (send, pack_send(queue, 0, 2, record(7))),
        (send, pack_send(queue, 0, ANY_SHARD, b"\xff" * 40)),
        (send, pack_send(queue, 0, 0, b"\xff" * 40)),
        (send, pack_send(queue, 0, 0, b"short")),
        (send, pack_send(b"unknown", 0, 0, record(8))),
        (send, pack_send(b"not a name", 0, 0, record(8))),
        (send, pack_send("n\u00e4me".encode(), 0, 0, record(8))),
        (send, pack_send(b"\xff\xfe", 0, 0, record(8))),
        (send, pack_send(b"", 0, 0, record(8))),
        (send, pack_send(b"n" * 300, 0, 0, record(8))),
        (send, pack_send(queue + b"_SIDELINE", 0, 0, record(9))),
        (send, pack_send(queue + b"_SIDELINE", OWN_TTL, 0, record(9))),
        (send, b""),
        (several, one),
        (several, pack_send_batch(queue, OWN_TTL, [(ANY_SHARD, batch(10))])),
        (several, pack_send_batch(queue, 0, [(ANY_SHARD, batch(11, key=b"key"))])),
        (several, pack_send_batch(queue, 0, [(ANY_SHARD, batch(12, 13, 14, key=b"key"))])),
        (several, pack_send_batch(queue, 0, [(0, batch(15)), (1, batch(16))])),
        (several, pack_send_batch(queue, 0, [])),
        (several, pack_send_batch(queue, 1 << 63, [(0, batch(17))])),
        (several, pack_send_batch(queue, 0, [(9, batch(18))])),
        (several, damaged(one, len(one) - 1)),
        (several, damaged(one, len(queue) + 12 + 6 + 7)),
        (several, one[:-1]),
        (several, one + b"\0"),
        (several, b"\0"),
        (send, pack_send(queue, 0, 1, record(19))),
    ]  # fmt: skip
    return made


def figures(broker: RunningBroker) -> dict[str, int]:
    def read() -> dict[str, int]:
        found = {name: getattr(broker.broker.state, name) for name in _FIGURES}
        inboxes = [inbox for one in broker.broker.applications for inbox in one.inboxes]
        found["requests"] = sum(inbox.requests for inbox in inboxes)
        found["loads"] = sum(inbox.loads for inbox in inboxes)
        found["waiting"] = sum(inbox.bytes for inbox in inboxes)
        found["pending"] = sum(session.pending for session in broker.broker.sessions)
        return found

    return broker.on_loop(read)


def stored(broker: RunningBroker, queue: str) -> list[tuple[int, int, bytes | None, bool]]:
    """(shard, pointer, body, whether it expires) of all that there is."""
    found: list[tuple[int, int, bytes | None, bool]] = []
    store: Any = broker.broker.applications[0].store
    for name in (queue, f"{queue}_SIDELINE"):
        for shard, pointer, data in store.magazines.scan(name, limit=1_000):
            try:
                body = None if data is None else Record(data).body
            except Exception:
                body = data
            found.append((shard, pointer, body, False))
        with contextlib.suppress(Exception):
            log = store.magazines._catalogue.find(name)
            for shard in range(log.shards):
                for first, records, expires in log.log.peek(log.number, shard, [(1, 1 << 40)]):
                    found.append((shard, first, b"%d" % len(records), bool(expires)))
    return found


class Talk:
    """What was said and what became of it."""

    def __init__(self, answers: list[tuple[int, int, bytes]], left: dict[str, int], kept: object, direct: int) -> None:
        self.answers = answers
        self.left = left
        self.kept = kept
        self.direct = direct


def talk(path: Path, durability: str, uvloop: bool, monkeypatch: pytest.MonkeyPatch, way: str, **options: Any) -> Talk:
    direct: list[bool] = []
    real = Session._take_received

    def take_received(self: Session, size: int) -> bool:
        done = way != "ordinary" and real(self, size)
        direct.append(done)
        return done

    with monkeypatch.context() as patched:
        patched.setattr(Session, "_take_received", take_received)
        if way != "lane":
            patched.setattr(EmbeddedMagazines, "lone_lane", lambda *_: None)
        with RunningBroker(f"embedded://{path}", uvloop=uvloop, **options) as broker:
            answers, left = said(broker, durability)
            return Talk(answers, left, stored(broker, durability), sum(direct))


def said(broker: RunningBroker, durability: str) -> tuple[list[tuple[int, int, bytes]], dict[str, int]]:
    """The answers, and what the broker has counted."""
    queue = durability.encode()
    answers: list[tuple[int, int, bytes]] = []
    with broker.client(timeout_s=WAIT_S) as client, Wire(broker.port) as wire:
        for name in (durability, "other"):
            client.ask(requests.create_queue(name, {"shards": 2, "durability": durability, "codec": "raw"}))
        wire.greet()
        # What is to be known of the queue is known behind these.
        first = [(int(Command.SEND), pack_send(queue, OWN_TTL, 0, record(1)))] * 2
        for number, (command, payload) in enumerate([*first, *payloads(queue)], 2):
            wire.send(command, number, payload)
            answers.append(wire.receive())
        for name in (b"other", b"none"):
            wire.send(Command.SEND, 100, pack_send(name, 0, 0, record(2)))
            answers.append(wire.receive())
        # Two at once, and one with something else: never alone.
        pair = encode_frame(Command.SEND, 101, pack_send(queue, 0, 0, record(3)))
        wire.raw(pair + encode_frame(Command.SEND, 102, pack_send(queue, 0, 1, record(3))))
        answers += sorted(wire.receive() for _ in range(2))
        wire.raw(encode_frame(Command.PING, 103, b"") + pair)
        answers += [wire.receive(), wire.receive()]
        return answers, figures(broker)


@pytest.mark.parametrize("way", ["lone", "lane"])
@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("durability", ["none", "interval", "sync"])
def test_the_answers_are_those_of_the_ordinary_way_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, uvloop: bool, way: str
) -> None:
    # Only who need not be asked whether they may has the lane.
    options: dict[str, Any] = {"authenticator": Some()} if durability != "interval" and way != "lane" else {}
    ours = talk(tmp_path / "a", durability, uvloop, monkeypatch, way, **options)
    theirs = talk(tmp_path / "b", durability, uvloop, monkeypatch, "ordinary", **options)
    path_a, path_b = str(tmp_path / "a").encode(), str(tmp_path / "b").encode()
    assert [
        (command, number, payload.replace(path_a, path_b)) for command, number, payload in ours.answers
    ] == theirs.answers
    assert ours.kept == theirs.kept
    assert ours.left == theirs.left
    assert ours.direct >= 15, "the way that is compared was gone"
    assert theirs.direct == 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(f"embedded://{tmp_path / 'store'}", settings={"max_pending": 1}) as running:
        yield running


def warm(broker: RunningBroker, wire: Wire) -> bytes:
    """A payload that is loaded on the spot when it comes alone."""
    with broker.client(timeout_s=WAIT_S) as client:
        client.ask(requests.create_queue("none", {"shards": 2, "durability": "none", "codec": "raw"}))
    payload = pack_send(b"none", OWN_TTL, 0, record(1))
    wire.greet()
    for number in (2, 3):
        wire.send(Command.SEND, number, payload)
        assert wire.receive()[0] == Command.SEND_ACK
    return payload


def test_more_requests_than_may_be_pending_are_refused(broker: RunningBroker) -> None:
    with Wire(broker.port) as wire:
        payload = warm(broker, wire)
        wire.send(Command.WAIT, 10, pack(("none", 2, 60_000)))
        wire.send(Command.PING, 11)
        assert wire.receive()[:2] == (Command.PONG, 11)
        wire.send(Command.SEND, 12, payload)
        assert wire.failure().code == "too_many_requests"


def test_a_broker_that_drains_takes_none(broker: RunningBroker) -> None:
    with Wire(broker.port) as wire:
        payload = warm(broker, wire)
        broker.on_loop(lambda: setattr(broker.broker.state, "draining", True))
        wire.send(Command.SEND, 10, payload)
        assert wire.failure().code == "draining"
