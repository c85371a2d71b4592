"""What the parts of one embedded store share: its directory, the scope of its names, its gates, and in whose name it claims."""

from __future__ import annotations

from ignis.storage.checks import check_owner
from ignis.storage.embedded.directory import Directory
from ignis.storage.embedded.keys import Keys, Scope
from ignis.storage.embedded.owners import Life, stored_owner
from ignis.storage.in_flight import Gate
from ignis.storage.process_identity import owner_name
from ignis.storage.records import Owner

__all__ = ["StoreContext"]

_FORKED = "this store was opened before fork(); open another in the child"


class StoreContext:
    """What the facets of one opened store share. Thread-safe. After ``fork`` no call can begin in the child.

    Args:
        directory: with its logs; closed by whoever opened it.
        life: what proves that this store is open.
        client_id, farm_id: scope of all names.
        timeout_s: bound on every wait at a gate.
    """

    def __init__(self, directory: Directory, life: Life, client_id: str, farm_id: str, timeout_s: float) -> None:
        self.directory = directory
        self.client_id = client_id
        self.farm_id = farm_id
        self.scope = Scope(farm_id, client_id)
        self.owner = owner_name()
        self.gate = Gate("store", timeout_s, _FORKED)
        """Every call goes through it; see `ignis.storage.in_flight.guarded`."""
        self.waiting_gate = Gate("store", timeout_s, _FORKED)
        """Of calls that only wait: a fork does not have to wait for them."""
        self._life = life
        self._stored_owner = self.stored_owner(self.owner).encode()
        self._last_owner: tuple[str, bytes] = self.owner, self._stored_owner

    @property
    def keys(self) -> Keys:
        """What is kept beside messages."""
        return self.directory.keys

    def stored_owner(self, owner: str | Owner) -> str:
        """Under what a claim in that owner's name is stored; see `ignis.storage.embedded.owners`. A job's is its plain name."""
        return stored_owner(owner, self._life)

    def stored_owner_bytes(self, owner: str | Owner) -> bytes:
        """`stored_owner` as the log takes it. Raises InvalidNameError."""
        if owner is self.owner:  # as a rule
            return self._stored_owner
        last, stored = self._last_owner
        if owner is not last:  # a broker's client claims one message after the other
            check_owner(owner)
            stored = self.stored_owner(owner).encode()
            self._last_owner = owner, stored
        return stored
