"""pyzmq: a PUSH and a PULL socket over ipc://. Copying calls: zero-copy only pays near 100 kB."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.base import ChannelPeer, Receiver, Sender, require_module

_TIMEOUT_MS = 30_000
_HIGH_WATER_MARK = 65_536  # the same room as the other peers' rings


class PyzmqIpc(ChannelPeer):
    name = "pyzmq ipc"
    how = "PUSH send / PULL recv, copy=True"
    how_bulk = "PUSH send_multipart / PULL recv_multipart: one message of as many parts"
    has_bulk = True

    def require(self) -> None:
        require_module("zmq", "pyzmq")

    def link(self, directory: Path, max_message_bytes: int) -> Any:
        return f"ipc://{directory}/zmq-{uuid.uuid4().hex[:12]}"

    def sender(self, link: Any) -> Sender:
        import zmq

        context = zmq.Context()
        socket = context.socket(zmq.PUSH)
        socket.set_hwm(_HIGH_WATER_MARK)
        socket.sndtimeo = _TIMEOUT_MS
        # Closing waits for the last messages to leave, but not for ever.
        socket.linger = _TIMEOUT_MS
        socket.connect(link)
        return Sender(
            send=socket.send, send_many=partial(socket.send_multipart, copy=True), close=partial(context.destroy, None)
        )

    def receiver(self, link: Any) -> Receiver:
        import zmq

        context = zmq.Context()
        socket = context.socket(zmq.PULL)
        socket.set_hwm(_HIGH_WATER_MARK)
        socket.rcvtimeo = _TIMEOUT_MS
        socket.bind(link)

        def recv_many(limit: int) -> list[bytes]:
            return socket.recv_multipart()

        return Receiver(recv=socket.recv, recv_many=recv_many, close=partial(context.destroy, 0))
