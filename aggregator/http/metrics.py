"""What `/metrics` says, in Prometheus' text format."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from aggregator.core.registry import Entry
from aggregator.core.state import Phase, RunState
from aggregator.core.summary import count_groups
from aggregator.service.conditions import Conditions

PHASES: tuple[Phase, ...] = (
    "waiting",
    "preparing",
    "training",
    "aggregating",
    "evaluating",
    "finished",
)


@dataclass(frozen=True)
class CampaignMetrics(Collector):
    """Reads campaigns and their service when it is asked; keeps nothing. What is said of a campaign
    has its name as the label ``campaign``."""

    current: Callable[[], Mapping[str, RunState]]
    """Returns the state of each campaign, by name."""
    conditions: Callable[[], Conditions]
    entries: Callable[[], Mapping[str, Entry]]
    """Returns the registry's entries, by device id."""
    http_refused: Callable[[], Mapping[str, int]]
    """Returns the number of refused HTTP requests, by reason."""

    def collect(self) -> Iterable[Metric]:
        """The metrics now."""
        # no label for a single device: there may be many
        counts = dict.fromkeys(("known", "online", "banned", "metered", "charging", "idle"), 0.0)
        for entry in self.entries().values():
            counts["known"] += 1
            counts["online"] += entry.online
            counts["banned"] += entry.ban is not None
            if (said := entry.said) is not None:
                counts["metered"] += said.unmetered is False
                counts["charging"] += said.charging is True
                counts["idle"] += said.idle is True
        states, now = self.current(), self.conditions()
        for name, text, read in _OF_A_CAMPAIGN:
            yield _labelled(
                GaugeMetricFamily,
                name,
                text,
                "campaign",
                {campaign: float(read(state)) for campaign, state in states.items()},
            )
        info = InfoMetricFamily("shoal_campaign", "What is trained.", labels=["campaign"])
        for campaign, state in states.items():
            settings = state.settings
            about = {"algorithm": settings.algorithm, "data": settings.data}
            info.add_metric([campaign], {**about, "bundle": settings.bundle[:12]})
        yield info
        phases = GaugeMetricFamily(
            "shoal_phase", "1 for the phase that a campaign is in.", labels=["campaign", "phase"]
        )
        devices = GaugeMetricFamily(
            "shoal_devices", "Devices that have checked in.", labels=["campaign", "state"]
        )
        for campaign, state in states.items():
            for phase in PHASES:
                phases.add_metric([campaign, phase], float(phase == state.phase))
            devices.add_metric([campaign, "online"], state.num_online)
            devices.add_metric([campaign, "offline"], len(state.devices) - state.num_online)
        yield from (phases, devices)
        yield GaugeMetricFamily(
            "shoal_epoch",
            "Which start of the service this is.",
            value=float(max((state.epoch for state in states.values()), default=0)),
        )
        yield GaugeMetricFamily(
            "shoal_paused",
            "1 while nothing goes on; /ready says why.",
            value=float(bool(now.paused)),
        )
        yield GaugeMetricFamily(
            "shoal_broker_connected",
            "1 while there is a connection to the broker.",
            value=float(now.connected),
        )
        yield GaugeMetricFamily(
            "shoal_unvouched",
            "1 while devices believe nothing that the service signs.",
            value=float(bool(now.unvouched)),
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_refused",
            "What arrived and was refused since the service was started.",
            "reason",
            now.refused,
        )
        yield _labelled(
            GaugeMetricFamily,
            "shoal_devices_by",
            "Devices that the registry knows, by what there is to say of them.",
            "what",
            counts,
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_declined",
            "Plans that devices declined since the service was started.",
            "reason",
            now.declined,
        )
        yield CounterMetricFamily(
            "shoal_stragglers",
            "Devices that had not answered when their round was closed.",
            now.counted.stragglers,
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_http_refused",
            "HTTP requests that were refused.",
            "reason",
            self.http_refused(),
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_events",
            "Events since the service was started.",
            "event",
            now.counted.events,
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_bytes",
            "Bytes of models and updates since the service was started.",
            "direction",
            now.counted.bytes,
        )


_OF_A_CAMPAIGN: tuple[tuple[str, str, Callable[[RunState], float]], ...] = (
    (
        "shoal_devices_failing",
        "Devices without an update in their last rounds.",
        lambda state: sum(d.failures > 0 for d in state.devices.values()),
    ),
    (
        "shoal_devices_eligible",
        "Devices that a campaign may ask.",
        lambda state: sum(d.eligible for d in state.devices.values()),
    ),
    ("shoal_round", "Number of the latest round.", lambda state: state.round),
    (
        "shoal_round_attempt",
        "How often the latest round was opened again.",
        lambda state: state.attempt,
    ),
    (
        "shoal_round_opened_seconds",
        "When the latest round was opened, in Unix seconds.",
        lambda state: state.opened_at_s,
    ),
    (
        "shoal_round_deadline_seconds",
        "The latest round's deadline, in Unix seconds.",
        lambda state: state.deadline_at_s,
    ),
    ("shoal_round_cohort", "Devices that the latest round asked.", lambda state: len(state.cohort)),
    (
        "shoal_round_received",
        "Updates that the latest round has.",
        lambda state: len(state.received),
    ),
    ("shoal_rounds_trained", "Rounds of training that are over.", lambda state: state.trained),
    (
        "shoal_rounds_wanted",
        "Rounds of training that the campaign is to have.",
        lambda state: state.next_settings.rounds,
    ),
    ("shoal_groups", "Groups of devices.", lambda state: count_groups(state.starts)),
)


def _labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    """Return a metric with a value for each value of a label."""
    family = kind(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
