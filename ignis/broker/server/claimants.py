"""Makes the name in which a broker claims: each client's own, told by what it said in CONNECT and by who it is known to be.

A claim's owner is who works on it. The broker makes the name, from the user and the instance, so that what a client
states about its process can prove the end of its own claims and never of another's.
"""

from __future__ import annotations

import hashlib
import re
import socket

import msgspec

from ignis.broker.protocol.payloads import Connect
from ignis.errors import ConfigError
from ignis.storage.base import Owner, Process
from ignis.storage.process_identity import BROKER_PREFIX, this_process

__all__ = ["CLIENT_PREFIX", "OWNER_PREFIX", "broker_owner", "claimant", "owner_for"]

OWNER_PREFIX = BROKER_PREFIX
"""How the owner of what was claimed through a broker begins; nobody may give such a name himself."""
CLIENT_PREFIX = OWNER_PREFIX + "client/"

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}\Z")
_BOOT = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_BOOT_CHARS = 8
_MOST_PID = (1 << 31) - 1
_MOST = (1 << 63) - 1


def broker_owner(broker: str) -> str:
    """Makes the name in which a broker itself keeps what it is to give back later."""
    here = this_process()
    where = f"{socket.gethostname()}:{here.pid}:{here.start_time}:{here.namespace}:{here.boot[:_BOOT_CHARS]}"
    return f"{OWNER_PREFIX}{broker}@{where}"


def claimant(principal: str, head: Connect) -> Owner:
    """The owner of what this client claims: the same at every broker and after every restart, and another one for every user
    and instance. The name ends as that of an Aerospike store does, ``@host:pid:start:namespace:boot``.

    Raises ConfigError: what it says of its process cannot be true.
    """
    process, where = Process(), ""
    if head.process is not None:
        host, pid, start_time, namespace, boot = head.process
        if (
            not _HOST.match(host)
            or not _BOOT.match(boot)
            or not 1 <= pid <= _MOST_PID
            or not 0 <= start_time <= _MOST
            or not 0 <= namespace <= _MOST
        ):
            raise ConfigError("process in CONNECT is not [host, pid, start time, namespace, boot]")
        process = Process(pid, start_time, namespace, boot)
        where = f"{host}:{pid}:{start_time}:{namespace}:{boot[:_BOOT_CHARS]}"
    told = msgspec.msgpack.encode((principal, head.instance, process, where))  # two clients never give the same bytes
    return Owner(f"{CLIENT_PREFIX}{hashlib.sha256(told).hexdigest()[:24]}@{where}", process)


def owner_for(name: str, client: Owner) -> str:
    """Whom a request means that names an owner: the client itself, or a name that it made up, behind which it stands.

    Raises ConfigError for a name that belongs to another client.
    """
    if name == client or not name:
        return client
    if name.startswith(OWNER_PREFIX):
        raise ConfigError(f"owner {name!r} begins with {OWNER_PREFIX!r}: such names are given by brokers")
    return Owner(name, client.process)
