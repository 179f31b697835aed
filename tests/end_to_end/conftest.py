"""The fleet of the tests that end and start processes, and how its run goes without that."""

import pytest

from aggregator.fleet.records import Campaign
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker
from tests.end_to_end.field import Field
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet


@pytest.fixture(scope="session")
def data() -> FleetData:
    return synthetic_fleet(num_devices=3, num_windows=120)


@pytest.fixture(scope="session")
def undisturbed(
    data: FleetData, exported: Exported, tmp_path_factory: pytest.TempPathFactory
) -> Campaign:
    with EmbeddedBroker() as broker:
        field = Field(data, exported, tmp_path_factory.mktemp("undisturbed"), broker.url)
        try:
            with field.edges():
                field.serve()
                return field.finish()
        finally:
            field.stop()
