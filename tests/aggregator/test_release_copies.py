"""Releases in a service's folder: found whole or damaged, copied, and put back."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.maintenance.backup import back_up, restore
from aggregator.maintenance.database import read_database
from aggregator.maintenance.examine import examine
from aggregator.storage.blob_folder import blob_names
from shoal.cli import application
from simulation.datasets.windows import FleetData
from tests.aggregator.rollout_cases import Service, service_with_releases
from wire.codec import digest
from wire.errors import ConfigError


@pytest.fixture
def service(fleet: FleetData, tmp_path: Path) -> Service:
    return service_with_releases(fleet, tmp_path / "served")


def wrong(folder: Path, mend: bool = False) -> list[str]:
    return [str(finding) for finding in examine(folder, mend=mend) if finding.verdict == "wrong"]


def shoal(*arguments: object) -> None:
    application("models")(["models", *map(str, arguments)], standalone_mode=False)


def test_a_copy_has_the_releases_and_their_blobs_and_can_be_put_back(
    service: Service, tmp_path: Path
) -> None:
    assert wrong(service.folder) == []
    back_up(service.folder, tmp_path / "copy")
    assert read_database(tmp_path / "copy" / "shoal.db").fleets == {"f": service.rollouts.state}
    assert blob_names(tmp_path / "copy" / "releases") == blob_names(service.folder / "releases")
    restore(tmp_path / "copy", service.folder)
    before = service.rollouts.state
    service.start()
    assert service.rollouts.state == before


def test_a_blob_that_a_release_needs_is_missed_and_a_damaged_one_set_aside(
    service: Service, tmp_path: Path
) -> None:
    path = service.folder / "releases" / digest(b"second")
    path.write_bytes(b"damaged")
    assert any(
        "its bytes are not those that were written" in text for text in wrong(service.folder)
    )
    assert "a part of release 2 is lost" in " ".join(wrong(service.folder, mend=True))
    assert not path.exists()
    with pytest.raises(ConfigError, match=r"blob .* is not here"):
        back_up(service.folder, tmp_path / "copy")


def test_a_damaged_log_of_releases_is_told(service: Service) -> None:
    service.store.close()
    with closing(sqlite3.connect(service.folder / "shoal.db")) as connection:
        connection.execute("UPDATE events SET event = x'7b7d' WHERE run LIKE 'fleet/%'")
        connection.commit()
    (text,) = wrong(service.folder)
    assert "damaged: the releases of fleet f cannot be read" in text
    assert "restore the folder from a backup" in text
    with pytest.raises(ConfigError, match="damaged, the releases of fleet f"):
        shoal("list", service.folder, "--fleet", "f")


def test_commands_show_releases_and_rollouts(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    shoal("list", service.folder, "--fleet", "f")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:4] for line in lines[1:]] == [
        ["1", "0", "released", "1"],
        ["2", "0", "canary", "1"],
    ]
    assert [line[5] for line in lines[1:]] == ["2", "0"], "devices that use it"
    shoal("show", service.folder, 2, "--fleet", "f")
    assert "parent      1\n" in capsys.readouterr().out
    shoal("rollout", service.folder, "--fleet", "f")
    told = capsys.readouterr().out
    assert told.startswith("c: releases 2: running")
    assert "1 failed: no graph" in told


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["show", 9], "has none of this number"),
        (["rollout", "--pause", "--promote"], "one at a time"),
        (["rollout", "--pause", "--campaign", "other"], "no rollout of campaign other goes on"),
        (["rollback", "--to", 9], "has no release of this number"),
    ],
)
def test_what_is_not_there_is_told(service: Service, arguments: list[object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        shoal(arguments[0], service.folder, *arguments[1:], "--fleet", "f")


def test_a_folder_without_releases_is_told(service: Service) -> None:
    with pytest.raises(
        ConfigError, match=r"no releases of fleet 'default' .--fleet.; it has those of f"
    ):
        shoal("list", service.folder)


def test_without_a_service_there_are_no_orders(service: Service) -> None:
    with pytest.raises(ConfigError, match="No service runs in"):
        shoal("rollout", service.folder, "--fleet", "f", "--pause")
