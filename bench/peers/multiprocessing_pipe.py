"""multiprocessing.Pipe: the standard library's own channel, with its bytes calls (no pickling)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.peers.base import ChannelPeer, Receiver, Sender
from bench.processes import CONTEXT


class MultiprocessingPipe(ChannelPeer):
    name = "multiprocessing.Pipe"
    how = "send_bytes / recv_bytes, one-way pipe"

    def link(self, directory: Path, max_message_bytes: int) -> Any:
        return CONTEXT.Pipe(duplex=False)

    def sender(self, link: Any) -> Sender:
        reader, writer = link
        reader.close()
        return Sender(send=writer.send_bytes, close=writer.close)

    def receiver(self, link: Any) -> Receiver:
        reader, writer = link
        writer.close()
        return Receiver(recv=reader.recv_bytes, close=reader.close)
