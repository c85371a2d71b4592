"""One channel as the relay has it: the intake, what its label says, and the queue that its messages go to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ignis.app import Ignis
from ignis.errors import ConfigError
from ignis.magazine import Magazine
from ignis.native import Intake
from ignis.queue import Queue
from ignis.relay.channel_label import CODEC_FLAGS, Label

__all__ = ["Inlet", "Target"]

log = logging.getLogger("ignis.relay")

Target = tuple[str, float | None, int, bool]
"""Which messages may share a load: those of one magazine, time to live and number of shards, all of them delayed or none."""


class Inlet:
    """Made by `Inlet.of`. For the relay's one thread.

    Attributes:
        path: of the channel's file. label: what its producer wrote. intake: where the messages come from.
        delayed: whether they have due times.
    """

    def __init__(self, path: Path, intake: Intake, label: Label) -> None:
        self.path = path
        self.intake = intake
        self.label = label
        self.codec = CODEC_FLAGS[label.codec]
        self.delayed = label.delayed
        self._magazine: Magazine[Any] | None = None

    @classmethod
    def of(cls, path: Path, intake: Intake, client_id: str, farm_id: str) -> Inlet:
        """Reads the label. Raises ConfigError: it makes no sense, or names another application than the relay's."""
        label = Label.parse(intake.label)
        if (label.client_id, label.farm_id) != (client_id, farm_id):
            raise ConfigError(
                f"the producer is of client_id={label.client_id!r}, farm_id={label.farm_id!r}; "
                f"this relay serves {client_id!r}, {farm_id!r}"
            )
        return cls(path, intake, label)

    def magazine(self, app: Ignis) -> Magazine[Any]:
        """Where the messages go; registers the queue in the store when it is new.

        Raises QueueMismatchError, ConfigError: the queue exists with other settings. StoreError.
        """
        if self._magazine is None:
            label = self.label
            kind = bytes if label.codec == "raw" else None
            queue: Queue[Any] = Queue(app.context, label.queue, kind, {"codec": label.codec, **label.settings})
            queue.open()
            self._magazine = queue.main
        return self._magazine

    def forget_magazine(self) -> None:
        """The queue is gone from the store: the next message registers it anew."""
        self._magazine = None

    @staticmethod
    def target_of(magazine: Magazine[Any], delayed: bool) -> Target:
        return magazine.name, magazine.ttl_s, magazine.shards, delayed

    def finished(self) -> bool:
        """The producer is gone, and everything it had sent was taken. Raises NativeError when the file was damaged."""
        self.intake.check_size()
        # In this order: what it sent before it went is there when it is seen to be gone.
        return not self.intake.producer_alive() and self.intake.depth() == 0

    def __repr__(self) -> str:
        return f"<Inlet {self.path.name}>"
