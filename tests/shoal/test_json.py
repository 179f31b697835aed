"""`--json`: what a command prints for people is there for programs too, in one shape."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import application
from simulation.datasets.windows import FleetData
from tests.aggregator.releasing import service_with_releases
from tests.support.bundles import Exported
from tests.support.commands import FUNCTIONS
from tests.support.enrolment import enrolment_bench
from tests.support.pages import page

PAGE = page("programs")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command with `--json`; what it printed."""

    def run(*words: object) -> Any:
        capsys.readouterr()
        application(str(words[0]))([*map(str, words), "--json"], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    return run


def test_the_page_names_the_commands_that_have_it() -> None:
    named = re.findall(r"^\| `shoal ([a-z ]+)` \|", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(
        words
        for words, command in FUNCTIONS.items()
        if "as_json" in inspect.signature(command).parameters
    )


def test_releases_and_their_rollouts(said: Any, fleet: FleetData, tmp_path: Path) -> None:
    service_with_releases(fleet, folder := tmp_path / "served")
    releases = said("models", "list", folder)
    assert [release["number"] for release in releases] == [1, 2]
    assert said("models", "show", folder, 2) == releases[1]
    (rollout,) = said("models", "rollout", folder)
    assert (rollout["campaign"], rollout["phase"], [*rollout["releases"].values()]) == (
        "run-1",
        "running",
        [2],
    )


def test_tokens_devices_and_what_was_done(said: Any, tmp_path: Path) -> None:
    with enrolment_bench(tmp_path) as bench:
        bench.token(device_id="pi-1", tags=("berlin",))
        listed = said("enrol", "list", tmp_path)
    assert [(token["device_id"], token["tags"]) for token in listed["tokens"]] == [
        ("pi-1", ["berlin"])
    ]
    assert listed["devices"] == []
    assert [row["what"] for row in said("enrol", "audit", tmp_path)] == ["token"]
    application("token")(
        ["token", "new", str(tmp_path), "--name", "ann", "--role", "viewer"], standalone_mode=False
    )
    (held,) = said("token", "list", tmp_path)
    assert (held["name"], held["role"], len(held["hash"])) == ("ann", "viewer", 64)


def test_a_bundle(said: Any, exported: Exported) -> None:
    told = said("export", "inspect", exported.folder)
    assert told["num_bytes"] == len(exported.bundle.payload)
    assert {graph["graph"] for graph in told["graphs"]} == set(exported.bundle.manifest.graphs)
    assert all(sum(graph["operators"].values()) > 0 for graph in told["graphs"])


@pytest.mark.full
def test_findings_and_checks(said: Any, fleet: FleetData, tmp_path: Path) -> None:
    service_with_releases(fleet, folder := tmp_path / "served")
    findings = said("doctor", folder)
    assert {finding["verdict"] for finding in findings} <= {"ok", "note", "mended", "wrong"}
    assert any("shoal.db" in finding["where"] for finding in findings)
    checks = said("check", "median", "--no-phones")
    assert len(checks) >= 3
    assert {check["failure"] for check in checks} == {""}


WITHOUT = {"serve", "ui", "completion", "acl"}


def test_every_command_has_it_but_those_that_the_page_names() -> None:
    flags = {
        words: {"as_json", "in_json"} & inspect.signature(command).parameters.keys()
        for words, command in FUNCTIONS.items()
    }
    assert {words for words, found in flags.items() if not found} == WITHOUT
    section = PAGE[PAGE.index("All other commands have `--json` as well") :]
    assert set(re.findall(r"`(\w+)`", section[: section.index(")")])) == WITHOUT


def test_what_a_command_says_to_people_and_what_came_of_it(said: Any, tmp_path: Path) -> None:
    made = said("token", "new", tmp_path, "--name", "ann", "--role", "viewer")
    assert made.keys() == {"token", "name", "role"}
    assert said("token", "revoke", tmp_path, "ann") == {"said": ["token ann: revoked"]}


@pytest.mark.full
def test_a_simulation_prints_its_summary_alone(tmp_path: Path) -> None:
    words = [
        "simulate",
        "--devices",
        "2",
        "--rounds",
        "1",
        "--algorithm",
        "fedavg",
        "--out",
        str(tmp_path / "out"),
        "--models",
        "none",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    printed, written = (
        json.loads(done.stdout),
        json.loads((tmp_path / "out" / "summary.json").read_text()),
    )
    assert printed == written
    assert "written: " in done.stderr, "what people read is on standard error"
