"""``ignis completion``: the script that makes a shell complete the command line."""

from __future__ import annotations

import os

import click
from click.shell_completion import get_completion_class, shell_complete

from ignis.cli.queue_names import end_if_asked_in_vain

__all__ = ["answer", "completion"]

VARIABLE = "_IGNIS_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
HOW_TO = """\b
bash  eval "$(ignis completion bash)"      in ~/.bashrc (bash 4.4 or newer)
zsh   eval "$(ignis completion zsh)"       in ~/.zshrc, after compinit
fish  ignis completion fish | source       in ~/.config/fish/config.fish"""


def answer(command: click.Command) -> int | None:
    """What a shell that completes a line is told, on standard output.

    Returns:
        The exit code, or None when no shell asks.
    """
    asked = os.environ.get(VARIABLE)
    if asked is None:
        return None
    code = shell_complete(command, {}, "ignis", VARIABLE, asked)
    end_if_asked_in_vain(code)
    return code


@click.command(epilog=HOW_TO, short_help="Prints the script that makes a shell complete commands.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options and the names of queues."""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "ignis", VARIABLE).source())
