"""The channels that a relay collects from: they come, they finish, and some are refused."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from ignis.app import Ignis
from ignis.errors import ConfigError, NativeError, RegionBusyError, RegionIOError
from ignis.log_format import event_text
from ignis.native import Intake
from ignis.relay.channel_reader import Inlet
from ignis.relay.directory import RelayDirectory

__all__ = ["Roster"]

log = logging.getLogger("ignis.relay")


class Roster:
    """For the relay's one thread. Iterates over the inlets in the order in which they came.

    Args:
        directory: where the channels are.
        app: whose messages they have.
        most: channels at a time; further ones wait until others finish.
    """

    def __init__(self, directory: RelayDirectory, app: Ignis, most: int) -> None:
        self._directory = directory
        self._app = app
        self._most = most
        self._inlets: dict[Path, Inlet] = {}
        self._ignored: dict[Path, str] = {}
        self.figures = dict.fromkeys(("taken_up", "finished", "refused"), 0)

    def __iter__(self) -> Iterator[Inlet]:
        return iter(self._inlets.values())

    def __len__(self) -> int:
        return len(self._inlets)

    def waiting(self) -> int:
        """Messages in all channels that no load has yet; a channel that cannot be read counts as one, to be looked at."""
        return sum(map(_waiting, self._inlets.values()))

    def scan(self) -> None:
        """Takes up new channels, and lets go of those whose producers are gone."""
        for inlet in list(self):
            try:
                if inlet.finished():
                    self._finish(inlet)
            except NativeError as exc:
                self.refuse(inlet, exc)
        present = self._directory.channel_files()
        for path in present:
            if path not in self._inlets and len(self._inlets) < self._most:
                self._take_up(path)
        for path in self._ignored.keys() - set(present):
            del self._ignored[path]

    def _take_up(self, path: Path) -> None:
        try:
            intake = Intake.open(path)
        except (RegionBusyError, RegionIOError, MemoryError) as exc:
            if self._ignored.get(path) != str(exc):  # once, not at every scan
                log.warning(event_text("channel_not_taken_up", "channel %s cannot be taken up now: %s"), path.name, exc)
                self._ignored[path] = str(exc)
            return
        except NativeError as exc:
            self._set_aside(path, exc)
            return
        try:
            self._inlets[path] = Inlet.of(path, intake, self._app.client_id, self._app.farm_id)
        except (NativeError, ConfigError) as exc:
            self._refuse(path, intake, exc)
        else:
            self.figures["taken_up"] += 1
            log.debug(event_text("channel_taken_up", "channel %s taken up"), path.name)

    def _finish(self, inlet: Inlet) -> None:
        del self._inlets[inlet.path]
        inlet.intake.close()
        inlet.path.unlink(missing_ok=True)
        self.figures["finished"] += 1
        log.debug(event_text("channel_finished", "channel %s is finished"), inlet.path.name)

    def refuse(self, inlet: Inlet, why: Exception) -> None:
        """Takes no more from this channel: the file is set aside, then its producer is told."""
        self._inlets.pop(inlet.path, None)
        self._refuse(inlet.path, inlet.intake, why)

    def _refuse(self, path: Path, intake: Intake, why: Exception) -> None:
        intake.let_go()
        self._set_aside(path, why)
        with contextlib.suppress(NativeError):
            intake.refuse()
        intake.close()

    def _set_aside(self, path: Path, why: Exception) -> None:
        self.figures["refused"] += 1
        log.error(event_text("channel_set_aside", "channel %s is set aside: %s"), path.name, why)
        try:
            self._directory.set_aside(path, f"{type(why).__name__}: {why}")
        except OSError as exc:
            log.error(event_text("channel_not_set_aside", "channel %s cannot be set aside: %s"), path.name, exc)

    def close(self) -> None:
        """Gives all channels back; what is in them waits for the next relay."""
        for inlet in self:
            inlet.intake.close()
        self._inlets.clear()


def _waiting(inlet: Inlet) -> int:
    try:
        return inlet.intake.waiting
    except NativeError:
        return 1  # the next turn will see what it is
