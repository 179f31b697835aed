"""Two services of one fleet with one PostgreSQL database and one bucket: one dies, is stopped, or
is cut off, and the other takes over.

As in `tests.end_to_end.test_recovery`, the right result is exact: the models are those of a run
that nothing disturbed.
"""

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aggregator.fleet.records import Campaign
from aggregator.leadership.fleet_lease import LEASE_S, LeaseLost
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from simulation.local.fleet import start_process
from tests.end_to_end.field import ROUNDS, Field, same_models
from tests.support.bundles import Exported
from tests.support.lossy_proxy import LossyProxy, lossy_proxy
from tests.support.postgres import Postgres
from tests.support.s3 import BUCKET, S3Server
from tests.support.waiting import wait_until
from wire.errors import OtherAggregator

OPENED = "Campaign opened: campaign=run-1 phase=waiting"
TAKES_OVER_S = LEASE_S + 10
"""Seconds for a lease to end, and for a service to begin, on a machine that is busy."""


@dataclass
class Pair(Field):
    """Services that share a database and a bucket; `port` is that of the one which was last seen at
    work."""

    bucket: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)

    def serve(self, *more: str, database: str = "") -> "subprocess.Popen[bytes]":
        name, port = f"service-{len(self.serving)}", free_port()
        options = {
            "--folder": self.folder / name,
            "--bundle": self.exported.folder,
            "--broker": self.broker_url,
            "--fleet": "t",
        }
        options |= {"--database": database or self.database, "--blobs": self.bucket, "--port": port}
        options |= {
            "--rounds": ROUNDS,
            "--min-devices": len(self.data.devices),
            "--local-epochs": self.epochs,
        }
        arguments = [part for option, value in options.items() for part in (option, str(value))]
        self.serving.append(
            start_process(
                ["-m", "shoal", "serve", *arguments, *more],
                self.folder / f"{name}.log",
                environment=self.environment,
            )
        )
        self.ports.append(port)
        return self.serving[-1]

    def log(self, number: int) -> str:
        return (self.folder / f"service-{number}.log").read_text()

    def wait_for_log(self, number: int, text: str, patience_s: float = 60.0) -> None:
        wait_until(
            lambda: text in self.log(number),
            patience_s,
            lambda: f"{text!r} is not in: {self.log(number)[-2000:]}",
        )

    def look_at(self, number: int) -> None:
        self.port = self.ports[number]

    def taken_over(self, number: int, patience_s: float = TAKES_OVER_S) -> float:
        """Wait until this service is at work; how many seconds that took."""
        began_s = time.monotonic()
        self.look_at(number)
        self.wait(lambda run: run["round"] >= 1, patience_s)
        return time.monotonic() - began_s

    def finish(self) -> Campaign:
        campaign = super().finish()
        numbers = [record.round for record in self.records()]
        assert numbers == list(range(1, len(numbers) + 1))
        return campaign


@pytest.fixture
def pair(
    data: FleetData,
    exported: Exported,
    tmp_path: Path,
    mosquitto: str,
    postgres: Postgres,
    s3_server: S3Server,
) -> Iterator[Pair]:
    database, bucket = (
        postgres.create(secrets.token_hex(6)),
        f"s3://{BUCKET}/{secrets.token_hex(4)}",
    )
    pair = Pair(
        data,
        exported,
        tmp_path,
        mosquitto,
        database=database,
        bucket=bucket,
        environment=s3_server.environment,
    )
    (
        tmp_path / "aggregator.log"
    ).touch()  # `Field.wait` shows it; each service here has a log of its own
    yield pair
    for process in pair.serving:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
    pair.stop()


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[LossyProxy]:
    with lossy_proxy(postgres.port) as proxy:
        yield proxy


@pytest.mark.full
def test_the_standby_takes_over_when_the_first_is_killed_and_again_when_it_is_killed_itself(
    pair: Pair, undisturbed: Campaign
) -> None:
    with pair.edges():
        pair.serve("--standby")
        pair.taken_over(0, 60)
        epochs = [pair.get("/run")["epoch"]]
        for number in (1, 2):
            pair.serve("--standby")
            pair.wait_for_log(number, "Waiting for the lease of another aggregator")
            pair.wait_for_round(2 * number)
            pair.serving[number - 1].kill()
            took_s = pair.taken_over(number)
            print(f"taken over after {took_s:.1f} s")
            epochs.append(pair.get("/run")["epoch"])
        same_models(pair.finish(), undisturbed)
    assert epochs == sorted(set(epochs))


@pytest.mark.slow
def test_a_first_that_was_stopped_cannot_write_when_it_comes_back_and_ends(
    pair: Pair, undisturbed: Campaign
) -> None:
    with pair.edges():
        first = pair.serve("--standby")
        pair.taken_over(0, 60)
        pair.serve("--standby")
        pair.wait_for_log(1, "Waiting for the lease of another aggregator")
        pair.wait_for_round(2)
        first.send_signal(signal.SIGSTOP)
        pair.taken_over(1)
        first.send_signal(signal.SIGCONT)
        assert first.wait(20) == LeaseLost.exit_status, pair.log(0)
        same_models(pair.finish(), undisturbed)
    assert "Traceback" not in pair.log(0) + pair.log(1)


@pytest.mark.slow
def test_a_first_that_is_cut_off_from_the_database_is_followed_by_the_standby(
    pair: Pair, proxy: LossyProxy, postgres: Postgres, undisturbed: Campaign
) -> None:
    with pair.edges():
        first = pair.serve(
            "--standby", database=pair.database.replace(f":{postgres.port}/", f":{proxy.port}/")
        )
        pair.taken_over(0, 60)
        pair.serve("--standby")
        pair.wait_for_log(1, "Waiting for the lease of another aggregator")
        pair.wait_for_round(2)
        proxy.cut = True
        pair.taken_over(1)
        time.sleep(1)
        proxy.cut = False
        assert first.wait(40) == LeaseLost.exit_status, pair.log(0)
        same_models(pair.finish(), undisturbed)


@pytest.mark.slow
def test_a_service_that_is_stopped_gives_its_lease_back_and_one_that_does_not_wait_ends(
    pair: Pair,
) -> None:
    first = pair.serve()
    pair.wait_for_log(0, OPENED)
    second = pair.serve()
    assert second.wait(40) == OtherAggregator.exit_status
    assert "another aggregator is at work, with the same database" in pair.log(1)
    pair.serve("--standby")
    pair.wait_for_log(2, "Waiting for the lease of another aggregator")
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    began_s = time.monotonic()
    pair.wait_for_log(2, OPENED, TAKES_OVER_S)
    assert time.monotonic() - began_s < LEASE_S
    third: Any = pair.serve("--standby")
    pair.wait_for_log(3, "Waiting for the lease of another aggregator")
    third.send_signal(signal.SIGTERM)
    assert third.wait(20) == 0
    assert "No campaign ran" in pair.log(3)


@pytest.mark.slow
def test_the_standby_knows_the_campaigns_that_were_started_and_paused_by_order(pair: Pair) -> None:
    first = pair.serve("--standby")
    pair.wait_for_log(0, OPENED)
    pair.serve("--standby")
    pair.wait_for_log(1, "Waiting for the lease of another aggregator")
    folder = str(pair.folder / "service-0")
    for words in (
        ["start", folder, "second", "--bundle", str(pair.exported.folder)],
        ["pause", folder, "second"],
    ):
        told = subprocess.run(
            [sys.executable, "-m", "shoal", "campaign", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr
    first.kill()
    pair.wait_for_log(1, "Campaign opened: campaign=second phase=waiting", 60)
    pair.look_at(1)
    pair.wait(lambda _run: True)
    campaigns = {campaign["name"]: campaign for campaign in pair.get("/campaigns")}
    assert list(campaigns) == ["run-1", "second"]
    assert "the operator has paused it" in str(campaigns["second"])
    listed = subprocess.run(
        [
            sys.executable,
            "-m",
            "shoal",
            "campaign",
            "list",
            str(pair.folder / "service-1"),
            "--database",
            pair.database,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "second" in listed.stdout, listed.stderr
