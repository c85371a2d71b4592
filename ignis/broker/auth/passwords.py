"""Passwords and tokens: how they are made, what is kept of them, and how they are compared.

Of a password a scrypt hash is kept, in the form ``$scrypt$ln=15,r=8,p=1$<salt>$<hash>`` (base64 without padding). A
token is 256 random bits, which nobody guesses, so a plain SHA-256 of it is enough and costs a request nothing. All
comparisons take the same time wherever the difference is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

from ignis.errors import ConfigError

__all__ = [
    "MAX_PASSWORD_BYTES",
    "NewToken",
    "hash_password",
    "new_token",
    "split_token",
    "token_matches",
    "verify_password",
]

MAX_PASSWORD_BYTES = 1_024
_LOG2_N = 15
_R = 8
_P = 1
_SALT_BYTES = 16
_HASH_BYTES = 32
# 2**15 blocks of 1 KiB: 32 MiB and some 60 ms a try. More is allowed in a file, up to what cannot exhaust a machine.
_MAX_LOG2_N = 17
_PATTERN = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{16,86})\$([A-Za-z0-9+/]{22,86})\Z"
)
_TOKEN = re.compile(r"ign_([0-9a-f]{12})_([A-Za-z0-9_-]{43})\Z")


class NewToken(NamedTuple):
    """``text`` is shown once and kept nowhere; ``id`` and ``digest`` are what the users file has."""

    text: str
    id: str
    digest: str


def hash_password(password: str) -> str:
    """The hash to keep. Takes some 60 ms and 32 MiB. Raises ConfigError for an empty password, one over 1,024 bytes
    or with a NUL character."""
    data = password.encode()
    if not 0 < len(data) <= MAX_PASSWORD_BYTES:
        raise ConfigError(f"a password has 1 to {MAX_PASSWORD_BYTES} bytes, this one {len(data)}")
    if b"\0" in data:
        raise ConfigError("a password has no NUL character (U+0000): it would be right without one at its end as well")
    salt = secrets.token_bytes(_SALT_BYTES)
    return (
        f"$scrypt$ln={_LOG2_N},r={_R},p={_P}${_text(salt)}${_text(_derive(data, salt, _LOG2_N, _R, _P, _HASH_BYTES))}"
    )


def verify_password(password: str, kept: str) -> bool:
    """Whether the password is the one that ``kept`` was made of. Takes its time also when it is not.

    Raises ConfigError when ``kept`` is not a hash that this version knows.
    """
    log2_n, r, p, salt, expected = _parse(kept)
    data = password.encode("utf-8", "surrogatepass")
    if len(data) > MAX_PASSWORD_BYTES:
        return False
    same = hmac.compare_digest(_derive(data, salt, log2_n, r, p, len(expected)), expected)
    return same and b"\0" not in data  # scrypt hashes by HMAC, which fills a key up with NUL


def check_hash(kept: str) -> None:
    """Raises ConfigError when ``kept`` is not a hash that `verify_password` knows."""
    _parse(kept)


def new_token() -> NewToken:
    """A new random token: ``ign_<id>_<secret>``."""
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return NewToken(f"ign_{identity}_{secret}", identity, _digest(secret))


def split_token(token: str) -> tuple[str, str] | None:
    """(id, secret) of a token, or None when it does not look like one."""
    match = _TOKEN.match(token)
    return (match[1], match[2]) if match else None


def token_matches(secret: str, digest: str) -> bool:
    """Whether ``digest`` was made of this token's secret."""
    return hmac.compare_digest(_digest(secret), digest)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _derive(password: bytes, salt: bytes, log2_n: int, r: int, p: int, length: int) -> bytes:
    n = 1 << log2_n
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r * p, dklen=length)


def _parse(kept: str) -> tuple[int, int, int, bytes, bytes]:
    match = _PATTERN.match(kept)
    if match is None:
        raise ConfigError("a password hash in the users file is not of the form $scrypt$ln=..,r=..,p=..$salt$hash")
    log2_n, r, p = int(match[1]), int(match[2]), int(match[3])
    if not (10 <= log2_n <= _MAX_LOG2_N and 1 <= r <= 16 and 1 <= p <= 4):
        raise ConfigError(f"a password hash in the users file has ln={log2_n}, r={r}, p={p}, outside 10-17, 1-16, 1-4")
    return log2_n, r, p, _bytes(match[4]), _bytes(match[5])


def _text(data: bytes) -> str:
    return base64.b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ConfigError("a password hash in the users file is not base64") from None
