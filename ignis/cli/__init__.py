"""The ``ignis`` command."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

from ignis.loading import end_if_command

try:
    import click

    from ignis._version import __version__
    from ignis.cli import exit_codes, output
    from ignis.cli.completion import answer
    from ignis.cli.lazy_group import LazyGroup
    from ignis.cli.state import State, common_options
    from ignis.errors import PermissionDeniedError, QueueNotEmptyError
    from ignis.escaping import escape_uncaught, print_trace
    from ignis.urls import masked
except KeyboardInterrupt:
    end_if_command()
    raise

__all__ = ["cli", "main"]


EXIT_CODES = (
    "Exit codes: 0 done, 1 error, 2 usage or setting, 3 no store there or it cannot be opened, "
    "4 another process holds the leadership, the lock or the address, 5 no such queue or nothing in it, 130 interrupted, "
    "141 the output's reader went away."
)

LOOKING_FOR = """\b
What does what:
  what failed, and to bring it back (redrive)   sideline list, sideline shovel
  what a dead worker holds                      sweep; workers shows who holds what
  to empty, pause, remove a queue               queue purge, pause, delete
  what waits for its time; what the clock does  later list; schedules list
  where a message is; what is wrong             find; doctor
"""
EPILOG = f"{LOOKING_FOR}\n{EXIT_CODES}"

COMMANDS = {
    "autoscale": "autoscale", "bench": "bench", "broker": "broker", "completion": "completion", "console": "console",
    "consume": "consume", "demo": "demo", "deploy-files": "deploy_files", "doctor": "doctor", "dump": "dump", "find": "find",
    "later": "later", "leader": "leader", "load": "dump", "locks": "locks", "peek": "inspection", "pipeline": "pipeline",
    "publish": "publish", "queue": "queue", "queues": "inspection", "relay": "relay", "schedules": "schedules",
    "sideline": "sideline", "stats": "inspection", "sweep": "worker", "top": "top", "worker": "worker", "workers": "workers",
}  # fmt: skip
"""Command -> the module of this folder that has it."""


@click.group(
    cls=LazyGroup,
    modules=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="ignis", message="%(prog)s %(version)s")
@common_options
@click.pass_context
def cli(context: click.Context) -> None:
    """A durable message queue that needs no server."""
    context.ensure_object(State)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code; never raises for what a user can cause.

    Args:
        argv: arguments without the program's name; None = ``sys.argv[1:]``.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    output.as_lines_of_json(_asked_for(arguments, "--log-format", "json"))
    try:
        closed = _open_standard_streams()
        if argv is None:
            escape_uncaught()
        if argv is None and (answered := answer(cli)) is not None:
            return answered
        # Not cli.main(): it would end the process on a closed pipe with a code that says nothing.
        with cli.make_context("ignis", list(arguments), obj=State(output_closed="stdout" in closed)) as context:
            code: Any = cli.invoke(context)
        sys.stdout.flush()
    except BrokenPipeError:
        return _pipe_closed()
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.UsageError as exc:
        return _usage(exc, as_json)
    except click.ClickException as exc:
        output.error(exc.format_message(), code="error", retryable=False, exit_code=exc.exit_code, as_json=as_json)
        return exc.exit_code
    except (Exception, KeyboardInterrupt) as exc:
        return _failed(exc, as_json, debug=_asked_for(arguments, "--log-level", "debug"))
    return code if isinstance(code, int) else exit_codes.OK


def _failed(exc: BaseException, as_json: bool, debug: bool = False) -> int:
    code = exit_codes.code_of(exc)
    if debug:
        print_trace(exc)
    if isinstance(exc, KeyboardInterrupt):
        output.error("interrupted", code="interrupted", retryable=True, exit_code=code, as_json=as_json)
        return code
    message, name, retryable = output.describe(exc)
    if isinstance(exc, QueueNotEmptyError):  # the library says what its argument is called
        message = message.replace("with force", "with --force")
    if isinstance(exc, PermissionDeniedError):
        message += "; see 'ignis broker user list' at the broker"
    output.error(message, code=name, retryable=retryable, exit_code=code, as_json=as_json)
    return code


def _usage(exc: click.UsageError, as_json: bool) -> int:
    where = exc.ctx.command_path if exc.ctx is not None else "ignis"
    no_arguments = getattr(click.exceptions, "NoArgsIsHelpError", None)
    if no_arguments is not None and isinstance(exc, no_arguments) and not as_json:
        output.remark(exc.format_message())
        return exit_codes.USAGE
    message = f"{masked(exc.format_message())} (see {where} --help)"
    output.error(message, code="usage", retryable=False, exit_code=exit_codes.USAGE, as_json=as_json)
    return exit_codes.USAGE


def _asked_for(arguments: Sequence[str], option: str, value: str) -> bool:
    """Also before the options are read, and where they cannot be."""
    return f"{option}={value}" in arguments or (option, value) in itertools.pairwise(arguments)


def _open_standard_streams() -> set[str]:
    """Those that are closed, as some that start services leave them, become /dev/null. Otherwise the next file that is
    opened, a store's perhaps, would get the number, and what is printed would go into it. Returns which they were."""
    closed: set[str] = set()
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            closed.add(name)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    return closed


def _pipe_closed() -> int:
    # The interpreter flushes stdout once more at exit, and would complain there.
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return exit_codes.PIPE
