"""Distributed locks: mutual exclusion between processes, machines and deployments, with fencing tokens.

``LockManager(client_id, farm_id, store).lock("nightly-report")`` gives a `Lock`; what it promises, and what no lock with
a time to live can promise, stands in ``docs/locks.md``.
"""

from ignis.locks.lock import Lock, LockLevel
from ignis.locks.manager import LockManager

__all__ = ["Lock", "LockLevel", "LockManager"]
