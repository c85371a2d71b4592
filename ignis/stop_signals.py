"""The signals that ask a process of ours to finish what it is at and end."""

from __future__ import annotations

import signal

__all__ = ["stop_signals"]


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT and SIGHUP, which a terminal sends at its end; not SIGHUP where it is ignored, as under ``nohup``."""
    asked = (signal.SIGTERM, signal.SIGINT)
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)
