"""Decides what is tried again when a connection cannot be made, and what is not, for both clients.

A broker that is not there may come back; a certificate that is not trusted, a port where something else listens and
credentials that are refused stay as they are, and are said at once, with the option that is about them.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

import tenacity

from ignis.broker.client.address import BrokerAddress
from ignis.config import ClientSettings
from ignis.errors import (
    ConnectionLostError,
    DrainingError,
    IgnisError,
    MalformedFrameError,
    ProtocolError,
    StoreTimeoutError,
    StoreUnreachableError,
    TlsError,
    TooManyRequestsError,
)

__all__ = ["Attempts", "explained", "final_tls_error", "retry_rules", "speaks_tls", "still_connecting", "time_tried"]

_AGAIN = (OSError, ConnectionLostError, DrainingError, TooManyRequestsError, StoreTimeoutError)
_TIME_UP = (StoreTimeoutError, TimeoutError)
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_OTHER_HOST = frozenset({62, 64})
"""OpenSSL's numbers for a certificate of another host, and of another address."""
_PROBE_S = 2.0
_LAST_TRY_S = 0.1
"""So long before the time is up it is tried for the last time."""


class Attempts:
    """Remembers the last failure of an attempt that says more than that its time was up.

    Args:
        on_failure: called with that after each attempt that failed.
    """

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self.failure: BaseException | None = None
        self._on_failure = on_failure

    def note(self, state: tenacity.RetryCallState) -> None:
        """After each attempt that failed."""
        failure = None if state.outcome is None else state.outcome.exception()
        if not isinstance(failure, _TIME_UP):
            self.failure = failure
        why = self.failure or failure
        if self._on_failure is not None and why is not None:
            self._on_failure(why)


def retry_rules(settings: ClientSettings, limit_s: float, attempts: Attempts) -> dict[str, Any]:
    """Returns the rules for ``tenacity``: growing waits, the last of which is cut short, so that it is tried once more just
    before ``limit_s`` seconds are over."""
    growing = tenacity.wait_random_exponential(multiplier=settings.retry_wait_s, max=settings.max_retry_wait_s)
    last_try_s = limit_s - min(_LAST_TRY_S, limit_s / 10)

    def wait_s(state: tenacity.RetryCallState) -> float:
        return max(0.0, min(growing(state), last_try_s - (state.seconds_since_start or 0.0)))

    return {
        "after": attempts.note,
        "stop": tenacity.stop_after_delay(last_try_s),
        "wait": wait_s,
        "retry": tenacity.retry_if_exception(_worth_another_try),
        "reraise": True,
    }


def _worth_another_try(exc: BaseException) -> bool:
    return isinstance(exc, _AGAIN) and final_tls_error(exc) is None


def final_tls_error(exc: BaseException | None) -> ssl.SSLError | None:
    """Returns the exception if it is about TLS and comes again with every attempt; not when the other side just went away."""
    return exc if isinstance(exc, ssl.SSLError) and not isinstance(exc, _CUT_OFF) else None


def explained(exc: BaseException, address: BrokerAddress, attempts: Attempts, tried: str = "") -> IgnisError:
    """Makes what the user is told: where, why, and which option is about it. An attempt that had next to no time left says
    nothing that an earlier one did not say better. ``tried``: what `time_tried` says, of an error that took so long."""
    if isinstance(exc, _TIME_UP) and attempts.failure is not None:
        exc = attempts.failure
    where = address.name
    tls = final_tls_error(exc)
    if tls is not None:
        return TlsError(f"{where}: {_about_tls(tls, address)}")
    if isinstance(exc, MalformedFrameError):
        return ProtocolError(f"{where}: what listens there is not a broker of ignis: {exc}")
    if isinstance(exc, ConnectionLostError) and address.tls is not None:
        return StoreUnreachableError(
            f"{where}: {exc}; a broker with TLS ends it like this when it wants a client's certificate that its own"
            " authorities signed (options cert and key)" + tried
        )
    if isinstance(exc, (OSError, ConnectionLostError, StoreTimeoutError)):
        return StoreUnreachableError(f"{where}: {exc}{tried}")
    assert isinstance(exc, IgnisError)
    return exc


def time_tried(settings: ClientSettings, limit_s: float) -> str:
    """How long it was tried, and by which setting, if it was one: who waits in silence looks for what to change."""
    by = {"client.connect_timeout_s": settings.connect_timeout_s, "client.timeout_s": settings.timeout_s}
    if limit_s < _LAST_TRY_S:
        return ""
    # Some time has passed since the setting was read.
    setting = next((f" ({name})" for name, value_s in by.items() if 0.99 * value_s <= limit_s <= value_s), "")
    return f"; tried for {round(limit_s, 2):g} s{setting}"


def still_connecting(what: str, address: BrokerAddress, attempts: Attempts) -> StoreUnreachableError:
    """Makes what a caller is told whose time was up while another one was connecting: ``what``, and why that one's attempts have
    failed so far."""
    why = "" if attempts.failure is None else str(explained(attempts.failure, address, attempts))
    return StoreUnreachableError(why + f" ({what})" if why else f"{address.name}: {what}")


def _about_tls(exc: ssl.SSLError, address: BrokerAddress) -> str:
    if address.tls is None:
        return "it speaks TLS; use ignis+tls:// and option ca"
    if isinstance(exc, ssl.SSLCertVerificationError):
        if exc.verify_code in _OTHER_HOST:
            return (
                f"its certificate is not accepted: {exc.verify_message.rstrip('.')} (it must name the host of the URL in its "
                "subjectAltName; the common name does not count)"
            )
        return f"its certificate is not accepted: {exc.verify_message} (option ca: the authorities to trust)"
    reason = exc.reason or str(exc)
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS; use ignis:// if it is to be without"
    if "ALERT" in reason:
        return f"it refused the TLS connection: {reason} (options cert and key: this client's certificate)"
    return f"TLS failed: {reason}"


def speaks_tls(address: BrokerAddress) -> bool:
    """Whether TLS is spoken where a client without it was cut off before it got an answer. Takes two seconds at most;
    nothing is sent but the beginning of a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is trusted, nothing is told
    with contextlib.suppress(OSError), socket.create_connection((address.host, address.port), _PROBE_S) as sock:
        try:
            context.wrap_socket(sock, server_hostname=address.host).close()
        except ssl.SSLError as exc:
            return "ALERT" in (exc.reason or "")
        return True
    return False
