"""The relay with real processes: what producers leave is stored once it can be, whoever dies in between."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import ignis
from ignis import errors
from ignis.config import RelaySettings
from ignis.metrics import Collector
from ignis.native import PackedBatch, encode_record
from tests.support import WAIT_S, eventually
from tests.support.relay import Place, finish, kill, say, stop


def test_publish_returns_when_the_message_is_stored(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()
    published = queue.publish(b"one", key="k", headers={"a": 1})
    assert (published.shard, published.pointer) == (-1, 0)
    ids = queue.publish_many([b"%d" % n for n in range(9_000)])
    assert len(set(ids)) == 9_000
    bodies = here.stored()
    assert Counter(bodies) == Counter([b"one", *(b"%d" % n for n in range(9_000))])
    with ignis.Ignis(here.store_url) as app:
        found = [one.envelope for one in app.queue("q", bytes).main.peek(10_000)]
    by_id = {message.id: message for message in found}
    assert set(by_id) == {published.id, *ids}
    assert (by_id[published.id].key, by_id[published.id].headers) == ("k", {"a": 1})


def test_a_deadline_travels_with_the_message(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()
    with queue.publisher() as publisher:
        publisher.send(b"one", expires_in="1h")
        publisher.send(b"two")
    assert sorted(here.stored()) == [b"one", b"two"]
    with ignis.Ignis(here.store_url) as app:
        ends = {one.envelope.body: one.envelope.expires_at_ms for one in app.queue("q", bytes).main.peek(10)}
    assert ends[b"two"] is None
    assert ends[b"one"] is not None


def test_the_time_to_live_counts_from_the_sending(here: Place) -> None:
    """What lay in its channel while no relay ran is as old as it is."""
    with ignis.Ignis(here.url, store={"timeout_s": WAIT_S}) as app:
        queue = app.queue("q", bytes, message_expiry="1h", shards=1)
        queue.open()
        here.start_relay()
        now_us = time.time_ns() // 1_000
        ages_s = {b"old": 7_200, b"young": 1_800, b"of tomorrow": -86_400}
        for body, age_s in ages_s.items():
            record = encode_record(body, enqueued_at_us=now_us - age_s * 1_000_000)
            app.store.magazines.load("q", [(0, PackedBatch.pack([record]))], None)
            app.store.magazines.load_later("q", [(0, PackedBatch.pack([record]))], [[1]], None)
    with ignis.Ignis(here.store_url) as app:
        stored = app.queue("q", bytes)
        found: list[bytes] = []
        eventually(lambda: found.extend(one.message for one in stored.main.fire(10)) or len(found) == 4)
        assert sorted(found) == [b"of tomorrow"] * 2 + [b"young"] * 2
        eventually(lambda: app.store.magazines.expire("q") == 0 and stored.stats()["expired"] == 2)


def test_a_queue_is_listed_when_its_first_message_is_stored(here: Place) -> None:
    """Another producer need not make it too because the relay has not written it down yet."""
    here.start_relay()
    for number in range(5):
        with ignis.Ignis(here.url) as one:
            one.queue(f"q{number}", bytes, shards=3).publish(b"x")
        with ignis.Ignis(here.url) as other:
            found = other.store.queues.get(f"q{number}")
            assert found is not None
            assert found.shards == 3


@pytest.mark.parametrize("whole", [True, False], ids=["removed", "record gone"])
def test_a_queue_that_is_removed_is_made_anew(here: Place, queue: ignis.Queue[bytes], whole: bool) -> None:
    """Its producers need not know: what they left with the relay must not be lost."""
    here.start_relay(environ={"IGNIS_REFRESHER_WATCH_S": "0.05"})
    with queue.publisher() as publisher, ignis.Ignis(here.store_url) as behind:
        publisher.send(b"before").result(WAIT_S)
        if whole:
            behind.remove_queue("q", force=True)
        else:
            behind.store.queues.remove("q")

        def registered() -> bool:
            publisher.send(b"after").result(WAIT_S)
            return behind.store.queues.get("q") is not None

        eventually(registered)
        assert set(here.stored()) == ({b"after"} if whole else {b"before", b"after"})


def test_receipts_are_done_when_the_message_is_stored(here: Place, queue: ignis.Queue[bytes]) -> None:
    relay = here.start_relay()
    with queue.publisher() as publisher:
        first = publisher.send(b"first")
        assert first.result(WAIT_S) == first.id
        os.kill(relay.pid, signal.SIGSTOP)
        called = threading.Event()
        second = publisher.send(b"second")
        second.add_done_callback(lambda receipt: called.set())
        assert not second.done()
        assert publisher.pending == 1
        with pytest.raises(errors.WaitTimeoutError, match="a relay runs on"):
            second.result(0.05)
        os.kill(relay.pid, signal.SIGCONT)
        assert called.wait(WAIT_S)
        assert second.exception(0) is None

        async def several() -> list[bytes]:
            return list(await asyncio.gather(*[publisher.send(b"%d" % n) for n in range(200)]))

        assert len(set(asyncio.run(several()))) == 200
        publisher.flush(WAIT_S)
        assert (publisher.sent, publisher.pending, publisher.failed) == (202, 0, 0)
        assert len(here.stored()) == 202


def test_a_key_keeps_its_shard_and_its_order(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()
    with queue.publisher() as publisher:
        for n in range(2_000):
            publisher.send(b"%d" % n, key=f"key{n % 7}")
    with ignis.Ignis(here.store_url) as app:
        stored = app.queue("q", bytes)
        seen: dict[str, list[int]] = {}
        for one in stored.main.peek(10_000):
            assert one.shard == ignis.native.shard_for_key((one.envelope.key or "").encode(), 32)
            seen.setdefault(one.envelope.key or "", []).append(int(one.message))
    assert {key: numbers == sorted(numbers) for key, numbers in seen.items()} == {f"key{n}": True for n in range(7)}
    assert sum(map(len, seen.values())) == 2_000


def test_what_lay_there_before_the_relay_came_is_stored(here: Place) -> None:
    producer = here.producer("""
publisher = queue.publisher()
for n in range(3000):
    publisher.send(b"%d" % n)
say("sent")
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert say(producer) == "sent"
    finish(producer, -signal.SIGKILL)
    assert len(here.channels) == 1
    relay = here.start_relay()
    eventually(lambda: not here.channels, "the dead producer's channel is drained and removed")
    assert sorted(map(int, here.stored())) == list(range(3_000))
    stop(relay)


def test_what_a_relay_stored_and_did_not_take_is_stored_again(here: Place) -> None:
    """It dies between the two: its messages come twice, with the same ids, and no others do."""
    finish(here.producer("[queue.publisher().send(b'%d' % n) for n in range(10)]\nos._exit(0)"))
    dying = here.popen(
        [
            "-c",
            (
                "import os, signal, sys\n"
            "from ignis.cli import main\n"
            "from ignis.magazine import Magazine\n"
            "load = Magazine.load_batches\n"
            "def load_and_die(*args, **options):\n"
            "    load(*args, **options)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "Magazine.load_batches = load_and_die\n"
            "main(sys.argv[1:])\n"
            ),
            "relay", "--url", here.store_url, "--dir", str(here.directory),
        ]
    )  # fmt: skip
    assert dying.wait(WAIT_S) == -signal.SIGKILL
    assert sorted(here.stored(), key=int) == [b"%d" % n for n in range(10)]
    here.start_relay()
    eventually(lambda: not here.channels)
    with ignis.Ignis(here.store_url) as app:
        found = app.queue("q", bytes).main.fire(100)
    assert Counter(one.message for one in found) == {b"%d" % n: 2 for n in range(10)}
    assert len({one.envelope.id for one in found}) == 10


def test_the_next_relay_takes_over_while_producers_live(here: Place, queue: ignis.Queue[bytes]) -> None:
    sent = 0
    with queue.publisher() as publisher:
        for _ in range(4):
            relay = here.start_relay()
            for _ in range(5_000):
                publisher.send(b"%d" % sent)
                sent += 1
            kill(relay)
            publisher.send(b"%d" % sent)  # nobody is there
            sent += 1
        here.start_relay()
        publisher.flush(WAIT_S)
    counts = Counter(map(int, here.stored()))
    assert set(counts) == set(range(sent)), "lost or invented"
    # A relay that dies leaves at most what one channel holds stored and not taken.
    assert sum(counts.values()) - sent <= 4 * RelaySettings().capacity


def test_a_full_channel_is_back_pressure_and_then_an_error(here: Place) -> None:
    app = ignis.Ignis(here.url, store={"capacity": 64})
    queue = app.queue("q", bytes)
    publisher = queue.publisher(send_timeout_s=0.2)
    for n in range(64):
        publisher.send(b"%d" % n)
    with pytest.raises(errors.ChannelFullError):
        publisher.send(b"no", timeout=0)
    with pytest.raises(errors.RelayAbsentError, match="no relay runs on"):
        publisher.send(b"no")
    with pytest.raises(errors.RelayAbsentError):
        asyncio.run(publisher.asend(b"no"))
    here.start_relay()
    for n in range(64, 1_000):
        publisher.send(b"%d" % n, timeout=WAIT_S)
    publisher.close(WAIT_S)
    app.close()
    assert sorted(map(int, here.stored())) == list(range(1_000))


def test_what_waits_in_the_channel_is_not_to_be_published_again(here: Place) -> None:
    with ignis.Ignis(here.url, store={"timeout_s": 0.05, "capacity": 64}, publisher={"close_timeout_s": 0.05}) as app:
        queue = app.queue("q", bytes)
        for call in (lambda: queue.publish(b"once"), lambda: asyncio.run(queue.apublish(b"twice"))):
            with pytest.raises(
                errors.RelayAbsentError, match="stays in the channel and is stored by a relay later"
            ) as found:
                call()
            assert (found.value.sent, found.value.retryable) == (True, False)
            copy = pickle.loads(pickle.dumps(found.value))
            assert (copy.sent, copy.retryable, str(copy)) == (True, False, str(found.value))
        with pytest.raises(errors.RelayAbsentError, match=r"the last \d+ of 100 messages found no room") as found:
            queue.publish_many([b"many"] * 100)
        assert (found.value.sent, found.value.retryable) == (True, False)
        with pytest.raises(errors.RelayAbsentError, match="no room for") as found:
            queue.publish(b"never")
        assert (found.value.sent, found.value.retryable) == (False, True)
    here.start_relay()
    eventually(lambda: not here.channels)
    stored = here.stored()
    assert (stored.count(b"once"), stored.count(b"twice"), stored.count(b"never")) == (1, 1, 0)
    assert 0 < stored.count(b"many") < 100


def test_closing_without_a_relay_says_so_and_leaves_the_messages(here: Place, queue: ignis.Queue[bytes]) -> None:
    publisher = queue.publisher()
    receipt = publisher.send(b"later")
    with pytest.raises(errors.RelayAbsentError):
        publisher.close(0.05)
    with pytest.raises(errors.ClosedError):
        publisher.send(b"closed")
    with pytest.raises(errors.ClosedError):
        receipt.result(0)
    here.start_relay()
    eventually(lambda: not here.channels)
    assert here.stored() == [b"later"]


def test_a_forked_child_makes_a_channel_of_its_own(here: Place) -> None:
    here.start_relay()
    producer = here.producer("""
publisher = queue.publisher()
receipt = publisher.send(b"parent")
children = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        for k in range(100):
            last = publisher.send(b"%d-%d" % (n, k))
        queue.publish(b"published by %d" % n)
        last.result(30)
        publisher.close(30)
        os._exit(0)
    children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
publisher.send(b"parent again").result(30)
publisher.close(30)
say(codes)
""")
    assert say(producer) == "[0, 0, 0]"
    finish(producer)
    expected = [b"parent", b"parent again", *(b"published by %d" % n for n in range(3))]
    expected += [b"%d-%d" % (n, k) for n in range(3) for k in range(100)]
    assert Counter(here.stored()) == Counter(expected)
    eventually(lambda: not here.channels)


def test_many_producers_and_queues(here: Place) -> None:
    code = """
publishers = [app.queue(name, bytes).publisher() for name in ("q", "r")]
for n in range(2000):
    publishers[n % 2].send(b"%s-%d" % (sys.argv[2].encode(), n))
for publisher in publishers:
    publisher.close(30)
"""
    here.start_relay()
    for process in [here.producer(code, n) for n in range(6)]:
        finish(process)
    assert Counter(here.stored("q")) == Counter(b"%d-%d" % (p, n) for p in range(6) for n in range(0, 2_000, 2))
    assert Counter(here.stored("r")) == Counter(b"%d-%d" % (p, n) for p in range(6) for n in range(1, 2_000, 2))
    eventually(lambda: not here.channels)


def test_a_stopped_relay_stores_what_is_there_and_says_what_it_did(here: Place, queue: ignis.Queue[bytes]) -> None:
    relay = here.start_relay()
    publisher = queue.publisher()
    for n in range(1_000):
        publisher.send(b"%d" % n)
    ended = json.loads(stop(relay).splitlines()[-1])
    assert (ended["event"], ended["messages"], ended["refused"]) == ("stopped", 1_000, 0)
    assert publisher.pending == 0
    publisher.close(WAIT_S)


def test_a_second_relay_is_refused(here: Place) -> None:
    here.start_relay()
    second = here.popen(["-m", "ignis", "relay", "--url", here.store_url + "2", "--dir", str(here.directory)])
    _, err = second.communicate(timeout=WAIT_S)
    assert second.returncode == 4
    assert "another relay runs" in err


def test_the_queue_has_the_settings_of_its_first_producer(here: Place) -> None:
    app = ignis.Ignis(here.url)
    app.queue("fresh", dict, shards=5, durability="none", message_expiry="1h").publisher().send({"a": 1})
    here.start_relay()
    with ignis.Ignis(here.store_url) as other:
        eventually(lambda: other.store.queues.get("fresh"))
        record = other.store.queues.get("fresh")
        assert record is not None
        assert (record.shards, record.durability, record.message_expiry_s, record.codec) == (5, "none", 3_600, "json")
    app.close()
    # The relay wrote the settings down: a producer that comes later takes them, or is told that its own differ.
    eventually(lambda: "fresh" in json.loads((here.directory / "relay.json").read_text()).get("queues", {}))
    with ignis.Ignis(here.url) as later:
        later.queue("fresh").open()
        assert later.queue("fresh").settings.shards == 5
    with ignis.Ignis(here.url) as wrong, pytest.raises(errors.QueueMismatchError):
        wrong.queue("fresh", dict, durability="sync").open()


def test_what_was_chosen_is_checked_though_it_is_the_default(here: Place) -> None:
    with ignis.Ignis(here.store_url) as app:
        app.queue("q", bytes, durability="none").open()
    with ignis.Ignis(here.url) as easy, ignis.Ignis(here.url) as strict:
        taken = easy.queue("q", bytes).publisher()  # leaves the choice to whoever made the queue
        refused = strict.queue("q", bytes, durability="sync").publisher()  # no relay yet: nobody could say so
        receipts = [publisher.send(b"x") for publisher in (taken, refused)]
        here.start_relay()
        assert receipts[0].result(WAIT_S)
        with pytest.raises(errors.RelayRefusedError, match="stored with durability 'none', asked for 'sync'"):
            receipts[1].result(WAIT_S)
        taken.close(WAIT_S)
        with pytest.raises(errors.PublishError):
            refused.close(WAIT_S)


def test_handlers_do_not_start_over_a_relay(here: Place, queue: ignis.Queue[bytes]) -> None:
    @queue.handler
    def handle(message: bytes) -> None:
        raise AssertionError(message)

    for start in (queue.app.start, queue.start):
        with pytest.raises(
            errors.PublishOnlyError, match="for running handlers open the store that its relay was given"
        ):
            start()
    assert not queue.app.running
    patterns = ignis.Ignis(here.url)
    patterns.handler("o.*")(handle)
    with patterns, pytest.raises(errors.PublishOnlyError, match="running handlers"):
        patterns.start()


def test_only_publishing_goes_through_a_relay(here: Place, queue: ignis.Queue[bytes]) -> None:
    store = queue.app.store
    calls = [
        lambda: queue.main.fire(1),
        queue.main.metadata,
        lambda: queue.sideline.fire(1),
        lambda: store.locks.acquire("a", "b", 1.0),
        lambda: store.arrays.size("a", "b"),
        lambda: store.queues.remove("q"),
        lambda: queue.app.magazine("raw", bytes).load(b"x"),
    ]
    for call in calls:
        with pytest.raises(errors.PublishOnlyError, match="open the store"):
            call()
    assert store.stats()["relay"] == "absent: none has run here yet"
    assert "no relay has run on" in store.queues_unknown
    [figures] = queue.app.stats()["queues"]
    assert (figures["published"], "pending" in figures) == (0, False), "what this process counted"
    CollectorRegistry().register(Collector(queue.app.stats))  # which asks at once
    process = here.start_relay()
    assert store.stats()["relay"] == str(process.pid)
    assert store.queues_unknown == ""
    stop(process)
    assert store.stats()["relay"] == "absent"


def test_another_application_needs_a_directory_of_its_own(here: Place) -> None:
    early = ignis.Ignis(here.url, client_id="other")
    publisher = early.queue("q", bytes).publisher()
    receipt = publisher.send(b"x")
    here.start_relay()
    with pytest.raises(errors.RelayRefusedError, match="this relay serves 'ignis'"):
        receipt.result(WAIT_S)
    with pytest.raises(errors.RelayRefusedError):
        publisher.send(b"y")
    with pytest.raises(errors.PublishError):
        publisher.close(WAIT_S)
    early.close()
    with pytest.raises(errors.ConfigError, match="every application needs a directory"):
        ignis.Ignis(here.url, client_id="other").queue("q", bytes).open()


# -- files and stores that are not as they should be


def test_hostile_files_are_set_aside_and_the_others_go_on(here: Place, queue: ignis.Queue[bytes]) -> None:
    with queue.publisher() as publisher:
        good = here.channels[0]
        region = good.read_bytes()  # nobody collects from it yet, as these bytes say
        relay = here.start_relay()
        publisher.send(b"before").result(WAIT_S)
        hostile = {
            "empty": b"",
            "text": b"x" * 8_192,
            "header": region[:4_096],
            "half": region[: len(region) // 2],
            "label": region[:2_048] + b"\xff" * 2_048 + region[4_096:],
            "positions": region[:4_096] + b"\xff" * 128 + region[4_224:],
        }
        for name, content in hostile.items():
            (good.parent / f"{name}.part").write_bytes(content)
            (good.parent / f"{name}.part").rename(good.parent / f"{name}.channel")
        (good.parent / "directory.channel").mkdir()
        os.mkfifo(good.parent / "fifo.channel")
        (good.parent / "link.channel").symlink_to(good)
        wanted = {f"{name}.channel" for name in [*hostile, "fifo"]}
        eventually(lambda: not wanted - {one.name for one in (here.directory / "aside").iterdir()}, "all are set aside")
        for name in wanted:
            assert (here.directory / "aside" / f"{name}.reason").read_text().strip()
        assert publisher.send(b"after").result(WAIT_S)
    assert sorted(here.stored()) == [b"after", b"before"]
    assert relay.poll() is None
    stop(relay)


def test_a_channel_cut_while_in_use_is_refused_and_the_others_go_on(here: Place, queue: ignis.Queue[bytes]) -> None:
    relay = here.start_relay()
    cut = queue.publisher()
    cut.send(b"before").result(WAIT_S)
    (path,) = here.channels
    os.truncate(path, 4_096)
    eventually(lambda: here.aside)
    # Who hears of it first: the producer by the relay, or by what it wrote itself.
    with pytest.raises((errors.RelayRefusedError, errors.RegionTruncatedError), match="shorter than its header says"):
        cut.send(b"lost")
    with queue.publisher() as publisher:
        publisher.send(b"after").result(WAIT_S)
    assert sorted(here.stored()) == [b"after", b"before"]
    stop(relay)


def test_records_of_another_codec_are_refused(here: Place, queue: ignis.Queue[bytes]) -> None:
    with ignis.Ignis(here.store_url) as app:
        app.queue("q", dict).open()
    publisher = queue.publisher()
    receipt = publisher.send(b"raw")
    here.start_relay()
    with pytest.raises(errors.RelayRefusedError, match="codec 'json', asked for 'raw'"):
        receipt.result(WAIT_S)
    with pytest.raises(errors.PublishError):
        publisher.close(WAIT_S)
    assert len(here.aside) == 1
    assert b"raw" in here.aside[0].read_bytes(), "nothing is thrown away"


def test_a_store_that_is_full_makes_messages_wait(here: Place, queue: ignis.Queue[bytes]) -> None:
    store = here.store_url
    here.store_url += "?max_store_bytes=8388608"
    relay = here.start_relay()
    body = b"x" * 8_000
    publisher = queue.publisher()
    receipts = [publisher.send(body, timeout=0) for _ in range(100)]
    for receipt in receipts:
        receipt.result(WAIT_S)
    sent = 100 + _fill(publisher, body)
    kill(relay)
    here.store_url = store
    with ignis.Ignis(store) as app:
        assert len(app.queue("q", bytes).main.fire(100)) == 100
    here.start_relay()
    publisher.flush(WAIT_S)
    publisher.close(WAIT_S)
    assert len(here.stored()) >= sent


def _fill(publisher: ignis.Publisher[bytes], body: bytes) -> int:
    """Sends until there is no room for half a second; returns how many."""
    for sent in range(20_000):
        try:
            publisher.send(body, timeout=0.5)
        except errors.WaitTimeoutError:
            return sent
    raise AssertionError("the store is never full")


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_directory_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with ignis.Ignis(f"relay://{shared}") as app, pytest.raises(errors.ConfigError, match="it must be 700"):
        app.queue("q", bytes).open()
    link = tmp_path / "link"
    shared.chmod(0o700)
    link.symlink_to(shared)
    with ignis.Ignis(f"relay://{link}") as app, pytest.raises(errors.ConfigError, match="not a directory"):
        app.queue("q", bytes).open()
    with ignis.Ignis("relay://relative") as app, pytest.raises(errors.ConfigError, match="not absolute"):
        app.queue("q", bytes).open()


def test_coroutines_hear_when_the_relay_has_stored(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()

    async def main() -> list[ignis.Published]:
        return list(await asyncio.gather(*(queue.apublish(b"%d" % n) for n in range(50))))

    published = asyncio.run(main())
    assert len({one.id for one in published}) == 50
    assert {(type(one.id), one.shard, one.pointer) for one in published} == {(str, -1, 0)}
    assert sorted(here.stored()) == sorted(b"%d" % n for n in range(50))
    assert queue.published == 50


def test_a_coroutine_does_not_wait_for_ever_for_a_relay(here: Place) -> None:
    options = {"store": {"timeout_s": 0.05}, "publisher": {"close_timeout_s": 0.05}}
    late = pytest.raises(errors.RelayAbsentError, match=r"is not durable within 0\.05 s")
    with ignis.Ignis(here.url, **options) as app, late:  # type: ignore[arg-type]
        asyncio.run(app.queue("q", bytes).apublish(b"x"))


def test_a_closed_producer_publishes_again(here: Place, queue: ignis.Queue[bytes]) -> None:
    here.start_relay()
    for n in range(3):
        queue.publish(b"%d" % n)
        assert asyncio.run(queue.apublish(b"a%d" % n)).id
        queue.app.close()
    assert sorted(here.stored()) == sorted([b"0", b"1", b"2", b"a0", b"a1", b"a2"])
