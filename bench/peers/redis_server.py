"""A redis-server of the bench's own, on a unix socket in the bench's directory or on a port, with the append-only file on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.peers.base import INTERVAL, NONE, SYNC, Peer, Session, require_module, require_program
from bench.peers.ports import free_port
from bench.processes import Server

_FSYNC = {SYNC: "always", INTERVAL: "everysec", NONE: "no"}
_TIMEOUT_S = 60.0


class RedisPeer(Peer):
    """What both Redis peers share: the server and its durability class."""

    label = "Redis"

    def __init__(self, durability: str, *, tcp: bool = False) -> None:
        self.durability = durability
        self.tcp = tcp
        self.name = f"{self.label}, appendfsync {_FSYNC[durability]}"

    def require(self) -> None:
        require_program("redis-server", "redis-server")
        require_module("redis", "redis[hiredis]")
        require_module("hiredis", "redis[hiredis]")

    def start(self, directory: Path) -> None:
        path = str(directory / "redis.sock")
        self._where: str | int = free_port() if self.tcp else path
        settings = {
            "port": str(self._where) if self.tcp else "0",
            "bind": "127.0.0.1",
            "unixsocket": path,
            "unixsocketperm": "700",
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": _FSYNC[self.durability],
            # No snapshots and no rewriting meanwhile: both only cost here.
            "save": "",
            "auto-aof-rewrite-percentage": "0",
        }
        command = [require_program("redis-server", "redis-server")]
        for key, value in settings.items():
            command += [f"--{key}", value]
        self._server = Server(command, directory / "redis.log")
        self._server.wait_ready(self._is_ready)
        client = connect(self._where)
        try:
            self.prepare(client)
        finally:
            client.close()

    def _is_ready(self) -> bool:
        import redis

        try:
            client = connect(self._where)
            try:
                return bool(client.ping())
            finally:
                client.close()
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False

    def prepare(self, client: Any) -> None:
        """Makes what the queue needs on the fresh server."""

    def stop(self) -> None:
        self._server.stop()


class RedisSession(Session):
    def __init__(self, where: str | int) -> None:
        self._redis = connect(where)

    def close(self) -> None:
        self._redis.close()


def connect(where: str | int) -> Any:
    """A client on the socket or port. Any: the package's own annotations mix the types of its sync and async clients."""
    import redis

    if isinstance(where, int):
        return redis.Redis("127.0.0.1", where, socket_timeout=_TIMEOUT_S)
    return redis.Redis(unix_socket_path=where, socket_timeout=_TIMEOUT_S)
