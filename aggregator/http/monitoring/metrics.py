"""Metrics for Prometheus."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from aggregator.fleet.records import Phase
from aggregator.http.dashboard.alerts import IDS, standing_alerts
from aggregator.service.conditions import Conditions
from aggregator.view.fleet import CampaignView, FleetView

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
    """Collector that reads a fleet and its service at each scrape.

    Metrics of a campaign have its name as the label ``campaign``. No label names a device, since
    there may be many.
    """

    view: Callable[[], FleetView]
    """Returns the fleet as it is now."""
    conditions: Callable[[], Conditions]
    http_refused: Callable[[], Mapping[str, int]]
    """Returns the number of refused HTTP requests, by reason."""

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics as they are now."""
        view, now = self.view(), self.conditions()
        totals, campaigns = view.totals, view.campaigns
        for name, text, read in _OF_A_CAMPAIGN:
            values = {campaign: float(read(each)) for campaign, each in campaigns.items()}
            yield _labelled(GaugeMetricFamily, name, text, "campaign", values)
        text = "Algorithm, data and bundle of a campaign."
        info = InfoMetricFamily("shoal_campaign", text, labels=["campaign"])
        phases = GaugeMetricFamily(
            "shoal_phase", "Phase of a campaign (1: in this phase).", labels=["campaign", "phase"]
        )
        devices = GaugeMetricFamily(
            "shoal_devices", "Number of devices of a campaign.", labels=["campaign", "state"]
        )
        lacking = GaugeMetricFamily(
            "shoal_waiting_devices",
            "Number of devices that do not serve a waiting campaign, by the reason.",
            labels=["campaign", "reason"],
        )
        for campaign, each in campaigns.items():
            if (waiting := each.waiting) is not None:
                for reason, number in [*waiting.could.items(), *waiting.cannot.items()]:
                    lacking.add_metric([campaign, reason], number)
            settings = each.record.settings
            about = {"algorithm": settings.algorithm, "data": settings.data}
            info.add_metric([campaign], {**about, "bundle": settings.bundle[:12]})
            for phase in PHASES:
                phases.add_metric([campaign, phase], float(phase == each.record.phase))
            devices.add_metric([campaign, "online"], each.online)
            devices.add_metric([campaign, "offline"], each.devices - each.online)
        yield from (info, phases, devices, lacking)
        standing = Counter(alert.id for alert in standing_alerts(now, view))
        yield _labelled(
            GaugeMetricFamily,
            "shoal_alerts",
            "Number of standing alerts, by id; docs/alerts.md says what to do about each.",
            "alert",
            {name: standing[name] for name in IDS},
        )
        yield GaugeMetricFamily(
            "shoal_epoch",
            "Number of the service's start.",
            value=float(view.fleet.epoch),
        )
        yield GaugeMetricFamily(
            "shoal_paused",
            "Pause of the service (1: paused); /ready has the reason.",
            value=float(bool(now.paused)),
        )
        yield GaugeMetricFamily(
            "shoal_broker_connected",
            "Connection to the broker (1: connected).",
            value=float(now.connected),
        )
        yield GaugeMetricFamily(
            "shoal_unvouched",
            "Lack of a valid voucher (1: devices reject the service's signature).",
            value=float(bool(now.unvouched)),
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_refused",
            "Number of refused messages since the service was started.",
            "reason",
            now.refused,
        )
        yield _labelled(
            GaugeMetricFamily,
            "shoal_devices_by",
            "Number of devices by property.",
            "what",
            totals.devices,
        )
        yield GaugeMetricFamily(
            "shoal_devices_not_answering",
            "Number of devices that did not carry out their last assignment.",
            value=float(len(totals.unanswered)),
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_declined",
            "Number of assignments that devices declined since the service was started.",
            "reason",
            now.declined,
        )
        yield CounterMetricFamily(
            "shoal_stragglers",
            "Number of assignments without an answer at the close of their round, since the "
            "service was started.",
            now.counted.stragglers,
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_http_refused",
            "Number of refused HTTP requests since the service was started.",
            "reason",
            self.http_refused(),
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_events",
            "Number of events since the service was started.",
            "event",
            now.counted.events,
        )
        yield _labelled(
            CounterMetricFamily,
            "shoal_bytes",
            "Size of sent models and received updates since the service was started (bytes).",
            "direction",
            now.counted.bytes,
        )


_OF_A_CAMPAIGN: tuple[tuple[str, str, Callable[[CampaignView], float]], ...] = (
    (
        "shoal_devices_failing",
        "Number of devices that did not carry out their last assignment.",
        lambda view: view.failing,
    ),
    (
        "shoal_devices_eligible",
        "Number of devices that a campaign may give an assignment.",
        lambda view: view.eligible,
    ),
    (
        "shoal_devices_working",
        "Number of devices at work for the current round.",
        lambda view: view.working,
    ),
    (
        "shoal_waiting",
        "Wait for devices, updates or the campaign's hours (1: waits); /run says for what, since "
        "when, and who could serve. A wait for the pace alone does not count.",
        lambda view: view.waiting is not None and not view.waiting.is_paced,
    ),
    (
        "shoal_devices_standing_out",
        "Number of devices whose updates stand out from their group's over rounds, without those "
        "that the divergence of the campaign names.",
        lambda view: len(view.other_pulls),
    ),
    (
        "shoal_diverges",
        "Divergence of a campaign (1: diverges); `shoal campaign list` says why.",
        lambda view: view.divergence is not None,
    ),
    (
        "shoal_campaign_paused",
        "Pause of a campaign, by its operator or after an error (1: paused); /run has the reason.",
        lambda view: bool(view.paused),
    ),
    ("shoal_round", "Number of the current round.", lambda view: view.record.round),
    (
        "shoal_round_attempt",
        "Number of times that the current round was opened again.",
        lambda view: view.record.attempt,
    ),
    (
        "shoal_round_opened_seconds",
        "Time at which the last round was opened (Unix seconds).",
        lambda view: view.record.opened_s,
    ),
    (
        "shoal_round_deadline_seconds",
        "Deadline of the last round (Unix seconds).",
        lambda view: view.record.deadline_s,
    ),
    (
        "shoal_round_cohort",
        "Number of devices in the cohort of the last round.",
        lambda view: view.record.width,
    ),
    (
        "shoal_round_received",
        "Number of updates of the current round.",
        lambda view: view.record.received,
    ),
    (
        "shoal_rounds_trained",
        "Number of closed rounds of training.",
        lambda view: view.record.trained,
    ),
    (
        "shoal_rounds_wanted",
        "Number of rounds of training that the campaign is to have.",
        lambda view: view.record.next_settings.rounds,
    ),
    ("shoal_groups", "Number of groups of devices.", lambda view: view.groups),
)


def _labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    """Return a metric with one value for each value of a label."""
    family = kind(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
