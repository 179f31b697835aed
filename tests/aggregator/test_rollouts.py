"""Releases between the machine and a link: what is published, what stays on the disk, and what a
kill or a full disk leaves."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.core.steps import Gate, Step
from aggregator.fleet.records import Rollout
from aggregator.operator.release_orders import release_handlers
from aggregator.ports import BlobLost, StorageFailed
from aggregator.releases import read_steps
from aggregator.storage.blob_folder import blob_names
from aggregator.transfer.fleet import FleetLink
from aggregator.view.progress import KEPT, needed_releases, offered_releases
from shoal.commands.serve import log_rounds
from simulation.datasets.windows import FleetData
from tests.aggregator.releasing import Releasing
from tests.fleet.rollout_cases import Rollouts
from wire import messages as m
from wire.codec import decode, digest, encode
from wire.errors import ConfigError
from wire.links.in_process import InProcessLink
from wire.links.port import Delivery

HALVES = (Step(0.5), Step(1.0))


class Service(Releasing):
    """A service whose campaign is trained by `a` and `b`, and whose releases go to others, too."""

    def __init__(
        self, fleet: FleetData, folder: Path, steps: tuple[Step, ...] = (Step(1.0),)
    ) -> None:
        super().__init__(fleet, folder, "manual", steps=steps, rounds=99)
        self.maker = replace(self.maker, gate=Gate(patience_s=0.0))
        self.handlers = release_handlers(self.bench.runner, self.maker)
        self.devices = self.bench.broker.connect("devices")
        self.devices.subscribe("shoal/1/f/device/+/release", "shoal/1/f/blob/+")
        self.round()

    def restart(self) -> None:
        """Start the service again; the one before was killed."""
        bench, epoch = self.bench, self.bench.runner.fleet.epoch + 1
        link = bench.broker.connect("aggregator")
        bench.link = FleetLink(link, bench.topics, f"boot-{epoch}")
        bench.start(epoch)
        self.handlers = release_handlers(bench.runner, self.maker)

    def check_in(self, *device_ids: str) -> None:
        """Have devices without labels check in."""
        for device_id in device_ids:
            self.bench.send(device_id, "check-in", encode(m.CheckIn(device_id, 0, 4)))

    def make(self, roll_out: bool = True) -> str:
        """Make releases of the campaign's models."""
        return self.order("make-releases", campaign="run-1", roll_out=roll_out)

    def tick(self, seconds: float = 2.0) -> None:
        """Let time pass."""
        self.bench.clock.now_s += seconds
        self.bench.tick()

    def answer(self, *releases: m.Release, accuracy: float = 0.9) -> None:
        """Have devices use these releases."""
        for release in releases:
            after, before = (m.Metrics(100, 1.0, round(100 * share)) for share in (accuracy, 0.9))
            number = release.number
            report = m.InUse(release.device_id, number, number, "", after, before)
            self.bench.send(release.device_id, "in-use", encode(report))

    def sent(self) -> list[m.Release]:
        """Return the releases that were published since the last call."""
        return releases_in(received(self.devices))

    @property
    def rollout(self) -> Rollout:
        """The last rollout."""
        return self.bench.runner.fleet.rollouts[-1]


@pytest.fixture
def service(fleet: FleetData, tmp_path: Path) -> Service:
    return Service(fleet, tmp_path)


def received(link: InProcessLink) -> list[Delivery]:
    """Return what has been delivered since the last call."""
    events = iter(lambda: link.receive(timeout_s=0), None)
    return [event for event in events if isinstance(event, Delivery)]


def releases_in(deliveries: list[Delivery]) -> list[m.Release]:
    payloads = [d.payload for d in deliveries if d.topic.endswith("/release") and d.payload]
    return [decode(payload, m.Release) for payload in payloads]


def given(releases: list[m.Release]) -> dict[str, int]:
    """Return the number of each device's release."""
    return {release.device_id: release.number for release in releases}


def test_a_release_and_its_blobs_are_published_and_retained_for_devices_that_come_later(
    service: Service,
) -> None:
    service.check_in("c")
    assert service.make().startswith("release 1: run-1/0")
    deliveries = received(service.devices)
    assert given(releases_in(deliveries)).keys() == {"a", "b", "c"}
    release, bench = service.releases[1], service.bench
    blobs = {digest(d.payload) for d in deliveries if "/blob/" in d.topic}
    assert {release.bundle, release.model} <= blobs
    late = bench.broker.connect("late")
    late.subscribe(bench.topics.device("a", "release"), bench.topics.blob(release.model))
    assert [delivery.retained for delivery in received(late)] == [True, True]


def test_a_step_is_judged_by_what_devices_say_and_a_worse_model_goes_back(service: Service) -> None:
    service.make()
    first = service.sent()
    service.answer(*first)
    service.tick()
    assert service.rollout.phase == "done"
    service.round()
    service.make()
    second = service.sent()
    service.answer(*second, accuracy=0.1)
    service.tick()
    back = service.sent()
    assert given(back).keys() == {"a", "b"}
    assert {release.model for release in back} == {release.model for release in first}
    assert min(given(back).values()) > max(given(second).values())


def test_a_service_that_is_killed_goes_on_and_gives_again_what_may_be_lost(
    fleet: FleetData, tmp_path: Path
) -> None:
    service = Service(fleet, tmp_path, HALVES)
    names = {"a", "b", *(f"d{i}" for i in range(8))}
    service.check_in(*sorted(names - {"a", "b"}))
    service.make()
    first = given(service.sent())
    assert 0 < len(first) < len(names)
    service.restart()
    assert service.rollout.step == 0
    service.tick()
    again = service.sent()
    assert given(again) == first, "nobody else, and everybody who has not answered"
    assert {release.epoch for release in again} == {2}
    service.answer(*again)
    service.tick()
    assert given(service.sent()).keys() == names - first.keys()


def test_nothing_is_given_that_is_not_saved(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(service.bench.store, "commit", full)
        with pytest.raises(StorageFailed, match="the disk is full"):
            service.make()
        service.tick(10)
        assert (service.sent(), service.releases) == ([], {})
    service.tick(10)
    service.make()
    assert given(service.sent()).keys() == {"a", "b"}


def test_what_a_commit_gave_whose_answer_was_lost_is_sent(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = service.bench.store.commit

    def lost(*args: Any, **named: Any) -> None:
        commit(*args, **named)
        raise StorageFailed("the connection is gone")

    with monkeypatch.context() as broken:
        broken.setattr(service.bench.store, "commit", lost)
        with pytest.raises(StorageFailed, match="the connection is gone"):
            service.make()
        assert service.sent() == []
    service.tick(10)
    service.tick()
    assert given(service.sent()).keys() == {"a", "b"}
    assert sorted(service.releases) == [1]


def test_the_same_models_of_the_same_round_are_released_once(service: Service) -> None:
    service.make(roll_out=False)
    assert service.sent() == []
    service.make()
    assert given(service.sent()).keys() == {"a", "b"}
    assert "it was made before, and its rollout is running" in service.make()
    assert (service.sent(), sorted(service.releases)) == ([], [1])


def test_models_that_nobody_needs_are_deleted_and_those_of_devices_stay(
    service: Service, tmp_path: Path
) -> None:
    service.check_in("away")
    for number in range(KEPT + 5):
        service.make()
        service.answer(*service.sent())
        service.tick()
        if number == 0:
            service.bench.send("away", "status", encode(m.DeviceStatus("away", False)))
        service.round()
    service.make()
    fleet, releases = service.bench.runner.fleet, service.releases
    left, last = blob_names(tmp_path / "releases"), max(releases)
    assert {n for n in releases if releases[n].model in left} == {
        1,
        *range(last - KEPT + 1, last + 1),
    }
    assert {n for n in releases if releases[n].model in left} == needed_releases(
        fleet, offered_releases(fleet)
    )
    late = service.bench.broker.connect("late")
    late.subscribe("shoal/1/f/blob/+")
    offered = {digest(delivery.payload) for delivery in received(late)}
    assert releases[1].model in offered
    assert {n for n in releases if releases[n].model in offered} == {1, last - 2, last - 1, last}


def test_a_lost_blob_keeps_no_other_release_from_devices(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.make()
    service.round()  # now the campaign does not offer the model any more
    release = service.releases[1]
    (tmp_path / "releases" / release.model).unlink()
    service.sent()
    service.restart()
    assert service.sent() == []
    assert (
        f"Command not carried out: command=OfferRelease: blob {release.model[:12]}" in caplog.text
    )
    service.round()
    service.make()
    assert given(service.sent()).keys() == {"a", "b"}
    service.round()
    (tmp_path / "blobs" / "run-1" / service.bench.campaign.models["0"]).unlink()
    with pytest.raises(BlobLost):
        service.make()


def test_a_device_that_is_forgotten_leaves_nothing_at_the_broker(service: Service) -> None:
    service.make()
    service.bench.runner.forget("a")
    late = service.bench.broker.connect("late")
    late.subscribe("shoal/1/f/device/+/release")
    topic = service.bench.topics.device("b", "release")
    assert {delivery.topic for delivery in received(late)} == {topic}
    service.restart()
    assert set(service.bench.runner.fleet.devices) == {"b"}


def test_the_log_says_what_became_of_rollouts(caplog: pytest.LogCaptureFixture) -> None:
    fleet, observe = Rollouts("a", "b"), log_rounds()
    observe(fleet.fleet, fleet.events[-1])
    with caplog.at_level(logging.INFO, "shoal"):
        for act in (
            lambda: fleet.roll_out("first", begin=False),
            lambda: fleet.steer("start"),
            lambda: fleet.steer("promote"),
            lambda: fleet.tick(1),
            lambda: fleet.steer("end"),
        ):
            act()
            observe(fleet.fleet, fleet.events[-1])
        log_rounds()(fleet.fleet, fleet.events[-1])  # after a start, what is over is no news
    assert [(r.levelname, r.getMessage()) for r in caplog.records if "Rollout" in r.msg] == [
        ("INFO", "Rollout running: campaign=c releases=1 step=1"),
        ("INFO", "Rollout running: campaign=c releases=1 step=2: promoted by the operator"),
        ("ERROR", "Rollout failed: campaign=c releases=1 step=2: ended by the operator"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.5",
        "0.5,0.2,1",
        "2",
        "0,1",
        "canary",
        "1,canary",
        "0.1,,1",
        "nan,1",
        "80 %, 50 %, 100 %",
    ],
)
def test_steps_that_make_no_rollout_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rollout_steps"):
        read_steps(text)


def test_steps_are_shares_and_tags() -> None:
    steps = (Step(tags=("canary",)), Step(0.1), Step(1.0))
    assert read_steps("canary, 0.1,1") == read_steps("canary,10 %, 100%") == steps
