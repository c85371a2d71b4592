"""``ignis queues``, ``ignis stats`` and ``ignis peek``: what is there, without changing anything."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from ignis.cli import exit_codes, output
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import (
    State,
    common_options,
    is_pattern,
    matching_queues,
    other_applications,
    pass_state,
    queue_record,
)
from ignis.control.inspection import Row, message_dict, queue_settings, queue_state
from ignis.control.queue_depths import queue_depths, shard_states
from ignis.pausing import PAUSED
from ignis.storage.base import QueueRecord, Store

__all__ = ["peek", "queues", "stats"]


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also the inactive ones.")
@common_options
@pass_state
def queues(state: State, everything: bool) -> int:
    """Lists the queues with their depths and settings."""
    with state.store() as store:
        records = store.queues.list(active=None if everything else True)
        found = [(record, queue_depths(store, record)) for record in records]
        unknown = store.queues_unknown
        others = "" if found else other_applications(store)
    if state.json:
        output.document({"queues": [{**depths, **queue_settings(record)} for record, depths in found]})
        return exit_codes.OK
    if not found:
        output.remark(f"which queues there are is not known: {unknown}" if unknown else f"no queues{others}")
        return exit_codes.OK
    columns = [
        "queue",
        "pending",
        "delayed",
        "in flight",
        "sideline",
        "oldest",
        "shards",
        "durability",
        "codec",
        "handler",
    ]
    rows = []
    for record, depths in found:
        figures = [depths[name] for name in ("pending", "delayed", "in_flight", "sideline")]
        shown = not record.active or PAUSED in record.extra
        name = f"{record.name} ({queue_state(record)})" if shown else record.name
        rows.append(
            [
                name,
                *map(output.number, figures),
                output.age(depths["oldest_age_s"]),
                str(record.shards),
                record.durability,
                record.codec,
                _handler(record),
            ]
        )
    output.table(columns, rows, right=["pending", "delayed", "in flight", "sideline", "oldest", "shards"])
    return exit_codes.OK


class _Pause(click.FloatRange):
    """Seconds between two looks."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            float(value)
        except ValueError:
            self.fail(
                f"{value!r} is no number of seconds. A queue goes before it: ignis stats {value} --watch", param, ctx
            )
        return super().convert(value, param, ctx)


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option("--shards", is_flag=True, help="With QUEUE: pointers and counters of every shard that was ever used.")
@click.option(
    "-w",
    "--watch",
    is_flag=False,
    flag_value=2.0,
    type=_Pause(0.1, 86_400),
    metavar="[SECONDS]",
    help="Again and again, every 2 seconds or so many, until Ctrl-C. Without SECONDS it goes behind QUEUE.",
)
@common_options
@pass_state
def stats(state: State, queue: str | None, shards: bool, watch: float | None) -> int:
    """Figures of the store and its queues, or of one queue. QUEUE may be a pattern, such as 'tenant.*': one line for each."""
    if shards and (queue is None or is_pattern(queue)):
        raise click.UsageError("--shards needs one QUEUE")
    with state.store() as store:
        if watch is None:
            return _show_stats(state, store, queue, shards)
        try:
            while True:
                if output.on_terminal() and not state.json:
                    click.clear()
                _show_stats(state, store, queue, shards)
                if not state.json:
                    output.line("")
                sys.stdout.flush()
                time.sleep(watch)
        except KeyboardInterrupt:  # the way to end it
            return exit_codes.OK


def _show_stats(state: State, store: Store, queue: str | None, shards: bool) -> int:
    if queue is None or is_pattern(queue):
        return _show_many(state, store, queue)
    record = queue_record(store, queue)
    depths = queue_depths(store, record)
    states = shard_states(store, queue) if shards else []
    if state.json:
        out = {**depths, **queue_settings(record)}
        if shards:
            out["shard_states"] = [{**vars(one), "pending": one.pending} for one in states]
        output.document(out)
        return exit_codes.OK
    shown = {**depths, **queue_settings(record)}
    shown.pop("queue")
    output.pairs(shown, title=f"queue {queue}")
    if shards:
        output.line("")
        columns = ["shard", "load pointer", "fire pointer", "pending", "in flight"]
        rows = [
            [str(one.shard), *map(output.number, (one.load_pointer, one.fire_pointer, one.pending, one.in_flight))]
            for one in states
            if one.load_pointer
        ]
        output.table(columns, rows, right=columns)
    return exit_codes.OK


def _show_many(state: State, store: Store, pattern: str | None) -> int:
    """A line for each queue whose name fits; None = for each that is in use, and the store's own figures."""
    if pattern is None:
        records = store.queues.list(active=True)
    else:
        records = [queue_record(store, name) for name in matching_queues(store, pattern)]
    depths = [queue_depths(store, record) for record in records]
    figures = store.stats() if pattern is None else {}
    if state.json:
        output.document({"store": figures, "queues": depths} if pattern is None else {"queues": depths})
        return exit_codes.OK
    if pattern is None:
        # Counters are those of this process, which has done nothing yet.
        output.pairs({name: value for name, value in figures.items() if value}, title=f"store {state.resolved_url()}")
        output.line("")
    rows = [[one["queue"], *map(output.number, _counted(one)), output.age(one["oldest_age_s"])] for one in depths]
    columns = ["queue", "pending", "delayed", "in flight", "sideline", "sideline in flight", "swept", "expired"]
    columns += ["sideline expired", "oldest"]
    output.table(columns, rows, right=columns[1:])
    return exit_codes.OK


@click.command(short_help="Shows the next messages of QUEUE without claiming them.")
@click.argument("queue", shell_complete=complete_queue)
@click.option(
    "-n", "--limit", default=10, show_default=True, type=click.IntRange(1, 1_000_000), help="At most so many messages."
)
@click.option("--all", "everything", is_flag=True, help="Also what is claimed at the moment.")
@common_options
@pass_state
def peek(state: State, queue: str, limit: int, everything: bool) -> int:
    """Shows the messages at the head of each shard without claiming them. With --json one document per message.

    Ends with 5 when there is none.
    """
    with state.store() as store:
        queue_record(store, queue)
        rows = store.magazines.scan(queue, limit=limit + 1, pending_only=not everything)
    if not rows:
        if not state.json:
            output.remark(f"no message is waiting in {queue}")
        return exit_codes.NOTHING
    show_messages(state, rows[:limit], failures=False)
    if len(rows) > limit and not state.json:
        output.remark(f"{limit:,}, there are more: -n shows more, 'ignis stats {queue}' counts them")
    return exit_codes.OK


def show_messages(state: State, rows: list[Row], *, failures: bool) -> None:
    """Messages as a table, or as one JSON document each; ``failures`` shows why they failed."""
    found = [message_dict(*row) for row in rows]
    if state.json:
        for one in found:
            output.document(one)
        return
    now_s = time.time()
    head = ["shard", "pointer", "key", "age", "failures"]
    columns = [*head, "returns", "id", "reason", "error", "body"] if failures else [*head, "id", "body"]
    out = []
    for one in found:
        enqueued = one.get("enqueued_at_us")
        waited = output.age(None if not enqueued else now_s - enqueued / 1e6)
        body = one["body"] if isinstance(one.get("body"), str) else _json_text(one.get("body", one.get("body_hex", "")))
        cells = [
            str(one["shard"]),
            str(one["pointer"]),
            output.preview(one.get("key") or one.get("key_hex") or "-", 24),
            waited,
            str(one.get("failures", 0)),
        ]
        if failures:
            cells += [
                str(one.get("returns", 0)),
                one.get("id", "-"),
                one.get("reason") or "-",
                output.preview(one.get("error") or "-", 50),
                output.preview(body, 50),
            ]
        else:
            cells += [one.get("id", "-"), output.preview(body, 70)]
        out.append(cells)
    output.table(columns, out, right=["shard", "pointer", "age", "failures", *(["returns"] if failures else [])])


def _counted(depths: dict[str, Any]) -> list[int]:
    names = (
        "pending",
        "delayed",
        "in_flight",
        "sideline",
        "sideline_in_flight",
        "swept",
        "expired",
        "sideline_expired",
    )
    return [depths[name] for name in names]


def _handler(record: QueueRecord) -> str:
    if not record.handler_type:
        return "no handler"
    return (
        f"{record.handler_type} x {record.concurrency}"
        if record.concurrency
        else f"{record.handler_type}: publish only"
    )


def _json_text(value: object) -> str:
    return value if isinstance(value, str) else output.to_json(value)
