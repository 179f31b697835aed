"""Orders over HTTP, and what the API answers where it cannot do what was asked."""

import asyncio
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from aggregator.operator import desk as desks
from aggregator.operator.desk import MOST, Answer, Desk
from aggregator.ports import StorageFailed
from simulation.datasets.windows import FleetData
from tests.aggregator.http_service import HttpService, http_service


@pytest.fixture
def service(fleet: FleetData, tmp_path: Path) -> HttpService:
    return http_service(fleet, tmp_path, burst=1000)


@pytest.fixture
def client(service: HttpService) -> TestClient:
    headers = {"Authorization": f"Bearer {service.tokens.new('tester', 'operator')}"}
    return TestClient(
        service.api, "http://127.0.0.1", raise_server_exceptions=False, headers=headers
    )


def test_orders_to_a_campaign(service: HttpService, client: TestClient) -> None:
    def order(what: str, body: Any = None) -> tuple[int, str]:
        answer = client.post(f"/campaigns/run-1/{what}", json=body)
        said = answer.json()
        return answer.status_code, said.get("text") or said["detail"]

    with service.running():
        assert order("pause")[0] == 200
        assert client.get("/run").json()["paused"] == "the operator has paused it"
        assert order("resume") == (200, "resumed: run-1")
        assert order("settings", {"rounds": 30, "min_devices": 2.0}) == (
            200,
            "campaign run-1 goes on with rounds 30, min_devices 2, min_updates 2",
        )
        assert (
            "patience 3, cohort 20, hours 22:00-06:00 UTC"
            in order("settings", {"patience": 3, "cohort": 20, "hours": "22:00-06:00 UTC"})[1]
        )
        assert order("settings", {"buffer": 3})[0] == 409, "a campaign stays what it is"
        assert order("rollback", {"to": 1}) == (
            409,
            "No models of round 1. Rounds whose models are stored: 2.",
        )
        assert order("exclude", {"device_id": "a", "since": 1}) == (
            409,
            "No models from before round 1. Rounds whose models are stored: 2. Without --since, "
            "the device is excluded only.",
        )
        assert client.get("/devices/a").json()["line"]["eligible"] is True
        assert order("exclude", {"device_id": "a", "since": 3}) == (
            200,
            "a is excluded from campaign run-1, and may still be given its model; the present "
            "models, of round 2, are from before round 3",
        )
        assert client.get("/devices/a").json()["line"]["eligible"] is False
        assert order("include", {"device_id": "a"}) == (200, "a takes part in campaign run-1")
        assert client.get("/devices/a").json()["line"]["eligible"] is True
        assert order("exclude", {"device_id": "nobody"}) == (
            409,
            "No device 'nobody'. `shoal devices list` names all.",
        )
        assert order("exclude", {"device_id": "a", "since": 0})[0] == 422
        assert "ended after 2 rounds" in order("abort")[1]
        assert order("pause") == (409, "Campaign run-1 is finished, so it cannot be paused.")
        assert client.post("/campaigns/other/pause").status_code == 409
    campaign = service.bench.campaign
    assert (campaign.phase, campaign.next_settings.rounds) == ("finished", 30)


def test_orders_to_devices(service: HttpService, client: TestClient) -> None:
    def order(what: str, body: Any = None) -> tuple[int, str]:
        answer = client.post(f"/devices/{what}", json=body)
        said = answer.json()
        return answer.status_code, said.get("text") or said["detail"]

    with service.running():
        assert order("new/tag", {"tags": ["canary", "lab"]}) == (
            200,
            "device new tagged canary, lab",
        )
        assert order("new/untag", {"tags": ["lab"]})[0] == 200
        assert client.get("/devices/new").json()["record"]["tags"] == ["canary"]
        assert "ever here" not in order("a/ban", {"reason": "stolen"})[1]
        for _ in range(2):
            assert "no device of this id was ever here" in order("aa/ban", {"reason": ""})[1]
        assert service.bench.known("a").ban is not None
        assert order("a/unban")[0] == 200
        assert order("a/unban") == (409, "Device a is not banned.")
        assert order("a/forget")[1].startswith("device a is forgotten")
    assert "a" not in service.bench.runner.fleet.devices
    assert order("new/tag", {"tags": ["no tag"]})[0] == order("new/tag", {"tags": []})[0] == 422


def test_orders_to_releases_and_rollouts(service: HttpService, client: TestClient) -> None:
    def order(path: str, body: Any = None) -> tuple[int, str]:
        answer = client.post(path, json=body)
        said = answer.json()
        return answer.status_code, said.get("text") or said["detail"]

    with service.running():
        assert order("/rollouts/run-1/pause") == (200, "the rollout of run-1 is paused")
        assert client.get("/rollouts").json()[0]["phase"] == "paused"
        assert order("/rollouts/run-1/resume") == (200, "the rollout of run-1 goes on")
        assert order("/rollouts/run-1/promote", {"step": 1})[0] == 409
        assert order("/rollouts/run-1/promote", {"step": 0}) == (
            200,
            "the rollout of run-1 is past step 1",
        )
        assert order("/rollouts/run-1/rollback") == (
            200,
            "the rollout of run-1 is ended: devices get back their former models",
        )
        assert order("/releases/1/rollback", {})[0] == 200
        assert order("/releases/99/rollback", {})[0] == 409
        assert order("/releases", {"campaign": "run-1"})[0] in (200, 409)
    assert client.get("/releases?limit=1").json()[0]["number"] == 1
    assert client.get("/releases?after=1&limit=1").json()[0]["number"] == 2


def test_an_order_that_is_late_waits_and_is_carried_out(
    service: HttpService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "WAIT_S", 0.05)
    answer = client.post("/campaigns/run-1/pause")
    assert (answer.status_code, answer.json()["state"]) == (202, "waiting")
    assert not service.bench.campaign.paused
    service.duties.done()
    assert service.bench.campaign.paused


def test_orders_that_cannot_be_written_can_be_repeated_and_a_defect_is_one(
    service: HttpService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: Exception) -> None:
        def failing(*_: Any) -> bool:
            raise error

        monkeypatch.setattr(service.bench.store, "commit", failing)

    bench = service.bench
    with service.running():
        fail(RuntimeError("nobody foresaw it"))
        assert client.post("/campaigns/run-1/abort").status_code == 500
        assert client.get("/health").status_code == 200
        fail(StorageFailed("the disk is full"))
        answer = client.post("/campaigns/run-1/abort")
        assert (answer.status_code, answer.headers["Retry-After"], answer.json()["detail"]) == (
            503,
            "5",
            "Nothing can be stored: the disk is full",
        )
        phases = [bench.campaign.phase]
        monkeypatch.undo()
        bench.clock.now_s += 6
        bench.tick()
        assert client.post("/campaigns/run-1/abort").status_code == 200
    assert [*phases, bench.campaign.phase] == ["training", "finished"]


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/run?campaing=x", "query.campaing"),
        ("/run?campaign=a&campaign=b", "query.campaign"),
        ("/run?campaign=a%2Fb", "query.campaign"),
        ("/rounds?limit=0", "query.limit"),
        ("/rounds?limit=1001", "query.limit"),
        ("/rounds?after=-1", "query.after"),
        ("/health?x", "query.x"),
        ("/releases/one", "path.number"),
    ],
)
def test_an_unknown_parameter_or_value_is_named(client: TestClient, path: str, where: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert [fault["where"] for fault in answer.json()["errors"]] == [where]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"rounds": 0},
        {"rounds": "5"},
        {"rounds": None},
        {"rounds": True},
        {"rounds": 1.5},
        {"seed": 1},
        [],
        {"lr": -1},
    ],
)
def test_settings_that_cannot_be_are_refused_before_they_reach_the_service(
    client: TestClient, body: Any
) -> None:
    assert client.post("/campaigns/run-1/settings", json=body).status_code == 422


def test_refusals_have_one_shape(client: TestClient) -> None:
    for answer, status in (
        (client.get("/nothing"), 404),
        (client.get("/run?campaign=other"), 404),
        (client.get("/run/"), 404),
        (client.put("/run"), 405),
        (
            client.post(
                "/campaigns/run-1/settings",
                content=b"{" * 70_000,
                headers={"Content-Type": "application/json"},
            ),
            413,
        ),
    ):
        said = answer.json()
        assert (answer.status_code, said["status"], answer.headers["content-type"]) == (
            status,
            status,
            "application/problem+json",
        )
        assert set(said) == {"title", "status", "detail", "errors"}
    chunked = client.post(
        "/campaigns/run-1/settings",
        content=iter([b"{}"]),
        headers={"Content-Type": "application/json"},
    )
    assert (chunked.status_code, chunked.json()["detail"]) == (
        411,
        "The header Content-Length is missing.",
    )
    assert client.put("/releases").headers["Allow"] == "GET, HEAD, POST"


def test_head_is_get_without_the_body(client: TestClient) -> None:
    for path in ("/health", "/run", "/bundle", "/metrics"):
        get, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert client.head("/bundle").headers["content-length"] == str(
        len(client.get("/bundle").content)
    )


def test_nothing_is_loaded_from_elsewhere(client: TestClient) -> None:
    assert (client.get("/docs").url.path, client.get("/redoc").status_code) == (
        "/dashboard/api",
        404,
    )
    described = client.get("/openapi.json")
    assert described.status_code == 200
    named = [
        operation["operationId"]
        for methods in described.json()["paths"].values()
        for operation in methods.values()
    ]
    assert len(named) == len(set(named)) > 20
    assert "http" not in {
        word.partition("://")[0] for word in described.text.split('"') if "://" in word
    }


def test_the_description_has_every_bound_in_words_of_json_schema(client: TestClient) -> None:
    def keys(of: Any) -> Iterator[str]:
        if isinstance(of, dict):
            yield from of
        for inner in of.values() if isinstance(of, dict) else of if isinstance(of, list) else ():
            yield from keys(inner)

    assert not {"ge", "gt", "le", "lt"} & set(keys(client.get("/openapi.json").json()))
    since = client.get("/openapi.json").json()["components"]["schemas"]["Exclusion"]["properties"]
    assert since["since"]["anyOf"][0]["minimum"] == 1


def test_orders_that_are_too_many_are_refused_and_none_can_be_taken_back(tmp_path: Path) -> None:
    done: list[str] = []

    def hold(name: str) -> str:
        done.append(name)
        return name

    desk = Desk(tmp_path, {"campaign-pause": hold})

    async def ask() -> None:
        waiting = [
            asyncio.create_task(desk.ask("x", "campaign-pause", name=f"run-{i}"))
            for i in range(MOST)
        ]
        await asyncio.sleep(0)
        with pytest.raises(queue.Full):
            await desk.ask("x", "campaign-pause", name="one more")
        waiting[0].cancel()
        await asyncio.sleep(0)
        desk.look()
        assert await asyncio.gather(*waiting[1:]) == [
            Answer(True, f"run-{i}") for i in range(1, MOST)
        ]

    asyncio.run(ask())
    assert done == [f"run-{i}" for i in range(MOST)], "whoever waits may go away; the order stays"


def test_several_devices_are_tagged_by_their_ids_or_by_a_rule(
    service: HttpService, client: TestClient
) -> None:
    def order(**body: Any) -> tuple[int, str]:
        answer = client.post("/tags/add", json=body)
        said = answer.json()
        return answer.status_code, said.get("text") or said["detail"]

    with service.running():
        assert order(tags=["lab"], device_ids=["a", "b"]) == (200, "2 devices tagged lab")
        assert order(tags=["old"], where="tags has lab") == (200, "2 devices tagged old")
        assert order(tags=["x"], where="tags has x") == (
            409,
            "where 'tags has x': no device matches it",
        )
        assert order(tags=["x"])[0] == order(tags=["x"], device_ids=["a"], where="online")[0] == 409
