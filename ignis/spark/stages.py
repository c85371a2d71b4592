"""Queues in the middle of a DataFrame pipeline: `publish` loads one, `drain` empties one.

Neither moves messages in the driver. Writing happens in tasks, one transaction for thousands of rows; reading goes by
pointers that the driver has claimed, so that a task that fails, comes again or runs twice reads the same messages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from ignis.errors import ConfigError
from ignis.log_format import event_text
from ignis.spark._pyspark import Column, DataFrame, SparkSession, StructType
from ignis.spark.columns import to_messages
from ignis.spark.drain_task import Drained, new_job
from ignis.spark.publish_task import RECEIPT_SCHEMA, Publishing
from ignis.spark.queue_path import find_place, make_place, must_keep_later
from ignis.spark.traces import given_context, is_context, job_trace
from ignis.storage import DEFAULT_CLIENT_ID, DEFAULT_FARM_ID

__all__ = ["drain", "publish", "resume"]

log = logging.getLogger("ignis.spark")


def publish(
    df: DataFrame,
    url: str,
    queue: str,
    *,
    key: str | Column | None = None,
    value: str | Column | None = None,
    columns: Sequence[str] | None = None,
    id: str | Column | Sequence[str] | None = None,
    at: str | Column | None = None,
    expires_at: str | Column | None = None,
    traceparent: str | Column | None = None,
    client_id: str = DEFAULT_CLIENT_ID,
    farm_id: str = DEFAULT_FARM_ID,
    config: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DataFrame:
    """A DataFrame of receipts; publishing happens when an action runs it, once for each time it is run.

    Args:
        df: what to publish.
        url: a store that the executors can open: of one machine ``embedded:///path``, of many a shared one.
        queue: is registered in the store at once if it was not there, with the settings among the options.
        key: a column; rows of the same value go to one shard.
        value: the column that holds the bodies, binary or text, as they shall be stored; or
        columns: those that become the fields of a JSON object (default: all). For queues with codec ``json``.
        id: the column, or columns, that tell the rows apart. With it no message is stored twice, however often its row
            is published: by a task that is run again or twice, by another action, by another run of the program within
            ``remember_ids_s``. Not on a store without ``tells_repeats`` (Aerospike), and not without it: at least once.
            Binary values of 16 bytes, UUIDs (``8-4-4-4-12`` hexadecimal digits, or 32) and whole numbers are the messages'
            ids, of everything else the MD5 is. Not null, and no text that looks like a UUID and is none.
        at: a column of moments (``timestamp``), or of whole numbers of milliseconds since 1970: nobody gets the message before.
            Null: at once. With ``id`` each row is stored once, whenever it is due.
        expires_at: a column of the same kind: no handler begins with the message after that. Null: it has no deadline.
        traceparent: to which trace the messages belong: a column of text with one a row, as W3C Trace Context writes it (what is
            none there counts as null), or such a text for all of them. None: to that of the span that is current now, where
            ``tracing.enabled`` is set; else to none.
        client_id, farm_id: the application and deployment whose queue it is.
        config: a settings file for what the options leave out.
        options: settings of ``[spark]`` and, for a queue that is not there yet, of ``[queue]``, e.g.
            ``durability="interval"``. ``codec`` is ``json`` with columns and ``raw`` with a value unless given.

    Returns:
        A row for each batch that one load put into one shard: ``partition`` (of ``df``), ``shard``,
        ``first_pointer`` (0 when nothing was left to store), ``count`` (messages stored), ``duplicates`` (left out). Delayed ones
        have no place yet: ``shard`` -1, ``first_pointer`` 0.
        What a receipt tells of is as durable as the queue's setting promises.

    Raises:
        ConfigError, InvalidNameError, QueueMismatchError, StoreUnreachableError: at once. So is DelayNotSupportedError, for
        ``at`` on a store that keeps no delayed messages. The action fails, with what was stored before staying, on
        MessageTooLargeError, InvalidMessageError (a null value or id), StoreFullError, StoreFailedError.
    """
    given = traceparent if isinstance(traceparent, str) and is_context(traceparent) else None
    own = None if given is not None else traceparent
    messages = to_messages(
        df, value=value, columns=columns, key=key, id=id, at=at, expires_at=expires_at, traceparent=own
    )
    place = make_place(
        url,
        queue,
        options,
        codec="json" if value is None else "raw",
        client_id=client_id,
        farm_id=farm_id,
        config=config,
    )
    if value is None and place.codec != "json":
        raise ConfigError(
            f"queue {queue!r} has codec {place.codec!r}: give a value column with the bodies, not columns"
        )
    if at is not None:
        must_keep_later(place)
    if id is not None and not place.open().magazines.tells_repeats:
        log.warning(
            event_text(
                "spark_repeats_untold", "%s cannot tell repeated ids: rows that are published again are stored again"
            ),
            url,
        )
    trace = job_trace(place, None if given is None else given_context(given), column=own is not None)
    return messages.mapInArrow(Publishing(place, trace), RECEIPT_SCHEMA)


def drain(
    spark: SparkSession,
    url: str,
    queue: str,
    *,
    limit: int | None = None,
    schema: StructType | str | None = None,
    envelope: bool = True,
    job: str | None = None,
    client_id: str = DEFAULT_CLIENT_ID,
    farm_id: str = DEFAULT_FARM_ID,
    config: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Drained:
    """Claims what is pending, now, and gives a handle with the DataFrame of it.

    Nobody else gets these messages from then on. They stay in the store until `Drained.commit`; without it they go back
    by `Drained.abandon`, are found again by `resume` in any other process, or are taken by the sweeper once the driver
    has not renewed its claims for the queue's ``stuck_after``.

    Args:
        limit: most messages; None = all that are pending.
        schema: of JSON bodies: its columns, with the values that Spark's ``from_json`` gives, stand in place of ``body``. A
            column named ``_corrupt_record`` in it takes what is no such JSON.
        envelope: whether the envelope's columns come along. Without them a task hands over half as much.
        job: a name for `resume`; None draws one. What is claimed under it already comes first.
        url, client_id, farm_id, config: see `publish`.
        options: settings of ``[spark]``.

    Raises:
        QueueNotFoundError, ConfigError, InvalidNameError, StoreUnreachableError.
    """
    place = find_place(url, queue, options, client_id=client_id, farm_id=farm_id, config=config)
    return Drained(
        spark, place, new_job() if job is None else job, schema=schema, limit=limit, claims=True, envelope=envelope
    )


def resume(
    spark: SparkSession,
    url: str,
    queue: str,
    job: str,
    *,
    schema: StructType | str | None = None,
    envelope: bool = True,
    client_id: str = DEFAULT_CLIENT_ID,
    farm_id: str = DEFAULT_FARM_ID,
    config: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Drained:
    """The handle of a drain whose driver died: what it had claimed and not committed, and nothing new.

    ``claimed`` is 0 when nothing is left: it was committed, given back, or swept. Two drivers must not go on with one job
    at the same time: both would read its messages.

    Args, Raises: see `drain`.
    """
    place = find_place(url, queue, options, client_id=client_id, farm_id=farm_id, config=config)
    return Drained(spark, place, job, schema=schema, limit=None, claims=False, envelope=envelope)
