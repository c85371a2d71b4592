"""Folders on whatever file system Spark reaches, by way of Hadoop's own client: listing, moving, making durable.

A finished folder appears in one step: it is written beside its place, in a name that readers pass over, and moved.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ignis.errors import ConfigError, IgnisError
from ignis.private_files import make_directory
from ignis.regular_files import regular_only
from ignis.spark._pyspark import SparkSession
from ignis.storage.private_directory import check_way

__all__ = ["File", "Files", "literal"]

_HIDDEN = ("_", ".")
_STAGING = "_staging-"
_WRITTEN = "written"
_LONGEST_HEADER = 1 << 24


_SPECIAL = re.compile(r"([\\*?{}\[\]])")


def literal(path: str) -> str:
    """A path as a pattern that finds it and nothing else."""
    return _SPECIAL.sub(r"\\\1", path)


class File(NamedTuple):
    """A file, and what tells whether it is still the same.

    ``sha256`` of what it held, empty where an older release has recorded it; ``lines``, how many those are, -1 = not known
    (yet); ``first_line``, from which on a run reads it: what stands before was read by an earlier one.
    """

    path: str
    size_bytes: int
    modified_ms: int
    sha256: str = ""
    lines: int = -1
    first_line: int = 0


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
            try:
                path, system = self._open(pattern)
                here = {
                    one.path: one for status in system.globStatus(path) or () for one in self._below(system, status)
                }
            except Exception as exc:  # of the JVM
                if "Relative path in absolute URI" in str(exc):
                    name = str(exc).split("Relative path in absolute URI: ", 1)[1].split("\n", 1)[0]
                    raise ConfigError(
                        f"ingest.paths: {pattern!r} meets a file named {name!r}: Hadoop's file systems take no colon "
                        "in a name; give the file another one"
                    ) from exc
                raise
            if not here:
                raise ConfigError(f"ingest.paths: {pattern!r} finds no file")
            found.update(here)
        return sorted(found.values())

    def now(self, path: str) -> File | None:
        """The file as it is now; None when it is not there."""
        where, system = self._open(path)
        return _file(system.getFileStatus(where)) if system.exists(where) else None

    def digest(self, path: str, size_bytes: int) -> str:
        """SHA-256 of the file's first bytes, in hexadecimal."""
        local = self.local(path)
        if local is not None:
            found = hashlib.sha256()
            with open(local, "rb", buffering=0, opener=regular_only) as file:
                for block in _blocks(file, size_bytes):
                    found.update(block)
            return found.hexdigest()
        where, system = self._open(path)
        stream = system.open(where)
        try:
            bounded = self._jvm.org.apache.commons.io.input.BoundedInputStream(stream, size_bytes)
            return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(bounded))
        finally:
            stream.close()

    def ends_line(self, path: str, size_bytes: int) -> bool:
        """Whether a line ends, or has just ended, behind the first bytes of the file."""
        if not size_bytes:
            return True
        found = self._bytes(path, size_bytes - 1, 3)
        return found[:1] == b"\n" or found[1:2] == b"\n" or found[1:3] == b"\r\n"

    def first_line(self, path: str) -> bytes | None:
        """The bytes of the first line without its end; None for a file that is empty. Raises ConfigError for one that is
        longer than 16 MiB."""
        size = 1 << 16
        while True:
            found = self._bytes(path, 0, size)
            if b"\n" in found or len(found) < size:
                return found.split(b"\n", 1)[0] if found else None
            if size >= _LONGEST_HEADER:
                raise ConfigError(f"{path}: the first line is longer than {_LONGEST_HEADER} bytes: is it a CSV file?")
            size *= 16

    def _bytes(self, path: str, start: int, count: int) -> bytes:
        local = self.local(path)
        if local is not None:
            with open(local, "rb", opener=regular_only) as file:
                file.seek(start)
                return file.read(count)
        where, system = self._open(path)
        stream = system.open(where)
        try:
            stream.seek(start)
            bounded = self._jvm.org.apache.commons.io.input.BoundedInputStream(stream, count)
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(bounded))
        finally:
            stream.close()

    def local(self, path: str) -> str | None:
        """The path on the machine's own file system; None for a file elsewhere."""
        where, system = self._open(path)
        return str(where.toUri().getPath()) if str(system.getScheme()) == "file" else None

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        where, system = self._open(path)
        return bool(system.exists(where))

    def sizes(self, path: str) -> list[int]:
        """The sizes of the files below a folder, in bytes; hidden ones left out."""
        where, system = self._open(path)
        return [one.size_bytes for one in self._below(system, system.getFileStatus(where), top=True)]

    def name_encoding(self) -> str:
        """The character set in which the driver's JVM names files."""
        return str(self._jvm.java.lang.System.getProperty("sun.jnu.encoding"))

    def rename_folders(self, pattern: str, name: str) -> None:
        """Gives the folders that the pattern finds the last part of their path anew. Raises IgnisError where one cannot be."""
        path, system = self._open(pattern)
        for status in system.globStatus(path) or ():
            old = status.getPath()
            new = self._jvm.org.apache.hadoop.fs.Path(old.getParent(), name)
            if not system.rename(old, new):
                raise IgnisError(f"cannot rename {old.toString()} to {name}: is it there already?")

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with all that is in it. What is not there is fine."""
        where, system = self._open(path)
        system.delete(where.getParent() if where.getName() == _WRITTEN else where, True)

    def stage(self, folder: str, name: str) -> str:
        """A hidden folder of this attempt's own in ``folder``; what earlier attempts of that name left is removed.

        Of its own, because an attempt that was given up may not have noticed yet: what it still writes lands in its own.
        """
        pattern, system = self._open(f"{literal(folder)}/{_STAGING}{name}-*")
        for status in system.globStatus(pattern) or ():
            system.delete(status.getPath(), True)
        staged = f"{folder}/{_STAGING}{name}-{secrets.token_hex(4)}"
        local = self.local(staged)
        if local is not None:
            _make_private(local)  # what is written into it is nobody else's to read meanwhile
        return f"{staged}/{_WRITTEN}"

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
            _make_private(str(target.getParent().toUri().getPath()))
        else:
            system.mkdirs(target.getParent())
        # A folder that is there would take the other one in instead of giving way.
        if system.exists(target) or not system.rename(source, target):
            raise IgnisError(f"cannot move {staged} to {place}: is it there already?")
        system.delete(source.getParent(), True)
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


def _blocks(file: Any, size_bytes: int) -> Iterator[bytes]:
    left = size_bytes
    while left > 0:
        block = file.read(min(left, 1 << 20))
        if not block:
            return
        left -= len(block)
        yield block


def _make_private(folder: str) -> None:
    """Makes the folder, and those above it that are not there, for this user alone. Raises ConfigError below one in which
    everybody could put another in its place."""
    check_way(folder, "folder of the pipeline", owners=None)
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for one in reversed(missing):
        make_directory(one)


def _flush_tree(top: str) -> None:
    """Makes a tree durable, and this user's alone, as the store is."""
    for folder, _, names in os.walk(top, topdown=False):
        for name in names:
            path = os.path.join(folder, name)
            os.chmod(path, 0o600)
            _flush(path)
        os.chmod(folder, 0o700)
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
