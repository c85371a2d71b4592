"""beanstalkd with its binlog. Batches are pipelined over a plain socket: greenstalk sends one command at a time."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from bench.peers.base import INTERVAL, NONE, SYNC, Handle, Peer, Session, require_module, require_program
from bench.peers.ports import free_port
from bench.processes import BenchError, Server

_FLAGS = {SYNC: "-f0", INTERVAL: "-f1000", NONE: "-F"}
# Commands sent before the answers are read: more could fill both directions' buffers and stop both sides.
_PIPELINE = 500
_TIMEOUT_S = 60.0
_TTR_S = 3_600
_PUT = b"put 65536 0 %d %d\r\n"


class Beanstalkd(Peer):
    how_publish = "put (greenstalk)"
    how_batch = f"put, pipelined over a socket, {_PIPELINE} at a time"
    how_drain = "reserve-with-timeout 0, then delete, both pipelined; ack: delete"
    how_listen = "reserve (greenstalk); ack: delete"
    can_listen = True
    can_delay = True
    how_delay = "put with a delay (greenstalk), whole seconds; reserve"

    def __init__(self, durability: str, *, tcp: bool = False) -> None:
        self.durability = durability
        self.tcp = tcp
        self.name = f"beanstalkd {_FLAGS[durability]}"

    def require(self) -> None:
        require_program("beanstalkd", "beanstalkd")
        require_module("greenstalk", "greenstalk")

    def start(self, directory: Path) -> None:
        self._where: str | int = free_port() if self.tcp else str(directory / "beanstalkd.sock")
        listen = ["-l", "127.0.0.1", "-p", str(self._where)] if self.tcp else ["-l", f"unix:{self._where}"]
        log = directory / "binlog"
        log.mkdir()
        command = [require_program("beanstalkd", "beanstalkd"), *listen, "-b", str(log)]
        self._server = Server([*command, _FLAGS[self.durability]], directory / "beanstalkd.log")
        self._server.wait_ready(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            _open(self._where).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self._server.stop()

    def session(self) -> Session:
        return _BeanstalkdQueue(self._where)


class _BeanstalkdQueue(Session):
    def __init__(self, where: str | int) -> None:
        import greenstalk

        self._client = greenstalk.Client(("127.0.0.1", where) if isinstance(where, int) else where, encoding=None)
        self._raw = _open(where)
        self._answers = self._raw.makefile("rb", buffering=1 << 18)

    def publish(self, body: bytes) -> None:
        self._client.put(body, ttr=_TTR_S)

    def publish_later(self, body: bytes, delay_s: float) -> None:
        self._client.put(body, ttr=_TTR_S, delay=round(delay_s))

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        for first in range(0, len(bodies), _PIPELINE):
            part = bodies[first : first + _PIPELINE]
            self._raw.sendall(b"".join([b"%b%b\r\n" % (_PUT % (_TTR_S, len(body)), body) for body in part]))
            for _ in part:
                self._expect(b"INSERTED")

    def drain(self, limit: int, handle: Handle) -> int:
        count = min(limit, _PIPELINE)
        self._raw.sendall(b"reserve-with-timeout 0\r\n" * count)
        jobs = []
        for _ in range(count):
            line = self._answers.readline()
            if line.startswith(b"RESERVED "):
                _, job, size = line.split()
                handle(self._answers.read(int(size) + 2)[:-2])
                jobs.append(job)
            elif not line.startswith(b"TIMED_OUT"):
                raise BenchError(f"beanstalkd answered {line!r}")
        self._raw.sendall(b"".join([b"delete %b\r\n" % job for job in jobs]))
        for _ in jobs:
            self._expect(b"DELETED")
        return len(jobs)

    def receive(self, handle: Handle, timeout_s: float) -> int:
        import greenstalk

        try:
            job = self._client.reserve(timeout=max(1, round(timeout_s)))
        except greenstalk.TimedOutError:
            return 0
        handle(job.body)
        self._client.delete(job)
        return 1

    def _expect(self, word: bytes) -> None:
        line = self._answers.readline()
        if not line.startswith(word):
            raise BenchError(f"beanstalkd answered {line!r}, not {word.decode()}")

    def close(self) -> None:
        self._client.close()
        self._answers.close()
        self._raw.close()


def _open(where: str | int) -> socket.socket:
    connection = socket.socket(socket.AF_INET if isinstance(where, int) else socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_TIMEOUT_S)
    try:
        connection.connect(("127.0.0.1", where) if isinstance(where, int) else where)
        if isinstance(where, int):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise
    return connection
