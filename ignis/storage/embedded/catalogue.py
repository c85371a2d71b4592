"""Which magazines there are. Each stands in the log of its durability class, under ``farm/client/name``; this finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ignis.errors import ConfigError, QueueMismatchError, QueueNotFoundError, StoreBusyError
from ignis.native.store import Log, NoShardError, declare_later
from ignis.storage.checks import DURABILITIES, check_magazine
from ignis.storage.embedded.directory import Directory
from ignis.storage.later import later_of

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    _Ts = TypeVarTuple("_Ts")

__all__ = ["MOST_SHARDS", "Catalogue", "Magazine"]

MOST_SHARDS = 512
_ATTEMPTS = 8
_T = TypeVar("_T")


class Magazine(NamedTuple):
    """A magazine as it was when it was found. It is gone, or another one, when its log does not know the number any more."""

    name: str
    durability: str
    log: Log
    number: int
    shards: int

    @property
    def durable(self) -> bool:
        """Whether a call returns once what it did is on the disk."""
        return self.durability == "sync"


class Catalogue:
    """The magazines of one application of one deployment. Thread-safe. What was found is remembered until somebody calls
    `forget`, because the log did not know it any more."""

    def __init__(self, directory: Directory, farm_id: str, client_id: str) -> None:
        self._directory = directory
        self._prefix = f"{farm_id}/{client_id}/"
        self._known: dict[str, Magazine] = {}
        self.remembered: Callable[[str], Magazine | None] = self._known.get
        """Gives what needs no look into the store."""

    def find(self, name: str) -> Magazine:
        """Raises QueueNotFoundError when it is not declared."""
        known = self._known.get(name)
        return self._look(name) if known is None else known

    def again(self, found: Magazine) -> Magazine:
        """The magazine of that name as it is now. Raises QueueNotFoundError."""
        self.forget(found)
        return self.find(found.name)

    def forget(self, found: Magazine) -> None:
        if self._known.get(found.name) is found:
            self._known.pop(found.name, None)

    def forget_name(self, name: str) -> None:
        self._known.pop(name, None)

    def on(self, name: str, call: Callable[[Magazine, Unpack[_Ts]], _T], *args: Unpack[_Ts]) -> _T:
        """Calls with the magazine, and again when it has been made anew since it was looked up. Raises QueueNotFoundError."""
        found = self._known.get(name)
        if found is None:
            found = self._look(name)
        for _ in range(_ATTEMPTS):
            try:
                return call(found, *args)
            except QueueNotFoundError:
                found = self.again(found)
        return call(found, *args)

    def try_on(self, name: str, call: Callable[[Magazine, Unpack[_Ts]], _T | None], *args: Unpack[_Ts]) -> _T | None:
        """`on` for a call that must not wait. None, and nothing was done, where it would have to, or where the magazine is not as
        it was found: `on` says why."""
        found = self._known.get(name)
        if found is None:
            return None
        try:
            return call(found, *args)
        except QueueNotFoundError:
            self.forget(found)
        except (StoreBusyError, NoShardError):
            pass
        return None

    def no_shard(self, found: Magazine, shards: Sequence[int]) -> Exception:
        """What is raised for NoShardError: where the magazine has these shards by now, what makes `on` look again."""
        now = self.again(found)
        beyond = [shard for shard in shards if not 0 <= shard < now.shards]
        if not beyond:
            return QueueNotFoundError(f"magazine {found.name!r} was changed meanwhile")  # look again
        return ConfigError(f"shard {beyond[0]} of magazine {found.name!r}, which has {now.shards}")

    def _look(self, name: str) -> Magazine:
        check_magazine(name)
        for durability in self._directory.existing():
            log = self._directory.log(durability)
            number = log.find(self._prefix + name)
            if number is not None:
                try:
                    shards = len(log.shards(number))
                except QueueNotFoundError:
                    continue  # dropped since
                found = self._known[name] = Magazine(name, durability, log, number, shards)
                return found
        raise QueueNotFoundError(f"magazine {name!r} is not declared in this store")

    def declare(self, name: str, shards: int, durability: str) -> None:
        """See `MagazineStore.declare`."""
        if shards > MOST_SHARDS:
            raise ConfigError(
                f"shards = {shards} of magazine {name!r} is over {MOST_SHARDS}, the embedded store's most"
            )
        others = self._elsewhere(name, durability)
        if others:
            raise _mismatch(name, others[0])
        log = self._directory.log(durability)
        full = self._prefix + name
        number = log.declare(full, shards, DURABILITIES.index(durability))
        if number is None:
            raise QueueMismatchError(
                f"magazine {name!r} has {self._look(name).shards} shards with records beyond shard {shards - 1}; "
                f"asked for {shards}"
            )
        # Two who declare it at the same time, in two classes: whoever comes to see both leaves one. The logs know nothing of
        # each other, and the one that holds messages already is the one that stays.
        for other in self._elsewhere(name, durability):
            theirs = self._directory.log(other)
            twin = theirs.find(full)
            yields = DURABILITIES.index(other) < DURABILITIES.index(durability)
            if twin is not None and (yields or not theirs.drop(twin, only_empty=True)):
                log.drop(number, only_empty=True)
                raise _mismatch(name, other)
        self._known[name] = Magazine(name, durability, log, number, shards)

    def declare_later(self, main: Magazine, name: str) -> Magazine:
        """The later magazine of a main one, which is made when there is none. It is of the same log."""
        number = declare_later(main.log, main.number, self._prefix + name, main.shards, durable=main.durable)
        if number is None:
            raise QueueMismatchError(f"{name!r} is a magazine of its own in this store")
        found = Magazine(name, main.durability, main.log, number, len(main.log.shards(number)))
        self._known[name] = found
        return found

    def _elsewhere(self, name: str, durability: str) -> list[str]:
        """The other classes in which it is declared."""
        full = self._prefix + name
        return [
            one
            for one in self._directory.existing()
            if one != durability and self._directory.log(one).find(full) is not None
        ]

    def drop(self, name: str, only_empty: bool) -> bool:
        """See `MagazineStore.drop`."""
        known = self._known.pop(name, None)
        self._known.pop(later_of(name), None)  # it goes too
        dropped = True
        for durability in self._directory.existing():
            log = self._directory.log(durability)
            number = log.find(self._prefix + name)
            if number is not None:
                try:
                    dropped = log.drop(number, only_empty=only_empty) and dropped
                except QueueNotFoundError:
                    continue  # somebody else's drop came first
        if not dropped and known is not None:
            self._known[name] = known
        return dropped

    def names(self) -> list[str]:
        found = {
            full
            for durability in self._directory.existing()
            for _, full, _, _ in self._directory.log(durability).magazines()
            if full.startswith(self._prefix)
        }
        return sorted(full[len(self._prefix) :] for full in found)


def _mismatch(name: str, durability: str) -> QueueMismatchError:
    return QueueMismatchError(f"magazine {name!r} has durability {durability!r}; it cannot become another")
