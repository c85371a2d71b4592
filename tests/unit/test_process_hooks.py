"""The hooks into the process: a fork and the normal end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ignis import process_hooks
from ignis.process_hooks import on_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def run(program: str) -> str:
    """What a program prints. In a process of its own: a hook stays for the life of its process."""
    head = "import os, sys\nfrom ignis.process_hooks import FORKS, at_exit, on_fork\n"
    done = subprocess.run(
        [sys.executable, "-c", head + program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout + done.stderr


FORK = """
pid = os.fork()
if not pid:
    os._exit(0)
os.waitpid(pid, 0)
"""
SAY = "say = lambda text: lambda: os.write(1, (text + ' ').encode())\n"


def test_hooks_are_called_in_order_and_once() -> None:
    program = f"""{SAY}
first = dict(before=say("before-1"), in_parent=say("parent-1"), in_child=say("child-1"))
on_fork(**first)
on_fork(before=say("before-2"), in_child=say("child-2"))
on_fork(**first)
pid = os.fork()
if not pid:
    os._exit(0)
"""
    said = run(program).split()
    assert said[:2] == ["before-2", "before-1"]
    assert [one for one in said if one.startswith("child")] == ["child-1", "child-2"]
    assert [one for one in said if one.startswith("parent")] == ["parent-1"]


def test_the_count_rises_in_the_child_only() -> None:
    program = """
pid = os.fork()
if not pid:
    if not os.fork():
        os._exit(FORKS[0])
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]) * 10 + FORKS[0])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), FORKS[0])
"""
    assert run(program).split() == ["21", "0"]


def test_a_hook_that_raises_keeps_nobody_from_being_called() -> None:
    program = f"{SAY}on_fork(before=lambda: 1 / 0, in_parent=lambda: 1 / 0)\non_fork(in_parent=say('called'))\n{FORK}"
    said = run(program)
    assert said.startswith("called")
    assert said.count("ZeroDivisionError: ") == 2


def test_who_comes_during_a_fork_is_not_told_what_it_was_not_asked() -> None:
    program = f"{SAY}late = dict(before=say('asked'), in_parent=say('told'))\non_fork(before=lambda: on_fork(**late))\n"
    assert run(f"{program}{FORK}") == ""
    assert run(f"{program}{FORK}{FORK}").split() == ["asked", "told"]


def test_who_comes_while_it_is_found_out_whom_to_tell_keeps_nobody_from_being_told() -> None:
    """As another thread may, of which a comparison that registers stands here."""
    program = f"""{SAY}
class Asked:
    def __call__(self):
        pass
    def __hash__(self):
        return 1
    def __eq__(self, other):
        on_fork(in_child=lambda: None)
        return self is other
on_fork(before=Asked(), in_parent=say("one"))
on_fork(before=Asked(), in_parent=say("two"))
{FORK}"""
    assert run(program).split() == ["one", "two"]


def test_the_end_calls_the_last_first_and_goes_on_after_an_error() -> None:
    program = f"{SAY}one = say('first')\nat_exit(one)\nat_exit(lambda: 1 / 0)\nat_exit(say('last'))\nat_exit(one)\n"
    said = run(program)
    assert said.split()[:2] == ["last", "first"]
    assert "ZeroDivisionError: " in said


def test_a_child_begins_its_threads_and_timers_anew() -> None:
    program = """
from ignis.upkeep import shared_threads, timers_of
before = shared_threads(), timers_of(None)
pid = os.fork()
if not pid:
    os._exit(shared_threads() is before[0] or timers_of(None) is before[1])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shared_threads() is before[0], timers_of(None) is before[1])
"""
    assert run(program).split() == ["0", "True", "True"]


def test_the_same_functions_are_one_hook() -> None:
    def nothing() -> None:
        pass

    on_fork(in_child=nothing)
    count = len(process_hooks._hooks)
    on_fork(in_child=nothing)
    assert len(process_hooks._hooks) == count
