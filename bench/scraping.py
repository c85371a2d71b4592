"""What reading the metrics costs: messages a second through two supervised worker processes, with and without a scrape every
100 ms.

``python -m bench.scraping``. The two take turns, in one fleet on one store; a ratio below 1 is what scraping costs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import ignis
from ignis.supervisor import LocalProcesses
from ignis.supervisor.http_routes import supervisor_endpoint

SCRAPE_S = 0.1
BATCH = 5_000
WAIT_S = 600.0

MODULE = """
import ignis
app = ignis.Ignis(consumer={"idle_poll_s": 0.05})
app.queue("q", int, shards=4, shovel_interval=0).handler(concurrency=2)(lambda n: None)
"""


class Scraper(threading.Thread):
    """Reads a page again and again, until it is ended."""

    def __init__(self, url: str) -> None:
        super().__init__(name="scraper")
        self.url = url
        self.pages = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(SCRAPE_S):
            with urllib.request.urlopen(self.url, timeout=WAIT_S) as answer:
                answer.read()
            self.pages += 1


def rate(queue: ignis.Queue[int], messages: int) -> float:
    """Published as fast as it goes, and handled: messages a second."""
    began = time.monotonic()
    for start in range(0, messages, BATCH):
        queue.publish_many(range(start, min(start + BATCH, messages)))
    while queue.main.pending() or queue.main.in_flight():
        if time.monotonic() > began + WAIT_S:
            raise TimeoutError(f"not handled within {WAIT_S:g} s")
        time.sleep(0.01)
    return messages / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scraping", description=__doc__)
    parser.add_argument("--messages", type=float, default=1_000_000, help="of each round [default: 1,000,000]")
    parser.add_argument("--rounds", type=int, default=5, help="with and without scraping each [default: 5]")
    options = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryDirectory(prefix="ignis-bench-") as directory:
        (Path(directory) / "scraped_jobs.py").write_text(MODULE)
        url = f"embedded://{directory}/store"
        with (
            ignis.Ignis(url) as app,
            LocalProcesses(
                "scraped_jobs", ["--url", url], processes=2, environment=environment, directory=directory
            ) as fleet,
        ):
            fleet.wait_ready(WAIT_S)
            endpoint = supervisor_endpoint("0", fleet.supervisor, lambda: None)
            queue = app.queue("q", int, shards=4, shovel_interval=0)
            rate(queue, BATCH)
            without, scraped, pages = [], [], 0
            for _ in range(options.rounds):
                without.append(rate(queue, int(options.messages)))
                scraper = Scraper(f"{endpoint.url}/metrics")
                scraper.start()
                try:
                    scraped.append(rate(queue, int(options.messages)))
                finally:
                    scraper.ended.set()
                    scraper.join()
                pages += scraper.pages
            endpoint.close()
            expected = BATCH + 2 * options.rounds * int(options.messages)
            ends_at = time.monotonic() + WAIT_S
            while (handled := fleet.supervisor.totals.queues()["q"]["consumer"]["handled"]) != expected:
                if time.monotonic() > ends_at:
                    raise ValueError(f"{handled:,} messages are counted, {expected:,} were published")
                time.sleep(0.01)
    ratio = statistics.median(b / a for a, b in zip(without, scraped, strict=True))
    print(
        f"messages a second, medians of {options.rounds}: {statistics.median(without):,.0f} without scraping, "
        f"{statistics.median(scraped):,.0f} with ({pages:,} pages); ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
