"""A group of commands whose modules are imported when one of them is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from ignis.cli.other_words import WordGroup

__all__ = ["LazyGroup"]


class _Commands(dict[str, click.Command]):
    """Those that were asked for so far; ``commands[name]`` imports one."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        super().__init__()
        self._modules = modules

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __missing__(self, name: str) -> click.Command:
        module = importlib.import_module(f"ignis.cli.{self._modules[name]}")
        command: click.Command = getattr(module, name.replace("-", "_"))
        self[name] = command
        return command


class LazyGroup(WordGroup):
    """The commands of ``ignis``.

    Args:
        modules: name of a command -> the module of this folder that has it.
    """

    def __init__(self, *arguments: Any, modules: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._modules = modules
        self.commands: dict[str, click.Command] = _Commands(modules)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.commands[cmd_name] if cmd_name in self._modules else None
