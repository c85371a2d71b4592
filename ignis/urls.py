"""URLs as they may be shown: without their secrets.

Whatever leaves the process, a log line, an error, a ``repr``, a status, the output of a command, shows a URL as `redacted`
makes it. What is not known to be harmless is left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from urllib.parse import quote

__all__ = ["absolute", "is_host", "masked", "masked_path", "redacted", "shown_host"]

_HIDDEN = "***"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*\Z")
_NO_HOST = frozenset({"embedded", "memory", "relay", "file"})
"""Schemes whose URLs are paths: an ``@`` in one is part of a name."""
_PLAIN = frozenset({"scope", "events", "create", "tls", "durability", "batch_records", "thread_pool_size"})
_PLAIN_ENDS = ("_id", "_ms", "_s", "_bytes")
_CREDENTIALS = re.compile(
    r"""([A-Za-z][A-Za-z0-9+.-]*:[/\\]+)(?:[^\n]|\n(?=\S*@))*@|[^\s'"@:/\\(]*:(?:\S|\n(?=\S*@))*@"""
)
"""What stands before a host: behind a scheme and slashes, any number and either kind of them, or ``user:password@`` alone. A line
may end within a password."""
_EXAMPLE = "user:password@"
"""How our own errors say where they belong."""
_MASKED_CHARS = 2_000
_AUTHORITY = re.compile(r"""(:[/\\]+)([^\s'"/\\?#]+)""")
_PORT_EXAMPLE = re.compile(r":port\b", re.IGNORECASE)
_BEHIND = ".,;:)>`}"
"""What a sentence may have behind a URL."""
_QUERY = re.compile(r"""(:[/\\]+[^\s?'"]*\?)([^\s'"#]*)(#[^\s'"]*)?""")
_SECRET = re.compile("pass|pwd|token|secret|credential|auth", re.IGNORECASE)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*(%[\w.-]*)?\]|[\w.-]*)(:\d{0,5})?")
_BARE_HOST = re.compile(r"[\w.-]+|[0-9A-Fa-f:.]+(%[\w.-]*)?")
_PATH = re.compile(r"[\w./~+-]*")
"""Of a URL with a host: the name of a namespace or a database."""
_NAME = re.compile(r"\w+")
_VALUE = re.compile(r"[A-Za-z0-9._:+-]*[.,;:)\]>`}]*")
"""Nothing but a value. A sentence that a URL stands in may go on behind it."""
_ASSIGNED = re.compile(r"""([;,&?])(\w[\w.-]*)=([^\s'"&;,?]+)""")
"""An option where none is expected, such as behind a comma or behind another's value."""
_NAMED = re.compile(
    rf"""((?:{_SECRET.pattern})[\w.-]{{0,64}}\s{{0,8}}(?:=|%3D))(?!\*\*\*(?:[\s'"&.,;:)\]]|\Z))[^\s'"]+""",
    re.IGNORECASE,
)
"""What is called a secret, wherever it stands. Its value may hold everything that stands between options."""
_EXAMPLES = frozenset({"value", "..", "..$salt$hash", _HIDDEN})
"""How our own texts say where a value belongs."""


def absolute(url: str) -> str:
    """The URL of a store's directory that is relative to the current one, from the root: it must not mean another directory
    once the process has changed its own. Any other URL as it is."""
    scheme, separator, place = url.partition("://")
    first = re.split(r"[/?#]", place, maxsplit=1)[0]
    if scheme not in ("embedded", "relay") or not separator or first not in (".", ".."):
        return url
    with contextlib.suppress(OSError):  # the current directory is gone: who opens the store says so
        return f"{scheme}://{quote(os.getcwd())}{place[1:] if first == '.' else '/' + place}"
    return url


def redacted(url: object) -> str:
    """The URL without user, password, fragment, and values of options other than times, sizes and ids. Never raises; what
    is no URL, or where it cannot be told what is what, is left out as well."""
    if not isinstance(url, str):
        return _HIDDEN
    scheme, separator, rest = url.partition("://")
    if not separator:
        # Such as user:password@host without a scheme; a plain path or word has none of these.
        return _without_options(url) if not set(url) & set("@?#=:") else _HIDDEN
    if _SCHEME.match(scheme) is None:
        return _HIDDEN
    place, fragment, _ = rest.partition("#")
    place, question, query = place.partition("?")
    if scheme not in _NO_HOST:
        if "@" in place:
            place = place.rpartition("@")[2]
        elif "@" in rest:
            return f"{scheme}://{_HIDDEN}"  # of the options, or of a password with a mark in it
        host, _, path = place.partition("/")
        if not _hosts(host):
            return f"{scheme}://{_HIDDEN}"  # user:password without a host, or options
        if not _PATH.fullmatch(path):  # options that were meant to stand behind a question mark
            place = f"{host}/{_HIDDEN}"
    elif "@" in place and not place.startswith(("/", ".")):
        place = f"{_HIDDEN}@{place.rpartition('@')[2]}"  # a login, which a path has not
    elif "@" in rest and not place.startswith(("/", ".")):
        return f"{scheme}://{_HIDDEN}"  # the same, with a mark in its password
    shown = f"{scheme}://{place if scheme not in _NO_HOST else _without_options(place)}"
    if question:
        shown += "?" + "&".join(_option(one) for one in query.split("&"))
    return shown + (f"#{_HIDDEN}" if fragment else "")


def is_host(text: str) -> bool:
    """Whether this is the name or the address of a host, without a port, and of IPv6 without brackets."""
    return _BARE_HOST.fullmatch(text) is not None


def shown_host(text: str) -> str:
    """What was given as a host, and perhaps a port, without the port. What is no host may be a secret, and is left out."""
    host = text.partition(":")[0]
    return host if is_host(host) else _HIDDEN


def masked(text: str) -> str:
    """Text that may hold a URL where none belongs, such as the name of a queue: without ``user:password@``, and without values of
    options that `redacted` would hide, whatever stands between them. For a URL in its own place take `redacted`. Cut where it is
    long: what the search costs grows with the square of what it looks at."""
    if len(text) > _MASKED_CHARS:
        text = f"{text[:_MASKED_CHARS]}... ({len(text)} characters)"
    if "@" in text:
        text = _CREDENTIALS.sub(_masked_credentials, text)
    text = _AUTHORITY.sub(_masked_authority, text)
    if "?" in text:
        text = _QUERY.sub(_masked_query, text)
    return _without_options(text)


def masked_path(path: str | os.PathLike[str]) -> str:
    """`masked` for the name of a file or directory, in whose place somebody may have given a URL."""
    return masked(os.fspath(path).encode("utf-8", "backslashreplace").decode())


def _masked_credentials(found: re.Match[str]) -> str:
    scheme = found[1] or ""
    return found[0] if found[0] == scheme + _EXAMPLE else f"{scheme}{_HIDDEN}@"


def _masked_authority(found: re.Match[str]) -> str:
    hosts = _PORT_EXAMPLE.sub("", found[2].rpartition("@")[2]).rstrip(_BEHIND)
    plain = hosts == _HIDDEN or _hosts(hosts) or _hosts(hosts.rstrip("]"))
    return found[0] if plain else f"{found[1]}{_HIDDEN}"


def _masked_query(found: re.Match[str]) -> str:
    return found[1] + "&".join(map(_option, found[2].split("&"))) + (f"#{_HIDDEN}" if found[3] else "")


def _without_options(text: str) -> str:
    """The text without what looks like the value of an option that may be a secret."""
    if _SECRET.search(text):
        text = _NAMED.sub(rf"\1{_HIDDEN}", text)
    return _ASSIGNED.sub(_masked_assignment, text) if "=" in text else text


def _masked_assignment(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}={_shown(found[2], found[3])}"


def _hosts(text: str) -> bool:
    """Whether these are hosts, each with a port or without one."""
    return all(_HOST.fullmatch(one) for one in text.split(","))


def _shown(name: str, value: str) -> str:
    """The value of an option as it may be shown. That of a harmless one may hold others, where something else than ``&`` stands
    between them; so it must be plainly a value as well."""
    harmless = (name in _PLAIN or name.endswith(_PLAIN_ENDS)) and not _SECRET.search(name)
    return value if value in _EXAMPLES or (harmless and _VALUE.fullmatch(value)) else _HIDDEN


def _option(text: str) -> str:
    """An option as it may be shown."""
    name, equals, value = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        return _HIDDEN if text else ""
    return f"{name}={_shown(name, value)}"
