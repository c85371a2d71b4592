"""What every command shares: the common options, and the store or application that they name."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from ignis.config import check_name, check_sections, load_file, naming, url_named
from ignis.errors import ConfigError, PermissionDeniedError, QueueNotFoundError
from ignis.escaping import PlainFormatter, print_traces_as
from ignis.log_format import JsonHandler, json_trace, log_uncaught
from ignis.urls import redacted

if TYPE_CHECKING:
    from ignis.app import Ignis
    from ignis.storage.base import QueueRecord, Store

__all__ = ["State", "common_options", "other_applications", "pass_state"]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_CLIENT_ID = "ignis"
DEFAULT_FARM_ID = "local"
_MOST_NAMED = 10
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@dataclass
class State:
    """The common options of one call; None = not given on the command line."""

    url: str | None = field(default=None, repr=False)
    client_id: str | None = None
    farm_id: str | None = None
    config: str | None = None
    json: bool = False
    log_level: str | None = None
    log_format: str | None = None
    output_closed: bool = False
    """The process was started without a standard output (``>&-``)."""
    _closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def resolved_url(self) -> str:
        """Option > ``IGNIS_URL`` > settings file. Raises ConfigError when none names a store that others can see."""
        return self._named_url()[0]

    def _named_url(self) -> tuple[str, str]:
        url, source = url_named(self.url, load_file(self.config))
        if not url:
            raise ConfigError("no store: give --url embedded:///path, or set IGNIS_URL")
        if url.startswith("memory:"):
            with naming(source):
                raise ConfigError(
                    f"url = {redacted(url)!r}: a store in memory lives in one process, the command line cannot see it"
                )
        return url, source

    def store_options(self, create: bool) -> dict[str, Any]:
        return {} if create else {"create": False}

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        """The store, opened to look at it: one that does not exist is not made. Raises StoreUnreachableError."""
        from ignis.storage import open_store

        url, source = self._named_url()
        with naming(source):
            opened = open_store(
                url,
                client_id=self.client_id or DEFAULT_CLIENT_ID,
                farm_id=self.farm_id or DEFAULT_FARM_ID,
                **self.store_options(create=False),
            )
        with opened:
            yield opened

    @contextlib.contextmanager
    def app(self, *, create: bool = False, **options: Any) -> Iterator[Ignis]:
        """An application object on the store; ``create`` makes a store that does not exist."""
        from ignis.app import Ignis

        self._named_url()
        app = Ignis(
            self.url or None,
            client_id=self.client_id or DEFAULT_CLIENT_ID,
            farm_id=self.farm_id or DEFAULT_FARM_ID,
            config=self.config,
            store=self.store_options(create),
            **options,
        )
        with app:
            yield app

    def log_to_stderr(self, default: str = "warning") -> None:
        """Configures logging for this process, which is the command line's to do and never the library's."""
        level = (self.log_level or default).upper()
        handler: logging.Handler
        if self.log_format == "json":
            handler = JsonHandler()
            log_uncaught()
            logging.captureWarnings(True)
            print_traces_as(json_trace)
        else:
            handler = logging.StreamHandler()
            handler.setFormatter(PlainFormatter(LOG_FORMAT))
        logging.basicConfig(level=level, handlers=[handler])


def queue_record(store: Store, name: str) -> QueueRecord:
    """The stored queue. Raises InvalidNameError, QueueNotFoundError, which names what there is."""
    record = store.queues.get(check_name(name))
    if record is None:
        try:
            if store.queues_unknown:
                raise QueueNotFoundError(f"whether there is a queue {name!r} is not known: {store.queues_unknown}")
            known = ", ".join(sorted(one.name for one in store.queues.list())[:10])
        except PermissionDeniedError:  # who may only publish does not see what there is
            raise QueueNotFoundError(f"queue {name!r} does not exist") from None
        there = known or f"none{other_applications(store)}"
        raise QueueNotFoundError(f"queue {name!r} does not exist; there is {there}")
    return record


def is_pattern(text: str) -> bool:
    """Whether it is no queue's name, but one as in a shell (``tenant.*``) that may fit many."""
    return any(one in text for one in "*?[")


def matching_queues(store: Store, pattern: str) -> list[str]:
    """The queues whose names fit, in order. Raises QueueNotFoundError when none does."""
    found = sorted(one.name for one in store.queues.list() if fnmatch.fnmatchcase(one.name, pattern))
    if not found:
        raise QueueNotFoundError(f"no queue's name fits {pattern!r}")
    return found


def other_applications(store: Store) -> str:
    """What to say where an application has no queues: whose there are, if the store can tell. Behind the sentence's end."""
    own = (store.farm_id, store.client_id)
    others = [one for one in store.queues.applications() or [] if one != own]
    if not others:
        return ""
    named = [
        client_id if farm_id == store.farm_id else f"{client_id} (--farm-id {farm_id})" for farm_id, client_id in others
    ]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return (
        f" of application {store.client_id}; the store has queues of {', '.join(named[:_MOST_NAMED])}{more}, which "
        "--client-id chooses"
    )


@contextlib.contextmanager
def counted(state: State, doing: str) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how many messages something has done; gives what it is to call with the number of more."""
    from ignis.progress import make_progress

    with make_progress(quiet=state.json or not sys.stderr.isatty()) as progress, progress.bar(doing) as phase:
        yield lambda more: phase.done((phase.count or 0) + more)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        # The option may stand before or behind the command's name: the later one wins, an absent one changes nothing.
        state = context.ensure_object(State)
        if value:
            setattr(state, name, value)
        return value

    return callback


def _after_checks(command: F) -> F:
    """The command, run when every setting that was given can be read, whether the command uses it or not: what is
    misspelt would be ignored without a word."""

    @functools.wraps(command)
    def checked(*arguments: Any, **options: Any) -> Any:
        context = click.get_current_context()
        if context.invoked_subcommand is None:  # else the options behind the next name are not read yet
            check_sections(load_file(context.ensure_object(State).config))
        return command(*arguments, **options)

    return cast(F, checked)


def common_options(command: F) -> F:
    """Decorator: adds the options that every command has, and the look at the settings before it runs."""
    options = [
        click.option(
            "-u",
            "--url",
            metavar="URL",
            callback=_keep("url"),
            expose_value=False,
            is_eager=True,
            help="The store, e.g. embedded:///var/lib/orders.  [env: IGNIS_URL]",
        ),
        click.option(
            "--client-id",
            metavar="NAME",
            callback=_keep("client_id"),
            expose_value=False,
            is_eager=True,
            help=f"The application whose queues are meant.  [default: {DEFAULT_CLIENT_ID}]",
        ),
        click.option(
            "--farm-id",
            metavar="NAME",
            callback=_keep("farm_id"),
            expose_value=False,
            is_eager=True,
            help=f"The deployment.  [default: {DEFAULT_FARM_ID}]",
        ),
        click.option(
            "--config",
            metavar="FILE",
            callback=_keep("config"),
            expose_value=False,
            is_eager=True,
            help="TOML file of settings.  [env: IGNIS_CONFIG]",
        ),
        click.option(
            "--json",
            is_flag=True,
            callback=_keep("json"),
            expose_value=False,
            is_eager=True,
            help="Results as JSON on stdout, errors as JSON on stderr.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(LOG_LEVELS, case_sensitive=False),
            callback=_keep("log_level"),
            expose_value=False,
            is_eager=True,
            help="What is logged to stderr.  [default: warning; worker: info]",
        ),
        click.option(
            "--log-format",
            type=click.Choice(LOG_FORMATS, case_sensitive=False),
            callback=_keep("log_format"),
            expose_value=False,
            is_eager=True,
            help="How: lines to read, or one JSON object on each.  [default: text]",
        ),
    ]
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), _after_checks(command))


pass_state = click.make_pass_decorator(State, ensure=True)
