"""``ignis broker user``: the file that says who may connect to a broker, and to do what."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ignis.broker.auth.passwords import hash_password, new_token
from ignis.broker.auth.users_file import Token, User, editing, load_users
from ignis.broker.protocol.permission_words import GROUPS
from ignis.cli import exit_codes, output
from ignis.cli.other_words import WordGroup
from ignis.cli.state import State, common_options, pass_state
from ignis.errors import ConfigError

__all__ = ["user"]

_SHORT = 8
"""Passwords with fewer characters are warned of."""

_FILE = click.option(
    "--users",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    envvar="IGNIS_BROKER_USERS",
    show_envvar=True,
    help="The users file; made when it is not there, mode 0600.",
)


@click.group(cls=WordGroup)
def user() -> None:
    """Who may connect to a broker. A running broker sees a change within a second; it counts for new connections."""


@user.command(short_help="Adds a user, with a password, a token or a certificate.")
@click.argument("name")
@_FILE
@click.option(
    "--allow",
    multiple=True,
    metavar="COMMANDS:QUEUES",
    help=f"What the user may do, e.g. publish:orders or consume,look:logs.*; may be given often. "
    f"Commands: all, {', '.join(GROUPS)}, or names such as SEND.",
)
@click.option("--password", is_flag=True, help="Asks for a password; reads it from stdin when that is no terminal.")
@click.option("--token", is_flag=True, help="Makes a token and prints it, this once.")
@click.option("--certificate", is_flag=True, help="A client certificate with this common name is enough (mutual TLS).")
@click.option("--replace", is_flag=True, help="Replaces a user of that name, with everything that belonged to it.")
@common_options
@pass_state
def add(
    state: State,
    name: str,
    path: Path,
    allow: tuple[str, ...],
    password: bool,
    token: bool,
    certificate: bool,
    replace: bool,
) -> int:
    """Adds a user, who proves who they are by a password, a token or a certificate."""
    if not (password or token or certificate):
        raise ConfigError("give --password, --token or --certificate: the user could not connect")
    if not allow:
        raise ConfigError("give --allow: the user could do nothing; --allow all:* for everything")
    made = User(name, list(allow), certificate=certificate)
    made.check()
    if password:
        given = _ask_password()
        made.password = hash_password(given)
        if len(given) < _SHORT:
            output.warning(
                f"the password of {name} has fewer than {_SHORT} characters and is soon guessed; it is set all the same"
            )
    secret = new_token() if token else None
    if secret is not None:
        made.tokens = [Token(secret.id, secret.digest)]
    with editing(path) as users:
        known = users.find(name)
        if known is not None:
            if not replace:
                raise ConfigError(f"user {name!r} is in {path} already; --replace replaces it")
            users.users.remove(known)
        users.users.append(made)
    if state.json:
        output.document({"user": name, "allow": list(allow), **({"token": secret.text} if secret is not None else {})})
    elif secret is not None:
        output.remark("the token is shown this once:")
        output.line(secret.text)
    else:
        output.line(f"added {name}")
    return exit_codes.OK


@user.command()
@click.argument("name")
@_FILE
@common_options
@pass_state
def remove(state: State, name: str, path: Path) -> int:
    """Removes a user. Connections that are open stay open."""
    load_users(path, as_owner=True)  # a file that is not there is an error here, and not made
    with editing(path) as users:
        known = users.find(name)
        if known is None:
            raise exit_codes.Nothing(f"there is no user {name!r} in {path}")
        users.users.remove(known)
    if state.json:
        output.document({"removed": name})
    else:
        output.line(f"removed {name}")
    return exit_codes.OK


@user.command("list", short_help="Lists the users and what they may do.")
@_FILE
@common_options
@pass_state
def list_users(state: State, path: Path) -> int:
    """Lists the users and what they may do; no secret, and nothing made of one."""
    rows = [
        {
            "user": one.name,
            "allow": one.allow,
            "password": bool(one.password),
            "tokens": [token.id for token in one.tokens],
            "certificate": one.certificate,
        }
        for one in sorted(load_users(path, as_owner=True).users, key=lambda one: one.name)
    ]
    if state.json:
        output.document(rows)
        return exit_codes.OK
    for one in rows:
        ways = [way for way in ("password", "tokens", "certificate") if one[way]]
        output.line(f"{one['user']}  {' '.join(map(str, one['allow']))}  ({', '.join(ways)})")  # type: ignore[call-overload]
    return exit_codes.OK


def _ask_password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\n")
