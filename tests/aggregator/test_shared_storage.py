"""Commands for operators, with a PostgreSQL database and a bucket in place of the service's folder;
and a run that loses an answer."""

import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sql

from aggregator.enrolment.order_handlers import DeviceOrders
from aggregator.leadership.identity import own_secret, service_key
from aggregator.storage.blob_bucket import BlobBucket
from aggregator.storage.engine import make_engine
from aggregator.storage.fleet_store import FleetStore
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.fleet.parts import untimed
from tests.support.lossy_proxy import lossy_proxy
from tests.support.postgres import Postgres
from tests.support.s3 import BUCKET, S3Server
from wire import messages as m
from wire.codec import encode


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.create(secrets.token_hex(6))


def shoal(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "shoal", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.full
def test_doctor_models_and_backup_say_what_they_can(
    fleet: FleetData, url: str, s3: S3Server, tmp_path: Path
) -> None:
    where = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    blobs = BlobBucket(where, "run-1")
    own = {"keep_models": 3, "name": "run-1"}
    bench = Bench(fleet, FleetStore(url), blobs, settings=own)
    bench.close(a=(1.0, 2), b=(1.0, 2))
    own_secret(tmp_path / "secret.key")
    service_key(tmp_path)
    checked = shoal("doctor", tmp_path, "--database", url, "--blobs", where)
    assert "campaign run-1 can be read: training, round 2" in checked.stdout, checked.stderr
    assert "run-1: all 5 needed blobs are undamaged" in checked.stdout
    blobs._delete(bench.campaign.version.memory)
    checked = shoal("doctor", tmp_path, "--database", url, "--blobs", where)
    assert checked.returncode == 1
    assert "missing; it is the algorithm's memory" in checked.stdout
    assert shoal("doctor", tmp_path, "--database", url, "--mend").returncode == 2
    listed = shoal("models", "rounds", tmp_path, "--database", url)
    assert listed.stdout.endswith("offered now\n"), listed.stderr
    copied = shoal("backup", tmp_path, tmp_path / "copy")
    assert (copied.returncode, "Copy a PostgreSQL database with pg_dump" in copied.stderr) == (
        2,
        True,
    )


@pytest.mark.parametrize("what", ["an update", "the end of a round"])
def test_a_run_whose_commit_had_no_answer_pauses_and_goes_on_with_what_is_stored(
    fleet: FleetData, postgres: Postgres, url: str, what: str
) -> None:
    with lossy_proxy(postgres.port) as proxy:
        store = FleetStore(url.replace(f":{postgres.port}/", f":{proxy.port}/"))
        bench = Bench(fleet, store, settings={"rounds": 9})
        if what == "the end of a round":
            assert isinstance(bench.verdict(bench.payload("a")), m.Acknowledge)
        payload = bench.payload("b")
        proxy.lose_answer_to = b"COMMIT"
        assert isinstance(bench.verdict(payload, "b"), m.Busy)
        assert "server closed the connection" in bench.runner.problem
        assert "b" not in bench.received, "it is not acknowledged"
        bench.clock.now_s += 6
        bench.tick()
        assert bench.runner.problem == ""
        bench.verdict(payload, "b")
        if what == "an update":
            bench.verdict(bench.payload("a"))
        assert bench.campaign.round == 2
        assert FleetStore(url).load() == untimed(bench.runner.fleet)
        assert sorted(store.rounds(bench.settings.name)[0].evaluated) == ["a", "b"]


def stored(url: str, blobs: BlobBucket) -> bytes:
    """Everything in the database's rows, and in the bucket."""
    metadata, engine = sql.MetaData(), make_engine(url)
    with engine.connect() as connection:
        metadata.reflect(connection)
        rows = [
            value
            for table in metadata.tables.values()
            for row in connection.execute(sql.select(table))
            for value in row
        ]
    engine.dispose()
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in rows]
    return b"\n".join(
        [*texts, *(name.encode() + blobs.get(name) for name in sorted(blobs.names()))]
    )


def test_a_device_that_is_forgotten_is_in_no_row_and_in_no_blob(
    fleet: FleetData, url: str, s3: S3Server, tmp_path: Path
) -> None:
    where = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    blobs = BlobBucket(where, "run-1")
    bench = Bench(fleet, FleetStore(url), blobs, settings={"name": "run-1"})
    bench.send("gone", "check-in", encode(m.CheckIn("gone", 10, 4, hardware="Marked-Board")))
    bench.close(a=(1.0, 1), b=(1.0, 1))
    bench.tensors = {
        name: np.full_like(array, 0.00123456789) for name, array in bench.tensors.items()
    }
    bench.send("gone", "update", bench.payload("gone"))
    pattern = np.full(4, 0.00123456789, np.float32).tobytes()
    assert all(needle in stored(url, blobs) for needle in (b"gone", b"Marked-Board", pattern))
    orders = DeviceOrders(bench.runner, tmp_path, url).handlers
    told = orders["forget-device"]("gone")
    assert "device gone is forgotten" in told
    assert not any(needle in stored(url, blobs) for needle in (b"gone", b"Marked-Board", pattern))
    bench.close(a=(1.0, 1), b=(1.0, 1))
    assert bench.runner.problem == ""
