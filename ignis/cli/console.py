"""``ignis console``: queues in a browser, and over HTTP for programs in other languages."""

from __future__ import annotations

import os
import ssl

import click

from ignis.cli import exit_codes, output
from ignis.cli.state import DEFAULT_CLIENT_ID, DEFAULT_FARM_ID, State, common_options, pass_state
from ignis.errors import ConfigError
from ignis.service_notify import ServiceNotifier

__all__ = ["console"]


@click.command(short_help="Serves the console of a store on a port, until stopped.")
@click.option("--bind", default="127.0.0.1:9711", metavar="HOST:PORT", show_default=True, help="Where to listen.")
@click.option(
    "--users",
    type=click.Path(dir_okay=False),
    envvar="IGNIS_BROKER_USERS",
    show_envvar=True,
    help="Only users of this file are let in; see ignis broker user.",
)
@click.option(
    "--anyone",
    type=click.Choice(["read", "operate", "admin"]),
    default="read",
    show_default=True,
    help="Without --users: what everybody may do who reaches the port.",
)
@click.option("--tls-cert", type=click.Path(dir_okay=False), help="PEM file with the console's certificate: TLS only.")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="PEM file with its key.")
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="A further origin that is the console's own, such as that of a proxy: https://queues.example.",
)
@click.option("--audit", type=click.Path(dir_okay=False), help="File that gets a line of JSON for each change.")
@click.option(
    "--max-waiting",
    type=click.IntRange(1, 1_000),
    default=24,
    show_default=True,
    help="Pulls that may wait for messages at a time.",
)
@click.option(
    "--max-waiting-per-user",
    type=click.IntRange(1, 1_000),
    default=12,
    show_default=True,
    help="Of these, those of one user.",
)
@click.option("--open", "allow_open", is_flag=True, help="Allow other addresses than loopback without users and TLS.")
@common_options
@pass_state
def console(
    state: State,
    bind: str,
    users: str | None,
    anyone: str,
    tls_cert: str | None,
    tls_key: str | None,
    origins: tuple[str, ...],
    audit: str | None,
    max_waiting: int,
    max_waiting_per_user: int,
    allow_open: bool,
) -> int:
    """Serves the console of a store on a port until SIGTERM, SIGINT or SIGHUP.

    Browsers find the pages there, programs the HTTP API below /ignis/v1, described by /ignis/v1/openapi.json. Without --users
    everybody on this machine may look, and nobody may change anything.
    """
    state.log_to_stderr("info")
    from ignis.broker.server.bind import address_of, check_bind, is_loopback

    host, port = address_of(bind)
    try:
        from ignis.console.asgi import application
        from ignis.console.server import listen, serve
    except ModuleNotFoundError as exc:
        if exc.name not in ("starlette", "uvicorn", "anyio", "h11"):
            raise
        raise ConfigError(f"{exc.name} is missing: pip install 'ignis-mq[console]'") from None
    from ignis.broker.auth.authenticator import UsersFile
    from ignis.broker.auth.principal import AllowAll

    tls = _tls(tls_cert, tls_key)
    local = is_loopback(host)
    if not allow_open:
        check_bind(host, AllowAll() if users is None else UsersFile(users), tls)
    if not local and users is None and anyone != "read":
        raise ConfigError(f"--anyone {anyone} is for loopback: whoever reaches {host} could change everything")
    made = application(
        state.resolved_url(),
        users=users,
        anyone=anyone,
        origins=origins,
        audit=audit,
        max_waiting=max_waiting,
        max_waiting_per_user=max_waiting_per_user,
        host_checked=local,
        secure=tls is not None or any(one.startswith("https:") for one in origins),
        client_id=state.client_id or DEFAULT_CLIENT_ID,
        farm_id=state.farm_id or DEFAULT_FARM_ID,
        config=state.config,
        store=state.store_options(create=False),
    )
    try:
        # A store that is not there is said here, and not to the first browser; and its logs are read before that one waits.
        made.services.snapshot.get()
        listening = listen(host, port)
    except BaseException:
        made.close()
        raise
    scheme = "http" if tls is None else "https"
    shown_host = f"[{host}]" if ":" in host else host
    url = f"{scheme}://{shown_host}:{listening.getsockname()[1]}/"

    def announce() -> None:
        """Whoever waits for this line may connect."""
        service.ready()
        if state.json:
            output.event({"event": "started", "pid": os.getpid(), "url": url})
        else:
            output.remark(f"ignis console {os.getpid()} on {url}; SIGTERM or Ctrl-C ends it", event="started", url=url)

    with ServiceNotifier(made.services.closing.is_set) as service:
        serve(made, listening, tls, announce)
    if state.json:
        output.event({"event": "stopped", "pid": os.getpid()})
    return exit_codes.OK


def _tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None:
            raise ConfigError("--tls-key goes with --tls-cert")
        return None
    if key is None:
        raise ConfigError("--tls-cert needs --tls-key")
    from ignis.broker.auth.tls import server_context

    return server_context(certificate, key)
