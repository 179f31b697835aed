"""Releases in a service's folder: found whole or damaged, copied, and put back."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.maintenance.backup import back_up, restore
from aggregator.maintenance.database import read_database
from aggregator.maintenance.examine import examine
from aggregator.storage.blob_folder import blob_names
from aggregator.storage.fleet_store import FleetStore
from shoal.cli import application
from simulation.datasets.windows import FleetData
from tests.aggregator.releasing import Releasing, service_with_releases
from wire.errors import ConfigError


@pytest.fixture
def service(fleet: FleetData, tmp_path: Path) -> Releasing:
    return service_with_releases(fleet, tmp_path / "served")


def wrong(folder: Path, mend: bool = False) -> list[str]:
    return [str(finding) for finding in examine(folder, mend=mend) if finding.verdict == "wrong"]


def shoal(*arguments: object) -> None:
    application("models")(["models", *map(str, arguments)], standalone_mode=False)


def test_a_copy_has_the_releases_and_their_blobs_and_can_be_put_back(
    service: Releasing, tmp_path: Path
) -> None:
    folder, before = service.folder, read_database(service.folder / "shoal.db").fleet
    assert before is not None
    assert sorted(before.releases) == [1, 2]
    assert wrong(folder) == []
    back_up(folder, tmp_path / "copy")
    assert read_database(tmp_path / "copy" / "shoal.db").fleet == before
    assert blob_names(tmp_path / "copy" / "releases") == blob_names(folder / "releases")
    assert isinstance(service.bench.store, FleetStore)
    service.bench.store.close()
    restore(tmp_path / "copy", folder)
    assert read_database(folder / "shoal.db").fleet == before
    assert blob_names(folder / "releases") == blob_names(tmp_path / "copy" / "releases")


def test_a_blob_that_a_release_needs_is_missed_and_a_damaged_one_set_aside(
    service: Releasing, tmp_path: Path
) -> None:
    path = service.folder / "releases" / service.releases[2].model
    path.write_bytes(b"damaged")
    assert any("damaged: its bytes do not match its hash" in text for text in wrong(service.folder))
    assert "a part of release 2 is lost" in " ".join(wrong(service.folder, mend=True))
    assert not path.exists()
    with pytest.raises(ConfigError, match=r"blob .* is missing, 20 times in a row"):
        back_up(service.folder, tmp_path / "copy")


def test_a_damaged_row_of_a_release_is_told(service: Releasing) -> None:
    assert isinstance(service.bench.store, FleetStore)
    service.bench.store.close()
    with closing(sqlite3.connect(service.folder / "shoal.db")) as connection:
        connection.execute("UPDATE releases SET record = x'7b7d' WHERE number = 2")
        connection.commit()
    (text,) = wrong(service.folder)
    assert "damaged: " in text
    assert "release 2" in text
    assert "restore the folder from a backup" in text
    with pytest.raises(ConfigError, match=r"damaged, .*release 2"):
        shoal("list", service.folder)


def test_commands_show_releases_and_rollouts(
    service: Releasing, capsys: pytest.CaptureFixture[str]
) -> None:
    shoal("list", service.folder)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:4] for line in lines[1:]] == [
        ["1", "run-1/0", "superseded", "1"],
        ["2", "run-1/0", "canary", "2"],
    ]
    assert [line[5] for line in lines[1:]] == ["2", "0"], "devices that use it"
    shoal("show", service.folder, 2)
    assert "round       2\n" in capsys.readouterr().out
    shoal("rollout", service.folder)
    shown = capsys.readouterr().out
    assert shown.startswith("run-1, release 2: running")
    assert "1 failed: no graph" in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["show", 9], "No release 9"),
        (["rollout", "--pause", "--promote"], "--pause, --resume and --promote exclude each other"),
        (
            ["rollout", "--pause", "--campaign", "other"],
            "No rollout of campaign other is",
        ),
        (["rollback", "--to", 9], "No release 9"),
    ],
)
def test_what_is_not_there_is_told(
    service: Releasing, arguments: list[object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        shoal(arguments[0], service.folder, *arguments[1:])


def test_a_folder_without_releases_shows_none(
    tmp_path: Path, fleet: FleetData, capsys: pytest.CaptureFixture[str]
) -> None:
    Releasing(fleet, tmp_path)
    shoal("list", tmp_path)
    assert len(capsys.readouterr().out.splitlines()) == 1, "the heading"
    shoal("rollout", tmp_path)
    assert capsys.readouterr().out == "There is no rollout yet.\n"


def test_without_a_service_there_are_no_orders(service: Releasing) -> None:
    with pytest.raises(ConfigError, match="No service runs in"):
        shoal("rollout", service.folder, "--pause")
