"""Queues as sources and sinks of Spark. Needs ``pip install 'ignis-mq[spark]'`` and Java 17."""

from ignis.spark.checkpoint import Finished, finish
from ignis.spark.drain_task import Committed, Drained
from ignis.spark.pandas_stages import parse_in_pandas, publish_in_pandas, read_in_pandas
from ignis.spark.source import IgnisDataSource
from ignis.spark.stages import drain, publish, resume
from ignis.spark.trace_column import traceparent_of

__all__ = [
    "Committed",
    "Drained",
    "Finished",
    "IgnisDataSource",
    "drain",
    "finish",
    "parse_in_pandas",
    "publish",
    "publish_in_pandas",
    "read_in_pandas",
    "resume",
    "traceparent_of",
]
