"""Whether a connection may make a request: the table of commands, applied. Called on the event loop before anything else of
the request is read, kept or made; nothing here blocks."""

from __future__ import annotations

from ignis.broker.auth.permissions import FREE
from ignis.broker.auth.principal import Anyone, Principal
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import unpack
from ignis.broker.protocol.payloads import LockRequest
from ignis.broker.protocol.table import TABLE, About
from ignis.broker.server.caller import Caller
from ignis.broker.server.state import BrokerState
from ignis.config import NAME_PATTERN
from ignis.errors import PermissionDeniedError
from ignis.magazine import queue_of

__all__ = ["check", "check_epoch", "check_queue", "may_something", "own_lock", "own_scope"]

_LEADER = "leader-"
"""What stands before a scope in the name of its leader's lock."""
_MOST_SCOPE = 64
"""The longest scope that is made a user's own: with the user's name behind it, it fits where any other fits."""


def may_something(principal: Principal) -> bool:
    """Whether there is any command that the principal may give: else nothing is made for it."""
    return any(principal.allows_some(one.name) for one in Command if one.name not in FREE)


def check(caller: Caller, command: int, payload: bytes) -> None:
    """Raises PermissionDeniedError, and BadRequestError when the payload does not say what it is about."""
    principal, state = caller.principal, caller.context.state
    if type(principal) is Anyone:
        return
    row, word = TABLE.get(command), Command(command).name
    if row is None:
        _deny(state, word)
    elif row.about is About.CONNECTION:
        return
    elif row.about is About.LIST:
        if not principal.allows_some(word):
            _deny(state, word)
    elif row.about is About.BROKER or row.names is None:
        if row.about is About.SUBSCRIPTION:
            _check_subscription(caller, word, payload)
        elif not principal.allows(word, ""):
            _deny(state, word)
    elif row.about is About.LOCK:
        _check_lock(caller, word, payload)
    elif row.about is About.EPOCH:
        (scope,) = row.names(payload)
        check_epoch(principal, state, word, scope)
    elif row.about is About.ARRAY:
        for name in row.names(payload):
            if not principal.allows(word, name):
                _deny(state, word, name)
    else:
        for name in row.names(payload):
            check_queue(principal, state, word, name)


def check_queue(principal: Principal, state: BrokerState, word: str, name: str) -> None:
    """Checks the name of a queue or of one of its magazines. Raises PermissionDeniedError."""
    queue = queue_of(name)
    if not principal.allows(word, queue):
        _deny(state, word, queue)


def check_epoch(principal: Principal, state: BrokerState, word: str, scope: str) -> None:
    """Checks the scope of an epoch, where a fence names it as well. Raises PermissionDeniedError."""
    if not (principal.allows(word, scope) or _leads(principal, scope)):
        _deny(state, word, scope)


def own_lock(principal: Principal, name: str) -> str:
    """The name in the store of a lock of the application that a request was let through for: itself where a rule allows to
    take it, else, of a leader, the user's own of that name. So a worker's sweeper leads among those of its user, over queues
    of its user, and neither keeps the operator's from leading nor makes its writes stale."""
    scope = name.removeprefix(_LEADER)
    if scope == name:
        return name
    return _own(principal, Command.LOCK_ACQUIRE, name, scope)


def own_scope(principal: Principal, scope: str) -> str:
    """The same for an epoch."""
    return _own(principal, Command.EPOCH_NEXT, scope, scope)


def _own(principal: Principal, takes: Command, name: str, scope: str) -> str:
    if type(principal) is Anyone or principal.allows(takes.name, name) or not _leads(principal, scope):
        return name
    return f"{name}@{principal.name}"


def _leads(principal: Principal, scope: str) -> bool:
    """Whether the user may have a leadership of its own: who may sweep a queue may."""
    return (
        len(scope) <= _MOST_SCOPE
        and NAME_PATTERN.match(scope) is not None
        and principal.allows_some(Command.ABANDONED.name)
    )


def _check_lock(caller: Caller, word: str, payload: bytes) -> None:
    """Checks by the lock's name. In a table that is its id, behind the ``client_id#`` that its key begins with. A table, a farm
    or an application that are not the connection's own are for those who may do so to every lock."""
    head, principal, state = unpack(payload, LockRequest)[0], caller.principal, caller.context.state
    if not head.table:
        scope = head.name.removeprefix(_LEADER)
        own = scope != head.name and word != Command.LOCK_TOKEN.name and _leads(principal, scope)
        if not (own or principal.allows(word, head.name)):
            _deny(state, word, head.name)
        return
    assert caller.application is not None
    app = caller.application.app
    client, _, lock_id = head.name.partition("#")
    own = client == app.client_id and head.farm_id == app.farm_id
    own = own and head.table.startswith((f"DC#{app.farm_id}#", "XDC#"))
    if not principal.allows(word, lock_id if own and lock_id else ""):
        _deny(state, word, head.name)


def _check_subscription(caller: Caller, word: str, payload: bytes) -> None:
    """Checks by the subscription's queue. Of one that there is not, who may subscribe to anything is told so."""
    principal, state = caller.principal, caller.context.state
    magazine = caller.subscribed_to(payload)
    if magazine is not None:
        check_queue(principal, state, word, magazine)
    elif not principal.allows_some(word):
        _deny(state, word)


def _deny(state: BrokerState, word: str, queue: str = "") -> None:
    state.denied += 1
    raise PermissionDeniedError(word, queue[:128])
