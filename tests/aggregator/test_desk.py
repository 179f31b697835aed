"""Orders of the owner of a service's folder: from a command to the desk of the service and back."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from aggregator.http import local
from aggregator.http.local import FILE, Endpoint, open_to_owner, order, pauses
from aggregator.http.tokens import OWNER
from aggregator.leadership.identity import lock_service
from aggregator.operator.audit import AUDIT
from aggregator.operator.desk import Desk
from aggregator.storage.charter import Charter
from shoal.commands.campaign import _row
from shoal.commands.serve import place_of
from tests.aggregator.http_service import taking_orders
from tests.fleet.cases import direct, world_of
from tests.fleet.test_view import view_of
from tests.fleet.world import settings_of
from wire.errors import ConfigError


def hold(name: str) -> str:
    return f"{name} is paused"


def refuse(name: str) -> str:
    raise ConfigError("it may not be") if name == "run-1" else RuntimeError("a defect")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, {"campaign-pause": hold, "campaign-abort": refuse})


def test_a_running_service_answers_and_only_the_folder_s_owner_reads_the_token(
    tmp_path: Path, desk: Desk
) -> None:
    with taking_orders(tmp_path, desk):
        assert order(tmp_path, "campaigns", "run-1", "pause") == "run-1 is paused"
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / FILE).exists()
    line = json.loads((tmp_path / AUDIT).read_text())
    assert (line["by"], line["outcome"]) == (OWNER, "done")
    assert json.loads(line["what"]) == {"type": "campaign-pause", "name": "run-1"}


@pytest.mark.parametrize(
    ("name", "text"), [("run-1", "it may not be"), ("run-2", "RuntimeError: a defect")]
)
def test_what_cannot_be_done_is_the_command_s_error(
    tmp_path: Path, desk: Desk, name: str, text: str
) -> None:
    with taking_orders(tmp_path, desk), pytest.raises(ConfigError, match=text):
        order(tmp_path, "campaigns", name, "abort")
    assert json.loads((tmp_path / AUDIT).read_text())["outcome"] == "refused"


def test_a_service_that_does_not_run_gets_no_orders(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(msgspec.json.encode(Endpoint("127.0.0.1", 9, "of one killed")))
    with pytest.raises(ConfigError, match=r"No service runs in .*Start it with `shoal serve"):
        order(tmp_path, "campaigns", "run-1", "pause")
    with pytest.raises(ConfigError, match=r"No folder .*none"):
        order(tmp_path / "none", "campaigns", "run-1", "pause")


def test_a_running_service_says_which_campaigns_a_fault_has_paused(
    tmp_path: Path, desk: Desk
) -> None:
    lines = [{"name": "run-1", "paused": "the disk is full"}, {"name": "run-2", "paused": ""}]
    with taking_orders(tmp_path, desk, lines):
        assert pauses(tmp_path) == {"run-1": "the disk is full"}
    with pytest.raises(ConfigError, match="gave no answer"):
        pauses(tmp_path)


def test_the_list_has_the_pause_of_a_fault_and_that_of_the_operator() -> None:
    world = world_of("a")
    world.start("run")
    charter = Charter(0, settings_of())
    row = _row("run", charter, view_of(world).campaigns["run"], "the disk is full")
    assert (row.phase, row.paused) == ("paused", "the disk is full")
    direct(world, "pause")
    row = _row("run", charter, view_of(world).campaigns["run"], "")
    assert (row.phase, row.paused) == ("paused", "the operator has paused it")


def test_a_service_whose_database_is_gone_does_not_say_that_the_fleet_is_kept(
    tmp_path: Path,
) -> None:
    assert "shoal.db is gone: put it back" in place_of(tmp_path, "")
    assert place_of(tmp_path, "postgresql://db/shoal") == f"kept in {tmp_path}"
    (tmp_path / "shoal.db").touch()
    assert place_of(tmp_path, "") == f"kept in {tmp_path}"


@pytest.mark.parametrize("left", [True, False])
def test_a_service_that_does_not_take_orders_in_time_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    monkeypatch.setattr(local, "START_S", 0.2)
    if left:  # a service that was killed has left it, and the next one has not written its own
        (tmp_path / FILE).write_bytes(msgspec.json.encode(Endpoint("127.0.0.1", 9, "t")))
    held = lock_service(tmp_path)
    try:
        with pytest.raises(
            ConfigError, match="no orders for 0 s: it is starting, or waits as a standby"
        ):
            order(tmp_path, "campaigns", "run-1", "pause")
    finally:
        os.close(held)


@pytest.mark.parametrize(
    ("host", "reached"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("127.0.0.1", "127.0.0.1"), ("10.0.0.7", "10.0.0.7")],
)
def test_a_service_is_reached_wherever_it_listens(tmp_path: Path, host: str, reached: str) -> None:
    one, other = Endpoint.new(host, 8080), Endpoint.new(host, 8080)
    assert (one.host, one.port) == (reached, 8080)
    assert one.token != other.token, "each start has a token of its own"
    with open_to_owner(tmp_path, one):
        assert msgspec.json.decode((tmp_path / FILE).read_bytes(), type=Endpoint) == one
