"""`/metrics`: what Prometheus scrapes, read by Prometheus' own parser."""

from fastapi.testclient import TestClient
from immutables import Map
from prometheus_client.parser import text_string_to_metric_families

from aggregator.fleet import events as e
from aggregator.fleet.records import Ban
from aggregator.http.api import create_api
from aggregator.http.monitoring.metrics import PHASES
from aggregator.service.conditions import Conditions, ServiceCounters
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.view.fleet import FleetView
from tests.fleet.cases import all_work, configure, direct, world_of
from tests.fleet.world import World

REFUSED = {"unknown-topic": 1}


def scraped(world: World, problem: str = "") -> dict[tuple[str, str], float]:
    """Return the values of a scrape by metric and labels, without the campaign's label."""
    counted = ServiceCounters()
    for event in world.events:
        counted.observe(world.fleet, event)
    paused = {"run": problem} if problem else {}
    conditions = Conditions(REFUSED, True, problem, "", counted, {"policy": 3})
    view, blobs = FleetView(world.fleet, {}, paused, world.now_s), MemoryBlobs()
    store = MemoryStore()
    api = create_api(lambda: view, store, lambda _: blobs, lambda: conditions, lambda: 1.0)
    answer = TestClient(api, "http://127.0.0.1").get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.text)
    return {
        (
            sample.name,
            ",".join(value for key, value in sample.labels.items() if key != "campaign"),
        ): sample.value
        for family in families
        for sample in family.samples
        if sample.name != "shoal_campaign_info"
    }


def test_a_scrape_says_where_campaigns_stand_and_what_has_happened() -> None:
    world = world_of("a", "b")
    world.start("run", min_devices=2, rounds=5)
    first = scraped(world)
    assert (
        first["shoal_devices", "online"],
        first["shoal_round_cohort", ""],
        first["shoal_devices_working", ""],
        first["shoal_events_total", "CheckedIn"],
    ) == (2, 2, 2, 2)
    phases = {phase: first["shoal_phase", phase] for phase in PHASES}
    assert {phase for phase, value in phases.items() if value} == {"training"}
    assert (first["shoal_bytes_total", "up"], first["shoal_rounds_wanted", ""]) == (0, 5)
    all_work(world)
    later = scraped(world, problem="the disk is full")
    assert (
        later["shoal_rounds_trained", ""],
        later["shoal_round", ""],
        later["shoal_paused", ""],
    ) == (1, 2, 1)
    assert (
        later["shoal_refused_total", "unknown-topic"],
        later["shoal_events_total", "Updated"],
        later["shoal_bytes_total", "up"],
    ) == (1, 2, 2)
    assert (later["shoal_declined_total", "policy"], later["shoal_stragglers_total", ""]) == (3, 0)
    assert (
        later["shoal_devices_by", "known"],
        later["shoal_devices_by", "banned"],
        later["shoal_devices_eligible", ""],
    ) == (2, 0, 2)


def test_a_campaign_that_waits_and_devices_that_do_not_answer_can_be_alerted_on() -> None:
    world = world_of("a", "b", "c")
    world.start("run", min_devices=1, deadline_s=100.0)
    assert (scraped(world)["shoal_waiting", ""], scraped(world)["shoal_devices_failing", ""]) == (
        0,
        0,
    )
    all_work(world, "a")
    world.pass_time(100)
    world.feed(e.Banned(at_s=world.now_s, device_id="c", ban=Ban(1.0, "")))
    metrics = scraped(world)
    assert metrics["shoal_devices_not_answering", ""] == 1, "a banned device is not expected to"
    assert metrics["shoal_devices_failing", ""] == 1
    world.leave("a")
    world = world_of("a")
    world.start("run", min_devices=2)
    assert scraped(world)["shoal_waiting", ""] == 1
    assert scraped(world)["shoal_waiting_devices", "free"] == 1
    configure(world, where="battery > 100")
    metrics = scraped(world)
    assert metrics["shoal_waiting_devices", 'excluded by "battery > 100"'] == 1
    assert ("shoal_waiting_devices", "free") not in metrics


def test_a_campaign_that_its_operator_has_paused_is_told_from_one_that_is_late() -> None:
    world = world_of("a")
    world.start("run")
    assert scraped(world)["shoal_campaign_paused", ""] == 0
    direct(world, "pause")
    metrics = scraped(world)
    assert (metrics["shoal_campaign_paused", ""], metrics["shoal_paused", ""]) == (1, 0)
    direct(world, "resume")
    assert scraped(world)["shoal_campaign_paused", ""] == 0


def test_a_scrape_counts_those_of_ten_thousand_devices_that_are_online() -> None:
    world = world_of("a")
    device = world.fleet.devices["a"]
    world.start("run")
    devices = {f"device-{number}": device for number in range(10_000)}
    fleet = world.fleet.__class__(campaigns=world.fleet.campaigns, devices=Map(devices))
    world.fleet = fleet
    assert scraped(world)["shoal_devices", "online"] == 10_000
