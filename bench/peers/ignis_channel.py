"""ignis.native.Channel over a mapped region. `room` is the ring's capacity: a roomy one, or one that is always full."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from bench.peers.base import ChannelPeer, MissingError, Receiver, Sender

_OPEN_TIMEOUT_S = 30.0


class IgnisChannel(ChannelPeer):
    how = "Channel.send / recv, mapped region"
    how_bulk = "Channel.send_many / recv_many, mapped region"
    has_bulk = True

    def __init__(self, room: int = 65_536) -> None:
        self.room = room
        self.name = "ignis" if room >= 1024 else f"ignis, ring of {room}"

    def require(self) -> None:
        try:
            from ignis.native import Channel  # noqa: F401
        except ImportError as exc:
            raise MissingError(f"MISSING: ignis.native.Channel ({exc}); run: make build") from exc

    def link(self, directory: Path, max_message_bytes: int) -> Any:
        return str(directory / f"channel-{uuid.uuid4().hex[:12]}")

    def sender(self, link: Any) -> Sender:
        from ignis.native import Channel

        channel = Channel.create(link, role="producer", capacity=self.room)
        return Sender(send=channel.send, send_many=channel.send_many, close=channel.close)

    def receiver(self, link: Any) -> Receiver:
        from ignis.native import Channel

        channel = Channel.open(link, role="consumer", timeout=_OPEN_TIMEOUT_S)
        return Receiver(recv=channel.recv, recv_many=channel.recv_many, close=channel.close)
