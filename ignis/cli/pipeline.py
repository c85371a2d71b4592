"""``ignis pipeline``: files into a queue and a queue into Parquet with Spark; a report on the sideline."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ignis.cli import exit_codes, output
from ignis.cli.other_words import WordGroup
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, pass_state
from ignis.progress import Progress, make_progress

if TYPE_CHECKING:
    from ignis.spark.pipeline import (
        Description,
        ExportSummary,
        IngestSummary,
        SidelineReport,
        Target,
    )

__all__ = ["pipeline"]

_LINE_EVERY_S = 10.0
"""Without a terminal, a step that takes longer says so this often."""

description_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
run_option = click.option("--run-id", metavar="ID", help="Name of the run; one that is done is not done again.")
master_option = click.option("--master", metavar="URL", default="", help="Spark's master, e.g. local[2].")


@click.group(cls=WordGroup, short_help="Files into a queue, and a queue into Parquet, with Spark.")
@common_options
def pipeline() -> None:
    """Files into a queue and a queue into Parquet with Spark; a report on the sideline.

    FILE describes a pipeline: see docs/spark.md. Needs: pip install 'ignis-mq[spark]', and Java 17.
    """


@pipeline.command("ingest", short_help="Publishes the rows of FILE's input.")
@description_argument
@run_option
@click.option("--all", "everything", is_flag=True, help="Read all files, also those that an earlier run has read.")
@click.option("--new-run", is_flag=True, help="Give up an unfinished run instead of taking it up.")
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Read rows again that a run has read by another description, or published longer ago than ids are remembered.",
)
@master_option
@common_options
@pass_state
def ingest_command(
    state: State, file: Path, run_id: str | None, everything: bool, new_run: bool, accept_changes: bool, master: str
) -> int:
    """Publishes the rows of FILE's input; when it ends with 0, all of them are durable.

    Rows that do not fit the schema go to the quarantine folder. An unfinished run is taken up first; files that were read
    by a finished run are passed over.
    """
    from ignis.spark.pipeline import Shown, ingest, load_description

    described = load_description(file)
    described.wanted("ingest")
    with _session(state, described, master) as spark, _progress(state) as display:
        summary = ingest(
            spark,
            described,
            target=_target(state),
            run_id=run_id,
            everything=everything,
            new_run=new_run,
            accept_changes=accept_changes,
            progress=Shown(display),
        )
    _show(state, summary, "nothing new to read: every file was read by an earlier run (--all reads them again)")
    return exit_codes.OK


@pipeline.command("export", short_help="Moves what is pending in the queue into Parquet files.")
@description_argument
@run_option
@master_option
@common_options
@pass_state
def export_command(state: State, file: Path, run_id: str | None, master: str) -> int:
    """Moves what is pending in the queue into Parquet files; when it ends with 0, they are in place.

    Messages whose body does not fit the schema go to the quarantine folder. An unfinished run is taken up first.
    """
    from ignis.spark.pipeline import Shown, export, load_description

    described = load_description(file)
    described.wanted("export")
    with _session(state, described, master) as spark, _progress(state) as display:
        summary = export(spark, described, target=_target(state), run_id=run_id, progress=Shown(display))
    _show(state, summary, f"nothing is pending in {described.queue.name}")
    return exit_codes.OK


@pipeline.command("report", short_help="Adds up what is in QUEUE's sideline.")
@click.argument("queue", shell_complete=complete_queue)
@click.option("--csv", "csv_path", metavar="PATH", type=click.Path(dir_okay=False, path_type=Path), help="Write CSV.")
@click.option(
    "--html",
    "html_path",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page with plots.",
)
@click.option(
    "--keys", default=10, show_default=True, type=click.IntRange(0, 1_000), help="How many of the keys to show."
)
@common_options
@pass_state
def report_command(state: State, queue: str, csv_path: Path | None, html_path: Path | None, keys: int) -> int:
    """Adds up what is in QUEUE's sideline: reasons, handlers, keys, ages. Claims nothing, and starts no Spark."""
    from ignis.spark.pipeline.page import write_page
    from ignis.spark.pipeline.report import sideline_report, write_csv

    with state.store() as store:
        report = sideline_report(store, queue)
    if csv_path is not None:
        write_csv(report, csv_path)
    if html_path is not None:
        write_page(report, html_path)
    if state.json:
        output.document(report.as_dict(keys=keys))
    else:
        _show_report(report, keys)
    return exit_codes.OK


@pipeline.command("demo", short_help="Sends a year of flights from Parquet through queues to Parquet.")
@click.option("--flights", type=click.IntRange(min=100), help="Only so many flights.  [default: all 336,776]")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 16), help="Worker processes.")
@click.option("--master", metavar="URL", default="local[2]", show_default=True, help="Spark's master; of this machine.")
@click.option("--keep", is_flag=True, help="Keep the directory with the files, the store and the descriptions.")
@common_options
@pass_state
def demo_command(state: State, flights: int | None, workers: int, master: str, keep: bool) -> int:
    """Every flight that left New York in 2013: Parquet, queue, handlers, queue, Parquet. The totals are Spark's own.

    Ends with 1 if a total differs from a plain Spark aggregation of the input. Runs in a directory of its own, whatever
    IGNIS_URL says.
    """
    from ignis.demo.spark import Options, run_spark_demo

    options = Options(flights=flights, workers=workers, master=master, keep=keep, json=state.json)
    return exit_codes.OK if run_spark_demo(options) else exit_codes.ERROR


def _target(state: State) -> Target:
    """What was given on the command line; the rest is filled in from the environment and the description."""
    from ignis.spark.pipeline import Target

    return Target(state.url or "", state.client_id or "", state.farm_id or "", state.config)


def _session(state: State, described: Description, master: str) -> contextlib.AbstractContextManager[Any]:
    from ignis.spark.pipeline import session

    level = (state.log_level or "error").upper().replace("WARNING", "WARN")  # as Java spells it
    return session(described.spark, app_name=f"ignis pipeline {described.name}", master=master, log_level=level)


def _show(state: State, summary: IngestSummary | ExportSummary, nothing: str) -> None:
    values = {name: getattr(summary, name) for name in summary.__struct_fields__}
    if state.json:
        output.document(values)
        return
    if not summary.run:
        output.remark(nothing)
        return
    if summary.repeated:
        output.remark(f"run {summary.run} was done before; its figures:")
    rejected = values.pop("rejected")
    shown = {name: value for name, value in values.items() if name not in ("resumed", "repeated", "rows_per_s")}
    shown["rejected"] = sum(rejected.values())
    shown |= {f"rejected: {reason}": count for reason, count in rejected.items()}
    shown["rows a second"] = round(values["rows_per_s"])
    if summary.resumed and not summary.repeated:
        shown["taken up from"] = "an earlier process"
    output.pairs(shown, title=f"pipeline {summary.pipeline}")


def _show_report(report: SidelineReport, keys: int) -> None:
    if not report.total:
        output.remark(f"the sideline of {report.queue} is empty")
        return
    rows = []
    for reason, handler, one in report.rows():
        error, count = one.commonest()
        cells = [output.preview(reason, 20), output.preview(handler, 40) or output.NONE, output.number(one.count)]
        cells += [output.age(one.oldest_s), output.age(one.newest_s), output.preview(error, 60) or output.NONE]
        rows.append([*cells, output.number(count) if count else output.NONE])
    columns = ["reason", "handler", "messages", "oldest", "newest", "most frequent error", "of that"]
    figures = ["messages", "oldest", "newest", "of that"]
    output.table(columns, rows, title=f"sideline of {report.queue}: {report.total:,} messages", right=figures)
    output.line("")
    ages = [[name, output.number(sum(counts.values()))] for name, counts in report.ages().items() if counts]
    output.table(["age", "messages"], ages, title="by age since the failure", right=["messages"])
    found = report.top_keys(keys)
    if found:
        output.line("")
        rows = [[output.preview(key, 60), output.number(count)] for key, count in found]
        output.table(["key", "messages"], rows, title="keys with the most failures", right=["messages"])


def _progress(state: State) -> contextlib.AbstractContextManager[Progress]:
    return make_progress(quiet=state.json, line_every_s=_LINE_EVERY_S)
