"""Models for devices that a campaign has put into no group: a trained one, if there is one."""

from aggregator.fleet.records import Campaign, Fleet
from aggregator.releases import newcomers_group, releases_of
from tests.fleet.world import Client, World, digest_of


def trained(*device_ids: str) -> tuple[Fleet, Campaign]:
    """A campaign that has trained with these devices, which the device `new` has joined since."""
    world = World()
    for device_id in device_ids:
        world.clients[device_id] = Client()
        world.check_in(device_id)
    world.start("run", rounds=1, min_devices=1)
    world.settle()
    world.clients["new"] = Client()
    world.check_in("new")
    return world.fleet, world.fleet.campaigns["run"]


def test_a_device_in_no_group_is_released_the_largest_groups_model() -> None:
    fleet, campaign = trained("a", "c")
    newcomers = newcomers_group(fleet, campaign)
    releases = releases_of(fleet, campaign, newcomers, 9.0)
    assert newcomers == "1"
    assert [(r.group, r.model, r.devices) for r in releases] == [("1", digest_of("run-1-1"), 2)]


def test_where_groups_are_of_one_device_nobody_is_given_anothers_model() -> None:
    fleet, campaign = trained("a")
    newcomers = newcomers_group(fleet, campaign)
    assert newcomers == "initial"
    models = {release.model for release in releases_of(fleet, campaign, newcomers, 9.0)}
    assert models == {digest_of("run-1-1"), digest_of("run-1-new")}
