"""Logging in, asking who one is, logging out."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ignis.console.call import Answer, Call

__all__ = ["Login", "log_in", "log_out", "whoami"]


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """Who logs in: a user and a password, or a token. Empty where there is no users file."""

    user: Annotated[str, Meta(max_length=200)] = ""
    password: Annotated[str, Meta(max_length=1_024)] = ""
    token: Annotated[str, Meta(max_length=200)] = ""

    def __repr__(self) -> str:
        return f"<Login {self.user!r}>"


def log_in(call: Call) -> Answer:
    """Begins a session. The cookie is the browser's; each request must show ``csrf`` as well, which is told here alone."""
    asked: Login = call.body
    cookie, session, principal = call.services.access.log_in(call.asked, asked.user, asked.password, asked.token)
    call.audited["user"] = principal.name
    if call.visitor.session is not None:
        call.services.access.sessions.end(call.asked.cookie)  # the browser has another cookie now
    return Answer({"user": principal.name, "csrf": session.csrf, **_limits(call)}, cookie=cookie)


def whoami(call: Call) -> dict[str, Any]:
    """Who asks, with which roles on any queue."""
    visitor, access = call.visitor, call.services.access
    return {
        "user": visitor.name or None,
        "via": visitor.via,
        "login": "none" if access.open else "users",
        "roles": visitor.roles(None),
        **_limits(call),
    }


def log_out(call: Call) -> Answer:
    """Ends the session."""
    call.services.access.sessions.end(call.asked.cookie)
    return Answer({"user": None}, cookie="")


def _limits(call: Call) -> dict[str, Any]:
    sessions = call.services.access.sessions
    return {"idle_s": sessions.idle_s, "most_s": sessions.most_s}
