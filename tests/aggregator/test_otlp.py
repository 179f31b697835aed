"""The export by OpenTelemetry: its metrics are those of `/metrics`, its spans are rounds."""

import http.server
import sys
import threading
from typing import Any

import pytest
from prometheus_client.core import Metric

from aggregator.fleet.records import Fleet
from aggregator.http.monitoring.metrics import CampaignMetrics
from aggregator.http.monitoring.otlp import RoundSpans, check_export, otlp_export
from aggregator.service.conditions import Conditions, ServiceCounters
from aggregator.view.fleet import FleetView
from tests.fleet.cases import all_work, world_of
from wire.errors import ConfigError

WELL = Conditions({"malformed": 3}, True, "", "", ServiceCounters(), {})


class Collector(http.server.BaseHTTPRequestHandler):
    """A collector of OpenTelemetry, which notes the bodies of requests by path."""

    came: dict[str, list[bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.came.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_a_service_exports_its_metrics_and_a_span_for_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    came: dict[str, list[bytes]] = {}
    handler = type("Noting", (Collector,), {"came": came})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    check_export()
    world = world_of("a", "b")
    metrics = CampaignMetrics(lambda: FleetView(world.fleet), lambda: WELL, dict)
    scraped = {metric.name: metric for metric in metrics.collect()}
    observers: list[Any] = []
    with otlp_export("house", metrics, observers):
        world.start("run", min_devices=2, rounds=3)
        observe_all(world, observers)
        scraped = {metric.name: metric for metric in metrics.collect()}
    server.shutdown()
    server.server_close()
    request = ExportMetricsServiceRequest.FromString(came["/v1/metrics"][-1])
    (resource,) = request.resource_metrics
    sent = {m.name: m for scope in resource.scope_metrics for m in scope.metrics}
    assert sent.keys() == {name for name, metric in scraped.items() if metric.samples}
    for name, metric in scraped.items():
        if metric.samples:
            assert points(sent[name]) == values(metric), name
    spans = [
        span
        for request in map(ExportTraceServiceRequest.FromString, came["/v1/traces"])
        for of in request.resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]
    rounds = {span.span_id: span for span in spans if span.name == "round"}
    aggregations = [span for span in spans if span.name == "aggregation"]
    assert len(rounds) == len(aggregations) == 3
    for span in aggregations:
        whole = rounds[span.parent_span_id]
        assert whole.start_time_unix_nano <= span.start_time_unix_nano
        assert whole.end_time_unix_nano == span.end_time_unix_nano
    numbers = [
        attribute.value.int_value
        for span in rounds.values()
        for attribute in span.attributes
        if attribute.key == "shoal.round"
    ]
    assert sorted(numbers) == [1, 2, 3]


def observe_all(world: Any, observers: list[Any]) -> None:
    """Have every device work until the campaign is over, and show the observers each event."""
    feed = world.feed

    def observed(event: Any) -> Any:
        commands = feed(event)
        for observe in observers:
            observe(world.fleet, event)
        return commands

    world.feed = observed
    for _ in range(4):
        all_work(world)


def points(metric: Any) -> list[tuple[tuple[tuple[str, str], ...], float]]:
    """Labels and value of each point of an exported metric."""
    data = metric.sum if metric.HasField("sum") else metric.gauge
    return sorted(
        (
            tuple(sorted((a.key, a.value.string_value) for a in point.attributes)),
            float(point.as_double or point.as_int),
        )
        for point in data.data_points
    )


def values(metric: Metric) -> list[tuple[tuple[tuple[str, str], ...], float]]:
    """Labels and value of each sample of a scraped metric."""
    return sorted(
        (tuple(sorted(sample.labels.items())), float(sample.value)) for sample in metric.samples
    )


def test_an_event_that_ends_no_round_makes_no_span() -> None:
    class Tracer:
        def start_span(self, *_: object, **__: object) -> None:
            raise AssertionError("a span")

    spans = RoundSpans(Tracer())
    world = world_of("a")
    world.start("run", min_devices=1)
    for event in world.events:
        spans.observe(world.fleet, event)
    spans.observe(Fleet(), world.events[-1])


def test_without_the_sdk_a_set_endpoint_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    check_export()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:4318")
    with pytest.raises(ConfigError, match=r"shoal\[otel\]"):
        check_export()
