"""A whole application for tests that start it as a process: ``python -m tests.apps.service URL POOL [stop timeout]``.

Prints ``ready`` when it consumes, and ``stopped`` when it has stopped gracefully.
"""

from __future__ import annotations

import logging
import sys
import threading

import ignis
from tests.apps import jobs
from tests.support import eventually


def main(url: str, pool: str, stop_timeout: float = 30) -> None:
    logging.basicConfig(level="INFO")
    app = ignis.Ignis(url)
    queue = jobs.register(app, "jobs", pool, concurrency=2, shovel_interval=0)

    def tell() -> None:
        eventually(lambda: queue.consumer is not None and queue.consumer.stats()["workers"])
        print("ready", flush=True)

    threading.Thread(target=tell, daemon=True).start()
    app.run(stop_timeout=stop_timeout)
    print("stopped", flush=True)
    app.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:]))
