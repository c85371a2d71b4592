"""Ctrl-C while the ``ignis`` command is still being loaded: there is nothing yet that could answer it."""

from __future__ import annotations

import itertools
import os
import sys

__all__ = ["end_if_command"]

_INTERRUPTED = 130
"""As `ignis.cli.exit_codes` has it, which is not there yet."""


def end_if_command() -> None:
    """Called for a KeyboardInterrupt out of an import: ends the process as the command does, where it is to be the command. In a
    program that imports this library it returns, and the interrupt goes on."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    path = os.path.join(os.path.dirname(__file__), "__main__.py")
    as_module = name == "-m" and ("-m", "ignis") in itertools.pairwise(sys.orig_argv)
    if name == "ignis" or as_module or sys.argv[:1] == [path]:
        os.write(2, b"ignis: interrupted\n")
        os._exit(_INTERRUPTED)
