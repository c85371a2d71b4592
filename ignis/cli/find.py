"""``ignis find``: where a message is."""

from __future__ import annotations

import itertools
from typing import Any

import click

from ignis.cli import exit_codes, output
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, counted, pass_state, queue_record
from ignis.control.inspection import message_dict
from ignis.control.queue_depths import queue_depths
from ignis.control.search import Found, Query, Search
from ignis.errors import InvalidMessageError
from ignis.message import message_id

__all__ = ["find"]


def _id(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else message_id(value)
    except InvalidMessageError as exc:
        raise click.BadParameter(str(exc)) from None


def _headers(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    for value in values:
        if not value.partition("=")[0] or "=" not in value:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
    return tuple((name, value) for name, _, value in (one.partition("=") for one in values))


@click.command(short_help="Finds messages wherever they are, or shows what is there.")
@click.argument("id", required=False, callback=_id)
@click.option("--key", metavar="KEY", help="Messages of this key.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_headers,
    metavar="NAME=VALUE",
    help="Messages with this header; may be given often, and all must be there.",
)
@click.option("--text", metavar="TEXT", help="Messages in whose body this stands, as it is stored.")
@click.option(
    "-q", "--queue", "queues", multiple=True, shell_complete=complete_queue, metavar="QUEUE",
    help="Only in this queue; may be given often.  [default: all]",
)  # fmt: skip
@click.option(
    "-n",
    "--limit",
    default=20,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="At most so many; with --queue alone, of each queue.",
)
@click.option(
    "--most",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Look at no more than so many messages.",
)
@common_options
@pass_state
def find(
    state: State,
    id: str | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
    text: str | None,
    queues: tuple[str, ...],
    limit: int,
    most: int,
) -> int:
    """Finds messages wherever they are: waiting, in flight, delayed, or failed.

    By ID, key, header or text; with --queue alone it shows some of what is in each of these places of the queue, and how many
    there are. What failed is in the sideline. With --json one document per message. Nothing is claimed.

    There is no index: it reads messages until it has found --limit, one with an ID, or looked at --most. What moves meanwhile may
    be missed. Ends with 5 when nothing was found.
    """
    query = Query(id, key, headers, text)
    everything = query == Query()
    if everything and not queues:
        raise click.UsageError(
            "say what to look for: an ID, --key, --header or --text; or --queue, for what is in a queue"
        )
    with state.store() as store:
        names = [queue_record(store, name).name for name in dict.fromkeys(queues)]
        names = names or [one.name for one in store.queues.list()]
        with counted(state, "looking") as progress:
            search = Search(store, query, most, progress)
            if everything:
                found = [one for name in names for one in search.some_of_each(name, limit)]
            else:
                every = itertools.chain.from_iterable(map(search.in_queue, names))
                found = list(itertools.islice(every, 1 if id is not None else limit))
        depths = (
            [queue_depths(store, queue_record(store, name)) for name in names] if everything and not state.json else []
        )
        ahead_s = store.now_s() - store.wall_s()
    documents = [_document(one, ahead_s) for one in found]
    if state.json:
        for one in documents:
            output.document(one)
    elif documents:
        rows = [
            [
                one["queue"],
                one["state"],
                str(one["shard"]),
                str(one["pointer"]),
                one["id"] or "-",
                output.preview(one.get("key") or one.get("key_hex") or "-", 24),
                "-" if one["failures"] is None else str(one["failures"]),
                output.moment(one["due_at_ms"]) if "due_at_ms" in one else one.get("reason") or "-",
            ]
            for one in documents
        ]
        columns = ["queue", "state", "shard", "pointer", "id", "key", "failures", "due, or reason"]
        output.table(columns, rows, right=["shard", "pointer", "failures"])
    for one in depths:
        shown = sum(document["queue"] == one["queue"] for document in documents)
        sideline = one["sideline"] + one["sideline_in_flight"]
        output.remark(
            f"{one['queue']}: {one['delayed']:,} delayed, {one['pending']:,} waiting, {one['in_flight']:,} in flight, "
            f"{sideline:,} in the sideline; {shown:,} of them shown (--limit)"
        )
    if not search.complete:
        output.warning(
            f"only {search.looked_at:,} messages were looked at; --most looks at more, --queue at fewer queues"
        )
    if not documents and not state.json and not everything:
        output.remark(f"nothing of that among {search.looked_at:,} message(s)")
    return exit_codes.OK if documents else exit_codes.NOTHING


def _document(one: Found, ahead_s: float) -> dict[str, Any]:
    due = {} if one.due_ms is None else {"due_at_ms": round(one.due_ms - ahead_s * 1000)}
    about = message_dict(one.shard, one.pointer, one.record)
    return {"queue": one.queue, "state": one.state, **due, **about}
