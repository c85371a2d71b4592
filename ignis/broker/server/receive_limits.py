"""What was received, over all connections of a broker: the memory of frames that still arrive and of requests that wait for the
store, publishes included, and for how long a frame may arrive.

A connection's own memory grows as the bytes of a frame come, up to ``max_frame_bytes``. What all of them hold together, with
what waits for the store, is bounded here: above ``max_receive_bytes`` a connection whose frame needs more memory stands in line
and is not read until others gave some back. One at a time, the first in line, goes on regardless of other frames that arrive:
nobody waits for somebody who waits too. It does not go on regardless of what waits for the store, which gets less by itself.
Time bounds the rest, so that nobody holds memory, or the others up, by being slow or by saying nothing:

* a frame has ``frame_timeout_s`` to arrive, and as long again for every MiB of it;
* while others stand in line, what came of it, if it is 4 KiB or more, must have come ten times as fast;
* who has stood in line for ``frame_timeout_s`` and is not the first makes room for those behind it. So one that came
  last among many who only hold memory is served when their time is over. Time in which the line waits for the store does not
  count: that is nobody's fault who stands in it.
"""

from __future__ import annotations

from typing import Protocol

from ignis.native.wire import FrameReader, ReadArea

__all__ = ["ReceiveLimits"]

_NARROW_BYTES = 4_096
"""What a connection may read at once while the memory is used up: all of it may be the beginning of a frame."""
_HURRIED_BYTES = 16_384
"""The same while connections wait for their turns."""
_REASON = "receive"
_HURRY = 10
_TIME = "broker.frame_timeout_s"
_BOTH = f"broker.max_receive_bytes, {_TIME}"


class Sends(Protocol):
    """A connection that sends frames."""

    peer: str

    def end(self, exc: BaseException | None = None) -> None: ...
    @property
    def arriving(self) -> FrameReader: ...
    @property
    def unread(self) -> bool: ...
    def pause(self, reason: str) -> None: ...
    def resume(self, reason: str) -> None: ...


class ReceiveLimits:
    """Bounds the memory of frames that are still arriving at one broker. Belongs to its event loop.

    Args:
        area: what its connections read into.
        limit_bytes: ``max_receive_bytes``.
        timeout_s: ``frame_timeout_s``.
    """

    def __init__(self, area: ReadArea, limit_bytes: int, timeout_s: float) -> None:
        self._area = area
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._wide_bytes = area.read_bytes
        self._narrow = False
        """The memory is used up: each read takes little."""
        self._hurried = False
        self._since: dict[Sends, float] = {}
        """When the frame that is not complete began, less the time in which its connection was not read."""
        self._line: dict[Sends, float] = {}
        """Who stands in line, in order, and since when."""
        self._favoured: Sends | None = None
        self._promised: dict[Sends, int] = {}
        """Who reads on, and the memory that its next read takes: others ask before it does. Not of the favoured one."""
        self._promised_bytes = 0
        self.backlog_bytes = 0
        """Of requests that wait for the store or are at it, and of what is to be published."""
        self._looked_s: float | None = None

    @property
    def held_bytes(self) -> int:
        """Memory of incomplete frames, and of requests that are not carried out yet."""
        return self._area.carried_bytes + self.backlog_bytes

    @property
    def crowded(self) -> bool:
        """Whether more waits for the store than there is to be."""
        return self.backlog_bytes > self._limit_bytes

    def count_backlog(self, size: int) -> None:
        """A request waits for the store from now on; with a negative ``size``, it has been there."""
        self.backlog_bytes += size
        if size < 0:
            if self._line or self._narrow:
                self._go_on()
        elif not self._narrow and self.backlog_bytes > self._limit_bytes:
            self._look_at_reads()

    @property
    def waiting(self) -> int:
        """Connections that stand in line."""
        return len(self._line)

    def read(self, session: Sends, finished: bool, now: float) -> None:
        """A connection has read.

        Args:
            finished: at least one frame became complete with it.
            now: seconds, of the event loop's clock.
        """
        arriving = session.arriving
        self._keep_promise(session)
        if not arriving.buffered_bytes:
            if self._since.pop(session, None) is None:
                return
        elif finished or session not in self._since:
            self._since[session] = now
        if finished and session is self._favoured:
            self._favoured = None
        needs = arriving.needs_bytes
        if needs and session is not self._favoured:
            if self._line or not self._fits(needs):
                self._line[session] = now
                session.pause(_REASON)
            else:
                self._promise(session, needs)
        self._go_on()

    def left(self, session: Sends) -> None:
        """A connection is gone: what it held is given back."""
        session.arriving.close()
        self._since.pop(session, None)
        self._line.pop(session, None)
        self._keep_promise(session)
        if session is self._favoured:
            self._favoured = None
        self._go_on()

    def overdue(self, now: float) -> list[tuple[Sends, str]]:
        """Connections that are to be closed, and what to tell them. To be called several times a second."""
        passed = 0.0 if self._looked_s is None else now - self._looked_s
        self._looked_s = now
        late = []
        room = self._limit_bytes - self.held_bytes
        for session, since in self._since.items():
            size, came = session.arriving.frame_bytes, session.arriving.buffered_bytes
            if session.unread:
                self._since[session] = min(now, since + passed)
            elif now - since > self._allowed_s(size):
                late.append((session, f"a frame of {size} bytes did not arrive in time ({_TIME})"))
            elif self._line and came >= _NARROW_BYTES and now - since > self._allowed_s(came) / _HURRY:
                late.append((session, f"others wait for the memory of a frame that arrives slowly ({_BOTH})"))
        room += sum(session.arriving.buffered_bytes for session, _ in late)
        if (
            self._favoured is None
        ):  # the line waits for the store alone, else `_go_on` would have let the first one pass
            self._line = {session: min(now, since + passed) for session, since in self._line.items()}
        for place, (session, since) in enumerate(self._line.items()):
            needs = session.arriving.needs_bytes
            if needs <= room:
                room -= needs
            elif place and now - since > self._timeout_s:
                late.append((session, f"no memory for a frame of {session.arriving.frame_bytes} bytes ({_BOTH})"))
                room += session.arriving.buffered_bytes
        return late

    def _allowed_s(self, size: int) -> float:
        return self._timeout_s * (1 + size / (1 << 20))

    def _fits(self, needs: int) -> bool:
        return self.held_bytes + self._promised_bytes + needs <= self._limit_bytes

    def _promise(self, session: Sends, needs: int) -> None:
        self._promised[session] = needs
        self._promised_bytes += needs

    def _keep_promise(self, session: Sends) -> None:
        """It has the memory, or is gone."""
        self._promised_bytes -= self._promised.pop(session, 0)

    def _has_room_for(self, arriving: FrameReader) -> bool:
        """Whether a whole frame may wait for the store beside what does already. One that is hardly smaller than the limit must
        come through too, while others are asked for all the time and hold what they have begun."""
        others = self.held_bytes - arriving.buffered_bytes
        return others + arriving.frame_bytes <= self._limit_bytes or self.backlog_bytes <= self._limit_bytes // 4

    def _go_on(self) -> None:
        """Reads again from those that stand in line, in order, as far as there is memory."""
        while self._line:
            first = next(iter(self._line))
            needs = first.arriving.needs_bytes
            if self._fits(needs):
                self._promise(first, needs)
            elif self._favoured is None and self._has_room_for(first.arriving):
                self._favoured = first
            else:
                break
            del self._line[first]
            first.resume(_REASON)
        self._look_at_reads()

    def hurry(self, hurried: bool) -> None:
        """Whether each read is to take little, so that what it brings holds nobody up."""
        self._hurried = hurried
        self._look_at_reads()

    def _look_at_reads(self) -> None:
        self._narrow = self.held_bytes > self._limit_bytes
        hurried_bytes = min(_HURRIED_BYTES, self._wide_bytes) if self._hurried else self._wide_bytes
        self._area.read_bytes = _NARROW_BYTES if self._narrow else hurried_bytes
