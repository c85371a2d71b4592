"""The table of commands is whole, and each command is carried out in one place."""

from __future__ import annotations

from ignis.broker.protocol.commands import ANSWERS, Command
from ignis.broker.protocol.table import BULKY, LOOKS, TABLE, About, Size
from ignis.broker.server.broker_commands import BROKER_ACTIONS
from ignis.broker.server.claim_commands import CLAIM_CALLS
from ignis.broker.server.command_table import CALLS
from ignis.broker.server.consumer_commands import ACTIONS
from ignis.broker.server.later_commands import LATER_CALLS
from ignis.broker.server.lock_commands import LOCK_CALLS
from ignis.broker.server.queue_commands import QUEUE_CALLS
from ignis.broker.server.store_commands import STORE_CALLS


def test_every_command_has_a_row() -> None:
    assert set(TABLE) == set(Command) - ANSWERS


def test_every_command_is_carried_out_in_one_place() -> None:
    places = [STORE_CALLS, LATER_CALLS, CLAIM_CALLS, QUEUE_CALLS, LOCK_CALLS, ACTIONS, BROKER_ACTIONS]
    served = [command for place in places for command in place]
    assert len(served) == len(set(served))
    # These begin, end and prove a connection; sends have a way of their own.
    apart = {Command.CONNECT, Command.DISCONNECT, Command.PING, Command.SEND, Command.SEND_BATCH}
    assert set(served) | apart == set(TABLE)
    calls = [STORE_CALLS, LATER_CALLS, CLAIM_CALLS, QUEUE_CALLS, LOCK_CALLS]
    assert len(CALLS) == sum(map(len, calls))


def test_what_reads_much_is_for_threads_of_its_own() -> None:
    """Two at a time for each connection, and none for one that is gone; small answers need no room."""
    lists = {Command.QUEUE_LIST, Command.LIST_QUEUES, Command.NAMES}
    rows = {Command.PEEK, Command.SCAN, Command.LIST_LATER, Command.ARRAY_PEEK}
    assert lists | rows | {Command.OLDEST, Command.QUEUE_INFO} == LOOKS
    assert lists | rows | {Command.FIRE, Command.ABANDONED, Command.ARRAY_DEQUEUE} == BULKY


def test_what_may_be_large_names_what_it_is_about_first() -> None:
    """Else it could not be refused before it has come to its end."""
    for number, row in TABLE.items():
        if row.size is Size.HEAD or row.payload is None:
            continue
        assert row.about in (About.QUEUE, About.ARRAY), Command(number).name
        assert row.payload.__struct_fields__[0] in ("name", "queue", "magazine", "source"), Command(number).name
