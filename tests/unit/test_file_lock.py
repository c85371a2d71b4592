"""The lock on a file: who holds it, who only looks, and what a deleted, replaced, moved or restored file means."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import ignis
from ignis import file_lock
from ignis.broker.auth import users_file
from ignis.broker.auth.users_file import User, editing, load_users
from ignis.errors import LockHeldError, StaleEpochError
from ignis.file_lock import FileLock, is_locked
from ignis.leader import make_leader
from ignis.relay import Relay
from ignis.relay.directory import RelayDirectory
from tests.support import WAIT_S, eventually

MakeApp = Callable[..., ignis.Ignis]


@pytest.fixture(params=["ofd", "flock"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the locks of this system, and as on one that has only the plain ones."""
    if request.param == "flock":
        monkeypatch.setattr(file_lock, "_GET", None)
        monkeypatch.setattr(file_lock, "_SET", None)
    return tmp_path / "lock"


def test_one_holds_it(path: Path) -> None:
    held = FileLock.take(path)
    assert held is not None
    assert (held.valid, is_locked(path), FileLock.take(path)) == (True, True, None)
    held.write("me")
    assert path.read_text() == "me"
    assert path.stat().st_mode & 0o777 == 0o600
    held.release()
    held.release()
    assert not is_locked(path)
    again = FileLock.take(path)
    assert again is not None
    again.close()
    assert not is_locked(path)


def test_a_dead_holder_holds_nothing(path: Path) -> None:
    script = "import sys; from ignis.file_lock import FileLock; x = FileLock.take(sys.argv[1]); print(x, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert b"FileLock" in other.stdout.readline()
        if file_lock._SET is not None:  # the other one uses what the system has
            assert FileLock.take(path) is None
        other.send_signal(signal.SIGKILL)
        other.wait(WAIT_S)
    held = FileLock.take(path)
    assert held is not None
    held.close()


def change(path: Path, what: str) -> None:
    if what == "deleted":
        path.unlink()
    elif what == "moved":
        path.rename(path.with_name("elsewhere"))
    elif what == "replaced":
        new = path.with_name("new")
        new.touch()
        new.replace(path)
    else:
        kept = path.with_name("kept")
        shutil.copy(path, kept)
        path.unlink()
        shutil.copy(kept, path)


CHANGES = ("deleted", "moved", "replaced", "restored")


@pytest.mark.parametrize("what", CHANGES)
def test_a_file_that_lost_its_name_is_no_lock(path: Path, what: str) -> None:
    first = FileLock.take(path)
    assert first is not None
    change(path, what)
    assert not first.valid
    second = FileLock.take(path)
    assert second is not None
    assert second.valid
    first.release()
    assert (second.valid, is_locked(path)) == (True, True)
    second.close()


def test_looking_keeps_nobody_away(tmp_path: Path) -> None:
    """As ``ignis leader`` does beside candidates: a look takes nothing, not even for a moment."""
    if file_lock._GET is None:
        pytest.skip("this system has no locks that can be looked at")
    path, ended = tmp_path / "lock", threading.Event()
    path.touch()
    looks = [0]

    def look() -> None:
        while not ended.is_set():
            is_locked(path)
            looks[0] += 1

    threads = [threading.Thread(target=look) for _ in range(3)]
    for one in threads:
        one.start()
    try:
        eventually(lambda: looks[0] > 100)
        for _ in range(2_000):
            held = FileLock.take(path)
            assert held is not None, "nobody holds it"
            held.release()
    finally:
        ended.set()
        for one in threads:
            one.join(WAIT_S)
    # Another's look that lasts for ever, as of a stopped process, takes nothing either.
    with open(path, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        held = FileLock.take(path)
        assert held is not None
        held.release()


@pytest.mark.parametrize("what", CHANGES)
def test_a_leader_whose_file_lost_its_name_leads_no_more(
    what: str, embedded_url: str, new_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app, rival_app = new_app(embedded_url), new_app(embedded_url)
    leader, rival = app.leader(), rival_app.leader()
    first = leader.lead()
    path = Path(str(app.store.local_dir)) / "leader-sweeper.lock"
    change(path, what)
    assert leader.fence is None, "nobody needs to tell it"
    assert not leader.status().here
    second = rival.lead()
    assert second.epoch == first.epoch + 1
    assert leader.try_lead() is None
    assert rival.fence == second
    assert "was deleted, moved or replaced" in caplog.text
    rival.relinquish()
    assert leader.lead().epoch == second.epoch + 1, "it stands again"
    leader.relinquish()


def test_a_leader_whose_file_came_back_is_fenced(embedded_url: str, new_app: MakeApp) -> None:
    """The file is moved away, another leads, and the file is moved back: the name says that the first one leads."""
    app, rival_app = new_app(embedded_url), new_app(embedded_url)
    leader, rival = app.leader(), rival_app.leader()
    first = leader.lead()
    assert leader.confirm(first)
    path = Path(str(app.store.local_dir)) / "leader-sweeper.lock"
    path.rename(path.with_name("away"))
    second = rival.lead()
    path.with_name("away").replace(path)
    assert (leader.fence, rival.fence) == (first, None)
    app.store.magazines.declare("m", 1)
    with pytest.raises(StaleEpochError):
        app.store.magazines.transfer("m", "m", [], None, first)
    assert not leader.confirm(first), "the store has seen a later office"
    assert leader.fence is None
    assert leader.lead().epoch == second.epoch + 1
    leader.relinquish()
    rival.relinquish()


def test_a_member_whose_file_was_deleted_is_seen_again(embedded_url: str, new_app: MakeApp) -> None:
    app = new_app(embedded_url)
    leader, other = app.leader(), make_leader(new_app(embedded_url).store, "sweeper")
    leader.start()
    [path] = Path(str(app.store.local_dir)).glob("member-*")
    os.unlink(path)
    assert leader.status().members == ()
    other.lead()
    leader.try_lead()
    assert len(other.status().members or ()) == 2
    leader.relinquish()
    other.relinquish()


@pytest.mark.parametrize("what", CHANGES)
def test_a_relay_whose_lock_lost_its_name_locks_it_anew(what: str, new_app: MakeApp, tmp_path: Path) -> None:
    directory = RelayDirectory(tmp_path / "relay")
    relay = Relay(new_app(f"embedded://{tmp_path}/store"), directory.path, scan=0.05)
    running = threading.Thread(target=relay.run)
    running.start()
    try:
        eventually(lambda: relay.running)
        change(directory.path / "relay.lock", what)
        eventually(directory.relay_present)
        with pytest.raises(LockHeldError):
            directory.lock(0)
    finally:
        relay.request_stop()
        running.join(WAIT_S)
    assert not directory.relay_present()


def test_a_relay_gives_way_to_one_that_began_meanwhile(new_app: MakeApp, tmp_path: Path) -> None:
    directory = RelayDirectory(tmp_path / "relay")
    relay = Relay(new_app(f"embedded://{tmp_path}/store"), directory.path, scan=0.05)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            relay.run()
        except LockHeldError as exc:
            ended.append(exc)

    running = threading.Thread(target=run)
    running.start()
    eventually(lambda: relay.running)
    other = FileLock.take(directory.path / "new")  # a file that is locked when it gets the name
    assert other is not None
    (directory.path / "new").replace(directory.path / "relay.lock")
    running.join(WAIT_S)
    assert not running.is_alive()
    assert "another relay runs" in str(ended[0])
    other.close()


def test_an_editor_whose_lock_lost_its_name_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users"
    with editing(path) as users:
        users.users.append(User("ann", ["all:*"]))
    first = editing(path)
    first.__enter__().users.clear()
    (tmp_path / "users.lock").unlink()
    with editing(path) as others:
        others.users.append(User("bob", ["all:*"]))
    with pytest.raises(LockHeldError, match="is not changed"):
        first.__exit__(None, None, None)
    assert [one.name for one in load_users(path).users] == ["ann", "bob"]
    monkeypatch.setattr(users_file, "_LOCK_S", 0.1)
    with editing(path), pytest.raises(LockHeldError, match="another process edits it"), editing(path):
        pass


def test_a_pipeline_whose_lock_lost_its_name_records_nothing(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from ignis.spark.pipeline.runs import Runs

    first, second = Runs(tmp_path, "p"), Runs(tmp_path, "p")
    with first.locked():
        run = first.begin("ingest")
        with pytest.raises(LockHeldError), second.locked():
            pass
        (tmp_path / "p" / "lock").unlink()
        with second.locked():
            with pytest.raises(LockHeldError, match="another process may run pipeline 'p'"):
                first.finish(run, {})
            second.finish(run, {})
    assert first.get("ingest", run.id) is not None


@pytest.mark.parametrize("durability", ["sync", "none"])
def test_a_store_is_not_alone_because_a_file_was_deleted(tmp_path: Path, new_app: MakeApp, durability: str) -> None:
    """Who believes to be alone recovers what others work on: what they are told is stored from then on must not be lost."""
    url = f"embedded://{tmp_path}/store"
    script = (
        "import sys, ignis; app = ignis.Ignis(sys.argv[1]); q = app.queue('q', int, durability=sys.argv[2])\n"
        "q.publish(1); print('there', flush=True); input(); q.publish(3); app.close()"
    )
    command = [sys.executable, "-c", script, url, durability]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        for name in ("control-*", "owners"):  # all that it has locked
            for path in (tmp_path / "store").rglob(name):
                path.unlink()
        app = new_app(url)
        queue = app.queue("q", int, durability=durability)
        queue.publish(2)
        other.communicate(b"\n", WAIT_S)
        queue.publish(4)
        app.close()
    assert other.returncode == 0
    queue = new_app(url).queue("q", int, durability=durability)
    assert sorted(one.message for one in queue.main.peek()) == [1, 2, 3, 4]
