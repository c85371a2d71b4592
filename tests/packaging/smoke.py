"""What a user does first, against whatever `import ignis` finds: publish and drain on an embedded store.

Run as a program, with the installed package alone: no pytest, nothing of the repository.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from importlib import metadata

import ignis

MESSAGES = 500
TIMEOUT_S = 30.0


def main() -> None:
    expected = {b"message %d" % number for number in range(MESSAGES)}
    handled: list[bytes] = []
    complete = threading.Event()

    with (
        tempfile.TemporaryDirectory(prefix="ignis-smoke-") as directory,
        ignis.Ignis(f"embedded://{directory}/store") as app,
    ):
        queue = app.queue("smoke", bytes)

        @queue.handler(concurrency=2)
        def on_message(body: bytes) -> None:
            handled.append(body)
            if len(handled) >= MESSAGES:
                complete.set()

        bodies = sorted(expected)
        queue.publish(bodies[0])
        queue.publish_many(bodies[1 : MESSAGES // 2])
        with queue.publisher() as publisher:
            for body in bodies[MESSAGES // 2 :]:
                publisher.send(body)
        app.start()
        if not complete.wait(TIMEOUT_S):
            sys.exit(f"smoke: {len(handled)} of {MESSAGES} messages handled within {TIMEOUT_S:.0f} s")
        app.stop(timeout=TIMEOUT_S)
        pending = queue.main.pending()

    if set(handled) != expected or len(handled) != MESSAGES or pending:
        sys.exit(f"smoke: {len(set(handled))} different of {MESSAGES} handled, {len(handled)} calls, {pending} pending")
    version = metadata.version("ignis-mq")
    if version != ignis.__version__:
        sys.exit(f"smoke: the metadata says {version}, the package {ignis.__version__}")
    sys.stdout.write(f"smoke: ignis {version} from {ignis.__file__}: {MESSAGES} published, {MESSAGES} handled\n")


if __name__ == "__main__":
    main()
