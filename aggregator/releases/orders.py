"""What an operator may order of releases. Each order says what is to be, so that it may come
twice."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from aggregator.core.release.reach import group_of, needed
from aggregator.core.release.releases import GIVEN_UP, Release
from aggregator.core.release.state import (
    GOING,
    FleetState,
    Promoted,
    Rollout,
    RolloutOrder,
    WentBack,
)
from aggregator.core.state import RunState
from aggregator.releases.policy import ReleasePolicy
from aggregator.releases.rollouts import KEPT, Rollouts
from wire.errors import ConfigError

Handler = Callable[[Any], str]
"""Carries out an order; raises `ShoalError` where that cannot be."""


class MakeReleases(msgspec.Struct, frozen=True, tag="make-releases"):
    """Make releases of what a campaign has trained; with `roll_out`, begin to give them to
    devices."""

    campaign: str
    roll_out: bool = True


class PauseRollout(msgspec.Struct, frozen=True, tag="pause-rollout"):
    """Give the releases of a campaign to no further device."""

    campaign: str


class ResumeRollout(msgspec.Struct, frozen=True, tag="resume-rollout"):
    """Go on with a rollout that is paused."""

    campaign: str


class PromoteRollout(msgspec.Struct, frozen=True, tag="promote-rollout"):
    """Take a rollout past the gate of this step, from 0."""

    campaign: str
    step: int


class EndRollout(msgspec.Struct, frozen=True, tag="end-rollout"):
    """End a rollout, and give devices back what they had."""

    campaign: str


class ReturnToRelease(msgspec.Struct, frozen=True, tag="return-to-release"):
    """Return a group to the model of an earlier release; an empty group is the release's own, or
    the only one that devices are in."""

    to: int
    group: str = ""


ORDERS = (MakeReleases, PauseRollout, ResumeRollout, PromoteRollout, EndRollout, ReturnToRelease)


def release_handlers(
    policy: ReleasePolicy, states: Callable[[], Mapping[str, RunState]]
) -> dict[type, Handler]:
    """By type of order, what carries it out; each raises `ShoalError` where that cannot be.
    `states`: of the campaigns, by name."""
    rollouts = policy.rollouts

    def make(order: MakeReleases) -> str:
        known = states()
        if order.campaign not in known:
            raise ConfigError(f"campaign {order.campaign!r}: expected one of {', '.join(known)}")
        last = rollouts.state.catalogue.last
        numbers = policy.release(known[order.campaign], order.roll_out)
        return "\n".join(_told(n, rollouts.state.catalogue.releases[n], n <= last) for n in numbers)

    def tell(campaign: str, order: Literal["pause", "resume", "end"], done: str) -> str:
        under_way(rollouts, campaign)
        rollouts.order(lambda at_s: RolloutOrder(at_s, campaign, order))
        return f"the rollout of {campaign} {done}"

    def promote(order: PromoteRollout) -> str:
        rollout = under_way(rollouts, order.campaign)
        if order.step != rollout.step:
            raise ConfigError(
                f"the rollout of {order.campaign} is at step {rollout.step + 1}, not at step "
                f"{order.step + 1}"
            )
        rollouts.order(lambda at_s: Promoted(at_s, order.campaign, order.step))
        return f"the rollout of {order.campaign} is past step {order.step + 1}"

    def return_to(order: ReturnToRelease) -> str:
        catalogue = rollouts.state.catalogue
        if order.to not in catalogue.releases:
            raise ConfigError(
                f"release {order.to}: there is none of this number; `shoal models list` says "
                "which there are"
            )
        if order.to not in needed(rollouts.state, KEPT):
            raise ConfigError(
                f"release {order.to}: its model is no longer kept; the last {KEPT} of each group "
                "are"
            )
        last, group = catalogue.last, _chosen(rollouts.state, order)
        rollouts.order(lambda at_s: WentBack(at_s, order.to, group))
        now = rollouts.state.catalogue
        if now.last == last:
            return f"group {group} has the model of release {order.to} already"
        return (
            f"group {group} returns to the model of release {order.to}, as release "
            f"{now.released[group]}"
        )

    return {
        MakeReleases: make,
        PauseRollout: lambda o: tell(o.campaign, "pause", "is paused"),
        ResumeRollout: lambda o: tell(o.campaign, "resume", "goes on"),
        EndRollout: lambda o: tell(o.campaign, "end", "is ended: devices get back what they had"),
        PromoteRollout: promote,
        ReturnToRelease: return_to,
    }


def refusing_handlers() -> dict[type, Handler]:
    """The same of a service that makes no releases: each order is refused, with what to do about
    it."""

    def refuse(_order: msgspec.Struct) -> str:
        again = "start it again with `shoal serve --release manual`, and then give the order again"
        raise ConfigError(
            f"this service makes no releases: it was started with --release off; {again}"
        )

    return dict.fromkeys(ORDERS, refuse)


def _told(number: int, release: Release, before: bool) -> str:
    again = (
        f"; `shoal models rollback --to {number}` returns to its model"
        if release.state in {*GIVEN_UP, "retired"}
        else ""
    )
    return f"release {number}: {release.group}" + (
        f": it was made before and is {release.state}{again}" if before else ""
    )


def _chosen(state: FleetState, order: ReturnToRelease) -> str:
    """The group that an order is about.

    Raises:
        ConfigError: no device is in it, or it cannot be told.
    """
    groups = sorted({group_of(state, holder) for holder in state.devices.values()} - {""})
    own = state.catalogue.releases[order.to].group
    group = order.group or (own if own in groups or len(groups) != 1 else groups[0])
    if group not in groups:
        raise ConfigError(
            f"group {group!r}: no device is in it; --group names one of "
            f"{', '.join(groups) or 'none'}"
        )
    return group


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
