"""``ignis worker`` and ``ignis sweep``: the commands that do the work of an application."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from ignis.app import Ignis
from ignis.cli import exit_codes, output
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, pass_state, queue_record
from ignis.errors import ConfigError, MainGuardError
from ignis.log_format import event_text
from ignis.main_guard import imported_by_worker
from ignis.urls import absolute, redacted

__all__ = ["find_app", "sweep", "worker"]

log = logging.getLogger("ignis.cli")


@click.command(short_help="Runs the handlers of an application, until stopped.")
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "-q", "--queue", "queues", multiple=True, metavar="NAME", shell_complete=complete_queue,
    help="Only this queue; may be given often.",
)  # fmt: skip
@click.option(
    "--processes",
    type=click.IntRange(1, 1_000),
    metavar="N",
    help="Run so many worker processes and replace those that die.  [default: work in this process]",
)
@click.option(
    "--autoscale",
    type=click.IntRange(1, 1_000),
    metavar="MAX",
    help="With --processes: between N and MAX processes, by what waits in the queues.",
)
@click.option(
    "--max-running",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="Threads in handlers at a time in each process, over all queues; 0 = no bound.  [default: consumer.max_running]",
)
@click.option("--max-messages", type=click.IntRange(min=1), metavar="N", help="End, or be replaced, after so many.")
@click.option("--max-rss", metavar="SIZE", help="End, or be replaced, when resident memory is larger, e.g. 512M.")
@click.option(
    "--burst",
    is_flag=True,
    help="End with 0 when the queues are empty and all is acknowledged; what is delayed, retries too, is not waited for.",
)
@click.option(
    "--health-bind",
    metavar="[HOST:]PORT",
    help="Serve /livez, /readyz, /healthz, /metrics and /scale there; HOST is loopback by default.",
)
@click.option("--public-bind", is_flag=True, help="Allow --health-bind an address that others can reach.")
@click.option(
    "--stop-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long a stop waits for running handlers.  [default: consumer.stop_timeout_s]",
)
@click.option("--supervised-fd", type=int, hidden=True)
@click.option("--stacks-fd", type=int, hidden=True)
@common_options
@pass_state
def worker(state: State, /, target: str, queues: tuple[str, ...], **options: Any) -> int:
    """Runs the handlers of an application until SIGTERM, SIGINT or SIGHUP.

    MODULE:APP names the ignis.Ignis object, for example shop.tasks:app; ":app" may be left out. The current directory
    is on the path. The first signal drains: running handlers finish, the rest goes back. A second SIGTERM or
    SIGINT ends at once.
    SIGUSR1 writes the messages in hand and all stacks into the log; with --processes SIGHUP replaces the processes one
    by one.
    """
    state.log_to_stderr("info")
    if state.config:
        # The application object reads its settings when its module is imported, which is below.
        os.environ["IGNIS_CONFIG"] = state.config
    # What runs processes is not loaded for the commands that only look.
    from ignis.cli import worker_processes

    given = worker_processes.WorkerOptions(queues=queues, **options)
    if given.processes is not None:
        return worker_processes.supervise(state, target, given)
    if given.autoscale is not None:
        raise click.UsageError("--autoscale needs --processes")
    app = find_app(target)
    if not state.url:
        _warn_of_another_url(app.url)
    app.url = absolute(state.url) if state.url else app.url
    app.client_id = state.client_id or app.client_id
    app.farm_id = state.farm_id or app.farm_id
    if given.max_running is not None:
        app.context.turns.bound(given.max_running)
    return worker_processes.work_here(state, app, given)


def _warn_of_another_url(used: str | None) -> None:
    """Other commands look at the store of ``IGNIS_URL``; an application that names one in its code works on that."""
    named = os.environ.get("IGNIS_URL", "")
    if named and used and absolute(named) != absolute(used):
        log.warning(
            event_text("worker_url_differs", "the application works on %s, which its code names, and not on IGNIS_URL (%s); "
                       "--url goes before both"),
            redacted(used), redacted(named),
        )  # fmt: skip


def find_app(target: str) -> Ignis:
    """Imports ``MODULE:APP``. Raises ConfigError with the place of the failure, never the module's traceback."""
    module_name, _, path = target.partition(":")
    if "://" in target:
        raise ConfigError("a worker is given MODULE:APP; a store's URL goes with --url, or in IGNIS_URL")
    if not module_name:
        raise ConfigError(f"{target!r} names no module; write MODULE:APP, such as shop.tasks:app")
    directory = os.getcwd()
    if "/" in module_name or (module_name.endswith(".py") and os.path.isfile(module_name)):
        raise ConfigError(
            f"{target!r} names a file; write MODULE:APP, such as {Path(module_name).stem}:{path or 'app'}, in its directory"
        )
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        with imported_by_worker():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(exc.name + ".")):
            raise ConfigError(f"there is no module {exc.name!r} in {directory} or on the path") from exc
        raise ConfigError(f"cannot import {module_name}: {exc}{_place(exc)}") from exc
    except MainGuardError as exc:
        raise ConfigError(f"cannot import {module_name}: {exc}") from exc
    except Exception as exc:
        raise ConfigError(f"cannot import {module_name}: {type(exc).__name__}: {exc}{_place(exc)}") from exc
    found: object = module
    for name in (path or "app").split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigError(f"module {module_name} has no {path or 'app'!r}; {_applications(module)}") from None
    if not isinstance(found, Ignis):
        raise ConfigError(f"{target} is a {type(found).__name__}, not an ignis.Ignis object; {_applications(module)}")
    return found


_MOST_NAMED = 10


def _applications(module: ModuleType) -> str:
    """For an error: how the applications of a module are named."""
    names = [name for name, value in vars(module).items() if isinstance(value, Ignis)]
    if not names:
        return "no name in it is an ignis.Ignis object"
    more = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"name it as {' or '.join(f'{module.__name__}:{name}' for name in names[:_MOST_NAMED])}{more}"


def _place(exc: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if "importlib" not in frame.filename]
    # What begins with a bracket is generated code, such as that of a dataclass.
    own = [frame for frame in frames if not frame.filename.startswith((str(Path(__file__).parents[1]), "<"))]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


@click.command(short_help="Recovers what dead or stuck workers hold.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@common_options
@pass_state
def sweep(state: State, queues: tuple[str, ...]) -> int:
    """Recovers what dead or stuck workers hold: it goes to the sideline, with the reason "abandoned".

    What a process held that is provably dead is recovered at once, anything else after the queue's stuck_after_s.
    Ends with 4 when another process leads the sweeping.
    """
    state.log_to_stderr("error")
    with state.app() as app:
        for name in queues:
            queue_record(app.store, name)
        sweeper = app.sweeper()
        try:
            result = sweeper.run_once(queues or None)
        finally:
            sweeper.stop()
    if state.json:
        output.document(vars(result))
    else:
        output.line(
            f"swept {result.swept:,} abandoned message(s) of {result.queues:,} queue(s) into the sideline, "
            f"{result.sideline_swept:,} within it; {result.expired:,} expired"
        )
    if result.failed_queues:
        output.warning(f"{result.failed_queues} queue(s) could not be swept; --log-level error says why")
        return exit_codes.ERROR
    return exit_codes.OK
