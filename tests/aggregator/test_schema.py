"""The schema of the service's databases: made once, and refused where it is another."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.maintenance.database import check_database, read_database
from aggregator.storage.engine import sqlite_url
from aggregator.storage.enrolment_store import EnrolmentStore
from aggregator.storage.fleet_store import FleetStore, load_fleet
from aggregator.storage.schema import opened
from wire.errors import ConfigError


@pytest.mark.parametrize(
    "use",
    [
        FleetStore,
        load_fleet,
        EnrolmentStore,
        lambda url: read_database(Path(url.removeprefix("sqlite:///"))),
    ],
)
def test_a_database_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, use: Callable[[str], object]
) -> None:
    url = sqlite_url(tmp_path / "shoal.db")
    opened(url).dispose()
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        connection.executescript("DROP TABLE leases; UPDATE schema_version SET version = 4")
        before = list(connection.iterdump())
    with pytest.raises(
        ConfigError,
        match="its schema is version 4, and this Shoal reads version 1: use the Shoal that wrote "
        "it, or begin in another folder",
    ):
        use(url)
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        assert list(connection.iterdump()) == before
    finding, contents = check_database(tmp_path)
    assert (finding.verdict, contents) == ("wrong", None)
    assert "its schema is version 4" in finding.text
