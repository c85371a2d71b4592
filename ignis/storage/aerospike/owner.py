"""Who claims: a name from which another process of the same machine can prove a death."""

from __future__ import annotations

import socket

from ignis.storage.process_identity import Identity, this_process

__all__ = ["owner_name", "provably_dead"]

_BOOT_CHARS = 8


def owner_name() -> str:
    """``host:pid:start:namespace:boot`` of this process."""
    here = this_process()
    return f"{socket.gethostname()}:{here.pid}:{here.start_time}:{here.namespace}:{here.boot[:_BOOT_CHARS]}"


def provably_dead(owner: str, here: Identity) -> bool:
    """True only for a process of this machine, of this boot and process namespace, that is gone. What stands before an ``@``
    in the name is about something else."""
    parts = owner.rpartition("@")[2].rsplit(":", 4)
    if len(parts) != 5 or parts[0] != socket.gethostname() or not all(part.isdecimal() for part in parts[1:4]):
        return False
    pid, start_time, namespace = map(int, parts[1:4])
    if parts[4] != here.boot[:_BOOT_CHARS]:
        return False
    return Identity(pid, start_time, namespace, here.boot).provably_dead(here)
