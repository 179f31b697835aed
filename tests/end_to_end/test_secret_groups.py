"""Groups from secret sums with real processes and a real broker: those that a simulation finds,
also if a device and the service are killed meanwhile; a newcomer is told its group, and nobody has
a device's survey."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.fleet.records import Campaign
from algorithms.algorithm import SURVEY
from helper.storage import HelperFolder
from simulation.datasets.windows import FleetData, select_devices
from simulation.local.broker import EmbeddedBroker
from simulation.local.secret import carried_out, eavesdrop, holds, needles
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.end_to_end.field import groups
from tests.end_to_end.secret_field import SecretField, files_of
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet
from tests.support.waiting import wait_until

ALGORITHM = "distfl+uniform"
NEWCOMER = "d9x"


@pytest.fixture(scope="module")
def data() -> FleetData:
    """Twenty devices in two groups, and one that comes later and is like `d9`."""
    fleet = synthetic_fleet(20, shift=1.0)
    devices = {**fleet.devices, NEWCOMER: synthetic_fleet(10, shift=1.0, seed=1).devices["d9"]}
    return FleetData(
        fleet.name, fleet.window, fleet.classes, devices, {**fleet.truth, NEWCOMER: "1"}
    )


@pytest.fixture
def secret(
    exported: Exported, data: FleetData, tmp_path: Path, embedded_broker: EmbeddedBroker
) -> Iterator[SecretField]:
    field = SecretField(data, exported, tmp_path, embedded_broker.url, epochs=1)
    field.algorithm = ALGORITHM
    yield field
    field.stop()


def nobody_has_the_survey_of(
    secret: SecretField, campaign: Campaign, device_id: str, payloads: list[bytes]
) -> None:
    """Check that no party has stored the survey of a device, and no packet had it."""
    model, windows = secret.model(campaign, "initial"), secret.data.devices[device_id]
    survey = carried_out(secret.exported.bundle, model, windows, device_id, (SURVEY,), 0).tensors
    pieces = needles(survey)
    assert holds([each.tobytes() for each in survey.values()], pieces)
    assert not holds(payloads, pieces)
    assert not holds(files_of(secret.folder / "run"), pieces)
    assert not holds(files_of(secret.folder / "parties"), pieces)


@pytest.mark.full
def test_the_groups_are_those_of_a_simulation_whoever_is_killed(
    secret: SecretField, data: FleetData
) -> None:
    early = select_devices(data, 20)
    settings = SimulationSettings(ALGORITHM, 1, secret=True)
    expected = simulate(early, settings).records[-1].groups
    parties = secret.begin()
    secret.data = early
    with parties, eavesdrop(secret.broker_url) as payloads, secret.edges() as edges:
        secret.serve_rounds()
        secret.wait(lambda run: run["phase"] == "preparing" and run["received"])
        edges.processes["d3"].kill()
        edges.processes["d3"].wait()
        edges.start("d3")
        for number in (2, 4):
            secret.wait(lambda run, number=number: run["round"] >= number)
            secret.serving[-1].kill()
            secret.serving[-1].wait()
            secret.serve_rounds()
        campaign = secret.finish()
        assert groups(campaign) == expected
        assert campaign.trained == secret.rounds
        sides = {group: {d for d in expected if expected[d] == group} for group in "01"}
        for name in parties.names:
            ledger = HelperFolder(parties.folder_of(name)).ledger
            assert ledger.parts == {frozenset(devices) for devices in sides.values()}
        nobody_has_the_survey_of(secret, campaign, "d0", payloads)
        edges.data = data
        edges.start(NEWCOMER)
        group = wait_until(lambda: groups(secret.campaign()).get(NEWCOMER), 60.0)
        assert group == expected["d9"]
