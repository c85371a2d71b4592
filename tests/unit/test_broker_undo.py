"""What comes for those who gave up: whatever the order, each message reaches its own caller or goes back, once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ignis.broker.client import requests, store_requests
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.machine import Answer, BrokerMachine, ClientMachine
from ignis.broker.protocol.payloads import Connect, Connected, Delivery, Nack, Unsubscribe
from ignis.errors import BadRequestError
from ignis.native import encode_record
from ignis.native.wire import ReadArea, pack_claims, unpack_runs

RECORD = encode_record(b"x")


class Pair:
    """Both machines, and a broker that hands out pointer after pointer."""

    def __init__(self, max_pending: int = 10_000) -> None:
        self.client = ClientMachine(ReadArea(1 << 16), 1 << 20, max_pending)
        self.broker = BrokerMachine(ReadArea(1 << 16), 1 << 20, max_pending)
        self.next = 1
        self.taken: dict[str, list[int]] = {}
        self.back: list[int] = []
        self.ended: list[int] = []
        ((_, request_id, _),), _ = self.broker.feed(self.client.connect(Connect("c", "f", "i")))
        self.client.feed(self.broker.welcome(request_id, Connected("b", 1 << 20, max_pending, 1_000)))

    def ask(self, ask: ClientRequest[Any], token: str) -> int:
        streams = ask.command is Command.SUBSCRIBE
        request_id, frame = self.client.request(ask.command, ask.payload, token, streams=streams, sent=True)
        self.broker.feed(frame)
        return request_id

    def deliver(self, request_id: int, count: int, *, streams: bool) -> list[Answer]:
        pointers = range(self.next, self.next + count)
        self.next += count
        payload = pack(Delivery(), pack_claims([(0, pointers, [RECORD] * count)] if count else []))
        return self.receive(self.broker.answer(Command.DELIVER, request_id, payload, 0 if streams else 1))

    def receive(self, frame: bytes) -> list[Answer]:
        """What the client makes of a frame; what it then asks for is carried out."""
        answers = self.client.feed(frame)
        self.carry_out()
        return answers

    def carry_out(self) -> None:
        while self.client.owes:
            requests, _ = self.broker.feed(self.client.undo())
            for command, request_id, payload in requests:
                if command == Command.UNSUBSCRIBE:
                    self.ended.append(unpack(payload, Unsubscribe)[0].subscription)
                    assert self.client.feed(self.broker.result(request_id, True)) == []
                    continue
                assert command == Command.NACK
                head, at = unpack(payload, Nack)
                assert (head.queue, head.action, head.delay_ms) == ("q", "requeue", 0)
                for _, start, stop in unpack_runs(payload, at):
                    self.back += range(start, stop)
                assert self.client.feed(self.broker.result(request_id, 1)) == []


def pointers_in(answer: Answer) -> list[int]:
    return [one for many in requests.pointers_of(requests.delivered(answer.payload)).values() for one in many]


@given(
    st.lists(st.sampled_from(["pull", "subscribe", "cancel", "look", "answer", "deliver", "refuse"]), max_size=80),
    st.randoms(use_true_random=False),
)
def test_each_message_is_taken_or_goes_back(steps: list[str], rng: Any) -> None:
    pair = Pair()
    waiting: dict[int, ClientRequest[Any]] = {}  # the broker owes these an answer
    streams: dict[int, ClientRequest[Any]] = {}  # subscriptions that the broker has answered
    unseen: dict[int, list[Answer]] = {}  # what came, and its caller has not looked at
    given_up: set[int] = set()
    for number, step in enumerate(steps):
        asked = [*waiting, *streams]
        if step in ("pull", "subscribe"):
            ask: ClientRequest[Any] = (
                requests.consume("q", 5, 0, 1 << 20) if step == "pull" else requests.subscribe("q", 5, 1 << 20)
            )
            request_id = pair.ask(ask, f"t{number}")
            waiting[request_id] = ask
            unseen[request_id] = []
            continue
        if step == "look" and unseen:
            request_id = rng.choice(list(unseen))
            for answer in unseen[request_id]:
                if answer.command == Command.DELIVER:
                    pair.taken.setdefault(answer.token, []).extend(pointers_in(answer))
            unseen[request_id] = []
            continue
        if step == "cancel" and (asked or any(unseen.values())):
            request_id = rng.choice([*asked, *(one for one, found in unseen.items() if found)])
            ask = waiting.get(request_id) or streams.get(request_id) or requests.consume("q", 5, 0, 1 << 20)
            if request_id in streams and not any(one.command == Command.RESULT for one in unseen[request_id]):
                continue  # its answer was seen: it is closed by unsubscribing, not given up
            if request_id not in given_up:
                given_up.add(request_id)
                pair.client.cancel(request_id, ask.undo, unseen[request_id])
                unseen[request_id] = []
                pair.carry_out()
                streams = {one: ask for one, ask in streams.items() if one not in pair.ended}
            continue
        found: list[Answer] = []
        if step == "deliver" and streams:
            request_id = rng.choice(list(streams))
            found = pair.deliver(request_id, rng.randint(1, 3), streams=True)
        elif step == "answer" and waiting:
            request_id = rng.choice(list(waiting))
            ask = waiting.pop(request_id)
            if ask.command is Command.SUBSCRIBE:
                streams[request_id] = ask
                found = pair.receive(pair.broker.result(request_id, request_id))
            else:
                found = pair.deliver(request_id, rng.randint(0, 3), streams=False)
        elif step == "refuse" and waiting:
            request_id = rng.choice(list(waiting))
            del waiting[request_id]
            found = pair.receive(pair.broker.error(request_id, BadRequestError("no")))
        else:
            continue
        streams = {one: ask for one, ask in streams.items() if one not in pair.ended}
        if request_id in given_up:
            assert found == [], "nobody is told"
        else:
            unseen[request_id] += found
    seen = [pointer for many in pair.taken.values() for pointer in many]
    still = [
        pointer
        for found in unseen.values()
        for answer in found
        if answer.command == Command.DELIVER
        for pointer in pointers_in(answer)
    ]
    assert sorted([*seen, *still, *pair.back]) == list(range(1, pair.next)), "each exactly once"
    assert set(pair.ended) <= given_up
    assert pair.client.pending == len(waiting) + len(streams)


def test_giving_back_waits_for_room() -> None:
    pair = Pair(max_pending=2)
    first, second = (pair.ask(requests.consume("q", 1, 0, 1 << 20), str(number)) for number in range(2))
    for request_id in (first, second):
        pair.client.cancel(request_id, requests.consume("q", 1, 0, 1 << 20).undo)
    payload = pack(Delivery(), pack_claims([(0, range(1, 2), [RECORD])]))
    pair.client.feed(pair.broker.answer(Command.DELIVER, first, payload))
    third = pair.ask(store_requests.names(), "third")
    assert pair.client.owes
    assert pair.client.undo() == b"", "two are open"
    pair.receive(pair.broker.result(third, []))
    assert pair.back == [1]
    assert not pair.client.owes
    assert pair.client.late_answers == 1, "the answer to giving back is not counted"


def test_what_cannot_be_read_brought_nothing() -> None:
    pair = Pair()
    pull = requests.consume("q", 1, 0, 1 << 20)
    request_id = pair.ask(pull, "t")
    nothing = Answer(None, 0, b"", None)  # a shell's own, in place of one that did not come
    pair.client.cancel(request_id, pull.undo, [nothing])
    assert pair.client.late_answers == 0
    assert pair.receive(pair.broker.answer(Command.DELIVER, request_id, b"no delivery")) == []
    assert (pair.back, pair.client.late_answers, pair.client.pending) == ([], 1, 0)
