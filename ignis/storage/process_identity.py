"""Who holds claims, named so that a death can be proved: process id, start time, boot, process and time namespace."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

from ignis.native import process_alive, process_start_time
from ignis.storage.records import Process

__all__ = ["BROKER_PREFIX", "NOBODY", "Identity", "boot_id", "this_process"]

BROKER_PREFIX = "broker/"
"""How the owner of what was claimed through a broker begins. What such an owner held, brokers give back."""

_MACHINE_TIME = 0xEFFFFFFA  # the kernel's PROC_TIME_INIT_INO
_TIME_BITS = (1 << 30) - 1  # the kernel's numbers differ there; with 32 of the other, brokers take it: up to 2**62


class Identity(Process):
    """One process for ever."""

    __slots__ = ()

    def provably_dead(self, here: Identity) -> bool:
        """True only when ``here`` sees the same processes and this one is not among them any more."""
        if self.boot != here.boot or self.namespace != here.namespace or not self.start_time:
            return False
        return not process_alive(self.pid, self.start_time) and not _hidden(self.pid)


def _hidden(pid: int) -> bool:
    """Whether there is a process of which nothing can be seen: another user's, where /proc is mounted to hide those."""
    if process_start_time(pid):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False  # our own, and a zombie


NOBODY = Identity(0, 0, 0, "")
"""Of an owner that is no process, so that its death cannot be proved: a job, which another process may go on with."""


def boot_id() -> str:
    """Differs after every start of the machine."""
    if sys.platform == "darwin":
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def this_process() -> Identity:
    """Who this process is, for claims and for telling one boot from another."""
    pid = os.getpid()
    return Identity(pid, process_start_time(pid), _namespace(), boot_id())


def _namespace() -> int:
    """Of this process, in one number: alike for two that see the same process ids, with the same start times. A time namespace
    moves every start time that is read within it. Where that is the machine's own, it is the process namespace's number."""
    apart = _namespace_number("time", _MACHINE_TIME) ^ _MACHINE_TIME
    return _namespace_number("pid") ^ (apart & _TIME_BITS) << 32


def _namespace_number(kind: str, missing: int = 0) -> int:
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return missing  # a system that has none of these


def owner_name() -> str:
    """``host:pid:random``: for people; the proof of death is stored beside it."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
