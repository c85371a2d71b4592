"""``ignis autoscale``: scales what is not worker processes of this machine, or only says what is wanted."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any

import click

from ignis.cli import exit_codes, output
from ignis.cli.command import PLACE, Command
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, pass_state, queue_record
from ignis.config import AutoscalerSettings, LeaderSettings, load_file, resolve
from ignis.control.autoscaler import Autoscaler, Decision, FunctionTarget
from ignis.errors import ConfigError
from ignis.leader import make_leader
from ignis.service_notify import ServiceNotifier
from ignis.stop_signals import stop_signals

__all__ = ["autoscale"]


@click.command(short_help="Scales the workers of queues by what waits, until stopped.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@click.option("--min", "min_workers", type=int, metavar="N", help="Never fewer.  [default: autoscaler.min_workers]")
@click.option("--max", "max_workers", type=int, metavar="N", help="Never more.  [default: autoscaler.max_workers]")
@click.option("--messages-per-worker", type=int, metavar="N", help="Pending messages that one worker more is worth.")
@click.option(
    "--max-age", "max_age_s", metavar="TIME", help="One worker more while the oldest waits longer; 0 = never."
)
@click.option("--cool-down", "cool_down_s", metavar="TIME", help="Fewer only after so long without need of them.")
@click.option("--interval", "interval_s", metavar="TIME", help="Between two looks.")
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Run this when another number is wanted; {} in it stands for the number.",
)
@click.option("--count", metavar="COMMAND", help="Run this to learn how many there are: it prints the number.")
@click.option(
    "--workers", type=click.IntRange(min=0), metavar="N", help="How many there are at first.  [default: not known]"
)
@click.option("--command-timeout", "command_timeout_s", metavar="TIME", help="The longest that a command may take.")
@click.option("--once", is_flag=True, help="One look; prints what is wanted and changes nothing.")
@click.option("--bind", metavar="[HOST:]PORT", help="Serve /scale and /scale/QUEUE there; HOST is loopback by default.")
@click.option("--public-bind", is_flag=True, help="Allow --bind an address that others can reach.")
@common_options
@pass_state
def autoscale(
    state: State,
    /,
    queues: tuple[str, ...],
    command: str | None,
    count: str | None,
    workers: int | None,
    once: bool,
    bind: str | None,
    public_bind: bool,
    **given: Any,
) -> int:
    """Watches what waits in the QUEUEs (default: all) and scales what handles them, until SIGTERM, SIGINT or SIGHUP.

    With --exec a command makes the number so: whenever it changes, and once when this autoscaler comes to act and does
    not know how many there are; with --count it asks. A command ends with us at the latest. With --bind an orchestrator
    reads the figures, as KEDA's metrics-api scaler does. Worker processes of this machine are scaled by ignis worker
    --autoscale. Of several that share autoscaler.scope one acts; all of them serve the figures.
    """
    state.log_to_stderr("info")
    file = load_file(state.config)
    settings = resolve(AutoscalerSettings, given, file)
    if not (once or command or bind):
        raise click.UsageError("nothing to do: give --exec, --bind or --once")
    if command is not None and PLACE not in command:
        raise ConfigError(f"--exec {command!r} does not say where the number goes: write {PLACE} there")
    if count is not None and workers is not None:
        raise click.UsageError("--workers says how many there are, --count asks: give one of them")
    from ignis.supervisor.http_routes import scale_endpoint

    with state.store() as store, contextlib.ExitStack() as closing:
        for name in queues:
            queue_record(store, name)
        leader = make_leader(store, settings.scope, resolve(LeaderSettings, {}, file))
        closing.callback(leader.close)
        timeout_s = settings.command_timeout_s
        telling = None if command is None else Command("--exec", command, timeout_s, lambda: leader.fence is not None)
        asking = None if count is None else Command("--count", count, timeout_s)
        target = FunctionTarget(
            _nothing if telling is None else telling.tell, workers, ask=None if asking is None else asking.ask
        )
        scaler = Autoscaler(store, target, queues=queues or None, settings=settings, leader=leader)
        closing.callback(scaler.close)
        for one in (telling, asking):
            if one is not None:
                closing.callback(one.close)  # before the autoscaler, which waits for what it has begun
        if once:
            return _show(state, Decision(*scaler.look()))
        stop = threading.Event()
        for number in stop_signals():
            before = signal.signal(number, lambda *_: stop.set())
            closing.callback(signal.signal, number, before)
        if bind is not None:
            endpoint = scale_endpoint(bind, lambda: store, scaler, public=public_bind)
            closing.callback(endpoint.close)
            if state.json:
                output.event({"event": "started", "url": endpoint.url})
            else:
                output.remark(f"serving {endpoint.url}/scale", event="started")
        scaler.start()
        service = closing.enter_context(ServiceNotifier(stop.is_set))
        service.ready()
        while not stop.wait(0.5):
            pass
    return exit_codes.OK


def _show(state: State, decision: Decision) -> int:
    if state.json:
        loads = [vars(one) for one in decision.loads]
        output.document({"wanted": decision.wanted, "workers": decision.workers, "queues": loads})
        return exit_codes.OK
    rows = [[one.queue, output.number(one.pending), output.age(one.oldest_age_s)] for one in decision.loads]
    output.table(["queue", "pending", "oldest"], rows, right=["pending", "oldest"])
    output.line(f"{decision.wanted} worker(s) wanted")
    return exit_codes.OK


def _nothing(count: int) -> None:
    """Only the figures are wanted."""
