"""Commands of docs/storage.md, typed with a real database and a real bucket."""

import secrets

import pytest

from tests.support.operator import COMMANDS, Operator
from tests.support.postgres import Postgres
from tests.support.s3 import BUCKET, S3Server

pytestmark = pytest.mark.full


def test_a_service_with_a_database_and_blobs_elsewhere(
    operator: Operator, postgres: Postgres, s3: S3Server
) -> None:
    places = {
        "postgresql://shoal@db.example/shoal": postgres.create(secrets.token_hex(6)),
        "s3://bucket": f"s3://{BUCKET}",
    }

    def filled(start: str) -> str:
        command = next(
            command for command in COMMANDS if command.startswith(start) and "s3://" in command
        )
        for written, real in places.items():
            assert written in command
            command = command.replace(written, real)
        return command

    serving = filled("shoal serve")
    operator.serve(serving.partition("--bundle runs/bundle")[2])
    assert operator.get("/ready")[0] == 200, operator.log()
    checked = operator.run(filled("shoal doctor"))
    assert "campaign run-1 can be read: waiting" in checked.stdout, checked.stdout + checked.stderr
    assert checked.returncode == 0
    operator.stop()
