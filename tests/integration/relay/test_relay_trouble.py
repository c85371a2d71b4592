"""The relay where something is wrong around it: no room, the wrong user, stopped producers, and very many short ones."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis
from ignis import errors
from ignis.relay import Relay, forwarder
from ignis.relay.channel_label import DELAYED_VERSION, VERSION, Label
from tests.support import WAIT_S, eventually
from tests.support.relay import Place, finish, say, stop


@contextlib.contextmanager
def small_disk(mount: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size. Needs root."""
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "ignis-test", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], capture_output=True, timeout=30, check=False)


def fill(path: Path) -> None:
    """Takes the file system to its last byte."""
    with path.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4_096))


def give_room(path: Path) -> None:
    """Takes the ballast away, and waits for its room: some file systems give that back a while after the file is gone."""
    room_bytes = path.stat().st_size // 2
    path.unlink()

    def given() -> bool:
        found = os.statvfs(path.parent)
        return found.f_bavail * found.f_frsize >= room_bytes

    eventually(given, "the room of a deleted file")


def test_full_shared_memory_is_an_error_for_new_channels_and_the_others_go_on(here: Place, tmp_path: Path) -> None:
    with small_disk(tmp_path / "shm", 14) as shared:
        here.directory = shared
        here.url = f"relay://{shared}"
        queue = ignis.Ignis(here.url).queue("q", bytes)
        publisher = queue.publisher()
        publisher.send(b"0")
        fill(shared / "ballast")
        with pytest.raises(
            errors.RegionIOError, match=r"16384 messages that wait for the relay \(relay\.capacity\)"
        ) as caught:
            queue.publisher()
        assert caught.value.errno == errno.ENOSPC
        relay = here.start_relay()  # it cannot even say what it is; but only it can empty the channels
        for n in range(1, 20_000):  # more than the channel holds
            publisher.send(b"%d" % n, timeout=WAIT_S)
        publisher.close(WAIT_S)
        eventually(lambda: not here.channels, "the channel's memory is free again")
        give_room(shared / "ballast")

        def publishes() -> bool:
            """The disk gives the room of deleted files back when it has time for that."""
            try:
                queue.publish(b"20000")
            except errors.RegionIOError:
                return False
            return True

        eventually(publishes)
        assert Counter(map(int, here.stored())) == Counter(range(20_001))
        stop(relay)
        queue.app.close()


def test_a_full_disk_under_the_store_makes_messages_wait(here: Place, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 48) as disk:
        here.store_url = f"embedded://{disk}/store"
        relay = here.start_relay()
        publisher = ignis.Ignis(here.url).queue("q", bytes).publisher()
        publisher.send(b"0").result(WAIT_S)
        fill(disk / "ballast")
        body = b"x" * 20_000
        receipts = [publisher.send(body) for _ in range(300)]  # 6 MB, for which the store must grow
        with pytest.raises(errors.WaitTimeoutError, match="a relay runs on"):
            receipts[-1].result(1)
        assert relay.poll() is None
        give_room(disk / "ballast")
        receipts[-1].result(WAIT_S)
        publisher.close(WAIT_S)
        assert Counter(map(len, here.stored())) == Counter({20_000: 300, 1: 1})
        stop(relay)


@contextlib.contextmanager
def relaying(here: Place, **settings: object) -> Iterator[Relay]:
    """A relay in this process."""
    with ignis.Ignis(here.store_url) as app:
        relay = Relay(app, here.directory, **settings)
        thread = threading.Thread(target=relay.run)
        thread.start()
        try:
            yield relay
        finally:
            relay.request_stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("error", [errors.StoreBusyError, errors.StoreFailedError])
def test_loads_that_fail_keep_the_order(
    here: Place, monkeypatch: pytest.MonkeyPatch, error: type[errors.StoreError]
) -> None:
    """What was copied while a load was at the store must not overtake it when that load fails."""
    turns = itertools.cycle((False, False, True))
    real = forwarder.Load.store

    def store(self: forwarder.Load) -> Exception | None:
        return error("planted") if next(turns) else real(self)

    monkeypatch.setattr(forwarder.Load, "store", store)
    with relaying(here, max_batch=500, retry_s=0.001, max_retry_s=0.002) as relay, ignis.Ignis(here.url) as app:
        publisher = app.queue("q", bytes).publisher()
        for n in range(40_000):
            publisher.send(b"%d" % n, key=f"key {n % 7}", timeout=WAIT_S)
        publisher.close(WAIT_S)
        assert int(relay.stats()["store_errors"]) >= 20
    with ignis.Ignis(here.store_url) as app:
        seen: dict[str | None, list[int]] = {}
        for one in app.queue("q", bytes).main.peek(100_000):
            seen.setdefault(one.envelope.key, []).append(int(one.message))
    assert seen == {f"key {k}": list(range(k, 40_000, 7)) for k in range(7)}


def test_a_message_that_no_store_would_take_costs_its_own_channel_only(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = forwarder.Load.store

    def store(self: forwarder.Load) -> Exception | None:
        records = [record for _, batch in self._batches for record in batch.records()]
        if any(ignis.Message.from_bytes(record).body == b"poison" for record in records):
            return errors.MessageTooLargeError(6, 5)
        return real(self)

    monkeypatch.setattr(forwarder.Load, "store", store)
    with ignis.Ignis(here.url) as app:
        publishers = [app.queue("q", bytes).publisher() for _ in range(3)]
        for n in range(900):
            publishers[n % 3].send(b"%d" % n)
        receipt = publishers[1].send(b"poison")
        with relaying(here) as relay:
            with pytest.raises(errors.RelayRefusedError, match="limit"):
                receipt.result(WAIT_S)
            for publisher in (publishers[0], publishers[2]):
                publisher.send(b"later").result(WAIT_S)
                publisher.close(WAIT_S)
            with pytest.raises(errors.PublishError):
                publishers[1].close(WAIT_S)
            assert relay.stats()["refused"] == 1
    stored = Counter(here.stored())
    assert stored == Counter([b"later", b"later", *(b"%d" % n for n in range(900) if n % 3 != 1)])
    assert len(here.aside) == 1


def test_a_stopped_producer_holds_up_nobody(here: Place) -> None:
    relay = here.start_relay()
    stopped = here.producer("""
publisher = queue.publisher()
for n in range(500):
    publisher.send(b"stopped %d" % n)
say("sent")
sys.stdin.readline()
publisher.send(b"stopped 500").result(30)
publisher.close(30)
""")
    assert say(stopped) == "sent"
    os.kill(stopped.pid, signal.SIGSTOP)
    other = here.producer("""
publisher = queue.publisher()
for n in range(2000):
    publisher.send(b"other %d" % n)
publisher.close(30)
""")
    finish(other)
    eventually(lambda: len(here.stored()) == 2_500, "what the stopped one had sent is stored too")
    assert len(here.channels) == 1, "its channel waits for it"
    os.kill(stopped.pid, signal.SIGCONT)
    stopped.communicate("go\n", timeout=WAIT_S)
    assert stopped.returncode == 0
    eventually(lambda: not here.channels)
    assert len(here.stored()) == 2_501
    stop(relay)


@pytest.mark.long
def test_producers_of_one_message_each_leave_nothing_behind(here: Place) -> None:
    relay = here.start_relay()

    def cost() -> tuple[int, int]:
        """Descriptors and mapped files of the relay, when it has cleaned up."""
        eventually(lambda: not here.channels)
        held = [line for line in Path(f"/proc/{relay.pid}/maps").read_text().splitlines() if ".channel" in line]
        return len(os.listdir(f"/proc/{relay.pid}/fd")), len(held)

    jobs = """
publisher = queue.publisher()
for n in range(60):
    pid = os.fork()
    if pid == 0:
        publisher.send(b"%d" % n)  # in a channel of its own, and gone without a word
        os._exit(0)
    os.waitpid(pid, 0)
"""
    finish(here.producer(jobs))
    before = cost()
    for _ in range(2):
        finish(here.producer(jobs))
    # A count may have met a descriptor that was open for a moment. One for each of 120 producers would not go away.
    eventually(lambda: all(now <= then for now, then in zip(cost(), before, strict=True)))
    assert Counter(map(int, here.stored())) == Counter(dict.fromkeys(range(60), 3))
    assert not here.aside
    stop(relay)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_users_directory_is_refused(here: Place) -> None:
    os.chown(here.directory, 65_534, 65_534)
    try:
        with ignis.Ignis(here.url) as app, pytest.raises(errors.ConfigError, match="belongs to user 65534"):
            app.queue("q", bytes).open()
        relay = here.popen(["-m", "ignis", "relay", "--url", here.store_url, "--dir", str(here.directory)])
        _, err = relay.communicate(timeout=WAIT_S)
        assert relay.returncode not in (0, None)
        assert "belongs to user 65534" in err
    finally:
        os.chown(here.directory, os.geteuid(), os.getegid())


def test_channels_of_another_version_are_set_aside(here: Place) -> None:
    queue = ignis.Ignis(here.url).queue("q", bytes)
    publisher = queue.publisher()
    publisher.send(b"good")
    (good,) = here.channels
    region = bytearray(good.read_bytes())
    region[8:12] = (int.from_bytes(region[8:12], sys.byteorder) + 1).to_bytes(4, sys.byteorder)
    (good.parent / "layout.part").write_bytes(region)
    (good.parent / "layout.part").rename(good.parent / "layout.channel")
    relay = here.start_relay()
    eventually(lambda: [one.name for one in here.aside] == ["layout.channel"])
    assert "layout of another version" in (here.directory / "aside" / "layout.channel.reason").read_text()
    publisher.close(WAIT_S)
    assert here.stored() == [b"good"]
    stop(relay)
    label = Label(DELAYED_VERSION + 1, "q", "raw", "ignis", "local")
    said = rf"it writes version {DELAYED_VERSION + 1}, this relay reads {VERSION} and {DELAYED_VERSION}\)"
    with pytest.raises(errors.ConfigError, match=said):
        Label.parse(label.encoded())


def test_a_producer_with_a_clock_of_its_own_is_alive(here: Place, tmp_path: Path) -> None:
    """In a time namespace every start time in /proc is another: what cannot be compared proves no death, and a channel whose
    producer lives is not removed."""
    wrapper = ("unshare", "--time", "--boottime", "1000", "--fork")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("no time namespaces here: nobody has checked that a living producer stays alive for the relay")
    code = (
        "import sys, ignis\n"
        "publisher = ignis.Ignis(sys.argv[1]).queue('q', bytes).publisher()\n"
        "for word in (b'first', b'second'):\n"
        "    publisher.send(word).result(30)\n"
        "    print(word.decode(), flush=True)\n"
        "    sys.stdin.readline()\n"
        "publisher.close()\n"
    )
    relay = Relay(ignis.Ignis(here.store_url), here.directory, scan=0.05)
    scans, plain = [0], relay.directory.channel_files

    def counted() -> list[Path]:
        scans[0] += 1
        return plain()

    relay.directory.channel_files = counted  # type: ignore[method-assign]
    running = threading.Thread(target=relay.run)
    running.start()
    try:
        start = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        producer = here.popen(["-c", start, *wrapper, sys.executable, "-c", code, here.url])
        assert say(producer) == "first"
        seen = scans[0]
        eventually(lambda: scans[0] > seen + 3)
        assert (relay.stats()["finished"], len(here.channels)) == (0, 1)
        assert producer.stdin is not None
        producer.stdin.write("\n")
        producer.stdin.flush()
        assert say(producer) == "second"
        finish(producer)
    finally:
        relay.request_stop()
        running.join(WAIT_S)
        relay.app.close()
    assert sorted(here.stored()) == [b"first", b"second"]
