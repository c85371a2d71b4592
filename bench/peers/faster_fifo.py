"""faster-fifo: a shared-memory queue for multiprocessing. Bytes need no pickling, so both converters are `bytes`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.base import ChannelPeer, Receiver, Sender, require_module

_TIMEOUT_S = 30.0
_BUFFER_BYTES = 16 << 20


class FasterFifo(ChannelPeer):
    name = "faster-fifo"
    how = "put / get, loads = dumps = bytes"
    how_bulk = "put_many / get_many, loads = dumps = bytes"
    has_bulk = True

    def require(self) -> None:
        require_module("faster_fifo", "faster-fifo")

    def link(self, directory: Path, max_message_bytes: int) -> Any:
        import faster_fifo

        return faster_fifo.Queue(max_size_bytes=_BUFFER_BYTES, loads=bytes, dumps=bytes)

    def sender(self, link: Any) -> Sender:
        # The plain methods, with their default time-out of 10 s: a keyword costs such short calls a measurable share.
        return Sender(send=link.put, send_many=link.put_many)

    def receiver(self, link: Any) -> Receiver:
        return Receiver(recv=link.get, recv_many=partial(link.get_many, True, _TIMEOUT_S))
