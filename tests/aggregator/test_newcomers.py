"""Which model devices are to use that a campaign has put into no group: one that was trained, if
there is one."""

from aggregator.core.release.releases import Catalogue
from aggregator.core.release.state import FleetState
from aggregator.releases.policy import drafts_of, newcomers_key, released_group
from tests.aggregator.round_cases import MODEL, Run

TRAINED = "3" * 64


def trained(**starts: str) -> Run:
    """A campaign with these groups, of which the device `new` has joined since."""
    run = Run(min_devices=len(starts))
    for device_id in starts:
        run.check_in(device_id)
    for device_id in starts:
        run.update(device_id)
    run.aggregated(starts=starts)
    run.check_in("new")
    return run


def test_a_device_in_no_group_is_released_the_largest_groups_model() -> None:
    state = trained(a="0", b="0").state
    assert newcomers_key(state) == "0"
    assert [(draft.model, draft.devices) for draft in drafts_of(state)] == [(TRAINED, 3)]


def test_where_groups_are_of_one_device_nobody_is_given_anothers_model() -> None:
    state = trained(a="0").state
    assert newcomers_key(state) == "initial"
    assert {draft.model for draft in drafts_of(state)} == {TRAINED, MODEL}


def test_the_group_of_a_device_is_that_of_the_latest_campaign_with_a_release() -> None:
    states = [trained(a="0", b="0").state]
    name = states[0].settings.name
    assert released_group(states, FleetState(), "a") == ""
    assert (
        released_group(states, FleetState(catalogue=Catalogue(released={f"{name}/0": 1})), "a")
        == f"{name}/0"
    )
