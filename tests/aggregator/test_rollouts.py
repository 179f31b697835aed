"""`Rollouts` between the machine and a link: what is saved, what is published, and what a kill or a
full disk leaves."""

from pathlib import Path
from typing import Any

import pytest

from aggregator.core.ports import BlobLost, StorageFailed
from aggregator.core.release import rollout
from aggregator.core.release.state import CheckedIn, Gate, RolloutStep
from aggregator.releases import rollouts
from aggregator.releases.rollouts import KEPT, read_steps
from aggregator.service_settings import RolloutSettings
from aggregator.storage.blob_folder import blob_names
from tests.aggregator.rollout_cases import Service, draft, metrics
from wire.codec import digest
from wire.errors import ConfigError
from wire.links.port import Delivery
from wire.messages import InUse, Release

HALVES = RolloutSettings(steps=(RolloutStep(0.5), RolloutStep(1.0)), gate=Gate(patience_s=0.0))


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


def given(found: list[Any]) -> dict[str, int]:
    return {release.device_id: release.number for release in found if isinstance(release, Release)}


def test_a_release_and_its_blobs_are_published_and_retained_for_devices_that_come_later(
    service: Service,
) -> None:
    service.check_in("a", "b")
    assert service.release("first") == (1,)
    found = service.sent()
    assert given(found) == {"a": 1, "b": 1}
    assert {digest(b"bundle"), digest(b"first")} == {
        name for name in found if isinstance(name, str)
    }
    late = service.broker.connect("late")
    late.subscribe(service.topics.device("a", "release"), service.topics.blob(digest(b"first")))
    kept = [
        event
        for event in iter(lambda: late.receive(timeout_s=0), None)
        if isinstance(event, Delivery)
    ]
    assert [event.retained for event in kept] == [True, True]


def test_a_step_is_judged_by_what_devices_say_and_a_worse_model_goes_back(service: Service) -> None:
    service.check_in("a", "b")
    service.release("first")
    for release in service.sent():
        if isinstance(release, Release):
            service.say(release)
    service.tick()
    assert service.rollouts.state.rollouts["c"].phase == "done"
    service.release("second")
    for release in (r for r in service.sent() if isinstance(r, Release)):
        service.say(release, accuracy=0.1)
    service.tick()
    back = [r for r in service.sent() if isinstance(r, Release)]
    assert given(back) == {"a": 3, "b": 3}
    assert {r.model for r in back} == {digest(b"first")}


def test_a_service_that_is_killed_goes_on_and_gives_again_what_may_be_lost(
    service: Service,
) -> None:
    service.settings = HALVES
    service.start()
    names = [f"d{i}" for i in range(8)]
    service.check_in(*names)
    service.release("first")
    first = given(service.sent())
    assert 0 < len(first) < 8
    service.start()  # the one before was killed
    assert service.rollouts.state.rollouts["c"].step == 0
    service.check_in(*names)
    service.tick()
    again = service.sent()
    assert given(again) == first, "nobody else, and everybody who has not answered"
    assert {release.epoch for release in again if isinstance(release, Release)} == {3}
    for release in [r for r in again if isinstance(r, Release)]:
        service.say(release)
    service.tick()
    assert set(given(service.sent())) == set(names) - set(first)


def test_what_came_is_not_lost_on_a_full_disk_and_nothing_is_given_that_is_not_saved(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.check_in("a")
    service.tick()

    def full(*_: object, **__: object) -> None:
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(service.store, "commit", full)
        with pytest.raises(StorageFailed):
            service.release("first")
        service.check_in("b")
        service.tick(10)
        assert (
            service.sent(),
            service.rollouts.state.catalogue.last,
            set(service.rollouts.state.devices),
        ) == ([], 0, {"a"})
    service.tick(10)
    assert set(service.rollouts.state.devices) == {"a", "b"}
    service.release("first")
    assert given(service.sent()) == {"a": 1, "b": 1}


def test_what_a_commit_gave_whose_answer_was_lost_is_sent_and_what_it_took_is_withdrawn(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service.check_in("a", "b", "answers")
    service.release("first")
    (second,) = service.release("second", roll_out=False)
    service.sent()
    commit = service.store.commit

    def lost(*args: Any, **named: Any) -> None:
        commit(*args, **named)
        raise StorageFailed("the connection is gone")

    with monkeypatch.context() as broken:
        broken.setattr(service.store, "commit", lost)
        with pytest.raises(StorageFailed):
            service.rollouts.roll_out([second], dict.fromkeys(service.online, "0"))
        service.rollouts.on_in_use(InUse("answers", second, second, "", metrics(0.9), metrics(0.9)))
        service.tick(10)  # the state is read again, and one more answer is lost
    assert not service.sent()
    caplog.set_level("INFO")
    service.tick(10)
    assert given(service.sent()) == {"a": second, "b": second}
    assert f"campaign=c rollout of releases {second}: done" in caplog.text
    late = service.broker.connect("late")
    late.subscribe(*(service.topics.blob(digest(name)) for name in (b"first", b"second")))
    blobs = [e for e in iter(lambda: late.receive(timeout_s=0), None) if isinstance(e, Delivery)]
    assert [digest(e.payload) for e in blobs] == [digest(b"second")]
    service.tick(10)
    assert not service.sent()


def test_the_same_models_of_the_same_round_are_released_once(service: Service) -> None:
    service.check_in("a")
    assert service.release("first", roll_out=False) == (1,)
    assert given(service.sent()) == {}
    assert service.release("first") == (1,)
    assert given(service.sent()) == {"a": 1}
    assert service.release("first") == (1,)
    assert given(service.sent()) == {}


def test_models_that_nobody_needs_are_deleted_and_those_of_devices_stay(
    service: Service, tmp_path: Path
) -> None:
    service.check_in("a", "away")
    for number in range(KEPT + 5):
        service.release(str(number))
        for release in [r for r in service.sent() if isinstance(r, Release) and r.device_id == "a"]:
            service.say(release)
        if number == 0:
            service.rollouts.on_in_use(InUse("away", 1, 1))
            service.tick()
            service.online.discard("away")
        service.tick()
    kept = blob_names(tmp_path / "releases")
    assert digest(b"2") not in kept
    assert {digest(str(n).encode()) for n in range(5, KEPT + 5)} <= kept
    assert service.rollouts.needed() <= kept


def test_a_lost_blob_keeps_no_other_release_from_devices(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.check_in("a")
    service.release("first")
    (tmp_path / "releases" / digest(b"first")).unlink()
    service.start()
    service.check_in("a")
    service.sent()
    service.tick()
    assert given(service.sent()) == {}
    assert "release 1 cannot be given to device=a" in caplog.text
    service.release("second")
    assert given(service.sent()) == {"a": 2}
    with pytest.raises(BlobLost):
        service.rollouts.release([draft(model="lost")], service.source, {})


def test_a_defect_of_the_machine_costs_one_event(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(state: Any, event: Any) -> Any:
        if isinstance(event, CheckedIn) and event.device_id == "poison":
            raise RuntimeError("a defect")
        return rollout.step(state, event)

    monkeypatch.setattr("aggregator.releases.rollouts.step", broken)
    service.check_in("poison", "a")
    service.tick()
    assert (set(service.rollouts.state.devices), service.rollouts.defects) == ({"a"}, 1)
    assert "defect: an event was left out: CheckedIn" in caplog.text


def test_a_long_log_becomes_a_snapshot(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "SNAPSHOT_EVERY", 5)
    service.release("first", roll_out=False)
    for number in range(12):
        service.check_in(f"d{number}")
        service.tick()
    before = service.rollouts.state
    service.start()
    assert service.rollouts.state == before


def test_a_device_that_is_forgotten_leaves_nothing_at_the_broker(service: Service) -> None:
    service.check_in("a", "b")
    service.release("first")
    service.rollouts.forget("a")
    late = service.broker.connect("late")
    late.subscribe("shoal/1/f/device/+/release")
    assert {
        e.topic for e in iter(lambda: late.receive(timeout_s=0), None) if isinstance(e, Delivery)
    } == {service.topics.device("b", "release")}
    service.start()
    assert set(service.rollouts.state.devices) == {"b"}


@pytest.mark.parametrize(
    "text", ["", "0.5", "0.5,0.2,1", "2", "0,1", "canary", "1,canary", "0.1,,1", "nan,1"]
)
def test_steps_that_make_no_rollout_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rollout steps"):
        read_steps(text)


def test_steps_are_shares_and_tags() -> None:
    assert read_steps("canary, 0.1,1") == (
        RolloutStep(tags=("canary",)),
        RolloutStep(0.1),
        RolloutStep(1.0),
    )
