"""The embedded store: one directory, any number of processes, a log in C for each durability class."""

from ignis.storage.engine.options import StoreOptions
from ignis.storage.engine.store import EmbeddedStore

__all__ = ["EmbeddedStore", "StoreOptions"]
