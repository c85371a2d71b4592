"""``ignis relay``: carries what producers on this machine left in shared memory into the store."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from types import FrameType

import click

from ignis.cli import exit_codes, output
from ignis.cli.state import State, common_options, pass_state
from ignis.relay import Relay
from ignis.service_notify import ServiceNotifier
from ignis.stacks import start_thread
from ignis.stop_signals import stop_signals
from ignis.urls import redacted

__all__ = ["relay"]

_ANNOUNCER_S = 1.0


@click.command(short_help="Stores what producers leave in shared memory, until stopped.")
@click.option(
    "--dir",
    "directory",
    metavar="DIRECTORY",
    default="/dev/shm/ignis",  # noqa: S108 # made with mode 0700, and refused when it is anybody else's
    show_default=True,
    help="Where the producers leave their messages: relay://DIRECTORY is their URL.",
)
@common_options
@pass_state
def relay(state: State, directory: str) -> int:
    """Stores what producers of this machine leave in shared memory, until SIGTERM, SIGINT or SIGHUP.

    One relay serves one application (client_id, farm_id) and one directory. Ends with 4 when another relay runs there.
    """
    state.log_to_stderr("info")
    _raise_file_limit()
    with state.app(create=True) as app:
        running = Relay(app, directory)
        ended = threading.Event()
        service = ServiceNotifier(lambda: running.stopping)
        announcer = threading.Thread(target=_announce, args=(state, running, ended, service), daemon=True)

        def stop(number: int, frame: FrameType | None) -> None:
            running.request_stop()

        for number in stop_signals():
            signal.signal(number, stop)
        start_thread(announcer)
        try:
            running.run()
        finally:
            service.close()
            ended.set()
            announcer.join(_ANNOUNCER_S)  # a daemon: a standard output that nobody reads must not keep us
    figures = running.stats()
    if state.json:
        output.event({"event": "stopped", "pid": os.getpid(), **figures})
    else:
        output.remark(
            f"relayed {figures['messages']:,} message(s), refused {figures['refused']:,} channel(s)", event="stopped"
        )
    return exit_codes.OK


def _announce(state: State, running: Relay, ended: threading.Event, service: ServiceNotifier) -> None:
    """Says that it runs, once it does: whoever waits for this line may publish, and may send signals."""
    while not running.running:
        if ended.wait(0.005):
            return
    service.ready()
    directory, url = str(running.directory.path), redacted(running.app.url)
    if state.json:
        output.event({"event": "started", "pid": os.getpid(), "url": url, "directory": directory})
    else:
        output.remark(
            f"ignis relay {os.getpid()} from relay://{directory} to {url}; SIGTERM or Ctrl-C stops", event="started"
        )


def _raise_file_limit() -> None:
    """Every channel costs a descriptor, and the usual soft limit of 1,024 is no limit of ours."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
