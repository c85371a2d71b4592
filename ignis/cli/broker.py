"""``ignis broker``: the store behind a port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ignis.cli import exit_codes, output
from ignis.cli.broker_user import user
from ignis.cli.other_words import WordGroup
from ignis.cli.state import DEFAULT_CLIENT_ID, DEFAULT_FARM_ID, State, common_options, pass_state
from ignis.config import BrokerSettings, load_file, resolve
from ignis.errors import AddressInUseError, ConfigError
from ignis.service_notify import ServiceNotifier
from ignis.stop_signals import stop_signals
from ignis.upkeep import in_thread

if TYPE_CHECKING:
    from ignis.broker.server.server import Broker
    from ignis.http_endpoint import HttpEndpoint

__all__ = ["broker"]


@click.group(
    cls=WordGroup, invoke_without_command=True, short_help="Serves the queues of a store on a port, until stopped."
)
@click.option("--bind", default="127.0.0.1:9710", metavar="HOST:PORT", show_default=True, help="Where to listen.")
@click.option(
    "--users",
    type=click.Path(dir_okay=False),
    envvar="IGNIS_BROKER_USERS",
    show_envvar=True,
    help="Only users of this file are let in; see ignis broker user.",
)
@click.option("--tls-cert", type=click.Path(dir_okay=False), help="PEM file with the broker's certificate: TLS only.")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="PEM file with its key.")
@click.option(
    "--tls-client-ca",
    type=click.Path(dir_okay=False),
    help="Mutual TLS: every client must show a certificate that these authorities (PEM) signed.",
)
@click.option("--open", "allow_open", is_flag=True, help="Allow other addresses than loopback without users and TLS.")
@click.option(
    "--health-bind",
    metavar="[HOST:]PORT",
    help="Serve /livez, /readyz, /healthz and /metrics there over HTTP; HOST is loopback by default.",
)
@click.option("--public-bind", is_flag=True, help="Allow --health-bind an address that others can reach.")
@common_options
@pass_state
@click.pass_context
def broker(
    context: click.Context,
    state: State,
    bind: str,
    users: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    allow_open: bool,
    health_bind: str | None,
    public_bind: bool,
) -> int:
    """Serves the queues of a store on a port until SIGTERM, SIGINT or SIGHUP.

    Clients use ignis://HOST:PORT as the URL of their store, or speak the protocol of docs/protocol.md. The first
    signal drains: what is under way is answered, and what clients hold may still be acknowledged. A second one ends
    at once.
    """
    if context.invoked_subcommand is not None:
        return exit_codes.OK
    state.log_to_stderr("info")
    from ignis.broker.auth.authenticator import UsersFile
    from ignis.broker.server.bind import address_of
    from ignis.broker.server.server import Broker

    host, port = address_of(bind)
    made = Broker(
        state.resolved_url(),
        host,
        port,
        settings=resolve(BrokerSettings, {}, load_file(state.config)),
        allow_open=allow_open,
        authenticator=None if users is None else UsersFile(users),
        tls=_tls(tls_cert, tls_key, tls_client_ca),
        config=state.config,
        client_id=state.client_id or DEFAULT_CLIENT_ID,
        farm_id=state.farm_id or DEFAULT_FARM_ID,
    )
    loop = _new_loop()
    try:
        loop.run_until_complete(_serve(made, health_bind, public_bind, lambda health: _announce(state, made, health)))
    finally:
        loop.close()
    if state.json:
        output.event({"event": "stopped", "pid": os.getpid()})
    return exit_codes.OK


broker.add_command(user)


def _tls(certificate: str | None, key: str | None, client_ca: str | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None or client_ca is not None:
            raise ConfigError("--tls-key and --tls-client-ca go with --tls-cert")
        return None
    if key is None:
        raise ConfigError("--tls-cert needs --tls-key")
    from ignis.broker.auth.tls import server_context

    return server_context(certificate, key, client_ca=client_ca)


def _new_loop() -> asyncio.AbstractEventLoop:
    """That of uvloop where it is installed: a request costs less on it."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


async def _serve(
    made: Broker, health_bind: str | None, public: bool, started: Callable[[HttpEndpoint | None], Any]
) -> None:
    from ignis.broker.server.health import broker_endpoint, loop_answers
    from ignis.broker.server.heap import collect_little, keep_freed_memory

    signals = 0

    def on_signal(number: int) -> None:
        nonlocal signals
        signals += number != signal.SIGHUP  # a terminal that ends sends it twice
        if signals > 1:
            os._exit(exit_codes.INTERRUPTED)
        made.request_stop()

    keep_freed_memory()
    await made.start()
    collect_little()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, on_signal, number)
    health = None
    service = ServiceNotifier(lambda: made.state.draining, lambda: loop_answers(made))
    try:
        if health_bind is not None:
            health = broker_endpoint(health_bind, made, public=public)
        service.ready()
        started(health)
        await made.run()
    except (AddressInUseError, ConfigError):
        await made.stop(0)
        raise
    finally:
        await in_thread(service.close)
        if health is not None:
            await in_thread(health.close)


def _announce(state: State, made: Broker, health: HttpEndpoint | None) -> None:
    """Whoever waits for this line may connect, and may send signals."""
    if state.json:
        shown = {} if health is None else {"health": health.url}
        users = not made.authenticator.open
        output.event({"event": "started", **made.status(), "users": users, "port": made.port, **shown})
    else:
        shown_at = "" if health is None else f"; {health.url}/healthz"
        # It is the port's protection: who forgot an option sees it here.
        let_in = "no users: whoever reaches the port may do all" if made.authenticator.open else "only its users"
        tls = "no TLS" if made.tls is None else "TLS"
        output.remark(
            f"ignis broker {os.getpid()} on {made.host}:{made.port} ({let_in}; {tls}){shown_at}; SIGTERM or Ctrl-C drains",
            event="started",
        )
