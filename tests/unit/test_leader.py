"""Who leads: a file lock between processes, an epoch in every write."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.config import LeaderSettings
from ignis.errors import ConfigError, InvalidNameError, LockHeldError, StoreTimeoutError
from ignis.leader import FileLeader, LeaderStatus, LeaseLeader, SoleLeader, make_leader
from tests.support import WAIT_S, eventually

MakeApp = Callable[..., ignis.Ignis]

SCRIPT = textwrap.dedent("""
    import sys, time, ignis
    from ignis.leader import make_leader
    leader = make_leader(ignis.Ignis(sys.argv[1]).store, "sweeper")
    fence = leader.try_lead()
    print(fence.epoch if fence else "no", flush=True)
    sys.stdin.read()
    leader.relinquish()
    print("gone", flush=True)
    sys.stdin.read()
""")


@pytest.fixture
def other(embedded_url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that tries to lead as soon as it is started."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, embedded_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process
        process.kill()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_process_leads(embedded_url: str, new_app: MakeApp, other: subprocess.Popen[str]) -> None:
    epoch = int(says(other))
    leader = make_leader(new_app(embedded_url).store, "sweeper")
    assert isinstance(leader, FileLeader)
    assert leader.try_lead() is None
    with pytest.raises(LockHeldError, match=f"another instance leads sweeper: .*epoch {epoch}"):
        leader.lead()
    assert leader.fence is None
    other.send_signal(signal.SIGKILL)
    other.wait(WAIT_S)
    fence = eventually(leader.try_lead)
    assert (fence.scope, fence.epoch) == ("sweeper", epoch + 1)
    assert leader.fence is fence
    assert leader.since_s is not None
    leader.relinquish()


def test_who_leads_stays(embedded_url: str, new_app: MakeApp) -> None:
    app = new_app(embedded_url)
    leader, rival = make_leader(app.store, "sweeper"), make_leader(app.store, "sweeper")
    first = leader.lead()
    assert leader.lead() is first
    assert rival.try_lead() is None
    assert make_leader(app.store, "other").lead().epoch == 1, "scopes are apart"
    leader.relinquish()
    leader.relinquish()
    assert rival.lead().epoch == first.epoch + 1
    assert leader.try_lead() is None
    assert f"epoch {first.epoch + 1}" in leader.describe()
    rival.relinquish()
    assert leader.describe() == "nobody"


def test_the_lock_file_is_private(embedded_url: str, new_app: MakeApp) -> None:
    store = new_app(embedded_url).store
    leader = make_leader(store, "sweeper")
    leader.lead()
    assert store.local_dir is not None
    path = Path(store.local_dir) / "leader-sweeper.lock"
    assert path.stat().st_mode & 0o777 == 0o600
    assert store.owner in path.read_text("utf-8")
    leader.relinquish()


def test_applications_in_one_directory_are_led_apart(embedded_url: str, new_app: MakeApp) -> None:
    apps = [
        new_app(embedded_url),
        new_app(embedded_url, client_id="billing"),
        new_app(embedded_url, client_id="billing", farm_id="far"),
    ]
    leaders = [app.leader() for app in apps]
    assert [leader.lead().epoch for leader in leaders] == [1, 1, 1]
    assert [leader.status().leader for leader in leaders] == [app.store.owner for app in apps]
    assert [leader.status().members for leader in leaders] == [(app.store.owner,) for app in apps]


def test_who_is_there(embedded_url: str, new_app: MakeApp, other: subprocess.Popen[str]) -> None:
    assert says(other) == "1"
    app = new_app(embedded_url)
    leader = app.leader()
    leader.start()
    status = leader.status()
    assert status.members is not None
    assert len(status.members) == 2
    assert app.store.owner in status.members
    assert (status.leader in status.members, status.sweeping, status.epoch, status.here) == (
        True, status.leader, 1, False,
    )  # fmt: skip
    other.kill()
    other.wait(WAIT_S)
    status = leader.status()
    assert (status.leader, status.since_ms, status.epoch, status.members) == ("", None, 1, (app.store.owner,))
    leader.lead()
    status = leader.status()
    assert leader.since_s is not None
    assert (status.leader, status.since_ms, status.here) == (app.store.owner, int(leader.since_s * 1000), True)
    assert len(list(Path(str(app.store.local_dir)).glob("member-*"))) == 1, "what the dead one left is gone"
    app.close()
    assert list(Path(embedded_url.removeprefix("embedded://")).glob("member-*")) == []


def test_a_full_disk_keeps_nobody_from_leading(
    embedded_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file by which an instance is seen is only for show."""
    leader = new_app(embedded_url).leader()
    plain = os.open

    def full(path: Any, *args: Any, **kwargs: Any) -> int:
        if "member-" in str(path):
            raise OSError(errno.ENOSPC, "no space")
        return plain(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", full)
    assert leader.lead().epoch == 1
    assert leader.status().members == ()
    leader.relinquish()


def test_a_forked_child_does_not_keep_its_dead_parents_lead(
    embedded_url: str, new_app: MakeApp, tmp_path: Path
) -> None:
    """flock belongs to the open file, which a fork shares: it must be closed in the child."""
    script = textwrap.dedent("""
        import os, sys, time, ignis
        from ignis.leader import make_leader
        leader = make_leader(ignis.Ignis(sys.argv[1]).store, "sweeper")
        leader.lead()
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            os._exit(0)
        os.close(1)
        assert leader.fence is None
        open(sys.argv[2], "w").close()
        time.sleep(60)
    """)
    mark = tmp_path / "child"
    done = subprocess.run(
        [sys.executable, "-c", script, embedded_url, str(mark)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    child = int(done.stdout)
    try:
        eventually(mark.exists)
        leader = make_leader(new_app(embedded_url).store, "sweeper")
        assert eventually(leader.try_lead).epoch == 2
        leader.relinquish()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_store_of_one_process_has_one_candidate(memory_app: ignis.Ignis) -> None:
    leader = make_leader(memory_app.store, "sweeper")
    assert isinstance(leader, SoleLeader)
    fence = leader.lead()
    assert leader.lead() is fence
    leader.relinquish()
    assert leader.fence is None
    assert leader.lead().epoch == fence.epoch + 1
    assert leader.describe() == f"{memory_app.store.owner} epoch {fence.epoch + 1}"


# -- a lease in the store: on both stores, though they would choose another decider themselves


def test_a_lease_is_held_and_given_up(app: ignis.Ignis) -> None:
    leader, rival = LeaseLeader(app.store, "sweeper"), LeaseLeader(app.store, "sweeper")
    assert leader.describe() == "nobody"
    first = leader.lead()
    assert leader.lead() is first
    assert leader.fence is first
    assert rival.try_lead() is None
    with pytest.raises(LockHeldError, match=f"epoch {first.epoch}"):
        rival.lead()
    other = LeaseLeader(app.store, "other")
    assert other.lead().epoch == 1, "scopes are apart"
    other.relinquish()
    leader.relinquish()
    leader.relinquish()
    assert leader.fence is None
    assert rival.lead().epoch == first.epoch + 1
    assert leader.try_lead() is None
    rival.relinquish()


def test_a_lease_is_extended(app: ignis.Ignis) -> None:
    leader, rival = LeaseLeader(app.store, "sweeper", lease_s=1.5), LeaseLeader(app.store, "sweeper")
    first = leader.lead()
    ends_ms = app.store.locks.get("leader-sweeper").expires_at_ms  # type: ignore[union-attr]
    eventually(lambda: app.store.locks.get("leader-sweeper").expires_at_ms > ends_ms + 1_000)  # type: ignore[union-attr]
    assert leader.try_lead() is first
    assert rival.try_lead() is None
    leader.relinquish()


def test_a_lease_that_ran_out_is_somebody_elses(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a pause of its holder: the next leader's epoch is higher, and the old one notices."""
    leader, rival = LeaseLeader(app.store, "sweeper", lease_s=0.6), LeaseLeader(app.store, "sweeper")
    monkeypatch.setattr(app.store.locks, "renew", lambda *args: None)
    first = leader.lead()
    second = eventually(rival.try_lead)
    assert second.epoch == first.epoch + 1
    eventually(lambda: leader.fence is None)
    assert leader.try_lead() is None
    rival.relinquish()


def test_who_holds_a_lease_is_shown(app: ignis.Ignis) -> None:
    leader = LeaseLeader(app.store, "sweeper")
    assert leader.status() == LeaderStatus("lease", "sweeper")
    fence = leader.lead()
    status = leader.status()
    assert (status.leader, status.sweeping, status.epoch, status.here) == (
        app.store.owner,
        app.store.owner,
        fence.epoch,
        True,
    )
    assert status.since_ms is not None
    assert status.members is None, "the store lists no candidates"
    leader.relinquish()
    assert leader.status().leader == ""


def test_a_store_that_is_away_is_said(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object) -> None:
        raise StoreTimeoutError("lock", 100)

    leader = LeaseLeader(app.store, "sweeper", lease_s=0.6)
    leader.lead()
    monkeypatch.setattr(app.store.locks, "renew", away)
    monkeypatch.setattr(app.store.locks, "get", away)
    eventually(lambda: not leader.stats()["available"])
    assert not leader.status().available
    assert "no answer within 100 ms" in leader.describe()
    monkeypatch.undo()
    eventually(lambda: leader.stats()["available"] or leader.try_lead())
    leader.relinquish()


@pytest.mark.parametrize(
    ("given", "kind"),
    [({"kind": "file"}, "file"), ({"kind": "lease"}, "lease"), ({}, "file"), ({"kind": "lease", "lease": 5}, "lease")],
)
def test_the_decider_that_the_settings_name(
    embedded_url: str, new_app: MakeApp, given: dict[str, Any], kind: str
) -> None:
    app = new_app(embedded_url, leader=given)
    assert app.leader().kind == kind
    assert app.leader() is app.leader("sweeper")
    app.leader().lead()
    assert app.stats()["leaders"]["sweeper"]["leading"]


def test_deciders_that_cannot_be(memory_app: ignis.Ignis, new_app: MakeApp) -> None:
    with pytest.raises(ConfigError, match="share no directory"):
        make_leader(memory_app.store, "sweeper", LeaderSettings(kind="file"))
    with pytest.raises(ConfigError, match=r"leader\.zookeeper names no hosts"):
        make_leader(memory_app.store, "sweeper", LeaderSettings(kind="zookeeper"))
    with pytest.raises(InvalidNameError, match=r"scope name '\.\./x'"):
        make_leader(memory_app.store, "../x")
    with pytest.raises(ConfigError, match=r"leader\.kind = 'raft' is not one of"):
        new_app("memory://", leader={"kind": "raft"})


def test_a_password_is_not_shown() -> None:
    settings = LeaderSettings(zookeeper="zk://ann:s3cret@h1", password="s3cret")
    assert "s3cret" not in repr(settings)


def test_which_decider_fits(memory_app: ignis.Ignis, embedded_url: str, new_app: MakeApp) -> None:
    assert isinstance(make_leader(memory_app.store, "sweeper"), SoleLeader)
    assert isinstance(make_leader(new_app(embedded_url).store, "sweeper"), FileLeader)
