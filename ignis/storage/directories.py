"""The directory that the URL of an embedded store names."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote

from ignis.config import check_text
from ignis.errors import ConfigError
from ignis.urls import masked, redacted

__all__ = ["directory_of"]


def directory_of(parts: SplitResult) -> str:
    """The path of ``scheme:///absolute/path``, or of ``scheme://./path`` and ``scheme://../path`` below the current directory.

    Two slashes and a name would be a host, and quietly a directory below whichever one the process was started in. One slash or
    three before a dot would be a directory from the root.

    Raises ConfigError, with the two spellings that may be meant.
    """
    scheme = parts.scheme
    path = check_text(unquote(parts.netloc + parts.path), f"directory of the {scheme} URL")
    if not path:
        raise ConfigError(f"the {scheme} URL names no directory; write {scheme}:///path/of/it")
    if not parts.netloc and path.startswith(("/./", "/../")):
        name = masked(path[1:])
        raise ConfigError(
            f"{scheme} URL: {masked(path)!r} begins at the root: write {scheme}://{name} for a directory relative to the current "
            f"one, or {scheme}:///{masked(path.lstrip('./'))} for one from the root"
        )
    if not path.startswith("/") and parts.netloc not in (".", ".."):
        if "@" in parts.query + parts.fragment:  # a login, with a mark in its password
            raise ConfigError(
                f"the {scheme} URL {redacted(parts.geturl())} names no directory: it takes no login; write {scheme}:///path/of/it"
            )
        name = path.removeprefix("./")
        path, name = masked(path), masked(name)
        raise ConfigError(
            f"{scheme} URL: {path!r} is neither absolute nor relative: write {scheme}:///{name} for the directory /{name}, "
            f"or {scheme}://./{name} for {name} below the current directory"
        )
    return path
