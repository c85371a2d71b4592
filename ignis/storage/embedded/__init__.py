"""The embedded store: one directory, any number of processes, LMDB underneath."""

from ignis.storage.embedded.options import StoreOptions
from ignis.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore", "StoreOptions"]
