"""Export of metrics and traces by OpenTelemetry's SDK, if the user has set an endpoint.

The metrics are those of `/metrics`. A round is a span, and its aggregation a span in it. The SDK
reads all settings from its own environment variables.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from aggregator.fleet.events import Aggregated, Event
from aggregator.fleet.records import Fleet
from wire.errors import ConfigError

VARIABLES = tuple(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("", "METRICS_", "TRACES_"))
FRESH_S = 1.0
"""Seconds for which the metrics of a collection serve the instruments of one export."""


def wants_export() -> bool:
    """Return True if the user has set an endpoint of OpenTelemetry."""
    return any(os.environ.get(name) for name in VARIABLES)


class RoundSpans:
    """Observer of a fleet that makes the spans of its rounds."""

    def __init__(self, tracer: Any) -> None:
        """Start without a fleet. `tracer`: a tracer of OpenTelemetry."""
        self._tracer, self._before = tracer, Fleet()

    def observe(self, fleet: Fleet, event: Event) -> None:
        """Make the spans of a round that the event has ended."""
        before, self._before = self._before, fleet
        if not isinstance(event, Aggregated) or event.campaign not in before.campaigns:
            return
        campaign = before.campaigns[event.campaign]
        if (campaign.phase, campaign.round) != ("aggregating", event.round):
            return
        from opentelemetry.trace import set_span_in_context

        about: dict[str, Any] = {
            "shoal.campaign": campaign.name,
            "shoal.round": campaign.round,
            "shoal.attempt": campaign.attempt,
            "shoal.devices": campaign.width,
            "shoal.updates": campaign.received,
        }
        start = self._tracer.start_span
        span = start("round", start_time=_nanoseconds(campaign.opened_s), attributes=about)
        about = {
            "shoal.campaign": campaign.name,
            "shoal.left_out": len(event.left_out),
            "shoal.set_aside": str(event.notes.get("set_aside", "")),
        }
        child = start(
            "aggregation",
            set_span_in_context(span),
            start_time=_nanoseconds(campaign.phase_s),
            attributes=about,
        )
        for each in (child, span):
            each.end(_nanoseconds(event.at_s))


def _nanoseconds(at_s: float) -> int:
    return int(at_s * 1e9)


class Instruments:
    """Instruments of OpenTelemetry with the metrics of a collector of Prometheus."""

    def __init__(self, meter: Any, collector: Collector) -> None:
        """Create an instrument for each metric. `meter`: a meter of OpenTelemetry."""
        self._collector, self._metrics, self._at_s = collector, dict[str, Metric](), 0.0
        for name, metric in self._collected().items():
            kinds = {"counter": meter.create_observable_counter}
            create = kinds.get(metric.type, meter.create_observable_gauge)
            create(name, callbacks=[self._reader(name)], description=metric.documentation)
        self._metrics = {}

    def _collected(self) -> dict[str, Metric]:
        """Return the metrics by name; one walk over the devices serves all instruments."""
        if not self._metrics or time.monotonic() - self._at_s > FRESH_S:
            self._metrics = {metric.name: metric for metric in self._collector.collect()}
            self._at_s = time.monotonic()
        return self._metrics

    def _reader(self, name: str) -> Callable[[Any], Iterable[Any]]:
        def read(_options: Any) -> Iterator[Any]:
            from opentelemetry.metrics import Observation

            for sample in self._collected()[name].samples:
                yield Observation(sample.value, sample.labels)

        return read


def check_export() -> None:
    """Raise ConfigError if the user has set an endpoint, and the SDK is not installed."""
    if not wants_export():
        return
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{VARIABLES[0]} is set, but {error.name} is not installed; install it with `pip "
            'install "shoal[otel]"`, or unset the variable'
        ) from None


@contextmanager
def otlp_export(
    fleet: str, collector: Collector, observers: list[Callable[[Fleet, Event], None]]
) -> Iterator[None]:
    """Export while the context is open, if the user has set an endpoint.

    `observers`: observers of the fleet, to which that of the spans is added.
    """
    if not wants_export():
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "shoal", "shoal.fleet": fleet})
    metrics = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
    traces = TracerProvider(resource=resource)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    Instruments(metrics.get_meter("shoal"), collector)
    observers.append(RoundSpans(traces.get_tracer("shoal")).observe)
    try:
        yield
    finally:
        for provider in (metrics, traces):
            provider.shutdown()
