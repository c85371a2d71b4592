"""The words by which the users file allows commands: ``publish``, ``work`` ... No I/O.

Both sides know them: the broker, which decides by them, and the client, whose errors name those that were missing.
"""

from __future__ import annotations

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.table import TABLE, WORDS, About

__all__ = ["GROUPS", "WHOLE", "words_for"]

GROUPS: dict[str, frozenset[str]] = {
    word: frozenset(Command(number).name for number, row in TABLE.items() if word in row.words.split())
    for word in WORDS
}
"""The commands of each word, from the table of commands. ``work`` is what a worker process needs of a queue: claim, retire,
sideline, recover."""

WHOLE: dict[str, frozenset[str]] = {
    word: frozenset(Command(number).name for number, row in TABLE.items() if f"{word}*" in row.words.split())
    for word in WORDS
}
"""The commands that a word includes in a rule for ``*`` only."""

_ABOUT_BROKER = frozenset(Command(number).name for number, row in TABLE.items() if row.about is About.BROKER)
_MAKING = "DECLARE"
"""The command that is refused to whoever may open a queue and not make it."""


def words_for(command: str) -> list[str]:
    """Returns the words of the users file that include a command, with ``:*`` behind when only in a rule for ``*``."""
    if command == _MAKING:
        return ["manage", "all"]
    found = [word for word in WORDS if command in GROUPS[word]]
    if found and command not in _ABOUT_BROKER:
        return [*found, "all"]
    return [*(f"{word}:*" for word in WORDS if word in found or command in WHOLE[word]), "all:*"]
