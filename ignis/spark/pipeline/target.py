"""Where the queue of a pipeline is: an argument before the environment before the description before a settings file."""

from __future__ import annotations

import logging
import os
from typing import Any, NamedTuple

from ignis.app import Ignis
from ignis.config import load_file
from ignis.errors import ConfigError
from ignis.log_format import event_text
from ignis.spark.pipeline.description import Description
from ignis.spark.queue_path import must_have_shards
from ignis.urls import redacted

__all__ = ["Target", "declare_queue", "resolve_target"]

log = logging.getLogger("ignis.spark")


class Target(NamedTuple):
    """A store and whose queues are meant; ``config``: a settings file (default ``IGNIS_CONFIG``)."""

    url: str
    client_id: str
    farm_id: str
    config: str | None = None

    def __repr__(self) -> str:
        return f"<Target {redacted(self.url)} {self.farm_id}/{self.client_id}>"

    def app(self) -> Ignis:
        """An application on the store. Close it."""
        return Ignis(self.url, client_id=self.client_id, farm_id=self.farm_id, config=self.config)

    def stage_options(self) -> dict[str, Any]:
        """As the stages take it, beside the URL."""
        return {"client_id": self.client_id, "farm_id": self.farm_id, "config": self.config}


def resolve_target(description: Description, given: Target | None = None) -> Target:
    """Fills in what was not given.

    Args:
        given: of the command line; empty texts count as not given.

    Raises:
        ConfigError: no store is named, or one that only this process could see.
    """
    store = description.store
    config = given.config if given else None
    url = given.url if given else ""
    if not url and (url := os.environ.get("IGNIS_URL", "")) and store.url not in ("", url):
        log.warning(
            event_text("pipeline_url_overridden", "IGNIS_URL goes before [store]: the store is %s, not %s"),
            redacted(url),
            redacted(store.url),
        )
    url = url or store.url or load_file(config).get("url", "")
    if not url:
        raise ConfigError("no store: give a URL, set IGNIS_URL, or write it into [store] of the description")
    if url.startswith("memory:"):
        raise ConfigError(
            f"url = {redacted(url)!r}: a store in memory lives in one process; Spark's workers are others"
        )
    client_id = (given.client_id if given else "") or store.client_id
    return Target(url, client_id, (given.farm_id if given else "") or store.farm_id, config)


def declare_queue(description: Description, target: Target, *, raw: bool) -> int:
    """Makes the pipeline's queue known in the store; returns how many bytes the body of a message may have.

    Args:
        raw: whether bodies are plain text; otherwise they are JSON.

    Raises:
        QueueMismatchError: it exists with other settings. ConfigError: its codec cannot take such bodies.
    """
    name = description.queue.name
    with target.app() as app:
        stored = app.store.queues.get(name)
        given = description.queue.settings
        must_have_shards(name, stored, given)
        if stored is None or given:
            kind = bytes if raw and (stored is None or stored.codec == "raw") else None
            queue = app.queue(name, kind, **given)
            queue.open()
            stored = app.store.queues.get(name)
        else:
            queue = app.queue(name)
        assert stored is not None
        limit = queue.settings.max_message_bytes
    if stored.codec != "raw" and (raw or stored.codec != "json"):
        raise ConfigError(
            f"queue {name!r} has the codec {stored.codec}; the pipeline brings {'text' if raw else 'JSON'}"
        )
    return limit
