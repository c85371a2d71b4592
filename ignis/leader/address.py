"""Where ZooKeeper is, from the settings."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ignis.config import LeaderSettings
from ignis.errors import ConfigError
from ignis.urls import masked, redacted, shown_host

__all__ = ["Address"]

_HOST = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?\Z")
DEFAULT_PORT = 2181


class Address(NamedTuple):
    """``hosts`` as the driver takes them; ``root`` is the chroot, "" or beginning with a slash."""

    hosts: str
    root: str
    user: str
    password: str

    def __repr__(self) -> str:
        return redacted(f"zk://{self.hosts}{self.root}")

    @classmethod
    def of(cls, settings: LeaderSettings) -> Address:
        """Parses ``zk://user:password@host:2181,host2/chroot``; scheme, user and chroot may be left out.

        Raises:
            ConfigError: it names no host, or something else than hosts. The password is in no message.
        """
        given = settings.zookeeper if "://" in settings.zookeeper else f"zk://{settings.zookeeper}"
        parts = urlsplit(given)
        who, _, named = parts.netloc.rpartition("@")
        hosts = [one.strip() for one in named.split(",") if one.strip()]
        if parts.scheme not in ("zk", "zookeeper") or parts.query or parts.fragment:
            raise ConfigError("leader.zookeeper is not an address; write zk://host:2181,host2:2181/chroot")
        if not hosts or not all(_HOST.match(one) for one in hosts):
            # Not all of it: where the host was forgotten a password stands there.
            shown = ", ".join(map(shown_host, hosts))
            raise ConfigError(f"leader.zookeeper names hosts {shown!r}; write zk://host:2181,host2:2181/chroot")
        root = parts.path.rstrip("/")
        if "//" in root or any(one in (".", "..") for one in root.split("/")):
            shown = "" if "@" in root else repr(masked(parts.path))
            raise ConfigError(f"leader.zookeeper has the chroot {shown}; write zk://host:2181/one/two")
        user, _, password = who.partition(":")
        full = ",".join(one if re.search(r":\d+\Z", one) else f"{one}:{DEFAULT_PORT}" for one in hosts)
        return cls(full, unquote(root), settings.user or unquote(user), settings.password or unquote(password))
