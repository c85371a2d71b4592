"""The workers that run handlers: threads, coroutines and processes behind one interface."""

from ignis.consumer.pools.base import Chunk, Pool, Sink, Worker
from ignis.consumer.pools.factory import make_pool

__all__ = ["Chunk", "Pool", "Sink", "Worker", "make_pool"]
