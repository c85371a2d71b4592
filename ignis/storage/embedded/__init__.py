"""The embedded store: one directory, any number of processes, a log in C for each durability class."""

from ignis.storage.embedded.options import StoreOptions
from ignis.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore", "StoreOptions"]
