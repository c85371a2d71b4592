"""How a process ended, in words."""

from __future__ import annotations

import signal

__all__ = ["ending"]


def ending(code: int) -> str:
    """``exit code 1`` or ``signal SIGKILL``, from what `subprocess` gives."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
