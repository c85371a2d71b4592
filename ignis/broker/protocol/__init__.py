"""The wire protocol between brokers and clients: bytes and states, no socket, no event loop."""
