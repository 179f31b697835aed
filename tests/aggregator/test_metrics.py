"""`/metrics`: what Prometheus scrapes, read by Prometheus' own parser."""

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from aggregator.http.api import create_api
from aggregator.http.metrics import PHASES
from aggregator.service.conditions import Conditions, Counted
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from wire.codec import encode
from wire.links.port import Delivery
from wire.messages import CheckIn


def test_a_scrape_says_where_the_run_stands_and_what_has_happened(fleet: FleetData) -> None:
    counted, paused = Counted(), [""]
    bench = Bench(fleet)
    bench.campaign._observe = counted.observe
    for device_id in ("a", "b"):
        bench.send(device_id, "check-in", encode(CheckIn(device_id, 10, 4)))

    def now() -> Conditions:
        return Conditions(dict(bench.runner.refused), True, paused[0], "", counted, {"policy": 3})

    api = TestClient(
        create_api(lambda: bench.runner.campaigns, now, lambda: 1.0, bench.runner.devices),
        "http://127.0.0.1",
    )

    def scraped() -> dict[tuple[str, str], float]:
        answer = api.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        samples = [
            sample
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        ]
        return {
            (
                s.name,
                ",".join(
                    v
                    for k, v in s.labels.items()
                    if k != "campaign" and s.name != "shoal_campaign_info"
                ),
            ): s.value
            for s in samples
        }

    first = scraped()
    assert (
        first["shoal_devices", "online"],
        first["shoal_round_cohort", ""],
        first["shoal_events_total", "device-checked-in"],
    ) == (
        2,
        2,
        2,
    )
    assert {
        phase: first["shoal_phase", phase] for phase in PHASES if first["shoal_phase", phase]
    } == {"training": 1}
    assert (first["shoal_bytes_total", "up"], first["shoal_rounds_wanted", ""]) == (0, 5)
    bench.close(a=(1.0, 2), b=(1.0, 2))
    bench.runner.handle(Delivery("some/other/topic", b"x"))
    paused[0] = "the disk is full"
    later = scraped()
    assert (
        later["shoal_rounds_trained", ""],
        later["shoal_round", ""],
        later["shoal_paused", ""],
    ) == (1, 2, 1)
    assert (
        later["shoal_refused_total", "unknown-topic"],
        later["shoal_events_total", "update-admitted"],
    ) == (1, 2)
    assert later["shoal_bytes_total", "up"] > 10_000
    assert (later["shoal_declined_total", "policy"], later["shoal_stragglers_total", ""]) == (3, 0)
    assert (
        later["shoal_devices_by", "known"],
        later["shoal_devices_by", "banned"],
        later["shoal_devices_eligible", ""],
    ) == (2, 0, 2)


def test_a_scrape_counts_those_of_ten_thousand_devices_that_are_online(fleet: FleetData) -> None:
    bench = Bench(fleet)
    state = bench.state
    device = state.devices["a"]
    many = state.devices.update({f"device-{number}": device for number in range(10_000)})
    bench.campaign.state = type(state)(
        **{**{n: getattr(state, n) for n in state.__struct_fields__}, "devices": many}
    )
    api = TestClient(
        create_api(
            lambda: bench.runner.campaigns,
            lambda: Conditions({}, True, "", "", Counted(), {}),
            lambda: 1.0,
            bench.runner.devices,
        )
    )
    assert b'shoal_devices{campaign="run-1",state="online"} 2.0' in api.get("/metrics").content, (
        "of the state"
    )
