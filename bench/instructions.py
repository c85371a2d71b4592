"""Instructions that publish, claim, handle and acknowledge cost a message: a gate that a busy machine cannot move.

Beside these, of the broker: what its event loop and its client do for a lone publish, what the loop does for one that a
subscription waits for, for a lone acknowledgement, and for a message of a handler: loaded, given to its FIRE, deleted.

``python -m bench.instructions`` runs itself under valgrind and compares the counts with those kept in ``instructions.json``;
its exit status is 1 when a step costs over 5 % more. ``--update`` keeps the new ones; ``--functions 10`` also says which
functions of each step take most: those of the library by name where it was built with ``IGNIS_SYMBOLS=1``.

What is counted is the calling thread's own instructions, from the call of a step to its return, after some calls to warm up:
the least of five turns of it, since an event loop has a clock of its own to go by, and does more of that beside the step the
slower the machine is. The counts are the same from run to run but for some in a thousand; another build of Python or of the C
library counts otherwise, so the kept counts name both, and are compared only where they match.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import functools
import gc
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure import REPOSITORY

_KEPT = Path(__file__).with_name("instructions.json")
_CALLS = 20
"""Of a step in one turn."""
_TURNS = 5
_WARM_CALLS = 60
_ALL_CALLS = _WARM_CALLS + _TURNS * _CALLS
_BODY = b"x" * 100
_MESSAGE = {"order": 7, "lines": ["a", "b"]}
_ALLOWED = 1.05
_INTERRUPTED = 200
"""Of a call, when another thread asks for the interpreter once while all of a turn are counted."""
_TIMEOUT_S = 600.0
# All that a step does happens within one call of a C function, by whose name valgrind switches the counting on and off. It
# must be called by C: a call by libffi is not seen.
_SWITCH = "counted"
_SOURCE = f"""
__attribute__((noipa)) int {_SWITCH}(int (*step)(void)) {{ return step() + 1; }}
int run_counted(int (*step)(void)) {{ return {_SWITCH}(step) + 1; }}
"""
# What the embedded store asks of the kernel and valgrind has not. It knows no open-file-description locks (its `fcntl` answers
# EINVAL): one process has the store here, so every such lock is free. And it has no 64 GiB of addresses for a mapping.
_KERNEL_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#define MOST (1ul << 30)
int fcntl(int file, int command, ...)
{
    static int (*real)(int, int, ...);
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (command == F_OFD_SETLK || command == F_OFD_SETLKW)
        return 0;
    if (command == F_OFD_GETLK) {
        ((struct flock *)argument)->l_type = F_UNLCK;
        return 0;
    }
    if (!real)
        real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
    return real(file, command, argument);
}
int fcntl64(int file, int command, ...) __attribute__((alias("fcntl")));
void *mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset)
{
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real)
        real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
    return real(at, file >= 0 && bytes > MOST ? MOST : bytes, access, flags, file, offset);
}
int munmap(void *at, size_t bytes)
{
    static int (*real)(void *, size_t);
    if (!real)
        real = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
    return real(at, bytes > MOST ? MOST : bytes);
}
"""
_Step = ctypes.CFUNCTYPE(ctypes.c_int)


def _build(directory: str, name: str, text: str) -> str:
    source, library = Path(directory, f"{name}.c"), Path(directory, f"{name}.so")
    source.write_text(text, "utf-8")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    return str(library)


def _counted(library: ctypes.CDLL, step: Callable[[], object]) -> None:
    def call() -> int:
        step()
        return 0

    library.run_counted(_Step(call))


def _turns(library: ctypes.CDLL, name: str, step: Callable[[int], None]) -> None:
    step(_WARM_CALLS)
    for _ in range(_TURNS):
        _counted(library, functools.partial(step, _CALLS))
        print(name, flush=True)


class _Steps:
    """The steps of one store, each as a function that does it so many times."""

    def __init__(self, url: str) -> None:
        import ignis
        from bench.worker_loop import worker_loop
        from ignis.consumer.pools import loop
        from ignis.native import encode_record, new_id

        self._app = ignis.Ignis(url)
        self._queue = self._app.queue("counted", bytes, shards=1, durability="none")
        self._queue.open()
        self._typed = self._app.queue("typed", dict, shards=1, durability="none")
        self._typed.open()
        self._publisher = self._queue.publisher()
        self._magazines = self._app.store.magazines
        self._magazines.declare("m", 1, "none")
        for _ in range(_ALL_CALLS):
            self._magazines.load_records("m", 0, [encode_record(_BODY, id=new_id())])
        self._claimed: list[int] = []
        self._records = [encode_record(_BODY, id=new_id()) for _ in range(max(_CALLS, _WARM_CALLS))]
        # A worker looks up each millisecond, in which valgrind handles few messages, and on a busy machine fewer.
        loop._LOOK_S = loop._REPORT_S = 3_600.0
        self._loop = worker_loop(self._queue, _handle)

    def close(self) -> None:
        self._publisher.close()
        self._app.close()

    def publish(self, calls: int) -> None:
        for _ in range(calls):
            self._queue.publish(_BODY)

    def publish_typed(self, calls: int) -> None:
        for _ in range(calls):
            self._typed.publish(_MESSAGE)

    def send(self, calls: int) -> None:
        for _ in range(calls):
            self._publisher.send(_BODY, key="a key")

    def claim(self, calls: int) -> None:
        for _ in range(calls):
            self._claimed.extend(self._magazines.fire("m", 1, "bench").claims[0].pointers)

    def handle(self, calls: int) -> None:
        self._loop(self._records[:calls])

    def delete(self, calls: int) -> None:
        for _ in range(calls):
            self._magazines.delete("m", {0: [self._claimed.pop(0)]})


class _BrokerSteps:
    """A lone message through the broker: what its event loop does, from readable to answered, and what its client does.

    Each side has the thread that is counted to itself: first the loop is run by hand, a pass at a time, then it has a thread of
    its own.
    """

    def __init__(self, url: str) -> None:
        from ignis.broker.client import requests, store_requests
        from ignis.broker.protocol.commands import Command
        from ignis.broker.protocol.payloads import pack_send_batch
        from ignis.broker.server.server import Broker
        from ignis.native import PackedBatch, encode_frame, encode_record
        from ignis.native.wire import pack_pointers

        self._loop = asyncio.new_event_loop()
        self._broker = Broker(url, port=0)
        self._loop.run_until_complete(self._broker.start())
        self._socket, self._consumer = self._connected("bench"), self._connected("consumer")
        self._worker = self._connected("worker")
        settings, batch = {"shards": 1, "durability": "none"}, PackedBatch.pack([encode_record(_BODY)])
        self._frames: dict[str, bytes] = {}
        for queue in ("counted", "consumed", "handled"):
            made = requests.create_queue(queue, settings)
            self._say(self._socket, encode_frame(made.command, 2, made.payload))
            load = pack_send_batch(queue.encode(), 0, [(0, batch)])
            self._frames[queue] = encode_frame(Command.SEND_BATCH, 3, load)
        self._say(self._socket, self._frames["counted"])
        asked = requests.subscribe("consumed", 2 * _ALL_CALLS, 1 << 20)
        self._say(self._consumer, encode_frame(asked.command, 4, asked.payload))
        self._acks = iter(
            [
                encode_frame(Command.ACK, 5, requests.ack("consumed", {0: [pointer]}).payload)
                for pointer in range(1, 1 + _ALL_CALLS)
            ]
        )
        fire = encode_frame(Command.FIRE, 6, store_requests.fire("handled", 8, "", None, 1 << 20, 30.0).payload)
        self._deletes = iter(
            [
                encode_frame(Command.DELETE, 7, store_requests.delete("handled", pack_pointers({0: [pointer]})).payload)
                for pointer in range(1, 1 + _ALL_CALLS)
            ]
        )
        self._fire = fire
        self._worker.sendall(fire)
        self._loop.run_until_complete(asyncio.sleep(0.1))  # the first claim is a thread's
        self._thread: threading.Thread | None = None
        self._app: Any = None

    def _connected(self, instance: str) -> socket.socket:
        from ignis.broker.protocol.commands import Command
        from ignis.broker.protocol.encoding import pack_connect
        from ignis.broker.protocol.payloads import Connect
        from ignis.native import encode_frame

        made = socket.create_connection(("127.0.0.1", self._broker.port))
        made.setblocking(False)
        hello = Connect(client_id="ignis", farm_id="local", instance=instance)
        self._say(made, encode_frame(Command.CONNECT, 1, pack_connect(hello)))
        return made

    def _say(self, connection: socket.socket, frame: bytes) -> None:
        connection.sendall(frame)
        while True:
            self._loop.run_until_complete(asyncio.sleep(0.001))
            with contextlib.suppress(BlockingIOError):
                connection.recv(4_096)
                return

    def _pass(self) -> None:
        """One pass of the broker's event loop."""
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def _passes(self, *connections: socket.socket) -> None:
        """As many as it takes until each of these has got something."""
        self._pass()
        for connection in connections:
            while True:
                with contextlib.suppress(BlockingIOError):
                    connection.recv(4_096)
                    break
                self._pass()

    def serve(self, calls: int) -> None:
        """The broker's event loop."""
        for _ in range(calls):
            self._socket.send(self._frames["counted"])
            self._pass()
            self._socket.recv(64)  # fails when it was not answered in that pass

    def deliver(self, calls: int) -> None:
        """The same, of a message that a subscription waits for."""
        for _ in range(calls):
            self._socket.send(self._frames["consumed"])
            self._passes(self._socket, self._consumer)

    def ack(self, calls: int) -> None:
        """The acknowledgement of what was delivered."""
        for _ in range(calls):
            self._consumer.send(next(self._acks))
            self._passes(self._consumer)

    def handle(self, calls: int) -> None:
        """A message of a handler behind ``ignis://``, its DELETE, and the next FIRE."""
        for _ in range(calls):
            self._socket.send(self._frames["handled"])
            self._passes(self._socket, self._worker)
            self._worker.send(next(self._deletes))
            self._passes(self._worker)
            self._worker.send(self._fire)
            self._pass()

    def ask(self, calls: int) -> None:
        """Its client."""
        if self._thread is None:
            import ignis

            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
            self._app = ignis.Ignis(f"ignis://127.0.0.1:{self._broker.port}")
            self._queue = self._app.queue("asked", bytes, shards=1, durability="none")
            self._queue.open()
        for _ in range(calls):
            self._queue.publish(_BODY)

    def close(self) -> None:
        self._app.close()
        asyncio.run_coroutine_threadsafe(self._broker.stop(5.0), self._loop).result(60.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join(60.0)
        for one in (self._socket, self._consumer, self._worker):
            one.close()


def _handle(body: bytes, ctx: object) -> None:
    """Does nothing."""


def _work(directory: str) -> None:
    library = ctypes.CDLL(_build(directory, "counted", _SOURCE))
    gc.disable()  # when it runs depends on what was allocated before, by whomever
    for store, url in (("memory", "memory://"), ("embedded", f"embedded://{directory}/store")):
        steps = _Steps(url)
        for step in (steps.publish, steps.publish_typed, steps.send, steps.claim, steps.handle, steps.delete):
            _turns(library, f"{store} {step.__name__}", step)
        steps.close()
    broker = _BrokerSteps(f"embedded://{directory}/broker")
    for step in (broker.serve, broker.deliver, broker.ack, broker.handle, broker.ask):
        _turns(library, f"broker {step.__name__}", step)
    broker.close()


def _measure(functions: int) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Instructions a call, by step, and so many lines a step with the functions that take most. Raises RuntimeError when valgrind
    or what it runs fails."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            "valgrind", "--tool=callgrind", f"--toggle-collect={_SWITCH}", f"--dump-after={_SWITCH}",
            f"--callgrind-out-file={directory}/counts", "--quiet",
            sys.executable, "-m", "bench.instructions", "--work", directory,
        ]  # fmt: skip
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={
                **os.environ,
                "LD_PRELOAD": _build(directory, "kernel", _KERNEL_SOURCE),
                "PYTHONHASHSEED": "0",
                "PYTHONMALLOC": "pymalloc",
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        names = done.stdout.split("\n")[:-1]
        if done.returncode != 0 or not names:
            raise RuntimeError(f"valgrind ended with {done.returncode}: {done.stderr[-2000:]}")
        turns: dict[str, list[Path]] = {}
        for number, name in enumerate(names, 1):
            turns.setdefault(name, []).append(Path(f"{directory}/counts.{number}"))
        counted = {name: min(paths, key=_total) for name, paths in turns.items()}
        return (
            {name: _total(path) // _CALLS for name, path in counted.items()},
            {name: _dearest(path, functions) for name, path in counted.items()} if functions else {},
        )


def _dearest(path: Path, functions: int) -> list[str]:
    """The functions that take most instructions themselves: a call's instructions, their part, name and library."""
    command = ["callgrind_annotate", "--inclusive=no", "--threshold=100", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    found = re.findall(r"^\s*([\d,]+) \(\s*[\d.]+%\)\s+(\S.*)$", done.stdout, re.MULTILINE)
    total = _total(path)
    rows = [(int(count.replace(",", "")), what) for count, what in found]
    rows = [(count, what) for count, what in rows if count < total]  # those that called the step have all of it
    return [f"{count // _CALLS:>10,}{count / total:>8.1%}  {_short(what)}" for count, what in rows[:functions]]


def _short(what: str) -> str:
    """``file:function [object]`` without the directories."""
    name, _, place = what.strip().partition(" [")
    name = name.rpartition(":")[2]
    return f"{name} [{place.rstrip(']').rpartition('/')[2]}]" if place else name


def _total(path: Path) -> int:
    for line in path.read_text("utf-8", "replace").splitlines():
        if line.startswith("totals:"):
            return int(line.split()[1])
    raise RuntimeError(f"{path} has no totals")


def _machine() -> str:
    return f"{platform.python_implementation()} {platform.python_version()} {platform.machine()} {'-'.join(platform.libc_ver())}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="keep these counts")
    parser.add_argument(
        "--functions", type=int, default=0, metavar="N", help="also the N functions of each step that take most"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        _work(given.work)
        return 0
    counts, dearest = _measure(given.functions)
    kept = json.loads(_KEPT.read_text("utf-8")) if _KEPT.exists() else {}
    comparable = kept.get("machine") == _machine()
    print(f"{'step':<28}{'instructions':>14}{'kept':>12}{'change':>9}")
    worse = []
    for name, count in counts.items():
        before = kept.get("counts", {}).get(name) if comparable else None
        print(f"{name:<28}{count:>14,}" + ("" if before is None else f"{before:>12,}{count / before - 1:>+9.1%}"))
        if before is not None and count > before * _ALLOWED + _INTERRUPTED:
            worse.append(name)
        for line in dearest.get(name, ()):
            print(line)
    if given.update:
        _KEPT.write_text(json.dumps({"machine": _machine(), "counts": counts}, indent=2) + "\n", "utf-8")
        return 0
    if not comparable:
        print(f"not compared: kept for {kept.get('machine', 'no machine')}, this is {_machine()}")
    if worse:
        print(f"over {_ALLOWED - 1:.0%} more instructions than kept: {', '.join(worse)}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
