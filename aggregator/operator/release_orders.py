"""Orders of an operator on releases. Each states the desired state, so it may arrive twice."""

import secrets
from collections.abc import Callable
from functools import partial
from typing import Literal

from aggregator.fleet.desired import group_of
from aggregator.fleet.events import Released, Returned, Steered
from aggregator.fleet.records import Fleet, ModelRelease, Rollout
from aggregator.releases import ReleaseMaker, last_rollout
from aggregator.service.runner import Runner
from aggregator.view.progress import KEPT, needed_releases, offered_releases
from wire.errors import ConfigError

Handler = Callable[..., str]
"""Handler of an order; raises `ShoalError` if the order cannot be carried out."""
ORDERS = (
    "make-releases",
    "pause-rollout",
    "resume-rollout",
    "promote-rollout",
    "end-rollout",
    "return-to-release",
)


def release_handlers(runner: Runner, maker: ReleaseMaker) -> dict[str, Handler]:
    """Return the handlers of orders on releases, by names of the orders."""

    def make(campaign: str, roll_out: bool = True) -> str:
        """Make releases of a campaign's models; with `roll_out`, begin their rollout."""
        campaigns = runner.fleet.campaigns
        if campaign not in campaigns:
            names = ", ".join(campaigns) or "none"
            raise ConfigError(f"No campaign {campaign!r}. Known campaigns: {names}.")
        event: Released = maker.make(runner.fleet, campaigns[campaign], roll_out)
        runner.order(event)
        rollout = last_rollout(runner.fleet, campaign)
        assert rollout is not None
        numbers = {release.number for release in event.releases}
        return "\n".join(
            _line(runner.fleet.releases[n], rollout, n not in numbers)
            for n in sorted(rollout.releases.values())
        )

    def steer(order: Literal["pause", "resume", "end"], effect: str, campaign: str) -> str:
        under_way(runner.fleet, campaign)
        runner.order(Steered(at_s=runner.now_s, campaign=campaign, order=order))
        return f"the rollout of {campaign} {effect}"

    def promote(campaign: str, step: int) -> str:
        """Take a rollout past the gate of this step, counted from 0."""
        rollout = under_way(runner.fleet, campaign)
        if step != rollout.step:
            raise ConfigError(
                f"The rollout of {campaign} is at step {rollout.step + 1}, not at step {step + 1}."
            )
        runner.order(Steered(at_s=runner.now_s, campaign=campaign, order="promote", step=step))
        return f"the rollout of {campaign} is past step {step + 1}"

    def return_to(to: int, group: str = "") -> str:
        """Return a group to the model of an earlier release; empty: the release's own group."""
        release = runner.fleet.releases.get(to)
        if release is None:
            raise ConfigError(f"No release {to}. `shoal models list` names all.")
        if to not in needed_releases(runner.fleet, offered_releases(runner.fleet)):
            raise ConfigError(
                f"The model of release {to} is deleted; only the last {KEPT} of each group remain."
            )
        campaign = runner.fleet.campaigns[release.campaign]
        groups = {
            group_of(campaign, device_id, device)
            for device_id, device in runner.fleet.devices.items()
        }
        group = group.removeprefix(f"{release.campaign}/") or release.group
        if group not in groups:
            raise ConfigError(
                f"No device is in group {group!r}. Groups with devices: "
                f"{', '.join(sorted(groups)) or 'none'}."
            )
        runner.order(
            Returned(
                at_s=runner.now_s,
                campaign=release.campaign,
                release=to,
                group=group,
                salt=secrets.token_hex(8),
            )
        )
        return f"group {release.campaign}/{group} returns to the model of release {to}"

    return {
        "make-releases": make,
        "pause-rollout": partial(steer, "pause", "is paused"),
        "resume-rollout": partial(steer, "resume", "goes on"),
        "promote-rollout": promote,
        "end-rollout": partial(steer, "end", "is ended: devices get back their former models"),
        "return-to-release": return_to,
    }


def refuse(**_fields: object) -> str:
    """Refuse an order of `ORDERS`, since this service makes no releases.

    Raises:
        ConfigError: always; the text says what to do.
    """
    again = "Start it with `shoal serve --release manual`, and then give the order again."
    raise ConfigError(f"This service makes no releases: it was started with --release off. {again}")


def under_way(fleet: Fleet, campaign: str) -> Rollout:
    """Return the rollout of a campaign that runs or is paused.

    Raises:
        ConfigError: the campaign has no rollout, or its last rollout is over.
    """
    rollout = last_rollout(fleet, campaign)
    if rollout is None:
        raise ConfigError(
            f"Campaign {campaign!r} never had a rollout. `shoal models list` names the releases."
        )
    if rollout.phase not in ("running", "paused"):
        raise ConfigError(
            f"The last rollout of campaign {campaign!r} is {rollout.phase}: {rollout.reason}."
        )
    return rollout


def _line(release: ModelRelease, rollout: Rollout, was_made: bool) -> str:
    text = f"release {release.number}: {release.campaign}/{release.group}"
    return f"{text}: it was made before, and its rollout is {rollout.phase}" if was_made else text
