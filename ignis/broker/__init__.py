"""The broker: the queues of a store behind one port, and its clients. ``docs/protocol.md`` is the wire between them."""
