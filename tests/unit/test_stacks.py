"""A message that nests deeper than a thread's default stack has room for is unreadable; it does not end the process."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ignis import stacks
from ignis.stacks import STACK_BYTES, roomy_stacks, start_thread

CONSUMER = """
import sys, time
import ignis
from ignis.native import CODEC_JSON, encode_record

def plain(body): ...
async def coroutine(body): ...

with ignis.Ignis("memory://deep") as app:
    queue = app.queue("jobs", dict, shards=1)
    queue.handler(coroutine if sys.argv[1] == "async" else plain)
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    queue.main.store.load_records("jobs", 0, [encode_record(body, flags=CODEC_JSON) for body in (deep, b"{}")])
    app.start()
    until = time.monotonic() + 30
    while (queue.main.pending() or queue.main.in_flight()) and time.monotonic() < until:
        time.sleep(0.01)
    print([fired.envelope.reason for fired in queue.sideline.peek()], queue.main.pending())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of the C libraries of Linux")
@pytest.mark.parametrize("pool", ["thread", "async"])
def test_a_deep_message_ends_no_process(pool: str) -> None:
    """As with musl, whose threads have 128 KiB; here glibc is given as little."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    little = (
        f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_STACK, (192 << 10, {hard})); "
        f"os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], {pool!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", little, CONSUMER], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout) == (0, "['unreadable'] 0\n"), done.stderr


def test_what_the_application_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_default_has_room", lambda: False)
    seen: list[int] = []
    monkeypatch.setattr(threading, "stack_size", lambda size=0: (seen.append(size), given)[1])
    thread = threading.Thread(target=lambda: None)
    given = 1 << 20
    start_thread(thread)
    thread.join(30)
    assert seen == [STACK_BYTES, given, given]
    seen.clear()
    given = 0
    with roomy_stacks():
        assert seen == [STACK_BYTES]
    assert seen == [STACK_BYTES, 0]
