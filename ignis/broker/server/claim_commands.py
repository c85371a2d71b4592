"""Requests about claims, which are made in the client's own name: claiming, renewing, and taking up what it held before.

As in `requests`, the functions run in a thread of the store's. They read of the session only what never changes after
CONNECT; what it holds is changed on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.in_flight import InFlight, Run, as_pointers, runs_in, runs_of
from ignis.broker.protocol.payloads import ClaimRequest, Fire, OwnerRequest, RenewClaims, Resume, pack, unpack
from ignis.broker.server import permission_check
from ignis.broker.server.claimants import owner_for
from ignis.broker.server.dispatcher import packed
from ignis.broker.server.store_commands import Reply
from ignis.native.wire import ClaimsFrame

if TYPE_CHECKING:
    from ignis.broker.server.session import Session
    from ignis.storage.base import MagazineStore

__all__ = ["CLAIM_CALLS", "lost_runs"]

_RESULT = int(Command.RESULT)


def _value(value: Any) -> Reply:
    return Reply(_RESULT, pack(value))


def _magazines(session: Session) -> MagazineStore:
    assert session.application is not None
    return session.application.store.magazines


def lost_runs(lost: Mapping[int, Sequence[int]]) -> list[Run]:
    """What `MagazineStore.renew_claims` answers, as runs."""
    return [run for shard, pointers in lost.items() for run in runs_of(shard, pointers)]


def _fire(session: Session, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Fire)
    claims = ClaimsFrame()
    result = _magazines(session).fire_into(
        claims,
        head.magazine,
        head.limit,
        owner_for(head.owner, session.owner),
        head.shards,
        max_bytes=min(head.max_bytes, bound),
    )
    found = packed(claims, result)
    return Reply(_RESULT, found.head, lambda held_by: held_by.hold(head.magazine, found.runs, fired=True), claims)


def _claim(session: Session, payload: bytes, bound: int) -> Reply:
    """Not held by the connection: such claims outlive the process that made them."""
    head, _ = unpack(payload, ClaimRequest)
    owner = str(owner_for(head.owner, session.owner))
    return _value(_magazines(session).claim(head.magazine, head.limit, owner, head.shards))


def _held(session: Session, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, OwnerRequest)
    return _value(_magazines(session).held(head.magazine, str(owner_for(head.owner, session.owner))))


def _renew(session: Session, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, OwnerRequest)
    return _value(_magazines(session).renew(head.magazine, str(owner_for(head.owner, session.owner))))


def _renew_claims(session: Session, payload: bytes, bound: int) -> Reply:
    head, at = unpack(payload, RenewClaims)
    owner = owner_for(head.owner, session.owner)
    to_owner = owner_for(head.to_owner, session.owner) if head.to_owner else None
    if not (owner is session.owner and to_owner in (None, session.owner)):
        # Another's, such as a job's: more than consuming takes.
        permission_check.check_queue(session, Command.RENEW.name, head.magazine)
    lost = _magazines(session).renew_claims(head.magazine, as_pointers(runs_in(payload, at)), owner, to_owner=to_owner)
    return _value(lost_runs(lost))


def _resume(session: Session, payload: bytes, bound: int) -> Reply:
    """What the client says that it holds is its connection's again, as far as the store has it claimed in its name. What else
    is claimed in its name was never delivered to it: an answer was lost with a connection or a broker. That goes back."""
    head, at = unpack(payload, Resume)
    magazines = _magazines(session)
    claimed, mine = InFlight(), InFlight()
    claimed.add(
        head.magazine, [(one.shard, one.first, one.last + 1) for one in magazines.held(head.magazine, session.owner)]
    )
    mine.add(head.magazine, claimed.take(head.magazine, runs_in(payload, at)))
    orphans = claimed.take_all().get(head.magazine, [])
    if orphans:
        magazines.reload(head.magazine, as_pointers(orphans))
    runs = mine.take_all().get(head.magazine, [])
    count = sum(stop - start for _, start, stop in runs)
    return Reply(_RESULT, pack(count), lambda held_by: held_by.hold_only(head.magazine, runs, fired=head.renews))


CLAIM_CALLS: dict[int, Callable[[Session, bytes, int], Reply]] = {
    Command.FIRE: _fire,
    Command.CLAIM: _claim,
    Command.HELD: _held,
    Command.RENEW: _renew,
    Command.RENEW_CLAIMS: _renew_claims,
    Command.RESUME: _resume,
}
"""By command: (session, payload, bytes that an answer may take) -> reply."""
