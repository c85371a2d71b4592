"""TLS contexts: what they accept, over real handshakes in memory."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ignis.broker.auth.tls import client_context, server_context
from ignis.errors import ConfigError
from tests.support.tls_files import TlsFiles


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """The server's side after a handshake and one byte in each direction; raises what either side raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
    waiting = {here: here.do_handshake, there: there.do_handshake}
    for _ in range(20):
        for side, step in list(waiting.items()):
            try:
                step()
            except ssl.SSLWantReadError:
                continue
            del waiting[side]
        if not waiting:
            break
    assert not waiting
    there.write(b"x")
    assert here.read(1) == b"x"  # with TLS 1.3 a refused client certificate shows only here
    return there


def test_a_broker_is_believed_by_its_certificate(files: TlsFiles) -> None:
    server = server_context(*files.server)
    there = shake_hands(server, client_context(files.ca))
    assert there.version() in ("TLSv1.2", "TLSv1.3")
    assert there.getpeercert() is None
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_context(files.other_ca))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server, client_context(files.ca), "elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_context())


def test_a_common_name_is_no_host(files: TlsFiles) -> None:
    """A user's certificate, whose common name is the user's, is not taken for the broker's of that name."""
    client = client_context(files.ca)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server_context(*files.named_localhost), client)
    client.hostname_checks_common_name = True  # and that is why
    shake_hands(server_context(*files.named_localhost), client)


def test_old_versions_are_refused(files: TlsFiles) -> None:
    for context in (server_context(*files.server), client_context(files.ca)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert client_context().verify_mode == ssl.CERT_REQUIRED
    assert client_context().check_hostname


def test_mutual_tls_names_the_client(files: TlsFiles) -> None:
    server = server_context(*files.server, client_ca=files.ca)
    there = shake_hands(server, client_context(files.ca, certificate=files.client[0], key=files.client[1]))
    shown = there.getpeercert()
    assert shown is not None
    assert (("commonName", "ann"),) in shown["subject"]
    for client in (
        client_context(files.ca),
        client_context(files.ca, certificate=files.stranger[0], key=files.stranger[1]),
    ):
        with pytest.raises(ssl.SSLError):
            shake_hands(server, client)


def test_wrong_files_are_named(files: TlsFiles, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.pem"
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for make in (
        lambda: server_context(nowhere, files.server[1]),
        lambda: server_context(files.server[0], empty),
        lambda: server_context(files.server[0], files.client[1]),
        lambda: server_context(*files.server, client_ca=empty),
        lambda: client_context(nowhere),
        lambda: client_context(files.ca, certificate=empty),
        lambda: client_context(files.ca, key=files.client[1]),
    ):
        with pytest.raises(ConfigError, match=r"TLS .*\.(pem|key)"):
            make()
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_text(ENCRYPTED)
    with pytest.raises(ConfigError, match="passphrase"):
        server_context(files.server[0], encrypted)


def _encrypted() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    ).decode()


ENCRYPTED = _encrypted()


def test_files_that_another_user_could_replace_are_refused(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    tmp_path.chmod(0o777)
    for make in (
        lambda: server_context(*files.server),
        lambda: client_context(files.ca),
        lambda: client_context(certificate=files.client[0], key=files.client[1]),
    ):
        with pytest.raises(ConfigError, match=f"everybody may write {tmp_path}"):
            make()
    tmp_path.chmod(0o700)
    files.server[1].chmod(0o666)
    with pytest.raises(ConfigError, match=r"TLS key .* everybody may write it"):
        server_context(*files.server)


def test_a_key_that_everybody_may_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = TlsFiles(tmp_path)
    files.server[1].chmod(0o600)
    server_context(*files.server)
    assert not caplog.records
    files.server[1].chmod(0o644)
    server_context(*files.server)
    assert f"TLS key {files.server[1]} may be read by everybody" in caplog.text
