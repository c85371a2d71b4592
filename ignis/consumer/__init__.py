"""The consumer of one queue in one process: claim, dispatch to workers, acknowledge in batches."""

from ignis.consumer.consumer import FLEET, PROCESS, REMOVAL, START, Consumer

__all__ = ["FLEET", "PROCESS", "REMOVAL", "START", "Consumer"]
