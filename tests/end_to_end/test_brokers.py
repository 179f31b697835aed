"""A campaign over a Mosquitto with small packets, and over NATS: the same models as over a broker
without limits."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aggregator.fleet.records import Campaign
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from simulation.local.fleet import stop_processes
from tests.end_to_end.field import Field, same_models
from tests.end_to_end.fleet import find_mosquitto
from tests.support.brokers import wait_for_port
from tests.support.bundles import Exported
from tests.support.nats import nats_server


@contextmanager
def limited_mosquitto(folder: Path, line: str) -> Iterator[tuple[str, Path]]:
    """The address and the log of a Mosquitto with this line in its configuration."""
    port, log = free_port(), folder / "mosquitto.log"
    (folder / "m.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n{line}\n"
    )
    with log.open("w") as file:
        process = subprocess.Popen(
            [find_mosquitto(), "-v", "-c", str(folder / "m.conf")], stdout=file, stderr=file
        )
        wait_for_port(port)
        yield f"mqtt://127.0.0.1:{port}", log
        stop_processes([process])


def train(data: FleetData, exported: Exported, folder: Path, url: str) -> Campaign:
    """A campaign to its end; the service has not lost its connection."""
    field = Field(data, exported, folder, url)
    try:
        with field.edges():
            field.serve()
            campaign = field.finish()
        assert "Connection to the broker lost" not in (folder / "aggregator.log").read_text()
        return campaign
    finally:
        field.stop()


def test_over_small_packets_a_campaign_has_the_same_models(
    data: FleetData, exported: Exported, undisturbed: Campaign, tmp_path: Path
) -> None:
    most = 8192
    assert (exported.folder / "device.shoal").stat().st_size > most
    with limited_mosquitto(tmp_path, f"max_packet_size {most}") as (url, log):
        same_models(train(data, exported, tmp_path, url), undisturbed)
        assert "oversize packet" not in log.read_text()
        assert "too large" not in log.read_text()


@pytest.mark.full
def test_over_nats_a_campaign_has_the_same_models(
    data: FleetData, exported: Exported, undisturbed: Campaign, tmp_path: Path
) -> None:
    with nats_server(tmp_path) as address:
        campaign = train(data, exported, tmp_path, f"mqtt://{address}")
        same_models(campaign, undisturbed)
