"""A file system of its own, in an image file on a loop device, that can be cut off as if the power had failed.

The shutdown ioctl stops a file system at once without writing its log; what was not made durable by then is lost at
the unmount. The image lives on another file system and keeps exactly what had been written to the device.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

__all__ = ["FILE_SYSTEMS", "Volume", "unavailable"]

FILE_SYSTEMS = {
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "ext4": ["mkfs.ext4", "-q", "-F"],
}
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, u32), the same number on XFS and ext4
_NO_LOG_FLUSH = 2
_STEP_TIMEOUT_S = 60


def _run(*command: str) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_STEP_TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()}")


def unavailable(kind: str = "xfs") -> str | None:
    """Why such a volume cannot be used here, or None when it can. Tries it once."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which(FILE_SYSTEMS[kind][0], path=_search_path()) is None:
        return f"{FILE_SYSTEMS[kind][0]} is not installed"
    if not os.path.exists("/dev/loop-control"):
        return "no loop devices"
    try:
        with tempfile.TemporaryDirectory(prefix="ignis-volume-") as directory, Volume(Path(directory), kind):
            return None
    except (OSError, subprocess.SubprocessError) as exc:
        return f"a {kind} volume cannot be mounted: {exc}"


def _is_backed_by(device: str, image: Path) -> bool:
    """Somebody else may have got the device since it was let go: then it is another image's."""
    try:
        backing = Path(f"/sys/block/{device}/loop/backing_file").read_text().rstrip("\n")
    except OSError:
        return False
    return backing.removesuffix(" (deleted)") == os.path.realpath(image)


def _device_at(path: Path) -> str:
    """The name of the block device of the file system that is mounted there."""
    device = os.stat(path).st_dev
    return os.path.basename(os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))


def _search_path() -> str:
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


class Volume:
    """One image and its mount point under ``directory``. Use as a context manager: it is unmounted at the end.

    Args:
        directory: where ``image`` and ``mount`` are created; on a file system that is not cut.
        kind: "xfs" or "ext4".
        size_mb: of the sparse image. XFS refuses less than 300 MB.
        options: more of them for the program that makes the file system.
        page_requests: the device below is asked for a page at a time. Where its image finds no room in the middle of a
            longer request, Linux's loop driver says that all of it was written (``lo_complete_rq`` takes a short write for
            done), and the flush behind it says so too: a disk that lies, which no store can help.
    """

    def __init__(
        self,
        directory: Path,
        kind: str = "xfs",
        size_mb: int = 320,
        options: Sequence[str] = (),
        *,
        page_requests: bool = False,
    ) -> None:
        self.kind = kind
        self.path = directory / "mount"
        self._directory = directory
        self._image = directory / "image"
        self._former: Volume | None = None
        self._options: tuple[str, ...] = ("loop",)
        self._more = options
        self._size_bytes = size_mb << 20
        self._page_requests = page_requests
        self._device = ""
        self._mounted = False

    def __enter__(self) -> Volume:
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self._image, "wb") as image:
            image.truncate(self._size_bytes)
        program, *options = FILE_SYSTEMS[self.kind]
        _run(shutil.which(program, path=_search_path()) or program, *options, *self._more, str(self._image))
        self.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mounted:
            self.unmount()
        self._image.unlink(missing_ok=True)

    def mount(self) -> None:
        """Mounts it; after a cut this replays the file system's own log, as the machine's next start would."""
        _run("mount", "-o", ",".join(self._options), str(self._image), str(self.path))
        self._mounted = True
        self._device = _device_at(self.path)
        if self._page_requests:
            limit = Path(f"/sys/block/{self._device}/queue/max_sectors_kb")
            limit.write_text(str(os.sysconf("SC_PAGE_SIZE") // 1024))

    def cut(self) -> float:
        """The power fails now. Returns the monotonic time just before, in seconds.

        Processes that still use the volume get EIO, or SIGBUS from mapped files, and must be killed before `restart`.
        """
        at = time.monotonic()
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(handle)
        return at

    def snapshot(self) -> Volume:
        """A copy of the device as it is, mounted elsewhere under ``directory``. After a `cut`: nothing is written any more."""
        made = Volume(self._directory / f"snapshot-{time.monotonic_ns()}", self.kind)
        made.path.mkdir(parents=True)
        _run("cp", "--sparse=always", str(self._image), str(made._image))
        made._former = self
        if self.kind == "xfs":
            made._options = ("loop", "nouuid")  # the one that was copied is mounted too
        made.mount()
        return made

    def forget_snapshots(self) -> None:
        """Takes away what `snapshot` made on the way to this one, and this one when it was made so."""
        one: Volume = self
        while one._former is not None:
            one.unmount()
            one._image.unlink(missing_ok=True)
            one = one._former

    def unmount(self) -> None:
        """Unmounts, waiting for killed processes to let go; as a last resort detaches the mount point."""
        deadline = time.monotonic() + _STEP_TIMEOUT_S
        while True:
            try:
                _run("umount", str(self.path))
                break
            except OSError:
                if time.monotonic() > deadline:
                    ctypes.CDLL(None).umount2(os.fsencode(self.path), 2)  # MNT_DETACH
                    self._mounted = False
                    raise
                time.sleep(0.02)
        self._mounted = False
        # The kernel lets go of the device a little later, and whoever mounts the image before that gets the device as it is,
        # with what it holds in memory. A mount namespace that somebody made meanwhile has a copy of the mount and holds it too.
        deadline = time.monotonic() + _STEP_TIMEOUT_S
        while self._device and _is_backed_by(self._device, self._image):
            if time.monotonic() > deadline:
                raise OSError(f"{self._device} is not released")
            time.sleep(0.02)

    def restart(self) -> None:
        """Unmounts and mounts again: everything that was only in memory is gone."""
        self.unmount()
        self.mount()
