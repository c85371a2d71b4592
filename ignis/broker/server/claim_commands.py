"""Requests about claims, which are made in the client's own name: claiming, renewing, and taking up what it held before.

They run in a thread of the store's; what the connection holds is changed on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.in_flight import InFlight, PointerRange, as_pointers, runs_in, runs_of
from ignis.broker.protocol.payloads import ClaimRequest, Fire, OwnerRequest, RenewClaims, Resume
from ignis.broker.server.calls import RESULT, Asked, Call, Reply, value
from ignis.broker.server.claimants import owner_for
from ignis.broker.server.peer import Peer
from ignis.broker.server.subscription import Packed, packed
from ignis.errors import IgnisError
from ignis.native.wire import ClaimsFrame
from ignis.storage.write_batch import FiredInto

__all__ = ["CLAIM_CALLS", "BegunFire", "finish_fire", "lost_runs", "try_fire"]

_MOST_AT_ONCE = 1_024
_MOST_BYTES_AT_ONCE = 2 << 20
"""The largest claim by the event loop, as of a `Dispatcher`."""


def lost_runs(lost: Mapping[int, Sequence[int]]) -> list[PointerRange]:
    """What `MagazineStore.renew_claims` answers, as runs."""
    return [run for shard, pointers in lost.items() for run in runs_of(shard, pointers)]


def _fire(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Fire)
    claims = ClaimsFrame()
    result = asked.app.store.magazines.fire_into(
        claims,
        head.magazine,
        head.limit,
        owner_for(head.owner, asked.owner),
        head.shards,
        max_bytes=min(head.max_bytes, asked.bound),
    )
    return _fired(asked, head, packed(claims, result))


class BegunFire(NamedTuple):
    """A FIRE of which the event loop has claimed a part: what is left needs a thread."""

    head: Fire
    claims: ClaimsFrame
    found: FiredInto


def try_fire(asked: Asked) -> Reply | BegunFire | None:
    """`FIRE` by the event loop; None, and nothing was done, where it would have to wait, or where the claim is a large one."""
    head, _ = unpack(asked.payload, Fire)
    if head.shards is not None or head.limit > _MOST_AT_ONCE:
        return None
    claims = ClaimsFrame()
    owner, max_bytes = owner_for(head.owner, asked.owner), min(head.max_bytes, asked.bound, _MOST_BYTES_AT_ONCE)
    result = asked.app.store.magazines.try_fire_into(claims, head.magazine, head.limit, owner, max_bytes)
    if result is None:
        return None
    if result.more and claims.messages < head.limit and claims.nbytes < min(head.max_bytes, asked.bound):
        return BegunFire(head, claims, result)  # large records, or many that had expired
    return _fired(asked, head, packed(claims, result))


def finish_fire(asked: Asked, begun: BegunFire) -> Reply:
    """The rest of it, in a thread. What is claimed already is delivered, and what had expired is told, whatever happens: what the
    store refuses now it says to the next claim."""
    head, claims, found = begun
    try:
        rest = asked.app.store.magazines.fire_into(
            claims,
            head.magazine,
            head.limit - claims.messages,
            owner_for(head.owner, asked.owner),
            max_bytes=min(head.max_bytes, asked.bound) - claims.nbytes,
        )
    except IgnisError:
        if not claims.messages and not found.expired:
            raise
        return _fired(asked, head, packed(claims, found))
    both = FiredInto({**found.holes, **rest.holes}, found.expired + rest.expired, rest.more)
    return _fired(asked, head, packed(claims, both))


def _fired(asked: Asked, head: Fire, found: Packed) -> Reply:
    def given(peer: Peer) -> None:
        asked.app.note_delivered(found.messages)
        peer.claims.hold(head.magazine, found.runs, fired=True)

    return Reply(RESULT, found.head, given, found.claims)


def _claim(asked: Asked) -> Reply:
    """Not held by the connection: such claims outlive the process that made them."""
    head, _ = unpack(asked.payload, ClaimRequest)
    owner = str(owner_for(head.owner, asked.owner))
    return value(asked.app.store.magazines.claim(head.magazine, head.limit, owner, head.shards))


def _held(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, OwnerRequest)
    return value(asked.app.store.magazines.held(head.magazine, str(owner_for(head.owner, asked.owner))))


def _renew(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, OwnerRequest)
    return value(asked.app.store.magazines.renew(head.magazine, str(owner_for(head.owner, asked.owner))))


def _renew_claims(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, RenewClaims)
    owner = owner_for(head.owner, asked.owner)
    to_owner = owner_for(head.to_owner, asked.owner) if head.to_owner else None
    if not (owner is asked.owner and to_owner in (None, asked.owner)):
        # Another's, such as a job's: more than consuming takes.
        asked.check(Command.RENEW, head.magazine)
    lost = asked.app.store.magazines.renew_claims(
        head.magazine, as_pointers(runs_in(asked.payload, at)), owner, to_owner=to_owner
    )
    return value(lost_runs(lost))


def _resume(asked: Asked) -> Reply:
    """What the client says that it holds is its connection's again, as far as the store has it claimed in its name. What else
    is claimed in its name was never delivered to it: an answer was lost with a connection or a broker. That goes back."""
    head, at = unpack(asked.payload, Resume)
    magazines = asked.app.store.magazines
    claimed, mine = InFlight(), InFlight()
    claimed.add(
        head.magazine, [(one.shard, one.first, one.last + 1) for one in magazines.held(head.magazine, asked.owner)]
    )
    mine.add(head.magazine, claimed.take(head.magazine, runs_in(asked.payload, at)))
    orphans = claimed.take_all().get(head.magazine, [])
    if orphans:
        magazines.reload(head.magazine, as_pointers(orphans))
    runs = mine.take_all().get(head.magazine, [])
    if runs:  # so that the broker which the client was connected to before knows that it lives
        magazines.renew_claims(head.magazine, as_pointers(runs), asked.owner)
    count = sum(stop - start for _, start, stop in runs)
    return Reply(RESULT, pack(count), lambda peer: peer.claims.hold_only(head.magazine, runs, fired=head.renews))


CLAIM_CALLS: dict[int, Call] = {
    Command.FIRE: _fire,
    Command.CLAIM: _claim,
    Command.HELD: _held,
    Command.RENEW: _renew,
    Command.RENEW_CLAIMS: _renew_claims,
    Command.RESUME: _resume,
}
