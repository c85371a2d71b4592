"""Who lives is told by the kernel: bytes of a file that every opened store locks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ignis.errors import StoreBusyError
from ignis.storage import open_store
from ignis.storage.base import Owner, Process
from ignis.storage.embedded import owners as owners_module
from ignis.storage.embedded.check import Alone
from ignis.storage.embedded.owners import Owners, owner_text, process_of, stored_owner
from ignis.storage.process_identity import this_process
from tests.support import eventually
from tests.support.embedded import Child, forever

pytestmark = pytest.mark.integration


@pytest.fixture
def owners(tmp_path: Path) -> Owners:
    return Owners(tmp_path, this_process())


def test_a_life_ends_with_its_store(owners: Owners) -> None:
    first, second = owners.begin(), owners.begin()
    names = [stored_owner("me", life) for life in (first, second)]
    assert names[0] != names[1]
    assert [owner_text(name) for name in names] == ["me", "me"]
    assert [owners.dead(name) for name in names] == [False, False]
    owners.end(first)
    assert [owners.dead(name) for name in names] == [True, False]
    owners.close()


def test_nobody_else_is_needed_to_see_it(owners: Owners, tmp_path: Path) -> None:
    other = Owners(tmp_path, this_process())
    life = other.begin()
    name = stored_owner("me", life)
    assert not owners.dead(name)
    other.close()
    assert owners.dead(name)
    owners.close()


def test_a_killed_process_is_dead_at_once_and_a_stopped_one_is_not(owners: Owners, tmp_path: Path) -> None:
    def live(say: object) -> None:
        life = Owners(tmp_path, this_process()).begin()
        say(stored_owner("theirs", life))  # type: ignore[operator]
        forever()

    with Child(live) as child:
        name = child.line()
        assert not owners.dead(name)
        os.kill(child.pid, 19)  # SIGSTOP
        time.sleep(0.05)
        assert not owners.dead(name)
        child.kill()
        child.join()
        assert owners.dead(name)
    owners.close()


def test_a_child_of_fork_does_not_keep_its_parent_alive(owners: Owners, tmp_path: Path) -> None:
    """The lock belongs to the descriptor, which a child inherits: it must let go of it."""

    def parent(say: object) -> None:
        store = open_store(f"embedded://{tmp_path / 'store'}")
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        say(store.stored_owner("theirs"))  # type: ignore[attr-defined, operator]
        say(str(pid))  # type: ignore[operator]
        forever()

    with Child(parent) as child:
        name, grandchild = child.line(), int(child.line())
        try:
            looking = Owners(tmp_path / "store", this_process())
            assert not looking.dead(name)
            child.kill()
            child.join()
            eventually(lambda: looking.dead(name))  # the child may not have run yet
            with Alone(tmp_path / "store"):
                pass
            looking.close()
        finally:
            os.kill(grandchild, 9)


def test_two_pid_namespaces(owners: Owners, tmp_path: Path) -> None:
    """The process is number 1 in its own namespace: no number of a process says who lives."""
    wrapper = ["unshare", "--pid", "--fork", "--mount-proc"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("no pid namespaces here: nobody has checked that stores in two of them tell who lives")
    theirs = f"""
import os, sys, time
from ignis.storage.process_identity import this_process
from ignis.storage.embedded.owners import Owners, stored_owner
from pathlib import Path
owners = Owners(Path({str(tmp_path)!r}), this_process())
print(os.getpid(), stored_owner("theirs", owners.begin()), owners.dead(sys.argv[1]), flush=True)
sys.stdin.read()
"""
    mine = stored_owner("mine", owners.begin())
    both = [
        subprocess.Popen(
            [*wrapper, sys.executable, "-c", theirs, mine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        said = [str(one.stdout and one.stdout.readline()).strip("\n").split(" ") for one in both]
        assert [pid for pid, _, _ in said] == ["1", "1"]
        assert [dead for _, _, dead in said] == ["False", "False"]
        names = [name for _, name, _ in said]
        assert [owners.dead(name) for name in names] == [False, False]
        both[0].communicate("", timeout=60)
        assert [owners.dead(name) for name in names] == [True, False]
    finally:
        for one in both:
            one.communicate("", timeout=60)
    assert [owners.dead(name) for name in names] == [True, True]
    owners.close()


def test_one_opens_at_a_time_and_sees_who_has_it_open(
    owners: Owners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_and_stay(say: object) -> None:
        theirs = Owners(tmp_path, this_process())
        with theirs.opening() as alone:
            theirs.begin()
            say(str(alone))  # type: ignore[operator]
            forever()

    monkeypatch.setattr(owners_module, "_OPENING_WAIT_S", 0.1)
    with Child(open_and_stay) as child:
        assert child.line() == "True"
        os.kill(child.pid, 19)  # SIGSTOP
        with pytest.raises(StoreBusyError, match="is being opened by another process"), owners.opening():
            pass
        child.kill()
        child.join()
    with owners.opening() as alone:
        assert alone
        life = owners.begin()
    other = Owners(tmp_path, this_process())
    with other.opening() as alone:
        assert not alone
    owners.end(life)
    with other.opening() as alone:
        assert alone
    other.close()
    owners.close()


def test_nobody_opens_beside_a_doctor(owners: Owners, tmp_path: Path) -> None:
    with Alone(tmp_path), pytest.raises(StoreBusyError, match="as 'ignis doctor' does"), owners.opening():
        pass
    owners.close()


def test_whom_nothing_is_known_of_is_not_dead(owners: Owners) -> None:
    here = this_process()
    gone = Owner("theirs", Process(here.pid, here.start_time + 1, here.namespace, here.boot))
    life = owners.begin()
    assert stored_owner(gone, life).endswith(f"p{here.pid}.{here.start_time + 1}.{here.namespace}.{here.boot}")
    assert process_of(stored_owner(gone, life)) == gone.process
    assert owners.dead(stored_owner(gone, life))
    assert not owners.dead(stored_owner(Owner("mine", Process(*here)), life))
    assert not owners.dead(stored_owner(Owner("nobody's", Process()), life))
    for stored in ("job", "x\x1f", "x\x1fl", "x\x1flzz", f"x\x1fl{1 << 80:x}", "x\x1fp1", "x\x1fp1.2.3", "x\x1fq1"):
        assert not owners.dead(stored), stored
    owners.close()


def test_a_file_that_was_replaced_proves_nothing(owners: Owners, tmp_path: Path) -> None:
    life = owners.begin()
    name = stored_owner("me", life)
    owners.end(life)
    assert owners.dead(name)
    (tmp_path / "owners").unlink()
    assert not owners.dead(name)
    (tmp_path / "owners").write_bytes(b"")
    assert not owners.dead(name)
    owners.close()


def test_nobody_begins_while_one_is_alone(owners: Owners, tmp_path: Path) -> None:
    with Alone(tmp_path), pytest.raises(StoreBusyError, match="doctor"):
        owners.begin()
    life = owners.begin()
    with pytest.raises(StoreBusyError, match="is open in a process"), Alone(tmp_path):
        pass
    owners.end(life)
    with Alone(tmp_path):
        pass
    owners.close()


def test_nobody_is_dead_because_the_file_was_deleted(tmp_path: Path) -> None:
    """Who opens the store behind the deletion cannot tell who lives: what others work on stays theirs."""
    script = (
        "import sys\nfrom ignis.storage import open_store\nfrom tests.contract.support import numbered\n"
        "store = open_store(sys.argv[1])\nm = store.magazines\nm.declare('m', 1, 'none')\n"
        "m.load_records('m', 0, numbered(2))\nassert m.fire('m', 2, store.owner).total() == 2\n"
        "print('there', flush=True)\ninput()\n"
    )
    url = f"embedded://{tmp_path}/store"
    with subprocess.Popen([sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        (tmp_path / "store/owners").unlink()
        with open_store(url) as store:
            assert list(store.magazines.claimants("m").values()) == [False]
            assert store.magazines.abandoned("m", 0, 0, 10) == []
        other.kill()
