"""Certificates for tests: an authority, a broker for ``localhost`` and 127.0.0.1, a client, and a stranger."""

from __future__ import annotations

from pathlib import Path

import trustme

Pair = tuple[Path, Path]


class TlsFiles:
    """PEM files in a directory. ``client`` has the common name ``ann``; ``stranger`` is signed by ``other_ca``.
    ``named_localhost`` has that as its common name, and names no host."""

    def __init__(self, directory: Path) -> None:
        authority, other = trustme.CA(), trustme.CA()
        self.ca, self.other_ca = directory / "ca.pem", directory / "other.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        other.cert_pem.write_to_path(str(self.other_ca))
        self.server = _pair(directory / "server", authority.issue_cert("localhost", "127.0.0.1"))
        self.client = _pair(directory / "client", authority.issue_cert("ann.example", common_name="ann"))
        self.named_localhost = _pair(
            directory / "named", authority.issue_cert("user@localhost.example", common_name="localhost")
        )
        self.stranger = _pair(directory / "stranger", other.issue_cert("eve.example", common_name="eve"))


def _pair(stem: Path, made: trustme.LeafCert) -> Pair:
    certificate, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
    for index, blob in enumerate(made.cert_chain_pems):
        blob.write_to_path(str(certificate), append=index > 0)
    made.private_key_pem.write_to_path(str(key))
    return certificate, key
