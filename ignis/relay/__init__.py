"""The relay: producers leave messages in shared memory, one process carries them into the store.

`ignis.relay.store` and `ignis.relay.publisher` are the producers' side, reached through ``Ignis("relay:///directory")``;
`ignis.relay.daemon` is the process. See ``docs/relay.md``.
"""

from ignis.relay.daemon import Relay

__all__ = ["Relay"]
