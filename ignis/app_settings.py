"""What an application is given when it is made, checked and joined with its settings file."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ignis.clock import Clock
from ignis.config import (
    APPLICATION,
    APPLICATION_HINT,
    SECTIONS,
    ConsumerSettings,
    LeaderSettings,
    PublisherSettings,
    RefresherSettings,
    SchedulesSettings,
    SweeperSettings,
    TracingSettings,
    check_name,
    check_sections,
    check_text,
    kind_of,
    load_file,
    naming,
    resolve,
    shown,
    url_named,
)
from ignis.errors import ConfigError
from ignis.near_names import meant
from ignis.storage import check_scheme
from ignis.urls import absolute

__all__ = ["AppSettings", "refuse_arguments"]


class AppSettings:
    """The settings of one application: of its store, its name, its components and its clock. The arguments are those of `Ignis`.

    Raises ConfigError for a value that is not allowed, before anything is opened.
    """

    def __init__(
        self,
        *,
        url: str | None,
        client_id: str,
        farm_id: str,
        config: str | os.PathLike[str] | None,
        resources: Mapping[str, Any] | None,
        consumer: Mapping[str, Any] | None,
        sweeper: Mapping[str, Any] | None,
        refresher: Mapping[str, Any] | None,
        publisher: Mapping[str, Any] | None,
        leader: Mapping[str, Any] | None,
        schedules: Mapping[str, Any] | None,
        tracing: Mapping[str, Any] | None,
        store: Mapping[str, Any] | None,
        clock: Callable[[], float] | None,
    ) -> None:
        self.file = load_file(config)
        found, self._url_source = url_named(None if url is None else check_text(url, "url", secret=True), self.file)
        if found:
            with naming(self._url_source):
                check_scheme(found)
        self.url = absolute(found) if found else None
        self.client_id = check_name(client_id, "client_id")
        self.farm_id = check_name(farm_id, "farm_id")
        self.resources = _mapping(resources, "resources")
        consumer, sweeper, refresher = (
            _mapping(consumer, "consumer"), _mapping(sweeper, "sweeper"), _mapping(refresher, "refresher"),
        )  # fmt: skip
        publisher, leader, store = (
            _mapping(publisher, "publisher"), _mapping(leader, "leader"), _mapping(store, "store"),
        )  # fmt: skip
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock = {shown(clock)} is not a function that gives seconds")
        self.consumer_settings = resolve(ConsumerSettings, consumer, self.file)
        # Also what is used later or by another program, such as a policy that no handler names yet.
        check_sections(self.file)
        self.sweeper_settings = resolve(SweeperSettings, sweeper, self.file)
        self.refresher_settings = resolve(RefresherSettings, refresher, self.file)
        self.schedules_settings = resolve(SchedulesSettings, _mapping(schedules, "schedules"), self.file)
        self.tracing_settings = resolve(TracingSettings, _mapping(tracing, "tracing"), self.file)
        self.leader_settings = resolve(LeaderSettings, leader, self.file)
        resolve(
            PublisherSettings, publisher, self.file
        )  # so that a bad value is refused here, not by the first publisher
        self._publisher_given = dict(publisher)
        self.store_options: dict[Any, Any] = dict(store)
        for name in self.store_options:
            if name in APPLICATION:
                raise ConfigError(f"store has {shown(name)}, which is no option of a store: {APPLICATION_HINT}")
            if not isinstance(name, str) or name == "url":
                raise ConfigError(f"store has {shown(name)}, which is no option of a store")
        self.clock = clock if isinstance(clock, Clock) else Clock(clock)
        """The time by which this application acts."""

    def publisher_settings(self, given: Mapping[str, Any]) -> PublisherSettings:
        """The settings of a publisher for which ``given`` was asked. Raises ConfigError."""
        return resolve(PublisherSettings, {**self._publisher_given, **given}, self.file)


def refuse_arguments(others: Mapping[str, object]) -> NoReturn:
    """Raises the TypeError for arguments that an application does not have, and says where such settings go."""
    name = next(iter(others))
    if name in ("client", "relay"):
        raise TypeError(
            f"{name}=...: what [{name}] has are options of the store: Ignis(url, store={{...}}), or in the URL"
        )
    known = [one for one in inspect.signature(AppSettings).parameters if one != name]
    hint = meant(name, known)
    if not hint and name in (cls.section for cls in SECTIONS):
        hint = f"what it has stands in [{name}] of the settings file or in IGNIS_{name.upper()}_*; "
    raise TypeError(f"Ignis() has no argument {shown(name)}; {hint}known: {', '.join(known)}")


def _mapping(value: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        # Without the value: it may be a URL with its password, or pairs of names and secrets.
        raise ConfigError(f"{name} is {kind_of(value)} and not a mapping of settings")
    return value
