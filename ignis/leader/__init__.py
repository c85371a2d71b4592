"""Who runs the tasks that only one instance may run.

A `Leadership` is one candidate for one scope, behind one interface whoever decides: a file lock where all instances share
a directory (`file`), a lock in the store that ends by itself (`lease`), or ZooKeeper (`zookeeper`). The epoch, which
every control-plane write carries and the store checks, keeps a leader that was replaced from writing, however late it
notices. See ``docs/leader.md``.
"""

from ignis.leader.base import Leadership, LeaderStatus, SoleLeader
from ignis.leader.choose import Deciders, make_leader
from ignis.leader.file import FileLeader
from ignis.leader.lease import LeaseLeader

__all__ = [
    "Deciders",
    "FileLeader",
    "LeaderStatus",
    "Leadership",
    "LeaseLeader",
    "SoleLeader",
    "make_leader",
]
