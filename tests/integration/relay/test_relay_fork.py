"""Producers of a relay that fork: a server that loads the application, event loop and all, before it makes its workers."""

from __future__ import annotations

from collections import Counter

from tests.support.relay import Place, finish, say

_PRELOADED = """
import asyncio, threading
publisher = queue.publisher()
loop = asyncio.new_event_loop()

async def begin():
    first = publisher.send(b"parent 1")
    await asyncio.wait_for(first, 30)
    await queue.apublish(b"parent 2")  # the loop has threads of its own from now on

loop.run_until_complete(begin())

def fork(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid

def reap(pids):
    return [os.waitpid(pid, 0)[1] for pid in pids]
"""


def test_workers_of_a_preloaded_application_publish_in_both_styles(here: Place) -> None:
    here.start_relay()
    parent = here.producer(
        _PRELOADED
        + """
def work(n):
    queue.publish(b"%d publish" % n)
    publisher.send(b"%d send" % n).result(30)

    async def main():
        await queue.apublish(b"%d apublish" % n)
        receipts = [await publisher.asend(b"%d asend" % n) for _ in range(100)]
        await asyncio.wait_for(asyncio.gather(*receipts), 30)
        await publisher.aflush(30)

    asyncio.run(main())
    publisher.close(30)

codes = reap([fork(lambda n=n: work(n)) for n in range(3)])
loop.run_until_complete(queue.apublish(b"parent 3"))
publisher.send(b"parent 4").result(30)
publisher.close(30)
say(codes)
"""
    )
    assert say(parent) == "[0, 0, 0]"
    finish(parent)
    expected = Counter(b"parent %d" % n for n in range(1, 5))
    for n in range(3):
        expected.update([b"%d publish" % n, b"%d send" % n, b"%d apublish" % n, *[b"%d asend" % n] * 100])
    assert Counter(here.stored()) == expected


def test_a_child_goes_on_with_the_loop_of_its_parent(here: Place) -> None:
    """A loop that does not run at the time of the fork: receipts come home in it, and in the parent's as before."""
    here.start_relay()
    parent = here.producer(
        _PRELOADED
        + """
async def main(word):
    receipts = [publisher.send(b"%s %d" % (word, n)) for n in range(200)]
    await asyncio.wait_for(asyncio.gather(*receipts), 30)

def work():
    loop.run_until_complete(main(b"child"))
    publisher.close(30)

codes = reap([fork(work)])
loop.run_until_complete(main(b"parent again"))
publisher.close(30)
say(codes)
"""
    )
    assert say(parent) == "[0]"
    finish(parent)
    expected = Counter([b"parent 1", b"parent 2"])
    for word in (b"child", b"parent again"):
        expected.update(b"%s %d" % (word, n) for n in range(200))
    assert Counter(here.stored()) == expected


def test_fork_while_a_loop_waits_for_receipts(here: Place) -> None:
    """The parent's receipts are the parent's: the child is told so at once, and its own messages go another way."""
    parent = here.producer(
        """
import asyncio, threading
publisher = queue.publisher()
say("ready")
sys.stdin.readline()
receipts = [publisher.send(b"parent %d" % n) for n in range(50)]
waiting = threading.Event()
done = []

async def main():
    tasks = [asyncio.ensure_future(receipt.__await__() and _wait(receipt)) for receipt in receipts]
    await asyncio.sleep(0)
    waiting.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    done.append(len(tasks))

async def _wait(receipt):
    return await receipt

thread = threading.Thread(target=lambda: asyncio.run(main()))
thread.start()
waiting.wait(30)
pid = os.fork()
if pid == 0:
    from ignis.errors import ForkedHandleError
    code = 1
    try:
        for wait in (lambda: receipts[0].result(30), lambda: asyncio.run(_wait(receipts[1])),
                     lambda: receipts[2].add_done_callback(print), lambda: publisher.flush(30)):
            try:
                wait()
                raise AssertionError("a receipt of the parent was waited for")
            except ForkedHandleError:
                pass
        own = publisher.send(b"child")
        say("forked")
        own.result(30)
        asyncio.run(_wait(publisher.send(b"child too")))
        publisher.close(30)
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(code)
code = os.waitpid(pid, 0)[1]
thread.join(60)
publisher.close(30)
say((code, done))
"""
    )
    assert say(parent) == "ready"
    assert parent.stdin is not None
    parent.stdin.write("go\n")
    parent.stdin.flush()
    assert say(parent) == "forked"  # nobody has taken anything so far
    here.start_relay()
    assert say(parent) == "(0, [50])"
    finish(parent)
    assert Counter(here.stored()) == Counter([*(b"parent %d" % n for n in range(50)), b"child", b"child too"])
