"""A campaign that ends without staged releases offers its models directly; to take one up ends the
work of a device for the campaign."""

from collections import Counter

from msgspec.structs import replace

from aggregator.core.steps import Gate, Step
from aggregator.fleet import events as e
from aggregator.fleet.gate import answer_of
from aggregator.fleet.records import ModelRelease
from aggregator.view.fleet import FleetView
from tests.fleet.cases import all_work, run, world_of
from tests.fleet.world import World
from wire.messages import InUse


def ended_with_a_late_device() -> World:
    """A campaign with personal models that is over, and a device that has just come."""
    world = world_of("a", "b")
    world.start("run", rounds=1, min_devices=2, keeps=True, auto=False)
    while run(world).phase != "finished":
        all_work(world)
        world.pass_time(1)
    release = ModelRelease(
        number=1,
        group="0",
        bundle="b",
        model=run(world).models["0"],
        run_id="run",
        campaign="run",
        round=1,
        algorithm="",
        devices=1,
    )
    releases = (release, replace(release, number=2, group="1"))
    world.feed(
        e.Released(
            at_s=world.now_s,
            campaign="run",
            releases=releases,
            newcomers="0",
            steps=(Step(1.0),),
            gate=Gate(),
            salt="x",
            direct=True,
        )
    )
    world.pass_time(1)
    world.check_in("c")
    return world


def told(world: World, commands: list[e.Command]) -> list[str]:
    names = {e.SendPlan: "plan", e.OfferRelease: "offer"}
    return [names[type(c)] for c in commands if getattr(c, "device_id", "") == "c"]


def test_an_offer_comes_before_the_work_on_a_personal_model_or_after_it() -> None:
    world = ended_with_a_late_device()
    assert told(world, [c for c in world.outbox if type(c) in (e.SendPlan, e.OfferRelease)]) == [
        "offer",
        "plan",
    ]
    world.outbox.clear()
    world.leave("c")
    world.check_in("c")
    again = [c for c in world.outbox if type(c) in (e.SendPlan, e.OfferRelease)]
    assert told(world, again) == ["plan"], "an offer would end the work"
    world.carry_out()
    world.work("c")
    after = [c for c in world.outbox if type(c) in (e.SendPlan, e.OfferRelease)]
    assert told(world, after) == ["offer"]
    world.settle()
    world.check_settled()


def test_a_device_that_took_up_a_finished_campaigns_model_is_counted_as_using_its_release() -> None:
    world = ended_with_a_late_device()
    offered = {d: device.last_offer.release for d, device in world.fleet.devices.items()}
    assert FleetView(world.fleet).totals.answers.in_use == {}

    def report(device_id: str, model: str) -> None:
        said = InUse(device_id, model=model)
        world.feed(e.UsesRelease(at_s=world.now_s, device_id=device_id, in_use=said))

    for device_id in "abc":
        report(device_id, "f" * 64)
    assert FleetView(world.fleet).totals.answers.in_use == {}, "another model"
    for device_id in "abc":
        report(device_id, world.fleet.releases[offered[device_id]].model)
    assert FleetView(world.fleet).totals.answers.in_use == Counter(offered.values())
    assert {world.fleet.devices[d].release_in_use for d in "abc"} == set(offered.values())
    report("a", "")
    assert world.fleet.devices["a"].release_in_use == 0, "it uses none any more"


def test_a_device_that_knows_a_greater_number_is_offered_the_model_under_a_greater_one() -> None:
    """The device ignores smaller numbers, which a service has that returned to an old backup."""
    world = ended_with_a_late_device()
    world.settle()
    world.outbox.clear()
    serial = world.fleet.devices["a"].last_offer.serial
    report = InUse("a", offered=serial + 100, model="f" * 64)
    world.feed(e.UsesRelease(at_s=world.now_s, device_id="a", in_use=report))
    (offer,) = [c for c in world.outbox if isinstance(c, e.OfferRelease)]
    assert (offer.device_id, offer.direct, offer.serial) == ("a", True, serial + 101)


def test_a_device_confirms_or_fails_a_direct_offer_by_its_number() -> None:
    world = ended_with_a_late_device()
    offer = world.fleet.devices["a"].last_offer
    model = world.fleet.releases[offer.release].model
    for report, answer in (
        (InUse("a", offered=offer.serial, model=model), ("confirmed", "")),
        (
            InUse("a", offered=offer.serial, problem="it does not load"),
            ("failed", "it does not load"),
        ),
        (InUse("a", offered=offer.serial), ("waiting", "")),
        (InUse("a", model=model), ("waiting", "")),
    ):
        world.feed(e.UsesRelease(at_s=world.now_s, device_id="a", in_use=report))
        assert answer_of(world.fleet.devices["a"]) == answer
