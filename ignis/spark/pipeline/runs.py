"""The record of each run: what it took on, how far it is, what came of it. What makes running again safe.

One small JSON file per run in the description's ``folder``, replaced as a whole and flushed; a lock file beside them lets
one program at a time run a pipeline of that name.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from ignis.config import check_name
from ignis.errors import ConfigError, LockHeldError
from ignis.file_lock import FileLock
from ignis.private_files import make_directory, open_private
from ignis.regular_files import read_bytes
from ignis.spark.pipeline.files import File
from ignis.storage.private_directory import check_way

__all__ = ["Run", "Runs"]

Kind = Literal["ingest", "export"]
_FORMAT = 1


class Run(msgspec.Struct, kw_only=True):
    """One run as recorded.

    Attributes:
        id: names the run's folders and its job in the store.
        kind: what it does.
        pipeline: the description's name.
        files: what an ingest reads, fixed when it begins.
        description: of an ingest: part of the description -> hash of what it said, for all that decides what is published.
        publishing_since_ms: of an ingest: when its first message may have been stored; 0 = none was.
        pointers: (shard, first, last) of what an export has in its files, fixed before they are moved to their place.
        incarnations: of the shards that these pointers are of (`ignis.storage.records.ShardState`): what leaves the queue later
            is what was read, and not what a queue that was made anew has at the same pointers.
        done: whether all that it promises is in place.
        summary: its figures; whole once it is done.
    """

    id: str
    kind: Kind
    pipeline: str
    format: int = _FORMAT
    started_at_ms: int = 0
    finished_at_ms: int = 0
    done: bool = False
    files: list[File] = []
    description: dict[str, str] = {}
    publishing_since_ms: int = 0
    pointers: list[tuple[int, int, int]] = []
    incarnations: dict[str, int] = {}
    summary: dict[str, Any] = {}


class Runs:
    """The records of one pipeline. For one thread of one process at a time; `locked` sees to the latter.

    Args:
        folder: where they are, on a local file system; made when it is not there.
        pipeline: the description's name.
    """

    def __init__(self, folder: str | os.PathLike[str], pipeline: str) -> None:
        self.folder = Path(folder) / pipeline
        self.pipeline = pipeline
        self._lock: FileLock | None = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes out. Raises ConfigError where another user could replace the folder, LockHeldError when one is at
        work; a dead one holds nothing. Within, what writes a
        record raises it too once the lock's file was removed or replaced, for then another may be at work."""
        for _ in range(2):  # what was made, too
            check_way(self.folder, "folder of the pipeline's records")
            for folder in (*reversed(self.folder.parents), self.folder):
                if not folder.exists():
                    make_directory(folder)
        path = self.folder / "lock"
        lock = FileLock.take(path)
        if lock is None:
            raise LockHeldError(f"another process runs pipeline {self.pipeline!r} (it holds {path})")
        self._lock = lock
        try:
            yield
        finally:
            self._lock = None
            lock.close()

    def begin(
        self,
        kind: Kind,
        run_id: str | None = None,
        files: list[File] | None = None,
        description: dict[str, str] | None = None,
    ) -> Run:
        """Records a new run. Raises ConfigError when there is one of that id."""
        if run_id is None:
            now = dt.datetime.now(dt.timezone.utc)
            run_id = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        run = Run(
            id=check_name(run_id, "run"),
            kind=kind,
            pipeline=self.pipeline,
            files=files or [],
            description=description or {},
        )
        if self.path(run).exists():
            raise ConfigError(f"run {run_id!r} of pipeline {self.pipeline!r} exists already")
        run.started_at_ms = time.time_ns() // 1_000_000
        self._write(run)
        return run

    def finish(self, run: Run, summary: dict[str, Any]) -> None:
        """Records that the run is done; durable on return."""
        run.done, run.summary, run.finished_at_ms = True, summary, time.time_ns() // 1_000_000
        self._write(run)

    def save(self, run: Run) -> None:
        """Records what has changed; durable on return."""
        self._write(run)

    def forget(self, run: Run) -> None:
        """Removes the record of a run that came to nothing."""
        self.path(run).unlink(missing_ok=True)

    def get(self, kind: Kind, run_id: str) -> Run | None:
        """The run of that id. Raises ConfigError when its record cannot be read."""
        path = self.folder / f"{kind}-{check_name(run_id, 'run')}.json"
        return _read(path) if path.exists() else None

    def all(self, kind: Kind) -> list[Run]:
        """All runs, the oldest first. Raises ConfigError for a record that cannot be read."""
        found = [_read(path) for path in self.folder.glob(f"{kind}-*.json")]
        return sorted(found, key=lambda run: (run.started_at_ms, run.id))

    def unfinished(self, kind: Kind) -> Run | None:
        """The oldest run that was begun and not finished: its process died, or it failed."""
        return next((run for run in self.all(kind) if not run.done), None)

    def path(self, run: Run) -> Path:
        """Of the run's record."""
        return self.folder / f"{run.kind}-{run.id}.json"

    def _write(self, run: Run) -> None:
        if self._lock is not None and not self._lock.valid:
            raise LockHeldError(f"{self._lock.path} was removed: another process may run pipeline {self.pipeline!r}")
        path = self.path(run)
        fresh = path.with_suffix(".new")
        with open(fresh, "wb", opener=open_private) as file:
            file.write(msgspec.json.format(msgspec.json.encode(run)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read(path: Path) -> Run:
    try:
        run = msgspec.json.decode(read_bytes(path), type=Run)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"the record of a run cannot be read: {path}: {exc}") from exc
    if run.format != _FORMAT:
        raise ConfigError(f"{path} is of format {run.format}, this version knows {_FORMAT}")
    return run
