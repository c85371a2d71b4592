"""Who holds claims, named so that a death can be proved: process id, start time, boot, process namespace."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from ignis.native import process_alive, process_start_time

__all__ = ["NOBODY", "Identity", "boot_id", "this_process"]


class Identity(NamedTuple):
    """One process for ever. ``namespace`` 0 = this system has no process namespaces."""

    pid: int
    start_time: int
    namespace: int
    boot: str

    def provably_dead(self, here: Identity) -> bool:
        """True only when ``here`` sees the same processes and this one is not among them any more."""
        if self.boot != here.boot or self.namespace != here.namespace or not self.start_time:
            return False
        return not process_alive(self.pid, self.start_time)


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
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    pid = os.getpid()
    return Identity(pid, process_start_time(pid), namespace, boot_id())


def owner_name() -> str:
    """``host:pid:random``: for people; the proof of death is stored beside it."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
