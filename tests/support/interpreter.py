"""Holding the interpreter lock, as an extension does that computes for long."""

from __future__ import annotations

import ctypes
import select
import struct

from tests.support import WAIT_S

__all__ = ["hold_interpreter"]


def hold_interpreter(fd: int) -> bool:
    """No other thread of Python's runs until something can be read from the descriptor; False: nothing came in time."""
    waits = ctypes.create_string_buffer(struct.pack("ihh", fd, select.POLLIN, 0))
    found: int = ctypes.PyDLL(None).poll(waits, 1, int(2 * WAIT_S * 1000))
    return found == 1
