"""The relay's directory, or only its channels, is removed, replaced or moved while producers or the relay live."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Callable

import pytest

import ignis
from ignis import errors
from ignis.native import Intake
from ignis.relay import Relay
from ignis.relay.directory import RelayDirectory
from tests.support import WAIT_S, eventually
from tests.support.relay import Place, stop


def remove_all(here: Place) -> None:
    shutil.rmtree(here.directory)


def remove_channels(here: Place) -> None:
    shutil.rmtree(here.directory / "channels")


def replace_all(here: Place) -> None:
    shutil.rmtree(here.directory)
    here.directory.mkdir(mode=0o700)


both_ways = pytest.mark.parametrize(
    "remove", [remove_all, remove_channels, pytest.param(replace_all, marks=pytest.mark.long)]
)
Remove = Callable[[Place], None]


def events(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record.msg, "event", "") == event]


@both_ways
def test_producers_go_on_in_the_new_directory(here: Place, queue: ignis.Queue[bytes], remove: Remove) -> None:
    relay = here.start_relay()
    publisher = queue.publisher()
    queue.publish(b"1")
    queue.publish(b"2", delay="1h")
    publisher.send(b"3").result(WAIT_S)
    publisher.send(b"4", delay="1h").result(WAIT_S)
    stop(relay)
    remove(here)
    relay = here.start_relay()
    queue.publish(b"5")
    queue.publish(b"6", delay="1h")
    queue.publish_many([b"7", b"8"])
    asyncio.run(queue.apublish(b"9"))
    # What is sent before the producer has looked again is lost, and its receipt says so.
    eventually(lambda: done(publisher.send(b"10")), "a message goes through a new channel")
    eventually(lambda: done(publisher.send(b"11", delay="1h")), "and so does a delayed one")
    stop(relay)
    assert sorted(map(int, [*here.stored(), *delayed(here)])) == list(range(1, 12))


def delayed(here: Place) -> list[bytes]:
    """The bodies of the delayed messages in the store."""
    with ignis.Ignis(here.store_url) as app:
        return [ignis.Message.from_bytes(one.record).body for one in app.store.magazines.list_later("q") if one.record]


def done(receipt: ignis.Receipt) -> bool:
    try:
        receipt.result(WAIT_S)
    except errors.StoreUnreachableError:
        return False
    return True


def test_many_threads_find_one_new_channel(here: Place, queue: ignis.Queue[bytes]) -> None:
    publisher = queue.publisher()
    publisher.send(b"lost")
    (lost,) = here.channels
    remove_all(here)
    sent: list[ignis.Receipt] = []
    together = threading.Barrier(8)

    def send() -> None:
        together.wait(WAIT_S)
        sent.extend([publisher.send(b"x") for _ in range(100)])

    threads = [threading.Thread(target=send) for _ in range(8)]
    with pytest.raises(errors.StoreUnreachableError):
        publisher.send(b"lost").result(WAIT_S)  # so all of them know
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(sent) == 800
    (channel,) = here.channels
    assert channel != lost
    relay = here.start_relay()
    assert [receipt.exception(WAIT_S) for receipt in sent] == [None] * 800
    with pytest.raises(errors.PublishError) as closed:
        publisher.close(WAIT_S)
    assert closed.value.failed == publisher.sent - 800
    stop(relay)
    assert here.stored() == [b"x"] * 800


@both_ways
def test_what_nobody_had_taken_fails_at_once(
    here: Place, queue: ignis.Queue[bytes], remove: Remove, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = queue.publisher()
    receipts = [publisher.send(b"lost") for _ in range(3)]
    (channel,) = here.channels
    remove(here)
    with pytest.raises(
        errors.StoreUnreachableError, match=r"was removed, with 3 .* they are lost, unless a relay was about to"
    ) as caught:
        receipts[0].result(WAIT_S)
    assert caught.value.retryable
    assert str(channel) in str(caught.value)
    assert {receipt.exception(0) for receipt in receipts} == {caught.value}
    assert events(caplog, "channel_lost") == [str(caught.value)]
    relay = here.start_relay()
    publisher.send(b"stored").result(WAIT_S)
    assert (publisher.sent, publisher.pending, publisher.failed) == (4, 0, 3)
    with pytest.raises(errors.PublishError, match="unless a relay was about to take it up") as closed:
        publisher.close(WAIT_S)
    assert closed.value.failed == 3
    assert here.stored() == [b"stored"]
    assert len(events(caplog, "channel_lost")) == 1
    stop(relay)


def test_what_a_relay_had_may_be_stored(here: Place, queue: ignis.Queue[bytes]) -> None:
    publisher = queue.publisher()
    receipt = publisher.send(b"perhaps")
    intake = Intake.open(here.channels[0])  # a relay that has stored it, and ends before it says so
    remove_all(here)
    intake.close()
    with pytest.raises(
        errors.StoreUnreachableError, match="lost, unless the relay that had the channel has stored them"
    ) as caught:
        asyncio.run(asyncio.wait_for(awaited(receipt), WAIT_S))
    assert caught.value.retryable
    with pytest.raises(errors.PublishError, match="unless the relay"):
        publisher.close(WAIT_S)


async def awaited(receipt: ignis.Receipt) -> str:
    return await receipt


@both_ways
def test_a_publish_that_waits_fails_at_once(here: Place, queue: ignis.Queue[bytes], remove: Remove) -> None:
    caught: list[BaseException] = []

    def publish() -> None:
        try:
            queue.publish(b"lost")
        except errors.IgnisError as exc:
            caught.append(exc)

    thread = threading.Thread(target=publish)
    thread.start()
    eventually(lambda: any(box.sent for box in list(queue.app.store.magazines._outboxes.values())))
    remove(here)
    thread.join(WAIT_S)  # which is what `publish` would wait for a relay
    (error,) = caught
    assert isinstance(error, errors.StoreUnreachableError)
    assert "unless a relay was about to take it up" in str(error)
    here.start_relay()
    queue.publish(b"stored")
    assert here.stored() == [b"stored"]


def test_a_directory_that_was_moved_keeps_its_messages(here: Place, queue: ignis.Queue[bytes]) -> None:
    publisher = queue.publisher()
    receipt = publisher.send(b"moved")
    moved = here.directory.with_name(here.directory.name + "-moved")
    here.directory.rename(moved)
    try:
        with pytest.raises(errors.StoreUnreachableError, match=r"was moved away, .* stored twice") as caught:
            receipt.result(WAIT_S)
        assert not caught.value.retryable, "a relay may store it"
        relay = here.start_relay()
        queue.publish(b"1")
        queue.publish(b"2", delay="1h")
        publisher.send(b"3").result(WAIT_S)
        stop(relay)
        assert (sorted(here.stored()), delayed(here)) == ([b"1", b"3"], [b"2"])
        with pytest.raises(errors.PublishError, match="was moved away"):
            publisher.close(WAIT_S)
        here.directory, there = moved, here.directory
        relay = here.start_relay()
        eventually(lambda: not here.channels)
        stop(relay)
        here.directory = there
        assert sorted(here.stored()) == [b"1", b"3", b"moved"]
    finally:
        shutil.rmtree(moved)


def test_a_wait_that_ends_first_does_not_promise_the_channel(here: Place) -> None:
    with ignis.Ignis(here.url, store={"timeout_s": 0.0}) as app:
        publisher = app.queue("q", bytes).publisher()
        receipt = publisher.send(b"x")
        intake = Intake.open(here.channels[0])  # a relay that lives, and whose store does not answer
        remove_all(here)
        with pytest.raises(errors.WaitTimeoutError, match="was removed or moved, and only the relay that has it open"):
            receipt.result(0)
        with pytest.raises(errors.WaitTimeoutError, match="was removed or moved"):
            publisher.flush(0)
        intake.close()
        with pytest.raises(errors.PublishError):
            publisher.close(WAIT_S)


def test_the_place_of_a_removed_directory_must_be_private(here: Place, queue: ignis.Queue[bytes]) -> None:
    publisher = queue.publisher()
    remove_all(here)
    here.directory.mkdir(mode=0o777)
    here.directory.chmod(0o777)
    with pytest.raises(errors.ConfigError, match="it must be 700"):
        queue.publish(b"not there")

    def refused() -> bool:
        try:
            publisher.send(b"not there")
        except errors.ConfigError as exc:
            return "it must be 700" in str(exc)
        return False

    eventually(refused)
    assert not here.channels


@pytest.mark.parametrize("remove", [remove_all, remove_channels, replace_all, "move"])
def test_a_relay_that_lives_goes_on_in_the_new_directory(
    here: Place, queue: ignis.Queue[bytes], remove: Remove | str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ignis.relay")
    moved = here.directory.with_name(here.directory.name + "-moved")
    with ignis.Ignis(here.store_url) as app:
        relay = Relay(app, here.directory, scan_s=0.02)
        thread = threading.Thread(target=relay.run)
        thread.start()
        try:
            publisher = queue.publisher()
            publisher.send(b"before").result(WAIT_S)
            if callable(remove):
                remove(here)
            else:
                here.directory.rename(moved)
            for n in range(5):
                publisher.send(b"sent %d" % n).result(WAIT_S)
                queue.publish(b"published %d" % n)
            with ignis.Ignis(here.url, store={"timeout_s": WAIT_S}) as another:
                another.queue("q", bytes).publish(b"another")
            eventually((here.directory / "relay.json").exists, "producers find what the relay says of itself")
            assert RelayDirectory(here.directory).relay_present()
        finally:
            relay.request_stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()
            shutil.rmtree(moved, ignore_errors=True)
    expected = {b"before", b"another", *(b"%s %d" % (w, n) for w in (b"sent", b"published") for n in range(5))}
    assert sorted(here.stored()) == sorted(expected)
    assert not events(caplog, "channel_lost")


def test_a_relay_that_yields_to_another_stores_what_it_has(
    here: Place, queue: ignis.Queue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one sees only the new directory."""
    with ignis.Ignis(here.store_url) as app:
        relay = Relay(app, here.directory)
        publisher = queue.publisher()
        receipts = [publisher.send(b"%d" % n) for n in range(100)]

        look = relay.roster.scan

        def look_and_yield() -> None:
            look()
            raise errors.LockHeldError("another relay runs")

        monkeypatch.setattr(relay.roster, "scan", look_and_yield)
        with pytest.raises(errors.LockHeldError):
            relay.run()
        assert [receipt.exception(0) for receipt in receipts] == [None] * 100
    assert sorted(map(int, here.stored())) == list(range(100))


def test_a_child_that_sent_nothing_has_no_losses(here: Place, queue: ignis.Queue[bytes]) -> None:
    """It closes its copy of the parent's publisher, whose losses the parent tells."""
    publisher = queue.publisher()
    publisher.send(b"lost")
    remove_all(here)
    eventually(lambda: publisher.failed == 1)
    child = os.fork()
    if child == 0:
        try:
            publisher.close(WAIT_S)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(errors.PublishError):
        publisher.close(WAIT_S)
