"""Models that devices are left with: when a campaign is aborted, is over, or is one of several."""

from aggregator.core.steps import Gate, Step
from aggregator.fleet import events as e
from aggregator.releases import ReleaseMaker
from aggregator.storage.memory import MemoryBlobs
from tests.fleet.cases import all_work, asked, configure, direct, run, world_of
from tests.fleet.world import World

MAKER = ReleaseMaker("off", (Step(1.0),), Gate(), None, lambda _name: MemoryBlobs(), lambda: 0.0)
"""The maker of a service without staged releases."""


def offers(world: World) -> list[str]:
    """Return the devices that are offered a model, once for each offer."""
    return sorted(c.device_id for c in world.outbox if isinstance(c, e.OfferRelease))


def campaign_of(world: World, device_id: str) -> str:
    """Return the campaign whose model a device has; empty for none."""
    release = world.fleet.releases.get(world.fleet.devices[device_id].last_offer.release)
    assert release is None or world.clients[device_id].model == release.model
    return release.campaign if release is not None else ""


def trained(world: World) -> World:
    """Return the world after its campaign `run` has trained for a round."""
    world.start("run", rounds=3, min_devices=2, keep_models=2)
    all_work(world)
    assert run(world).trained == 1
    return world


def two(world: World, *names: str) -> World:
    """Return the world after two campaigns, `one` and the later `two`, have ended in this order."""
    for name in ("one", "two"):
        world.start(name, rounds=1, min_devices=1)
    for name in ("one", "two"):
        direct(world, "pause", name)
    for name in names:
        world.pass_time(10)
        direct(world, "resume", name)
        world.settle()
        assert run(world, name).phase == "finished"
    return world


class TestAbort:
    def test_an_aborted_campaign_gives_no_device_a_model_then_or_later(self) -> None:
        world = trained(world_of("a", "b"))
        direct(world, "abort")
        world.settle()
        world.check_in("late")
        world.crash()
        world.settle()
        assert [*MAKER.due(world.fleet)] == []
        assert {client.model for client in world.clients.values()} == {""}
        assert (asked(world), asked(world, "evaluate")) == ([], [])

    def test_a_rollback_of_an_aborted_campaign_gives_none_either(self) -> None:
        world = trained(world_of("a", "b"))
        direct(world, "abort")
        world.feed(e.RolledBack(at_s=world.now_s, campaign="run", to=0))
        world.settle()
        assert (run(world).phase, run(world).version.round) == ("finished", 0)
        assert [*MAKER.due(world.fleet)] == []
        assert {client.model for client in world.clients.values()} == {""}

    def test_an_aborted_campaign_stays_so_whose_budget_is_changed_to_a_spent_one(self) -> None:
        world = trained(world_of("a", "b"))
        direct(world, "abort")
        configure(world, rounds=1)
        world.check_in("a")
        world.settle()
        assert (run(world).phase, run(world).ended) == ("finished", "order")
        assert [*MAKER.due(world.fleet)] == []
        assert not world.clients["a"].model

    def test_a_campaign_comes_to_its_end_by_its_evaluation_and_not_by_an_abort(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1, min_devices=2)
        all_work(world)
        assert (run(world).phase, run(world).ended_s) == ("evaluating", 0)
        world.settle()
        ended_s = run(world).ended_s
        assert ended_s > 0
        model = world.clients["a"].model
        configure(world, rounds=3)
        world.pass_time(1)
        direct(world, "abort")
        world.settle()
        assert run(world).ended_s == ended_s
        assert world.clients["a"].model == model, "what devices have of it, they keep"


class TestSeveralCampaigns:
    def test_a_device_has_the_models_of_the_campaign_that_ended_last(self) -> None:
        world = two(world_of("a", "b"), "two", "one")
        assert campaign_of(world, "a") == "one"
        world.check_in("c")
        world.settle()
        assert campaign_of(world, "c") == "one", "c was away for all of it"
        configure(world, "two", rounds=2)
        world.settle()
        assert {campaign_of(world, d) for d in "abc"} == {"two"}

    def test_a_service_that_starts_offers_each_device_one_model(self) -> None:
        world = two(world_of("a", "b"), "two", "one")
        world.clients["a"].offered = world.clients["b"].offered = 0  # the offers were lost
        for device_id in "ab":
            world.clients[device_id].model = ""
            report = world.fleet.devices[device_id].in_use
            assert report is not None
            lost = e.UsesRelease(
                at_s=world.now_s, device_id=device_id, in_use=type(report)(device_id)
            )
            world.feed(lost)
        world.crash()
        world.ring()
        assert offers(world) == ["a", "b"]
        world.settle()
        assert [campaign_of(world, d) for d in "ab"] == ["one", "one"]

    def test_an_aborted_campaign_leaves_devices_with_what_the_one_before_gave_them(self) -> None:
        world = two(world_of("a", "b"), "one")
        direct(world, "resume", "two")
        direct(world, "abort", "two")
        world.settle()
        world.check_in("a")
        world.check_in("c")
        world.settle()
        assert [campaign_of(world, d) for d in "abc"] == ["one"] * 3

    def test_a_campaign_that_was_resumed_and_aborted_leaves_devices_with_what_it_gave_them(
        self,
    ) -> None:
        world = two(world_of("a", "b"), "one", "two")
        configure(world, "two", rounds=9)
        assert run(world, "two").phase == "training"
        direct(world, "abort", "two")
        world.settle()
        world.check_in("a")
        assert offers(world) == [], "not even those of the campaign before"
        assert campaign_of(world, "a") == "two"

    def test_a_device_that_a_campaign_does_not_take_has_those_of_the_one_before(self) -> None:
        world = world_of("a", "b")
        world.start("one", rounds=1, min_devices=1)
        world.start("two", rounds=1, min_devices=1, where="id = b")
        world.settle()
        for device_id in "ab":
            world.check_in(device_id)
        world.settle()
        configure(world, "two", rounds=2)
        world.settle()
        assert [campaign_of(world, d) for d in "ab"] == ["one", "two"]

    def test_a_campaign_that_goes_on_asks_by_what_devices_have_said_last(self) -> None:
        world = two(world_of("a", "b"), "one", "two")
        world.clients["a"].num_train = 0
        world.check_in("a")
        assert asked(world) == []
        configure(world, "one", rounds=9)
        assert asked(world) == ["b"]
