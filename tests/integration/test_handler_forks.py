"""A handler that forks: the child is the handler's, never a second consumer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SCRIPT = '''
import asyncio, json, os, sys, time
import ignis

form, ending, url, told = sys.argv[1:]
COUNT, FORKS_AT = 24, 5
app = ignis.Ignis(url, consumer={"max_chunk": 64})
queue = app.queue("jobs", int, shards=1, shovel_interval=0)


def tell(what, value):
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, (json.dumps([what, value]) + "\\n").encode())
    os.close(descriptor)


def look_after(pid):
    """Tells how the child ended; one that did not within the bound is killed."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return tell("ended", os.waitstatus_to_exitcode(status))
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    tell("ended", "never")


def in_child():
    print("said by the child")
    if ending == "exit":
        sys.exit(0)
    if ending == "exit 3":
        sys.exit(3)
    if ending == "exit with a text":
        sys.exit("told why")
    if ending == "raise":
        raise ValueError("of the child")


def fork_at(numbers):
    """Whether this is the child now."""
    for n in numbers:
        tell("handled", n)
    if FORKS_AT not in numbers:
        return False
    pid = os.fork()
    if pid:
        look_after(pid)
    return not pid


def plain(n):
    if fork_at([n]):
        in_child()


def batch(numbers):
    if fork_at(numbers):
        in_child()


async def coroutine(n):
    await asyncio.sleep(0)
    if fork_at([n]):
        in_child()
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def coroutine_batch(numbers):
    if fork_at(numbers):
        in_child()


async def layer(ctx, call_next):
    return await call_next(ctx)


FORMS = {
    "thread": lambda: queue.handler(plain),
    "thread with a time-out": lambda: queue.handler(plain, timeout_s=60),
    "thread that tries again": lambda: queue.handler(plain, attempts=3),
    "thread that ignores": lambda: queue.handler(plain, ignore=ValueError),
    "thread in a middleware": lambda: (queue.middleware(layer), queue.handler(plain)),
    "batch": lambda: queue.handler(batch, batch_size=4, batch_wait_s=1),
    "coroutine": lambda: queue.handler(coroutine, concurrency=4),
    "coroutine batch": lambda: queue.handler(coroutine_batch, batch_size=4, batch_wait_s=1, concurrency=2),
    "process": lambda: queue.handler(plain, pool="process"),
}
FORMS[form]()
if __name__ == "__main__":
    queue.publish_many(list(range(COUNT)))
    app.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        stats = queue.stats()
        if not stats["pending"] and not stats["in_flight"]:
            break
        time.sleep(0.01)
    tell("left", [stats["pending"], stats["in_flight"], stats["sideline"]])
    app.close()
'''
FORMS = (
    "thread",
    "thread with a time-out",
    "thread that tries again",
    "thread that ignores",
    "thread in a middleware",
    "batch",
    "coroutine",
    "coroutine batch",
    "process",
)
ENDINGS: dict[str, tuple[int, str]] = {
    "exit": (0, ""),
    "exit 3": (3, ""),
    "exit with a text": (1, "told why"),
    "raise": (1, "ValueError: of the child"),
    "return": (1, "came back from the handler"),
}
CASES = [
    *(("thread", ending) for ending in ENDINGS),
    *((form, "raise") for form in FORMS[1:]),
    *(pytest.param(form, ending, marks=pytest.mark.long) for form in FORMS[1:] for ending in ("exit", "return")),
]


@pytest.mark.parametrize(("form", "ending"), CASES)
def test_the_child_of_a_handler_handles_nothing_and_ends(
    embedded_url: str, tmp_path: Path, form: str, ending: str
) -> None:
    script, told = tmp_path / "forking.py", tmp_path / "told"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", script, form, ending, embedded_url, told],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    code, said = ENDINGS[ending]
    assert sorted(value for what, value in lines if what == "handled") == list(range(24))
    assert [value for what, value in lines if what == "ended"] == [code]
    assert [value for what, value in lines if what == "left"] == [[0, 0, 0]]
    assert said in done.stderr
    assert bool(done.stderr) == bool(said)
    assert done.stdout == "said by the child\n"
