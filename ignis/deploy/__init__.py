"""Files to run ignis with: units of systemd, a Dockerfile, manifests for Kubernetes, alerts and a dashboard.

They are in the wheel, so that who has installed ignis has those of the same version. ``ignis deploy-files DIRECTORY`` writes
them out; docs/deployment.md and docs/runbook.md say what each is for.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from ignis.errors import ConfigError
from ignis.regular_files import read_bytes

__all__ = ["FOLDERS", "files", "write"]

FOLDERS = ("docker", "grafana", "kubernetes", "prometheus", "systemd")
_HERE = Path(__file__).parent
_MODE = 0o644
"""None of them holds a secret, and other users read them: Prometheus, Grafana."""


def files() -> dict[str, bytes]:
    """Every file by its name below the directory, such as ``systemd/ignis-broker.service``, in order."""
    found = (path for folder in FOLDERS for path in (_HERE / folder).iterdir() if path.is_file())
    return {path.relative_to(_HERE).as_posix(): path.read_bytes() for path in sorted(found)}


def write(directory: Path, *, replace: bool = False) -> list[Path]:
    """Writes the files below ``directory``, which is made when it is not there, and returns their paths.

    A link that ``directory`` itself is, is followed; none below it is. Raises ConfigError, and writes nothing, for a folder that
    is a link, and when a file is there with another content, or is a link, and ``replace`` is false. Raises OSError.
    """
    wanted = {directory / name: content for name, content in files().items()}
    for folder in FOLDERS:
        if (directory / folder).is_symlink():
            raise _is_link(directory / folder)
    if not replace:
        changed = [str(path) for path, content in wanted.items() if _differs(path, content)]
        if changed:
            raise ConfigError(
                f"{', '.join(changed)}: there already, with another content; name another directory, or say --replace"
            )
    directory.mkdir(0o755, parents=True, exist_ok=True)
    for path, content in wanted.items():
        path.parent.mkdir(0o755, exist_ok=True)
        _put(path, content)
    return list(wanted)


def _differs(path: Path, content: bytes) -> bool:
    """A link is none of ours, wherever it leads."""
    return path.is_symlink() or (path.exists() and read_bytes(path) != content)


def _put(path: Path, content: bytes) -> None:
    """By a name of its own first: who reads the file meanwhile gets all of the old one or all of the new one. Follows no link
    below the directory, also one that somebody makes meanwhile."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        if path.parent.is_symlink():
            raise _is_link(path.parent) from exc
        raise
    beside = f".{path.name}.{secrets.token_hex(8)}"
    try:
        made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE, dir_fd=folder)
        try:
            with open(made, "wb") as file:
                file.write(content)
                os.fchmod(made, _MODE)
            os.replace(beside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def _is_link(path: Path) -> ConfigError:
    return ConfigError(f"{path}: a symbolic link, which is not followed; name another directory, or remove the link")
