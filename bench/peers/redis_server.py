"""A redis-server of the bench's own, on a unix socket in the bench's directory, with the append-only file on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.peers.base import INTERVAL, SYNC, Peer, Session, require_module, require_program
from bench.processes import Server

_FSYNC = {SYNC: "always", INTERVAL: "everysec"}
_TIMEOUT_S = 60.0


class RedisPeer(Peer):
    """What both Redis peers share: the server and its durability class."""

    label = "Redis"

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.name = f"{self.label}, appendfsync {_FSYNC[durability]}"

    def require(self) -> None:
        require_program("redis-server", "redis-server")
        require_module("redis", "redis[hiredis]")
        require_module("hiredis", "redis[hiredis]")

    def start(self, directory: Path) -> None:
        self._socket = str(directory / "redis.sock")
        settings = {
            "port": "0",
            "unixsocket": self._socket,
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
        client = connect(self._socket)
        try:
            self.prepare(client)
        finally:
            client.close()

    def _is_ready(self) -> bool:
        import redis

        try:
            client = connect(self._socket)
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
    def __init__(self, socket: str) -> None:
        self._redis = connect(socket)

    def close(self) -> None:
        self._redis.close()


def connect(socket: str) -> Any:
    """A client on the socket. Any: the package's own annotations mix the types of its sync and async clients."""
    import redis

    return redis.Redis(unix_socket_path=socket, socket_timeout=_TIMEOUT_S)
