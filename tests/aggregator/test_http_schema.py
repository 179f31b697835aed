"""Requests that the OpenAPI document permits and ones that it forbids, to every route:
schemathesis, with all of its checks, against the server as it is."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aggregator.http.server import HttpServer
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from tests.aggregator.http_service import http_service

CONFIG = """
[[operations]]
include-name = "GET /devices"
# a text that is no rule is refused, and no schema can tell the two apart
checks.positive_data_acceptance = { expected-statuses = ["2xx", "401", "403", "404", "422", "429"] }
"""
UNLIMITED: dict[str, Any] = {"burst": 1e9, "per_s": 1e9, "failed_burst": 1e9, "failed_per_s": 1e9}


def told(fleet: FleetData, folder: Path, *options: str, limit_s: float) -> None:
    """Let schemathesis ask a service everything; it has to find nothing, and to have asked every
    route."""
    service, port = http_service(fleet, folder, **UNLIMITED), free_port()
    token = service.tokens.new("tester", "operator")
    (folder / "schemathesis.toml").write_text(CONFIG)
    with HttpServer("127.0.0.1", port) as server, service.running():
        server.serve(service.api)
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            f"http://127.0.0.1:{port}/openapi.json",
        ]
        command += [
            "--header",
            f"Authorization: Bearer {token}",
            "--checks",
            "all",
            "--mode",
            "all",
            "--seed",
            "1",
            "--no-color",
            *options,
        ]
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=os.environ | {"COLUMNS": "140"},
        )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    operations = sum(len(methods) for methods in service.api.openapi()["paths"].values())
    assert f"Tested: {operations}\n" in done.stdout, done.stdout[-3000:]


@pytest.mark.full
def test_every_route_keeps_to_its_description(fleet: FleetData, tmp_path: Path) -> None:
    told(fleet, tmp_path, "--max-examples", "3", limit_s=250)


@pytest.mark.slow
@pytest.mark.timeout(1900)
def test_every_route_keeps_to_its_description_for_long(fleet: FleetData, tmp_path: Path) -> None:
    told(fleet, tmp_path, "--max-examples", "300", limit_s=1800)
