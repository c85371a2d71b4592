"""A real Aerospike server for the tests: the one that ``IGNIS_TEST_AEROSPIKE`` names, or one that is started here.

``IGNIS_TEST_AEROSPIKE=host:port/namespace`` names a running server; ``asd`` on the PATH is started on free ports with a
namespace in memory, once per test session. With neither, what needs a server is skipped, with these words.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 60.0
RECORD_LIMIT = 8 << 20
SKIPPED = "no Aerospike server: set IGNIS_TEST_AEROSPIKE=host:port/namespace or put asd on the PATH"

_SLOTS = 512
_held: dict[str, int] = {}
_found: list[str | None] = []
_prepared: set[str] = set()
_finding = threading.Lock()


class Asd:
    """A server of our own, that a test may kill and start again. What is in its memory is gone then; the namespace
    ``durable`` is on a file and comes back."""

    def __init__(self, binary: str) -> None:
        self.binary = binary
        self.directory = Path(tempfile.mkdtemp(prefix="ignis-asd-"))
        for name in ("smd", "udf", "data"):
            (self.directory / name).mkdir()
        self.port = _free_ports(4)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port, directory = self.port, self.directory
        (directory / "aerospike.conf").write_text(
            f"""
service {{
    cluster-name ignis-{port}
    run-as-daemon false
    work-directory {directory}
    proto-fd-max 1024
}}
mod-lua {{
    user-path {directory}/udf
}}
logging {{
    file {directory}/aerospike.log {{
        context any info
    }}
}}
network {{
    service {{
        address 127.0.0.1
        access-address 127.0.0.1
        port {port}
    }}
    fabric {{
        address 127.0.0.1
        port {port + 1}
    }}
    heartbeat {{
        mode mesh
        address 127.0.0.1
        port {port + 2}
        interval 150
        timeout 10
    }}
    admin {{
        address 127.0.0.1
        port {port + 3}
    }}
}}
namespace test {{
    replication-factor 1
    nsup-period 1
    default-ttl 0
    storage-engine memory {{
        data-size 1G
    }}
}}
namespace durable {{
    replication-factor 1
    nsup-period 1
    default-ttl 0
    storage-engine device {{
        file {directory}/data/durable.dat
        filesize 256M
    }}
}}
"""
        )
        self._process = subprocess.Popen(
            [self.binary, "--foreground", "--config-file", str(directory / "aerospike.conf")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"asd ended with {self._process.returncode}, see {directory}/aerospike.log")
            try:
                with socket.create_connection(("127.0.0.1", port), 1):
                    pass
            except OSError:
                time.sleep(0.05)
                continue
            # It listens before it knows its partitions.
            raw_client(self.address()).close()
            return
        raise AssertionError(f"asd does not listen on {port}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(WAIT_S)
            self._process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def address(self, namespace: str = "test") -> str:
        return f"127.0.0.1:{self.port}/{namespace}"


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that are free at this moment."""
    for base in range(20_000 + os.getpid() % 10_000, 60_000, 7):
        held = []
        try:
            for port in range(base, base + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise AssertionError("no free ports")


def asd_binary() -> str | None:
    """The server's program, if this machine has it."""
    return os.environ.get("IGNIS_TEST_ASD") or shutil.which("asd")


def new_server() -> Asd:
    """A server of one test's own, running; skips without ``asd``."""
    binary = asd_binary()
    if binary is None:
        pytest.skip("no asd on the PATH: a server that the test may kill is needed")
    server = Asd(binary)
    server.start()
    return server


def address() -> str:
    """``host:port/namespace`` of the session's server; skips the test when there is none."""
    with _finding:
        if not _found:
            named = os.environ.get("IGNIS_TEST_AEROSPIKE")
            if named is None and asd_binary() is not None:
                server = new_server()
                atexit.register(server.remove)
                named = server.address()
            _found.append(named)
    if _found[0] is None:
        pytest.skip(SKIPPED)
    pytest.importorskip("aerospike", reason="the driver is not installed: pip install 'ignis-mq[aerospike]'")
    _prepare(_found[0])
    return _found[0]


def _prepare(where: str) -> None:
    """Waits until the server answers, and lets it take records of 8 MiB, as docs/aerospike.md says."""
    if where in _prepared:
        return
    client = raw_client(where)
    try:
        namespace = where.partition("/")[2]
        client.info_all(f"set-config:context=namespace;id={namespace};max-record-size={RECORD_LIMIT}")
    finally:
        client.close()
    _prepared.add(where)


def raw_client(where: str | None = None) -> Any:
    """The bare driver, as another program would use it."""
    import aerospike

    host, _, port = (where or address()).partition("/")[0].rpartition(":")
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return aerospike.client({"hosts": [(host, int(port))], "policies": _patient()})
        except aerospike.exception.AerospikeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _patient() -> dict[str, dict[str, int]]:
    """A second, which is the driver's own, is too little on a busy machine: to empty a set takes the server a while."""
    limit_ms = int(WAIT_S * 1000)
    calls = ("read", "write", "operate", "remove", "batch", "batch_parent_write", "query", "apply")
    limits = {"socket_timeout": limit_ms, "total_timeout": limit_ms}
    return {**dict.fromkeys(calls, limits), "info": {"timeout": limit_ms}}


def hold_client(where: str) -> str:
    """A client name that nobody else on this machine uses until `forget`, with nothing stored under it.

    Names are used again and again: a namespace has room for 4,095 sets in all its life.
    """
    for number in range(1, _SLOTS):
        name = f"t{number}"
        if name in _held:
            continue
        fd = os.open(
            Path(tempfile.gettempdir()) / f"ignis-test-aerospike-{os.getuid()}-{number}",
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
        )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        _held[name] = fd
        _empty(where, [name])
        return name
    raise AssertionError("no client name is free")


def url(**options: Any) -> str:
    """A fresh store, of a client of its own unless one is given."""
    where = address()
    client_id = options.pop("client_id", None) or hold_client(where)
    query = "&".join(f"{name}={value}" for name, value in {"client_id": client_id, **options}.items())
    return f"aerospike://{where}?{query}"


def forget(where: str, client_ids: list[str]) -> None:
    """Removes the records that stores of these clients have left, and gives the names back."""
    _empty(where, client_ids)
    for one in client_ids:
        fd = _held.pop(one, None)
        if fd is not None:
            os.close(fd)


def _empty(where: str, client_ids: list[str]) -> None:
    client = raw_client(where)
    namespace = where.partition("/")[2]
    try:
        listed = client.info_random_node(f"sets/{namespace}").partition("\t")[2]
        for one in listed.split(";"):
            figures = dict(field.partition("=")[::2] for field in one.split(":"))
            name = figures.get("set", "")
            if figures.get("objects") != "0" and any(f"_{client_id}_" in f"_{name}" for client_id in client_ids):
                client.truncate(namespace, name, 0)
        # What is written in the same millisecond would be cut off too.
        time.sleep(0.005)
    finally:
        client.close()
