"""The workers that run handlers: threads, coroutines and processes behind one interface."""

from ignis.workers.base import Chunk, Pool, Sink, Worker
from ignis.workers.factory import make_pool

__all__ = ["Chunk", "Pool", "Sink", "Worker", "make_pool"]
