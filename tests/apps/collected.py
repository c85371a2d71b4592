"""A shop that publishes one order and a worker that cannot handle it: two processes, whose spans a collector gets by OTLP.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://... OTEL_SERVICE_NAME=shop python -m tests.apps.collected shop embedded://...

The shop prints the id of the trace. The worker ends when the order is in the sideline.
"""

from __future__ import annotations

import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import ignis
from tests.support import eventually, idle

ONE = {"shards": 1, "shovel_interval": 0}


def shop(app: ignis.Ignis) -> None:
    orders = app.queue("orders", dict, **ONE)
    with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
        orders.publish({"id": 1})
    sys.stdout.write(f"{checkout.get_span_context().trace_id:032x}\n")


def worker(app: ignis.Ignis) -> None:
    orders, mails = app.queue("orders", dict, **ONE), app.queue("mails", str, **ONE)

    @orders.handler(retry=ignis.Retry(attempts=2, base=0))
    def handle(order: dict[str, Any], ctx: ignis.Context) -> None:
        if ctx.attempt == 1:
            mails.publish("we have your order")
        raise ValueError("no stock")

    mails.handler(lambda mail: None)
    app.start()
    eventually(lambda: orders.sideline.pending() == 1 and idle(orders) and idle(mails), "the order is in the sideline")


def main(part: str, url: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    with ignis.Ignis(url, tracing={"enabled": True}) as app:
        {"shop": shop, "worker": worker}[part](app)
    provider.shutdown()  # sends what is left


if __name__ == "__main__":
    main(*sys.argv[1:])
