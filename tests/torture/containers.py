"""Children that live as in containers: each in a pid namespace of its own, where it is process 1 and sees nobody else.

All of them share the file system and nothing by which one could ask for the other's pid. Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator

from tests.torture.process import Child, Role

__all__ = ["contained", "unavailable"]

_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000
_MS_PRIVATE_AND_BELOW = 1 << 18 | 1 << 14


def _call(name: str, *arguments: object) -> None:
    """A call of the C library that says by -1 that it failed."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


@contextlib.contextmanager
def _children_in_a_new_namespace() -> Iterator[None]:
    """What is forked inside becomes process 1 of a new pid namespace; the caller stays in its own."""
    with open("/proc/self/ns/pid") as own:
        _call("unshare", _CLONE_NEWPID)
        try:
            yield
        finally:
            _call("setns", own.fileno(), _CLONE_NEWPID)


def _mount_own_proc() -> None:
    """/proc shows the namespace of this process, as in a container, and no longer that of the machine."""
    _call("unshare", _CLONE_NEWNS)
    _call("mount", None, b"/", None, ctypes.c_ulong(_MS_PRIVATE_AND_BELOW), None)
    _call("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(0), None)
    if os.getpid() != 1 or os.readlink("/proc/self") != "1":
        raise RuntimeError(f"process {os.getpid()} is not alone: /proc/self is {os.readlink('/proc/self')}")


def contained(role: Role, name: str = "child", prepare: Callable[[], None] | None = None) -> Child:
    """`Child`, in a pid namespace of its own. Raises OSError without the rights for one."""

    def enter() -> None:
        _mount_own_proc()
        if prepare is not None:
            prepare()

    with _children_in_a_new_namespace():
        return Child(role, name, enter)


def unavailable() -> str:
    """Why there can be no such children here, or nothing: tried, since containers often forbid it to their root."""
    try:
        with contained(lambda _: None, "probe") as child:
            return f"no pid namespaces here: {child.trouble(300)}" if child.join(None) else ""
    except OSError as exc:
        return f"no pid namespaces here: {exc}"
