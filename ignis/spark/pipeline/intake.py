"""What an ingest reads, and by which description: which files are new, have grown or changed, and what a changed
description would do to rows that were read before."""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ignis.errors import ConfigError
from ignis.spark.pipeline.description import Description, Ingest
from ignis.spark.pipeline.files import File, Files
from ignis.spark.pipeline.progress import Progress
from ignis.spark.pipeline.runs import Run, Runs

__all__ = ["check_description", "check_memory", "choose_files", "described", "must_be_unchanged"]

_OF_IDS = ("name", "queue.name", "ingest.dedup", "ingest.scope", "ingest.format", "ingest.csv")
"""Parts of a description that ids depend on: when one changes, a row is another message."""
_OF_NOTHING = ("paths", "quarantine", "max_rejected")
"""Parts of ``[ingest]`` that change nothing in what is published."""


def described(description: Description) -> dict[str, str]:
    """Part of a description -> hash of what it says, for every part that decides what is published of a row."""
    ingest: dict[str, Any] = msgspec.to_builtins(description.ingest)
    said: dict[str, Any] = {"name": description.name, "queue.name": description.queue.name}
    said |= {f"ingest.{name}": value for name, value in ingest.items() if name not in _OF_NOTHING}
    schema: dict[str, Any] = msgspec.to_builtins(description.schema)
    said |= {f"schema.{name}": value for name, value in schema.items()}
    said["schema"] = list(schema)
    return {name: hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:16] for name, value in said.items()}


def check_description(description: Description, again: Sequence[Run]) -> None:
    """Raises ConfigError when rows of these runs, which are about to be read again, were read by another description."""
    now = described(description)
    for run in again:
        changed = sorted(name for name in {*now, *run.description} if now.get(name) != run.description.get(name))
        if not changed:
            continue
        what = ", ".join(changed) if run.description else "it is not known what: an older release has recorded it"
        effect = (
            "rows that it has published would be published again, under other ids"
            if not run.description
            or any(name == one or name.startswith(f"{one}.") for name in changed for one in _OF_IDS)
            or (
                "ingest.dedup" in now
                and any(name == f"schema.{column}" for name in changed for column in _dedup(description))
            )
            else "rows that it has published would stay as they are, the others would be published as described now"
        )
        raise ConfigError(
            f"run {run.id!r} read its rows by another description (changed: {what}): {effect}. Put the description back, or "
            "accept that (--accept-changes)"
        )


def _dedup(description: Description) -> tuple[str, ...]:
    return description.ingest.dedup if description.ingest is not None else ()


def must_be_unchanged(run: Run, files: Files) -> None:
    """Raises ConfigError when a file of an unfinished run does not hold what it held."""
    for one in run.files:
        now = files.now(one.path)
        same = now is not None and now.size_bytes == one.size_bytes
        if same and now is not None and now.modified_ms != one.modified_ms:
            same = bool(one.sha256) and files.digest(one.path, one.size_bytes) == one.sha256
        if not same:
            raise ConfigError(
                f"run {run.id!r} was begun with {one.path}, which is not what it was then; "
                "put it back, or begin a new run in its place (--new-run)"
            )


def check_memory(again: Sequence[Run], remembered_s: float) -> None:
    """Raises ConfigError when rows of these runs are about to be published again, and the store may have forgotten their ids.

    Args:
        remembered_s: how long it remembers ids.
    """
    now_ms = time.time_ns() // 1_000_000
    for run in again:
        # A record of an older release does not say when it began to publish.
        since_ms = run.publishing_since_ms or (run.started_at_ms if run.summary.get("accepted") else 0)
        if since_ms and now_ms - since_ms > remembered_s * 1_000:
            since = dt.datetime.fromtimestamp(since_ms / 1_000, dt.timezone.utc)
            raise ConfigError(
                f"run {run.id!r} began to publish at {since:%Y-%m-%d %H:%M:%S} UTC, and ids are remembered for "
                f"{remembered_s:,g} s (spark.remember_ids_s): rows that it has published would be "
                "published again. Accept that (--accept-changes)"
            )


def choose_files(
    runs: Runs, files: Files, part: Ingest, progress: Progress, *, everything: bool
) -> tuple[list[File], list[Run]]:
    """(the files that a new run reads, with their hashes; the earlier runs of which it reads rows again). ``progress`` is told
    what is not read again, or not whole.

    Raises ConfigError: a pattern finds no file.
    """
    read: dict[str, list[File]] = {}
    earlier = runs.all("ingest")
    for run in earlier:
        for one in run.files if run.done else ():
            read.setdefault(one.path, []).append(one)
    chosen = []
    whole: set[str] = set()
    for found in files.find(part.paths):
        before = read.get(found.path, [])
        if everything or not before:
            chosen.append(_hashed(files, found))
            whole.add(found.path)
            continue
        if any(one[:3] == found[:3] for one in before):
            continue
        now = _hashed(files, found)
        if any(one.size_bytes == now.size_bytes and one.sha256 == now.sha256 for one in before):
            progress.note(f"{now.path} was touched, and holds what an earlier run has read: it is not read again")
            continue
        head = _grown_from(files, now, before) if part.format != "parquet" else None
        if head is not None:
            progress.note(f"{now.path} has grown since it was read: it is read from line {head.lines + 1} on")
            now = now._replace(first_line=head.lines)
        else:
            progress.note(f"{now.path} has changed since it was read: it is read whole")
            whole.add(now.path)
        chosen.append(now)
    # A run that was not finished may have published rows of any file that it had.
    every = {one.path for one in chosen}
    again = [run for run in earlier if any(one.path in (whole if run.done else every) for one in run.files)]
    return chosen, again


def _hashed(files: Files, file: File) -> File:
    return file._replace(sha256=files.digest(file.path, file.size_bytes))


def _grown_from(files: Files, file: File, before: Sequence[File]) -> File | None:
    """The longest of the earlier states that the file begins with, if lines ended there."""
    for one in sorted(before, key=lambda one: one.size_bytes, reverse=True):
        if not (one.size_bytes < file.size_bytes and one.sha256 and one.lines >= 0):
            continue
        if files.digest(file.path, one.size_bytes) == one.sha256 and files.ends_line(file.path, one.size_bytes):
            return one
    return None
