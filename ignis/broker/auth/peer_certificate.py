"""Who is at the other end of a connection, and whether it is still there."""

from __future__ import annotations

import socket
from typing import Any

__all__ = ["common_name", "keep_alive"]


def keep_alive(sock: Any, idle_s: float) -> None:
    """Has the system ask a silent peer for a sign of life: one that has vanished is noticed within about ``2 * idle_s``."""
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, int(idle_s / 3))
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, name):  # macOS has another name for the first
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    if hasattr(socket, "TCP_KEEPCNT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def common_name(certificate: Any) -> str:
    """Whom a verified certificate names; empty when nobody, or several: others may take another one of them for the name."""
    found = [str(value) for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return found[0] if len(found) == 1 else ""
