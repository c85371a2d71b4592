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
from ignis.errors import StaleEpochError
from ignis.file_lock import FileLock, is_locked
from ignis.leader import make_leader
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
