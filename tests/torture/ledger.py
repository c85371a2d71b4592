"""The total-queue checker: what was sent, acknowledged, seen and finished, and what that says after a full drain.

Pure bookkeeping, no input or output, so that it can be tested by itself.

* *sent*: the attempt began; it may have been stored whatever happened next.
* *acknowledged*: the store or the publisher said that the message is durable.
* *seen*: it was handed out.
* *finished*: its deletion was confirmed; it must not be handed out again.

After everything that the store holds (main magazine, sideline, in flight) has been handed out:
``lost = acknowledged - seen`` and ``invented = seen - sent`` must be empty.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

__all__ = ["Ledger", "Verdict", "make_body", "make_id", "read_body", "split_id"]

_SEQUENCE_BITS = 40
_HEAD = struct.Struct(">QI")
_CHECK = struct.Struct(">I")


def make_id(writer: int, sequence: int) -> int:
    """One number for the ``sequence``-th message (from 0) of a writer (0 to 65,535)."""
    return writer << _SEQUENCE_BITS | sequence


def split_id(identity: int) -> tuple[int, int]:
    """The writer and the sequence number of `make_id`."""
    return identity >> _SEQUENCE_BITS, identity & ((1 << _SEQUENCE_BITS) - 1)


def make_body(identity: int, filler_bytes: int = -1) -> bytes:
    """A message body that proves by itself which message it is and that no byte of it was changed.

    Args:
        identity: see `make_id`.
        filler_bytes: length of the part behind the 16-byte head; negative = between 0 and 299, fixed by the identity.
    """
    if filler_bytes < 0:
        filler_bytes = identity * 2_654_435_761 % 300
    unit = struct.pack(">Q", identity * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    filler = (unit * (filler_bytes // 8 + 1))[:filler_bytes]
    content = _HEAD.pack(identity, filler_bytes) + filler
    return _CHECK.pack(zlib.crc32(content)) + content


def read_body(body: bytes) -> int | None:
    """The identity of a body that `make_body` made, or None when it is anything else."""
    if len(body) < _CHECK.size + _HEAD.size:
        return None
    identity, filler_bytes = _HEAD.unpack_from(body, _CHECK.size)
    if len(body) != _CHECK.size + _HEAD.size + filler_bytes:
        return None
    return int(identity) if body == make_body(identity, filler_bytes) else None


@dataclass(frozen=True)
class Verdict:
    """What the ledger says. ``ok`` is false when there is any fault; duplicates and unacknowledged ones are none."""

    sent: int
    acknowledged: int
    seen: int
    lost: tuple[int, ...]
    invented: tuple[int, ...]
    altered: int
    resurrected: tuple[int, ...]
    duplicates: int
    unacknowledged_seen: int
    disordered: int
    copies: bool = False

    @property
    def ok(self) -> bool:
        return not self.faults()

    def faults(self) -> list[str]:
        """One phrase for each kind of loss, with the first few messages concerned."""
        found = []
        back = () if self.copies else self.resurrected
        for word, many in (("lost", self.lost), ("invented", self.invented), ("resurrected", back)):
            if many:
                some = ", ".join("{}:{}".format(*split_id(one)) for one in many[:5])
                found.append(f"{len(many)} {word} (writer:sequence {some}{', ...' if len(many) > 5 else ''})")
        if self.altered:
            found.append(f"{self.altered} handed out with altered bytes")
        if self.disordered:
            found.append(f"{self.disordered} out of order")
        return found


@dataclass
class Ledger:
    """Collects events in the order in which they are known. Not thread-safe.

    ``copies``: a move that takes two transactions may leave a message in both places when it is interrupted, so one
    that was finished may be seen again; it counts as a duplicate then, not as a fault.
    """

    sent: dict[int, float] = field(default_factory=dict)
    acknowledged: dict[int, float] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    seen: dict[int, int] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)
    altered: int = 0
    corrupt: int = 0
    disordered: int = 0
    copies: bool = False
    _seen_finished: list[int] = field(default_factory=list)
    _last_seen: dict[int, float] = field(default_factory=dict)
    _heads: dict[tuple[int, int], int] = field(default_factory=dict)
    _handlers: dict[int, list[tuple[float, str]]] = field(default_factory=dict)

    def send(self, many: Iterable[int], at: float = 0.0) -> None:
        """The attempt begins. ``at``: monotonic seconds."""
        for one in many:
            self.sent.setdefault(one, at)

    def acknowledge(self, many: Iterable[int], at: float = 0.0) -> None:
        """``at``: monotonic seconds, for stores that may lose a window."""
        for one in many:
            self.acknowledged.setdefault(one, at)

    def refuse(self, many: Iterable[int]) -> None:
        """The caller was told that these are not stored. They may still exist: refusing is not a promise."""
        self.refused.update(many)

    def see(self, many: Iterable[int], shard: int | None = None, at: float = float("inf"), by: str = "") -> None:
        """Handed out. With ``shard`` the order of each writer's messages within that shard is checked as well.

        ``at``: monotonic seconds. Lines of different processes arrive in any order; only the times tell whether a
        message was handed out after its deletion had been confirmed, or before by somebody who died. ``by``: who handled
        it, for `doubles`; with it ``at`` is wanted as well.
        """
        for one in many:
            if by:
                self._handlers.setdefault(one, []).append((at, by))
            again = self.seen.get(one, 0)
            self.seen[one] = again + 1
            if at != float("inf"):
                self._last_seen[one] = max(at, self._last_seen.get(one, 0.0))
            if self.finished.get(one, float("inf")) < at:
                self._seen_finished.append(one)
            if shard is not None and not again:
                writer, sequence = split_id(one)
                if sequence < self._heads.get((shard, writer), -1):
                    self.disordered += 1
                else:
                    self._heads[shard, writer] = sequence

    def finish(self, many: Iterable[int], at: float = 0.0) -> None:
        """The deletion was confirmed. ``at``: monotonic seconds."""
        for one in many:
            self.finished.setdefault(one, at)
            if at < self._last_seen.get(one, 0.0):
                self._seen_finished.append(one)

    def forgive(self, after: float) -> int:
        """Takes back the confirmations later than ``after``: for a durability that may lose a window.

        Acknowledged then counts as sent only, finished as still to be seen. Returns how many acknowledgements.
        """
        before = len(self.acknowledged)
        self.acknowledged = {one: at for one, at in self.acknowledged.items() if at <= after}
        for one in [one for one, at in self.finished.items() if at > after]:
            del self.finished[one]
            self.acknowledged.pop(one, None)
        return before - len(self.acknowledged)

    def doubles(self, dead: Collection[str]) -> tuple[Counter[str], int]:
        """Who is to blame for each duplicate, which is a handling that was not the message's last.

        Args:
            dead: names, as in `see`, of those who were killed: what they had handled and not acknowledged comes again.

        Returns:
            For each of the dead how many messages that it had handled were handled again; and how many duplicates nobody's
            death explains, because whoever had handled the message lived to acknowledge it.
        """
        repeated: Counter[str] = Counter()
        unexplained = 0
        for one, times in self.seen.items():
            if times == 1:
                continue
            handled = sorted(self._handlers.get(one, ()))
            others = times - len(handled)  # who drains at the end comes after everybody else
            for _, who in handled if others else handled[:-1]:
                if who in dead:
                    repeated[who] += 1
                else:
                    unexplained += 1
            unexplained += max(0, others - 1)
        return repeated, unexplained

    def browse(self, present: set[int]) -> tuple[list[int], list[int], list[int]]:
        """Judges by what exists instead of by a drain: (lost, invented, resurrected).

        What was seen and not finished is in doubt: its deletion may have happened when its consumer died.
        """
        lost = sorted(self.acknowledged.keys() - self.seen.keys() - present)
        return lost, sorted(present - self.sent.keys()), sorted(present & self.finished.keys())

    def verdict(self) -> Verdict:
        """To be asked after a full drain of everything that the store holds."""
        seen = self.seen.keys()
        return Verdict(
            sent=len(self.sent),
            acknowledged=len(self.acknowledged),
            seen=len(seen),
            lost=tuple(sorted(self.acknowledged.keys() - seen)),
            invented=tuple(sorted(seen - self.sent.keys())),
            altered=self.altered,
            resurrected=tuple(self._seen_finished),
            duplicates=sum(self.seen.values()) - len(self.seen),
            unacknowledged_seen=len(seen - self.acknowledged.keys()),
            disordered=self.disordered,
            copies=self.copies,
        )
