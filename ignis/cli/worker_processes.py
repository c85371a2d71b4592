"""What ``ignis worker`` does in this process, and what it does with worker processes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from ignis.app import Ignis
from ignis.cli import exit_codes, output
from ignis.cli.state import State
from ignis.config import (
    AutoscalerSettings,
    ConsumerSettings,
    LeaderSettings,
    SupervisorSettings,
    load_file,
    resolve,
)
from ignis.control.autoscaler import Autoscaler
from ignis.control.refresher import PUBLISH_ONLY
from ignis.errors import IgnisError
from ignis.http_endpoint import HttpEndpoint
from ignis.leader import make_leader
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.service_notify import ServiceNotifier
from ignis.stacks import start_thread
from ignis.supervisor import Supervisor, WorkerCommand
from ignis.supervisor.control_pipe import Link
from ignis.supervisor.http_routes import app_endpoint, failed_queues, supervisor_endpoint
from ignis.supervisor.worker_main import BURST, Limits, Worker, patterns, publish_only, running_queues
from ignis.urls import redacted

__all__ = ["WorkerOptions", "parse_size", "supervise", "work_here"]

log = logging.getLogger("ignis.supervisor")

_RETRY_S = 1.0
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?\Z", re.IGNORECASE)
_LEAST_SIZE = 1 << 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class WorkerOptions:
    """The options of ``ignis worker``."""

    queues: tuple[str, ...]
    processes: int | None
    autoscale: int | None
    max_running: int | None
    max_messages: int | None
    max_rss: str | None
    burst: bool
    health_bind: str | None
    public_bind: bool
    stop_timeout: float | None
    supervised_fd: int | None
    stacks_fd: int | None

    def limits(self) -> Limits:
        return Limits(self.max_messages or 0, parse_size(self.max_rss) if self.max_rss else 0, self.burst)

    def for_a_process(self, state: State) -> list[str]:
        """What each worker process is told."""
        out = [part for name in self.queues for part in ("--queue", name)]
        for option, value in (
            ("--max-running", self.max_running),
            ("--max-messages", self.max_messages),
            ("--max-rss", self.max_rss),
            ("--stop-timeout", self.stop_timeout),
            ("--url", state.url),
            ("--client-id", state.client_id),
            ("--farm-id", state.farm_id),
            ("--config", state.config),
            ("--log-level", state.log_level),
            ("--log-format", state.log_format),
        ):
            if value is not None:
                out += [option, str(value)]
        return [*out, "--burst"] if self.burst else out


def parse_size(text: str) -> int:
    """Bytes from ``512M``, ``2G``, ``1048576``, at least a MiB. Raises click.UsageError."""
    match = _SIZE.match(text.strip())
    if match is None or int(match[1]) == 0:
        raise click.UsageError(f"--max-rss {text!r} is not a size; write 512M or 2G")
    size = int(match[1]) * _UNITS[match[2].upper()]
    if size < _LEAST_SIZE:
        raise click.UsageError(
            f"--max-rss {text!r} is {size:,} bytes, below 1M: no process is so small; write 512M or 2G"
        )
    return size


def work_here(state: State, app: Ignis, given: WorkerOptions) -> int:
    """Runs the application in this process."""
    limits = given.limits()
    supervised = given.supervised_fd is not None
    link = Link(socket.socket(fileno=given.supervised_fd)) if supervised else None
    if given.stacks_fd is not None:
        os.set_inheritable(given.stacks_fd, False)  # what a handler starts must not keep it open

    queues: list[str] = []

    def announce() -> None:
        """Whoever waits for this line may publish, and may send signals."""
        if supervised:
            return
        service.ready()
        queues.extend(running_queues(app))
        if state.json:
            document = {
                "event": "started", "pid": os.getpid(), "owner": app.store.owner, "url": redacted(app.url), "queues": queues,
                "patterns": patterns(app), "max_running": app.context.turns.limit,
            }  # fmt: skip
            if endpoint is not None:
                document["health"] = endpoint.url
            output.event(document)
        else:
            output.remark(
                f"ignis worker {os.getpid()} on {redacted(app.url)}: "
                f"{_named(queues, publish_only(app), patterns(app))}{_bound(app)}{_shown(endpoint)}; "
                "SIGTERM or Ctrl-C drains",
                event="started",
            )

    endpoint: HttpEndpoint | None = None
    service = ServiceNotifier(lambda: not app.ready, lambda: not failed_queues(app))
    with contextlib.ExitStack() as closing:
        if link is not None:
            closing.callback(link.close)
        closing.callback(app.close_quietly)
        closing.callback(service.close)
        if given.health_bind is not None:
            endpoint = app_endpoint(given.health_bind, app, public=given.public_bind)
            closing.callback(endpoint.close)
        worker = Worker(
            app, given.queues or None, limits=limits, link=link, stacks_fd=given.stacks_fd, on_started=announce
        )
        worker.run(given.stop_timeout)
        drained = app.drained
        if worker.why == BURST and not supervised and not state.json:
            _say_unconsumed(app, queues)
            _say_delayed(app, queues)
    if state.json and not supervised:
        output.event({"event": "stopped", "pid": os.getpid(), "why": worker.why})
    if given.burst and not supervised and not drained:
        output.warning("the burst left messages in hand, as the log says: they are handled again, by others")
        return exit_codes.ERROR
    return exit_codes.OK


def _say_delayed(app: Ignis, queues: Sequence[str]) -> None:
    """A burst does not wait for what is due later, such as the next attempt at what failed."""
    for name in queues:
        with contextlib.suppress(IgnisError):  # it is for people
            later = app.queue(name).later
            if count := len(later):
                due = later.next_due()
                when = "" if due is None else f", the next at {due.isoformat(' ', 'seconds')}"
                output.remark(
                    f"{count:,} message(s) of {name} are delayed, retries too{when}: the burst did not wait for them"
                )


def _say_unconsumed(app: Ignis, queues: Sequence[str]) -> None:
    """Nor for what a queue has that is publish only."""
    for name in queues:
        with contextlib.suppress(IgnisError):  # it is for people
            queue = app.queue(name)
            if not queue.consumers and (count := queue.main.pending()):
                output.remark(f"{count:,} message(s) of {name} wait: nobody consumes it here, its concurrency is 0")


def supervise(state: State, target: str, given: WorkerOptions) -> int:
    """Runs worker processes, and perhaps scales them."""
    given.limits()  # what is wrong with an option is said once, and not by every process
    if given.autoscale is not None and given.burst:
        raise click.UsageError("--burst ends when there is nothing to do, --autoscale waits for more: give one of them")
    assert given.processes is not None
    file = load_file(state.config)
    settings = resolve(SupervisorSettings, {}, file)
    stop_timeout_s = given.stop_timeout
    if stop_timeout_s is None:
        stop_timeout_s = resolve(ConsumerSettings, {}, file).stop_timeout_s
    scaling: _Scaling | None = None
    if given.autoscale is not None:
        limits = {"min_workers": given.processes, "max_workers": given.autoscale}
        chosen = resolve(AutoscalerSettings, limits, file)
        leading = resolve(LeaderSettings, {}, file)
        scaling = _Scaling(lambda: supervisor, given.queues, chosen, leading)

    def started() -> None:
        if scaling is not None:
            scaling.start()
        service.ready()
        described = supervisor.describe()
        pids = [one["pid"] for one in described["processes"]]
        if state.json:
            document = {
                "event": "started", "pid": os.getpid(), "queues": supervisor.queues, "patterns": supervisor.patterns,
                "processes": pids,
            }  # fmt: skip
            if endpoint is not None:
                document["health"] = endpoint.url
            output.event(document)
        else:
            names = _named(supervisor.queues, supervisor.publish_only, supervisor.patterns)
            output.remark(
                f"ignis worker {os.getpid()}: processes {', '.join(map(str, pids))} run {names}{_shown(endpoint)}; "
                "SIGTERM drains",
                event="started",
            )

    supervisor = Supervisor(
        WorkerCommand([target, *given.for_a_process(state)]),
        given.processes,
        settings=settings,
        stop_timeout_s=stop_timeout_s,
        burst=given.burst,
        on_started=started,
        on_stopping=None if scaling is None else scaling.close,
    )
    endpoint = None
    with contextlib.ExitStack() as closing:
        service = closing.enter_context(ServiceNotifier(lambda: supervisor.stopping))
        if given.health_bind is not None:
            endpoint = supervisor_endpoint(
                given.health_bind,
                supervisor,
                lambda: None if scaling is None else scaling.autoscaler,
                public=given.public_bind,
            )
            closing.callback(endpoint.close)
        code = supervisor.run()
    if state.json:
        output.event({"event": "stopped", "pid": os.getpid(), "code": code})
    return code


def _named(queues: Sequence[str], idle: Sequence[str], patterns: Sequence[str]) -> str:
    """What runs, and what is waited for. ``idle``: those of the queues that are publish only."""
    names = [f"{name} ({PUBLISH_ONLY})" if name in idle else name for name in queues]
    waits = [f"waits for queues {', '.join(patterns)}"] if patterns else []
    return "; ".join([*([", ".join(names)] if names else []), *waits])


def _bound(app: Ignis) -> str:
    """How many handlers run at a time, where that is bounded over all queues."""
    limit = app.context.turns.limit
    return f"; at most {limit:,} thread{'s' if limit > 1 else ''} in handlers" if limit else ""


def _shown(endpoint: HttpEndpoint | None) -> str:
    """Where it listens: with port 0 nobody could know."""
    return "" if endpoint is None else f"; {endpoint.url}/healthz"


class _Scaling:
    """The autoscaler of a supervisor. It needs the store, which may be away when the processes have begun: tried again."""

    def __init__(
        self,
        supervisor: Callable[[], Supervisor],
        queues: tuple[str, ...],
        settings: AutoscalerSettings,
        leading: LeaderSettings,
    ) -> None:
        self._supervisor = supervisor
        self._queues = queues
        self._settings = settings
        self._leading = leading
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._begin, name="ignis-autoscaler-start", daemon=True)
        self.autoscaler: Autoscaler | None = None

    def start(self) -> None:
        start_thread(self._thread)

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)
        if self.autoscaler is not None:
            self.autoscaler.close(5.0)

    def _begin(self) -> None:
        supervisor = self._supervisor()
        said = LimitedLog(log)
        while not self._closing.is_set():
            try:
                store = supervisor.store()
                self.autoscaler = Autoscaler(
                    store,
                    supervisor,
                    queues=self._queues or (lambda: supervisor.queues),
                    settings=self._settings,
                    leader=make_leader(store, self._settings.scope, self._leading),
                )
                self.autoscaler.start()
                return
            except IgnisError as exc:
                said.warning(event_text("autoscaler_not_begun", "the autoscaler cannot begin yet: %s"), exc)
                self._closing.wait(_RETRY_S)
