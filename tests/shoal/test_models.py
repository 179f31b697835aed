"""`shoal models`, on the folder of a run of which three rounds are over."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.maintenance.examine import examine
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from shoal.cli import application
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.fleet.parts import untimed
from wire.errors import ConfigError


def shoal(*arguments: object) -> None:
    application("models")(["models", *map(str, arguments)], standalone_mode=False)


@pytest.fixture
def bench(fleet: FleetData, tmp_path: Path) -> Bench:
    store = FleetStore(sqlite_url(tmp_path / "shoal.db"))
    own = {"name": "run-1", "keep_models": 3, "rounds": 9}
    bench = Bench(fleet, store, BlobFolder(tmp_path / "blobs" / "run-1"), settings=own)
    for right in (1, 2, 3):
        bench.close(a=(1.0, right), b=(1.0, right))
    return bench


def test_list_says_how_devices_met_each_of_the_models(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shoal("rounds", tmp_path)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["round", "models", "devices", "accuracy", "loss"]
    assert lines[2:5] == [
        [str(n), str(min(n + 1, 2)), "2", f"{25 * (n + 1)}.0", "%", "0.2500"] for n in range(3)
    ]
    assert lines[5] == ["3", "2", "0", "-", "-", "offered", "now"]
    shoal("rounds", tmp_path, "--json")
    assert [
        (version["round"], version["offered"]) for version in json.loads(capsys.readouterr().out)
    ] == [(n, n == 3) for n in range(4)]


def test_wrong_input_is_one_clear_error_and_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"No run 'other' \(--run\) in folder .*\. Known runs: run-1\."
    ):
        shoal("rounds", tmp_path, "--run", "other")
    assert bench.store.load() == untimed(bench.runner.fleet)
    with pytest.raises(ConfigError, match=r"No shoal\.db in folder"):
        shoal("rounds", tmp_path / "none")


def test_what_is_wrong_with_a_database_is_told(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"No run 'run-1' \(--run\) in database sqlite:///.*typo\.db\. Known runs: none\.",
    ):
        shoal("rounds", tmp_path, "--database", sqlite_url(tmp_path / "typo.db"))
    assert not (tmp_path / "typo.db").exists()
    assert isinstance(bench.store, FleetStore)
    bench.store.close()
    (tmp_path / "shoal.db").write_bytes(b"nothing" * 1000)
    with pytest.raises(
        ConfigError,
        match=r"database .*shoal\.db: damaged, file is not a database; `shoal doctor` says more",
    ):
        shoal("rounds", tmp_path)


def test_it_needs_no_torch(bench: Bench, tmp_path: Path) -> None:
    code = (
        "import sys; from shoal.cli import main\ntry: main()\nfinally: print('torch' in "
        "sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "models", "rounds", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "False")


def test_the_doctor_looks_for_the_models_of_earlier_rounds(bench: Bench, tmp_path: Path) -> None:
    lost = next(
        digest
        for digest in bench.campaign.history[1].models.values()
        if digest not in bench.campaign.models.values()
    )
    (tmp_path / "blobs" / "run-1" / lost).unlink()
    wrong = [
        str(finding)
        for finding in examine(tmp_path)
        if finding.verdict == "wrong" and lost[:12] in str(finding)
    ]
    assert len(wrong) == 1, "\n".join(map(str, examine(tmp_path)))
    lost_part = "a part of the models of round 1 is lost: the campaign goes on, but cannot return"
    assert f"{lost_part} to that round" in wrong[0]
