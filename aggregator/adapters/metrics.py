"""What `/metrics` says, in Prometheus' text format."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from aggregator.core.conditions import Conditions
from aggregator.core.registry import Registry
from aggregator.core.state import Phase, RunState
from aggregator.core.summary import count_groups

PHASES: tuple[Phase, ...] = ("waiting", "preparing", "training", "aggregating", "evaluating", "finished")


class RunMetrics(Collector):
    """Reads a run and its service when it is asked; keeps nothing."""

    def __init__(self, current: Callable[[], RunState], conditions: Callable[[], Conditions], registry: Callable[[], Registry]) -> None:
        self._current, self._conditions, self._devices = current, conditions, registry
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Everything, as a scrape wants it."""
        return generate_latest(self._registry)

    def _registered(self) -> dict[str, float]:
        """Counts, with no label for a single device: there may be many."""
        entries = self._devices().devices.values()
        state, counts = self._current(), dict.fromkeys(("known", "online", "banned", "metered", "charging", "idle"), 0.0)
        for entry in entries:
            counts["known"] += 1
            counts["online"] += entry.online
            counts["banned"] += entry.ban is not None
            if (said := entry.said) is not None:
                counts["metered"] += said.unmetered is False
                counts["charging"] += said.charging is True
                counts["idle"] += said.idle is True
        return counts | {"eligible": float(sum(device.eligible for device in state.devices.values()))}

    def collect(self) -> Iterable[Metric]:
        """The metrics now."""
        state, now = self._current(), self._conditions()
        settings, online = state.settings, sum(device.online for device in state.devices.values())
        known = {"run": settings.name, "algorithm": settings.algorithm, "data": settings.data, "bundle": settings.bundle[:12]}
        yield InfoMetricFamily("shoal_run", "What is trained.", value=known)
        yield _gauges("shoal_phase", "1 for the phase that the run is in.", "phase", {p: float(p == state.phase) for p in PHASES})
        yield _gauges("shoal_devices", "Devices that have checked in.", "state", {"online": online, "offline": len(state.devices) - online})
        yield _gauges("shoal_devices_by", "Devices that the registry knows, by what there is to say of them.", "what", self._registered())
        yield _gauge(
            "shoal_devices_failing", "Devices without an update in their last rounds.", sum(d.failures > 0 for d in state.devices.values())
        )
        yield _gauge("shoal_round", "Number of the latest round.", state.round)
        yield _gauge("shoal_round_attempt", "How often the latest round was opened again.", state.attempt)
        yield _gauge("shoal_round_opened_seconds", "When the latest round was opened, in Unix seconds.", state.opened_at_s)
        yield _gauge("shoal_round_deadline_seconds", "The latest round's deadline, in Unix seconds.", state.deadline_at_s)
        yield _gauge("shoal_round_cohort", "Devices that the latest round asked.", len(state.cohort))
        yield _gauge("shoal_round_received", "Updates that the latest round has.", len(state.received))
        yield _gauge("shoal_rounds_trained", "Rounds of training that are over.", state.trained)
        yield _gauge("shoal_rounds_wanted", "Rounds of training that the run is to have.", settings.rounds)
        yield _gauge("shoal_groups", "Groups of devices.", count_groups(state.starts))
        yield _gauge("shoal_epoch", "Which start of the service this is.", state.epoch)
        yield _gauge("shoal_paused", "1 while nothing goes on; /ready says why.", bool(now.paused))
        yield _gauge("shoal_broker_connected", "1 while there is a connection to the broker.", now.connected)
        yield _gauge("shoal_unvouched", "1 while devices believe nothing that the service signs.", bool(now.unvouched))
        yield _counters("shoal_refused", "What arrived and was refused since the service was started.", "reason", now.refused)
        yield _counters("shoal_declined", "Plans that devices declined since the service was started.", "reason", now.declined)
        yield _counter("shoal_stragglers", "Devices that had not answered when their round was closed.", now.counted.stragglers)
        yield _counters("shoal_events", "Events since the service was started.", "event", now.counted.events)
        yield _counters("shoal_bytes", "Bytes of models and updates since the service was started.", "direction", now.counted.bytes)


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _gauges(name: str, text: str, label: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
