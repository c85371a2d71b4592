"""TLS contexts for the broker and its clients, from PEM files."""

from __future__ import annotations

import logging
import os
import ssl
import stat

from ignis.errors import ConfigError
from ignis.log_format import event_text
from ignis.regular_files import check_regular
from ignis.storage.private_directory import check_file

__all__ = ["client_context", "server_context"]

log = logging.getLogger("ignis.broker")

PathLike = str | os.PathLike[str]


def server_context(certificate: PathLike, key: PathLike, *, client_ca: PathLike | None = None) -> ssl.SSLContext:
    """TLS 1.2 or newer with the broker's certificate. A key that everybody may read is warned of.

    Args:
        certificate: the chain, the broker's own certificate first. key: its private key, without a passphrase.
        client_ca: mutual TLS: every client must show a certificate that these authorities signed.

    Raises:
        ConfigError: a file cannot be read or could be replaced by another user (see `ignis.storage.private_directory`), or key
        and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, certificate, key)
    if client_ca is not None:
        _load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    ca: PathLike | None = None, *, certificate: PathLike | None = None, key: PathLike | None = None
) -> ssl.SSLContext:
    """TLS 1.2 or newer; the broker's certificate and host name are always checked, the name by subjectAltName alone.

    Args:
        ca: the authorities to trust; None = those of the system.
        certificate, key: for mutual TLS; ``key`` may be left out when it is in the same file.

    Raises:
        ConfigError: a file cannot be read or could be replaced by another user (see `ignis.storage.private_directory`), or key
        and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The common name of a client certificate is a user's name: with one that is called as the broker's host, and names no host
    # itself, that user could pass for the broker.
    context.hostname_checks_common_name = False
    if ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, ca)
    if certificate is not None:
        _load_pair(context, certificate, key)
    elif key is not None:
        raise ConfigError(f"TLS key {os.fspath(key)} was given without a certificate")
    return context


def _load_pair(context: ssl.SSLContext, certificate: PathLike, key: PathLike | None) -> None:
    def no_passphrase() -> str:
        # Without this OpenSSL would ask on the terminal and wait for ever.
        raise ConfigError(f"TLS key {os.fspath(key or certificate)} has a passphrase; the key must have none")

    for path in (certificate, key or certificate):
        check_file(path, "TLS key" if path is key else "TLS certificate")
    try:
        for one in (certificate, key):
            if one is not None:
                check_regular(one)
        if os.stat(key or certificate).st_mode & stat.S_IROTH:
            log.warning(
                event_text("tls_key_readable", "TLS key %s may be read by everybody: chmod 600 it"),
                os.fspath(key or certificate),
            )
        context.load_cert_chain(certificate, key, password=no_passphrase)
    except (OSError, ssl.SSLError) as exc:
        where = f"{os.fspath(certificate)}" + (f" and key {os.fspath(key)}" if key is not None else "")
        raise ConfigError(f"TLS certificate {where}: {exc.strerror or exc}") from exc


def _load_authorities(context: ssl.SSLContext, ca: PathLike) -> None:
    check_file(ca, "TLS authorities")
    try:
        check_regular(ca)
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"TLS authorities {os.fspath(ca)}: {exc.strerror or exc}") from exc
