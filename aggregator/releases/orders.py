"""What an operator may order of releases. Each order says what is to be, so that it may come
twice."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from aggregator.core.release.reach import group_of, needed
from aggregator.core.release.releases import GIVEN_UP, Release
from aggregator.core.release.state import (
    GOING,
    Promoted,
    Rollout,
    RolloutOrder,
    WentBack,
)
from aggregator.core.state import RunState
from aggregator.releases.policy import ReleasePolicy
from aggregator.releases.rollouts import KEPT, Rollouts
from wire.errors import ConfigError

Handler = Callable[..., str]
"""Carries out an order; raises `ShoalError` where that cannot be."""
ORDERS = (
    "make-releases",
    "pause-rollout",
    "resume-rollout",
    "promote-rollout",
    "end-rollout",
    "return-to-release",
)


def release_handlers(
    policy: ReleasePolicy, states: Callable[[], Mapping[str, RunState]]
) -> dict[str, Handler]:
    """Return, by name of an order, what carries it out. `states`: of the campaigns, by name."""
    rollouts = policy.rollouts

    def make(campaign: str, roll_out: bool = True) -> str:
        """Make releases of what a campaign has trained; with `roll_out`, begin to give them to
        devices."""
        known = states()
        if campaign not in known:
            raise ConfigError(f"campaign {campaign!r}: expected one of {', '.join(known)}")
        last = rollouts.state.catalogue.last
        numbers = policy.release(known[campaign], roll_out)
        return "\n".join(_told(n, rollouts.state.catalogue.releases[n], n <= last) for n in numbers)

    def tell(order: Literal["pause", "resume", "end"], done: str, campaign: str) -> str:
        under_way(rollouts, campaign)
        rollouts.take_in(RolloutOrder(rollouts.clock(), campaign, order))
        return f"the rollout of {campaign} {done}"

    def promote(campaign: str, step: int) -> str:
        """Take a rollout past the gate of this step, from 0."""
        rollout = under_way(rollouts, campaign)
        if step != rollout.step:
            raise ConfigError(
                f"the rollout of {campaign} is at step {rollout.step + 1}, not at step {step + 1}"
            )
        rollouts.take_in(Promoted(rollouts.clock(), campaign, step))
        return f"the rollout of {campaign} is past step {step + 1}"

    def return_to(to: int, group: str = "") -> str:
        """Return a group to the model of an earlier release; an empty group is the release's own,
        or the only one that devices are in."""
        catalogue = rollouts.state.catalogue
        if to not in catalogue.releases:
            raise ConfigError(
                f"release {to}: there is none of this number; `shoal models list` says "
                "which there are"
            )
        if to not in needed(rollouts.state, KEPT):
            raise ConfigError(
                f"release {to}: its model is no longer kept; the last {KEPT} of each group are"
            )
        state = rollouts.state
        groups = sorted({group_of(state, holder) for holder in state.devices.values()} - {""})
        own = catalogue.releases[to].group
        group = group or (own if own in groups or len(groups) != 1 else groups[0])
        if group not in groups:
            raise ConfigError(
                f"group {group!r}: no device is in it; --group names one of "
                f"{', '.join(groups) or 'none'}"
            )
        last = catalogue.last
        rollouts.take_in(WentBack(rollouts.clock(), to, group))
        now = rollouts.state.catalogue
        if now.last == last:
            return f"group {group} has the model of release {to} already"
        return (
            f"group {group} returns to the model of release {to}, as release {now.released[group]}"
        )

    return {
        "make-releases": make,
        "pause-rollout": partial(tell, "pause", "is paused"),
        "resume-rollout": partial(tell, "resume", "goes on"),
        "promote-rollout": promote,
        "end-rollout": partial(tell, "end", "is ended: devices get back what they had"),
        "return-to-release": return_to,
    }


def refuse(**_fields: object) -> str:
    """Refuse an order in `ORDERS`, which a service that makes no releases cannot carry out.

    Raises:
        ConfigError: always; the text says what to do.
    """
    again = "start it again with `shoal serve --release manual`, and then give the order again"
    raise ConfigError(f"this service makes no releases: it was started with --release off; {again}")


def _told(number: int, release: Release, before: bool) -> str:
    again = (
        f"; `shoal models rollback --to {number}` returns to its model"
        if release.state in {*GIVEN_UP, "retired"}
        else ""
    )
    return f"release {number}: {release.group}" + (
        f": it was made before and is {release.state}{again}" if before else ""
    )


def under_way(rollouts: Rollouts, campaign: str) -> Rollout:
    """The rollout of a campaign.

    Raises:
        ConfigError: it has none, or that is over.
    """
    rollout = rollouts.state.rollouts.get(campaign)
    if rollout is None:
        raise ConfigError(
            f"campaign {campaign!r}: nothing of it was ever rolled out; `shoal models list` says "
            "what was released"
        )
    if rollout.phase not in GOING:
        raise ConfigError(
            f"campaign {campaign!r}: its last rollout is over, {rollout.phase}: {rollout.reason}"
        )
    return rollout
