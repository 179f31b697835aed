"""`--json`: what a command prints for people is there for programs too, in one shape."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import application
from simulation.datasets.windows import FleetData
from tests.aggregator.test_release_copies import service_with_releases
from tests.conftest import Exported
from tests.enrolment import enrolment_bench
from tests.shoal.test_cli import FUNCTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command with `--json`; what it printed."""

    def run(*words: object) -> Any:
        capsys.readouterr()
        application(str(words[0]))([*map(str, words), "--json"], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    return run


def test_the_page_names_the_commands_that_have_it() -> None:
    section = PAGE[PAGE.index("## Commands in programs") :]
    named = re.findall(r"^\| `shoal ([a-z ]+)` \|", section[: section.index("\n## ", 1)], re.MULTILINE)
    assert sorted(named) == sorted(words for words, command in FUNCTIONS.items() if "as_json" in inspect.signature(command).parameters)


def test_releases_and_their_rollouts(said: Any, fleet: FleetData, tmp_path: Path) -> None:
    service_with_releases(fleet, folder := tmp_path / "served", "default")
    releases = said("models", "list", folder)
    assert [release["number"] for release in releases] == [1, 2]
    assert said("models", "show", folder, 2) == releases[1]
    assert releases[1]["parent"] == 1
    (rollout,) = said("models", "rollout", folder)
    assert (rollout["campaign"], rollout["phase"], [*rollout["releases"].values()]) == ("c", "running", [2])


def test_tokens_devices_and_what_was_done(said: Any, tmp_path: Path) -> None:
    with enrolment_bench(tmp_path) as bench:
        bench.token(device_id="pi-1", tags=("berlin",))
        listed = said("enrol", "list", tmp_path)
    assert [(token["device_id"], token["tags"]) for token in listed["tokens"]] == [("pi-1", ["berlin"])]
    assert listed["devices"] == []
    assert [row["what"] for row in said("enrol", "audit", tmp_path)] == ["token"]
    application("token")(["token", "new", str(tmp_path), "--name", "ann", "--role", "viewer"], standalone_mode=False)
    (held,) = said("token", "list", tmp_path)
    assert (held["name"], held["role"], len(held["hash"])) == ("ann", "viewer", 64)


def test_a_bundle(said: Any, exported: Exported) -> None:
    told = said("export", "inspect", exported.folder)
    assert told["num_bytes"] == len(exported.bundle.payload)
    assert {graph["graph"] for graph in told["graphs"]} == set(exported.bundle.manifest.graphs)
    assert all(sum(graph["operators"].values()) > 0 for graph in told["graphs"])


def test_findings_and_checks(said: Any, fleet: FleetData, tmp_path: Path) -> None:
    service_with_releases(fleet, folder := tmp_path / "served", "default")
    findings = said("doctor", folder)
    assert {finding["verdict"] for finding in findings} <= {"ok", "note", "mended", "wrong"}
    assert any("shoal.db" in finding["where"] for finding in findings)
    checks = said("check", "median", "--no-phones")
    assert len(checks) >= 3
    assert {check["failure"] for check in checks} == {""}
