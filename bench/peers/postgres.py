"""PostgreSQL as a queue: COPY in, DELETE of locked rows out, LISTEN and NOTIFY to wake. The cluster is the bench's."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.base import INTERVAL, SYNC, Handle, MissingError, Peer, Session, require_module, require_program
from bench.processes import BenchError, Server

_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin")
_DATABASE = "postgres"
_SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "512MB",
    # The bench is shorter than a checkpoint interval; a checkpoint in the middle of a run would only add noise.
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "fsync": "on",
}
_TABLE = "CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)"
_COPY = "COPY queue (body) FROM STDIN (FORMAT BINARY)"
_TAKE = (
    "WITH taken AS (DELETE FROM queue USING (SELECT id FROM queue ORDER BY id FOR UPDATE SKIP LOCKED LIMIT %s) AS next "
    "WHERE queue.id = next.id RETURNING queue.id, body) SELECT body FROM taken ORDER BY id"
)
_NOTIFYING_INSERT = "WITH added AS (INSERT INTO queue (body) VALUES (%s)) SELECT pg_notify('queue', '')"
_COPY_HEADER = b"PGCOPY\n\xff\r\n\x00" + struct.pack("!ii", 0, 0)
_COPY_TRAILER = struct.pack("!h", -1)
_ROW = struct.Struct("!hi")


class Postgres(Peer):
    how_publish = "INSERT, autocommit, prepared"
    how_batch = "COPY ... (FORMAT BINARY), one commit"
    how_drain = "DELETE ... (SELECT ... FOR UPDATE SKIP LOCKED LIMIT n) RETURNING; ack: COMMIT"
    how_listen = "INSERT + NOTIFY; LISTEN, then DELETE ... RETURNING; ack: COMMIT"
    can_listen = True

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self._commit = {SYNC: "on", INTERVAL: "off"}[durability]
        self.name = f"PostgreSQL, synchronous_commit {self._commit}"

    def require(self) -> None:
        _program("initdb")
        _program("postgres")
        require_module("psycopg", "psycopg[binary]")
        if _server_user() == "":
            raise MissingError(
                "MISSING: PostgreSQL does not run as root and there is no user postgres; run the bench as another user"
            )

    def start(self, directory: Path) -> None:
        user = _server_user()
        # The server's own user must be able to enter the bench's directory, and owns its part of it.
        home = directory / "pg"
        home.mkdir(mode=0o700)
        if user is not None:
            directory.chmod(0o711)
            shutil.chown(home, user, user)
        self._home, self._user = str(home), user or pwd.getpwuid(os.geteuid()).pw_name
        as_user: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
        made = subprocess.run(
            [_program("initdb"), "-D", f"{home}/data", "--no-sync", "-A", "trust", "-E", "UTF8", "--locale=C"],
            capture_output=True, text=True, timeout=120, cwd="/", stdin=subprocess.DEVNULL, check=False, **as_user,
        )  # fmt: skip
        if made.returncode != 0:
            raise BenchError(f"initdb: {made.stderr.strip()[-500:]}")
        command = [_program("postgres"), "-D", f"{home}/data", "-k", str(home)]
        for key, value in {**_SETTINGS, "synchronous_commit": self._commit}.items():
            command += ["-c", f"{key}={value}"]
        # SIGINT is PostgreSQL's fast shutdown, SIGQUIT its immediate one.
        self._server = Server(
            command, directory / "pg.log", user=user, stop_signal=signal.SIGINT, orphan_signal=signal.SIGQUIT, cwd=home
        )
        self._server.wait_ready(self._is_ready)
        with _connect(self._home, self._user) as connection:
            connection.execute(_TABLE)

    def _is_ready(self) -> bool:
        import psycopg

        try:
            _connect(self._home, self._user).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        self._server.stop()

    def session(self) -> Session:
        return _PostgresQueue(_connect(self._home, self._user))


class _PostgresQueue(Session):
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._listening = False

    def publish(self, body: bytes) -> None:
        self._connection.execute(
            _NOTIFYING_INSERT if self._listening else "INSERT INTO queue (body) VALUES (%s)", (body,)
        )

    def announce(self) -> None:
        """From now on a publish wakes listeners."""
        self._listening = True

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        # Rows in the wire's own form, joined in one go: several times faster than a row at a time.
        pack = _ROW.pack
        data = b"".join([pack(1, len(body)) + body for body in bodies])
        with self._connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.write(_COPY_HEADER + data + _COPY_TRAILER)

    def drain(self, limit: int, handle: Handle) -> int:
        with self._connection.transaction(), self._connection.cursor(binary=True) as cursor:
            rows = cursor.execute(_TAKE, (limit,), prepare=True).fetchall()
            for (body,) in rows:
                handle(body)
        return len(rows)

    def receive(self, handle: Handle, timeout_s: float) -> int:
        if not self._listening:
            self._connection.execute("LISTEN queue")
            self._listening = True
        done = self.drain(100, handle)
        if done:
            return done
        # To its end: the generator holds the connection's lock as long as it lives.
        woken = list(self._connection.notifies(timeout=timeout_s, stop_after=1))
        return self.drain(100, handle) if woken else 0

    def close(self) -> None:
        self._connection.close()


def _program(name: str) -> str:
    return require_program(name, "postgresql", _FOLDERS)


def _server_user() -> str | None:
    """Who the server must run as: None = as ourselves; "" = there is nobody."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return ""


def _connect(home: str, user: str) -> Any:
    import psycopg

    connection = psycopg.connect(host=home, user=user, dbname=_DATABASE, autocommit=True, connect_timeout=30)
    connection.prepare_threshold = 0
    return connection
