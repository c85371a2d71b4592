"""Folders on whatever file system Spark reaches, by way of Hadoop's own client: listing, moving, making durable.

A finished folder appears in one step: it is written beside its place, in a name that readers pass over, and moved.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ignis.errors import ConfigError, IgnisError
from ignis.spark._pyspark import SparkSession

__all__ = ["File", "Files", "literal"]

_HIDDEN = ("_", ".")
_STAGING = "_staging-"


_SPECIAL = re.compile(r"([\\*?{}\[\]])")


def literal(path: str) -> str:
    """A path as a pattern that finds it and nothing else."""
    return _SPECIAL.sub(r"\\\1", path)


class File(NamedTuple):
    """A file, and what tells whether it is still the same."""

    path: str
    size_bytes: int
    modified_ms: int


class Files:
    """File systems as a session sees them. Of the driver; for one thread.

    Args:
        spark: a session with a JVM of its own (not Spark Connect).
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    def find(self, patterns: Sequence[str]) -> list[File]:
        """The files that the patterns name, folders looked through, sorted by path. Hidden ones are left out.

        Raises:
            ConfigError: a pattern finds nothing.
        """
        found: dict[str, File] = {}
        for pattern in patterns:
            path, system = self._open(pattern)
            here = {one.path: one for status in system.globStatus(path) or () for one in self._below(system, status)}
            if not here:
                raise ConfigError(f"ingest.paths: {pattern!r} finds no file")
            found.update(here)
        return sorted(found.values())

    def is_still(self, file: File) -> bool:
        """Whether the file is there, as large and as old as it was."""
        where, system = self._open(file.path)
        return bool(system.exists(where)) and _file(system.getFileStatus(where)) == file

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        where, system = self._open(path)
        return bool(system.exists(where))

    def sizes(self, path: str) -> list[int]:
        """The sizes of the files below a folder, in bytes; hidden ones left out."""
        where, system = self._open(path)
        return [one.size_bytes for one in self._below(system, system.getFileStatus(where), top=True)]

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with all that is in it. What is not there is fine."""
        where, system = self._open(path)
        system.delete(where, True)

    def stage(self, folder: str, name: str) -> str:
        """A hidden folder of this attempt's own in ``folder``; what earlier attempts of that name left is removed.

        Of its own, because an attempt that was given up may not have noticed yet: what it still writes lands in its own.
        """
        pattern, system = self._open(f"{folder}/{_STAGING}{name}-*")
        for status in system.globStatus(pattern) or ():
            system.delete(status.getPath(), True)
        return f"{folder}/{_STAGING}{name}-{secrets.token_hex(4)}"

    def put_in_place(self, staged: str, place: str) -> None:
        """Makes a staged folder durable and moves it to its place, which must be free; durable on return.

        On a local file system every file and folder is flushed, so that what is there survives a power cut. HDFS and
        object stores keep what was closed by their own rules.
        """
        source, system = self._open(staged)
        target, _ = self._open(place)
        local = str(system.getScheme()) == "file"
        if local:
            _flush_tree(str(source.toUri().getPath()))
        system.mkdirs(target.getParent())
        # A folder that is there would take the other one in instead of giving way.
        if system.exists(target) or not system.rename(source, target):
            raise IgnisError(f"cannot move {staged} to {place}: is it there already?")
        if local:
            _flush_to_root(str(target.getParent().toUri().getPath()))

    def _open(self, path: str) -> tuple[Any, Any]:
        where = self._jvm.org.apache.hadoop.fs.Path(path)
        system = where.getFileSystem(self._conf)
        return system.makeQualified(where), system

    def _below(self, system: Any, status: Any, *, top: bool = True) -> Iterator[File]:
        path = status.getPath()
        if not top and path.getName().startswith(_HIDDEN):
            return
        if status.isFile():
            yield _file(status)
            return
        for child in system.listStatus(path):
            yield from self._below(system, child, top=False)


def _file(status: Any) -> File:
    return File(status.getPath().toString(), int(status.getLen()), int(status.getModificationTime()))


def _flush_tree(top: str) -> None:
    for folder, _, names in os.walk(top, topdown=False):
        for name in names:
            _flush(os.path.join(folder, name))
        _flush(folder)


def _flush_to_root(folder: str) -> None:
    """The folder and those above it: which of them are new is not known, and flushing an old one costs little."""
    while True:
        try:
            _flush(folder)
        except PermissionError:
            return  # not ours to read, so not made by us
        parent = os.path.dirname(folder)
        if parent == folder:
            return
        folder = parent


def _flush(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
