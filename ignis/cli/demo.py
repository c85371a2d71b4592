"""``ignis demo``: 336,776 real flights through publisher, store and worker processes."""

from __future__ import annotations

import click

from ignis.cli import exit_codes
from ignis.cli.state import State, common_options, pass_state
from ignis.errors import ConfigError
from ignis.urls import redacted

__all__ = ["demo"]


@click.command(short_help="Sends a year of flights through queues and loses none.")
@click.option("--flights", type=click.IntRange(min=100), help="Only the first so many flights.  [default: all 336,776]")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 16), help="Worker processes.")
@click.option(
    "--rate",
    default=1_000,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Flights a second in the steady part.",
)
@click.option(
    "--steady-seconds",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0, 60),
    help="Length of the steady part; 0 = none.",
)
@click.option("--keep", is_flag=True, help="Keep the directory with the store, the results and the workers' logs.")
@common_options
@pass_state
def demo(state: State, flights: int | None, workers: int, rate: int, steady_seconds: float, keep: bool) -> int:
    """Every flight that left New York in 2013, through queues; one worker is killed on the way. Lost: 0.

    Flights are published keyed by tail number, at a steady rate first and then at full speed, and worker processes
    compute each carrier's delays. Cancelled flights fail and go to the sideline. One worker is ended with kill -9 while
    it holds messages; the sweeper recovers them, the shovel brings everything back, and the result is compared with one
    computed from the file directly. Ends with 1 if a message was lost or a figure differs.

    Runs in a directory of its own, whatever IGNIS_URL says; --url chooses another store.
    """
    # The demo brings pieces of its own that no other command needs.
    from ignis.demo import Options, run_demo

    if state.url is not None and state.url.startswith("memory:"):
        raise ConfigError(
            f"--url {redacted(state.url)}: the demo's workers are processes of their own; give it embedded:///path"
        )
    state.log_to_stderr("error")
    options = Options(
        flights=flights,
        workers=workers,
        rate=rate,
        steady_s=steady_seconds,
        url=state.url,
        client_id=state.client_id or "ignis-demo",
        farm_id=state.farm_id or "local",
        keep=keep,
        json=state.json,
    )
    return exit_codes.OK if run_demo(options) else exit_codes.ERROR
