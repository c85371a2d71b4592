"""Array queues of the embedded store between processes, and after kill -9 and another boot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ignis.array_queue import ArrayQueue
from tests.support.embedded import Child, in_child, open_at

pytestmark = pytest.mark.integration

Say = Callable[[str], None]


def test_processes_lose_and_invent_nothing(tmp_path: Path) -> None:
    def produce(first: int) -> Callable[[Say], None]:
        def run(say: Say) -> None:
            with open_at(tmp_path) as store:
                queue = ArrayQueue(store, "q")
                for number in range(first, first + 50):
                    queue.enqueue(number)
            say("done")

        return run

    def consume(say: Say) -> None:
        with open_at(tmp_path) as store:
            queue, count = ArrayQueue(store, "q"), 0
            while count < 75:
                found = queue.dequeue_many(min(4, 75 - count))
                count += len(found)
                for number in found:
                    say(str(number))

    with Child(produce(0)), Child(produce(50)), Child(produce(100)), Child(consume) as one, Child(consume) as other:
        seen = [int(line) for line in one.lines()], [int(line) for line in other.lines()]
    assert Counter(seen[0] + seen[1]) == Counter(range(150))
    for numbers in seen:
        for first in (0, 50, 100):
            mine = [number for number in numbers if first <= number < first + 50]
            assert mine == sorted(mine), "of one producer they come in order"


@pytest.mark.parametrize("power_cut", [False, True])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, power_cut: bool) -> None:
    def run(say: Say) -> None:
        with open_at(tmp_path / "store") as store:
            queue, number = ArrayQueue(store, "q"), 0
            while True:
                queue.enqueue_many([number, number + 1])
                say(f"+{number + 1}")
                number += 2
                if number % 6 == 0:
                    say(f"-{queue.dequeue()}")

    with Child(run) as child:
        said = [child.line() for _ in range(100)]
        child.kill()
        child.join()
        said += child.lines()
    if power_cut:  # what was acknowledged was flushed; the state that all share never is
        for control in (tmp_path / "store" / "sync").glob("control-*"):
            control.unlink()
    put = max(int(line[1:]) for line in said if line[0] == "+")
    taken = max(int(line[1:]) for line in said if line[0] == "-")

    def check(say: Say) -> None:
        with open_at(tmp_path / "store") as store:
            for value in ArrayQueue(store, "q").dequeue_many(1 << 20):
                say(str(value))

    left = [int(line) for line in in_child(check)]
    assert left == list(range(left[0], left[-1] + 1))
    # One call may have been made durable and not been acknowledged.
    assert left[0] in (taken + 1, taken + 2)
    assert left[-1] in (put, put + 2)
