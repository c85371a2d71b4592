"""A real ZooKeeper server for the tests: Debian's package, started on a free port, killed, stopped, and cut off.

What needs it is skipped, with these words, where the package is not; with ``CI=true`` it fails instead on Linux.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest

WAIT_S = 60.0
TICK_MS = 250
JAR = Path("/usr/share/java/zookeeper.jar")
CLASSPATH = ":".join(
    str(JAR.with_name(f"{name}.jar"))
    for name in ("zookeeper", "netty-codec", "netty-resolver", "netty-transport-native-unix-common", "slf4j-simple")
)
"""TLS needs more of netty than the package's manifest names; and the log is worth having."""
SKIPPED = "no ZooKeeper: needs java and /usr/share/java/zookeeper.jar (Debian: apt-get install zookeeper)"


def missing() -> str:
    """Why there is no server to be had; "" when there is."""
    return "" if JAR.exists() and shutil.which("java") else SKIPPED


def need() -> None:
    """Skips the test without a server; fails it in CI, where Debian's packages can be had."""
    why = missing()
    if why and os.environ.get("CI") == "true" and sys.platform == "linux":
        pytest.fail(why)
    if why:
        pytest.skip(why)
    pytest.importorskip("kazoo", reason="the driver is not installed: pip install 'ignis-mq[zookeeper]'")


class Server:
    """One server of a test's own. Its data outlive `kill` and `stop`, so that `start` is a restart.

    Args:
        options: further lines of its configuration.
        host: where it listens; "" = everywhere.
    """

    def __init__(self, *options: str, host: str = "127.0.0.1") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ignis-zookeeper-"))
        self.host = host
        self.port = _free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)

    @property
    def address(self) -> str:
        return f"{self.host or '127.0.0.1'}:{self.port}"

    def start(self) -> None:
        lines = [
            f"tickTime={TICK_MS}",
            f"dataDir={self.directory}/data",
            f"clientPort={self.port}",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,cons",
            *([f"clientPortAddress={self.host}"] if self.host else []),
            *self._options,
        ]
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n")
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
                    # Nothing here is to survive a power cut, and the machine is slow.
                    "-Dzookeeper.forceSync=no",
                    "-cp", CLASSPATH, "org.apache.zookeeper.server.ZooKeeperServerMain", str(self.directory / "zoo.cfg"),
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                text = (self.directory / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"zookeeper ended with {self._process.returncode}: {text}")
            if b"Mode:" in self.command(b"srvr"):
                return
            time.sleep(0.05)
        raise RuntimeError(f"zookeeper does not answer on {self.port}")

    def command(self, word: bytes) -> bytes:
        """The answer to a four-letter command; empty while there is none."""
        with contextlib.suppress(OSError), socket.create_connection((self.host or "127.0.0.1", self.port), 1) as link:
            link.settimeout(2)
            link.sendall(word)
            parts = []
            while part := link.recv(65_536):
                parts.append(part)
            return b"".join(parts)
        return b""

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Freezes it: connections stay open and nothing is answered."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(WAIT_S)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.remove)


class Link:
    """A way to the server that can be cut: nothing passes then, and nobody is told. A small proxy with a thread."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._cut = False
        self._drop = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-link", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._cut = True

    def drop(self) -> None:
        """Closes the connections there are, once; new ones are let through."""
        self._drop = True
        deadline = time.monotonic() + WAIT_S
        while self._drop and time.monotonic() < deadline:
            time.sleep(0.005)

    def mend(self) -> None:
        """What was sent meanwhile arrives now, as packets do that were sent again and again."""
        self._cut = False

    def _run(self) -> None:
        while not self._closed.is_set():
            if self._drop:
                for end in list(self._pairs):
                    end.close()
                self._pairs.clear()
                self._drop = False
            if self._cut:
                time.sleep(0.01)
                continue
            ready = wait([self._listening, *self._pairs], 0.02)
            for one in ready:
                if self._cut:
                    break
                if one is self._listening:
                    self._accept()
                elif one in self._pairs:
                    self._pass_on(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._listening.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 2)
            except OSError:
                near.close()
                return
            self._pairs[near], self._pairs[far] = far, near

    def _pass_on(self, one: socket.socket) -> None:
        other = self._pairs[one]
        try:
            data = one.recv(65_536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for end in (one, other):
            self._pairs.pop(end, None)
            end.close()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(WAIT_S)
        for end in [self._listening, *self._pairs]:
            end.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@contextlib.contextmanager
def running(*options: str) -> Iterator[Server]:
    """A server, running; removed at the end."""
    need()
    server = Server(*options)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def make_certificates(directory: Path) -> None:
    """``ca.pem``; ``server.pem`` (with its key) and ``client.pem`` and ``client.key``, of it and for 127.0.0.1."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=directory, capture_output=True, timeout=WAIT_S)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ignis test authority")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names",
        )  # fmt: skip
    with open(directory / "server.pem", "a") as both:
        both.write((directory / "server.key").read_text())


@contextlib.contextmanager
def running_with_tls(directory: Path) -> Iterator[int]:
    """A server that wants a certificate of its clients; gives its port."""
    port = _free_port()
    with running(
        f"secureClientPort={port}",
        "secureClientPortAddress=127.0.0.1",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"ssl.keyStore.location={directory}/server.pem",
        "ssl.keyStore.type=PEM",
        f"ssl.trustStore.location={directory}/ca.pem",
        "ssl.trustStore.type=PEM",
        "ssl.clientAuth=need",
    ):
        yield port
