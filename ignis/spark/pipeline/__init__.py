"""The data pipeline as a program: files into a queue, a queue into Parquet, and a report on what failed.

* `description`: the TOML file; `session`, `target`: the Spark session and the store that it names;
* `ingest`: `intake` (which files), `reading` with `csv_lines`, and `checks`, then publishing; `export`: draining, and Parquet;
  `folders`: its partitions;
* `runs`, `files`: what makes running again safe: records of runs, folders that appear in one step;
* `report`, `page`: the sideline as figures, CSV and an HTML page;
* `progress`: what whoever starts a pipeline is told.

``ignis pipeline`` is the command line over these.
"""

from __future__ import annotations

from ignis.spark.pipeline.description import Description, load_description, parse_description
from ignis.spark.pipeline.export import ExportSummary, export
from ignis.spark.pipeline.folders import read_exported
from ignis.spark.pipeline.ingest import IngestSummary, ingest
from ignis.spark.pipeline.page import write_page
from ignis.spark.pipeline.progress import Progress, Shown, Step
from ignis.spark.pipeline.report import SidelineReport, sideline_report, write_csv
from ignis.spark.pipeline.session import session
from ignis.spark.pipeline.target import Target

__all__ = [
    "Description",
    "ExportSummary",
    "IngestSummary",
    "Progress",
    "Shown",
    "SidelineReport",
    "Step",
    "Target",
    "export",
    "ingest",
    "load_description",
    "parse_description",
    "read_exported",
    "session",
    "sideline_report",
    "write_csv",
    "write_page",
]
