"""A job that publishes six orders, half a task each, within a span of its own: its spans and its tasks' go to a collector.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://... OTEL_SERVICE_NAME=job IGNIS_TRACING_ENABLED=true \
        python -m tests.apps.collected_spark embedded://... <directory>

It prints the id of the trace.
"""

from __future__ import annotations

import os
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyspark.sql import SparkSession

import ignis
from ignis.spark import publish
from tests.support import eventually

COUNT = 6


def main(url: str, directory: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.python.daemon.module", "tests.apps.traced_daemon")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", f"{directory}/local")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    with trace.get_tracer("job").start_as_current_span("nightly") as job:
        publish(spark.range(0, COUNT, 1, 2), url, "orders", id="id").collect()
    spark.stop()
    seen: list[object] = []
    with ignis.Ignis(url) as app:
        app.queue("orders", dict).handler(seen.append)
        app.start()
        eventually(lambda: len(seen) == COUNT, "the orders are handled")
    provider.shutdown()  # sends what is left
    sys.stdout.write(f"{job.get_span_context().trace_id:032x}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
