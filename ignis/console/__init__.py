"""The console: queues looked at, operated and used over HTTP. Needs the extra ``console``."""

from ignis.console.asgi import Console, application

__all__ = ["Console", "application"]
