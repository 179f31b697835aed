"""The data set that the tests of the simulation share."""

import pytest

from simulation.datasets.watch import load_watch
from simulation.datasets.windows import FleetData


@pytest.fixture(scope="session")
def watch() -> FleetData:
    return load_watch()
