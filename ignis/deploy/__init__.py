"""Files to run ignis with: units of systemd, a Dockerfile, manifests for Kubernetes, alerts and a dashboard.

They are in the wheel, so that who has installed ignis has those of the same version. ``ignis deploy-files DIRECTORY`` writes
them out; docs/deployment.md and docs/runbook.md say what each is for.
"""

from __future__ import annotations

import os
from pathlib import Path

from ignis.errors import ConfigError

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

    Raises ConfigError, and writes nothing, when one is there with another content and ``replace`` is false. Raises OSError.
    """
    wanted = {directory / name: content for name, content in files().items()}
    if not replace:
        changed = [str(path) for path, content in wanted.items() if path.exists() and path.read_bytes() != content]
        if changed:
            raise ConfigError(
                f"{', '.join(changed)}: there already, with another content; name another directory, or say --replace"
            )
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        # By a name of its own first: who reads the file meanwhile gets all of the old one or all of the new one.
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_bytes(content)
        beside.chmod(_MODE)
        beside.replace(path)
    return list(wanted)
