"""A handler that logs, for worker processes."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from typing import Any

import ignis
from tests.support import Journal

log = logging.getLogger("apps.logging_jobs")
if "IGNIS_TEST_JOURNAL" in os.environ:  # in a worker process, where nothing may stand beside the parent's log
    logging.getLogger().addHandler(logging.StreamHandler())


def handle(body: dict[str, Any], ctx: ignis.Context) -> None:
    do = body["do"]
    if do == "lines":
        for number in range(body["count"]):
            log.info(
                "line %d of %s", number, body["n"], extra={"number": number, "padding": "x" * body.get("padding", 0)}
            )
    elif do == "exception":
        try:
            raise KeyError("why")
        except KeyError:
            log.exception("could not charge")
    elif do == "odd":
        log.info("%d and %d", "one")  # noqa: PLE1206 - what it is about
        log.info("odd extra", extra={"thing": object(), "itself": _itself()})
        log.info("long %s", "y" * 100_000, extra={"long": "z" * 100_000})
        log.info("caf\udce9")
        log.debug("not wanted")
    elif do == "warn":
        warnings.warn("old ways", stacklevel=1)
    elif do == "thread":
        thread = threading.Thread(target=_fail)
        thread.start()
        thread.join()
    elif do == "flood until killed":
        Journal(os.environ["IGNIS_TEST_JOURNAL"]).note("flooding")
        while True:
            log.info("flood %s", "w" * 3_000)
    elif do == "fork":
        child = os.fork()
        if not child:
            log.error("of a child")
            os._exit(0)
        os.waitpid(child, 0)
        log.info("of the parent")
    elif do == "die":
        log.info("last words")
        os.kill(os.getpid(), signal.SIGKILL)


def _itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def _fail() -> None:
    raise RuntimeError("of a thread")


app = ignis.Ignis("memory://")
app.queue("logged", dict).handler(handle, pool="process")
