"""Releases of campaigns' models, made by order, at a campaign's end or every few rounds.

No list of due releases is stored: a campaign's models are due if its last rollout has others.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from aggregator.aggregation.inherit import TrainedModels
from aggregator.core.steps import Gate, Step
from aggregator.fleet.desired import group_of
from aggregator.fleet.events import Released
from aggregator.fleet.records import Campaign, Fleet, ModelRelease, Rollout
from aggregator.ports import BlobLost, Blobs
from algorithms.core.keys import is_no_group
from wire.arrays.tensors import OWN_FILES, decode_tensors
from wire.errors import ConfigError
from wire.messages import LARGEST_COUNT, Metrics

log = logging.getLogger("shoal.aggregator")

When = Literal["off", "manual", "auto"]
"""*off*: no releases; devices take up a campaign's models at its end.

*manual*: releases are made by order. *auto*: also at the end of a campaign that was not aborted,
and every few rounds (`ReleaseMaker.every`).
"""


@dataclass(frozen=True)
class ReleaseMaker:
    """Maker of campaigns' releases."""

    when: When
    steps: tuple[Step, ...]
    gate: Gate
    blobs: Blobs | None
    """Blobs of releases; None if there are no releases."""
    blobs_of: Callable[[str], Blobs]
    """Returns the blobs of a campaign, by its name."""
    clock: Callable[[], float]
    every: int = 0
    """Number of rounds of training between releases; 0: only at the end of a campaign."""

    def due(self, fleet: Fleet) -> Iterator[Released]:
        """Yield the releases that are due.

        A release whose models are lost is logged, and tried again at the next call.

        Raises:
            StorageFailed: blobs of a release cannot be written.
        """
        for campaign in fleet.campaigns.values() if self.when != "manual" else ():
            is_over = campaign.phase == "finished" and campaign.ended != "order"
            is_due = bool(self.every) and not campaign.trained % self.every
            is_due = is_due and self.when == "auto" and campaign.version.round > 0
            if not campaign.trained or not (is_over or is_due):
                continue
            last = last_rollout(fleet, campaign.name)
            rounds = [fleet.releases[n].round for n in last.releases.values()] if last else []
            if campaign.version.round == max(rounds, default=-1):
                continue
            try:
                yield self.make(fleet, campaign)
            except (BlobLost, ConfigError) as error:
                log.error("Models not released: campaign=%s: %s", campaign.name, error)

    def make(self, fleet: Fleet, campaign: Campaign, roll_out: bool = True) -> Released:
        """Return the event that releases the models of a campaign; their blobs are already stored.

        Raises:
            ConfigError: no round of training is over.
            BlobLost, StorageFailed: a blob cannot be read or written; nothing is released.
        """
        if not campaign.trained:
            raise ConfigError(
                f"Campaign {campaign.name} has no models to release: no round of training is over."
            )
        is_direct, newcomers = self.when == "off", newcomers_group(fleet, campaign)
        releases = tuple(releases_of(fleet, campaign, newcomers, self.clock()))
        if self.blobs is not None:
            source = self.blobs_of(campaign.name)
            names = sorted({name for release in releases for name in release.blobs})
            self.blobs.put(*map(source.get, names))
        return Released(
            at_s=self.clock(),
            campaign=campaign.name,
            releases=releases,
            newcomers=newcomers,
            steps=(Step(1.0),) if is_direct else self.steps,
            gate=self.gate,
            salt=secrets.token_hex(8),
            direct=is_direct,
            roll_out=roll_out,
        )


def last_rollout(fleet: Fleet, campaign: str) -> Rollout | None:
    """Return the last rollout of a campaign's models that is not a return to earlier ones."""
    rollouts = (r for r in reversed(fleet.rollouts) if r.campaign == campaign)
    return next((rollout for rollout in rollouts if not rollout.returns), None)


def newcomers_group(fleet: Fleet, campaign: Campaign) -> str:
    """Return the group whose model is used by devices without a group.

    Their initial model for training may never have been trained. So it is the largest group's model
    then, if that group has more than one device.
    """
    key = campaign.version.newcomers
    sizes = Counter(
        group
        for device_id in sorted(campaign.members)
        if device_id in fleet.devices
        and not is_no_group(group := group_of(campaign, device_id, fleet.devices[device_id]))
    )
    largest, size = sizes.most_common(1)[0] if sizes else (key, 0)
    return largest if is_no_group(key) and size > 1 else key


def releases_of(
    fleet: Fleet, campaign: Campaign, newcomers: str, at_s: float
) -> Iterator[ModelRelease]:
    """Yield a release for each group of a campaign that has devices, and for that of newcomers."""
    groups: dict[str, list[str]] = {newcomers: []}
    for device_id in sorted(campaign.members):
        if (device := fleet.devices.get(device_id)) is not None:
            group = group_of(campaign, device_id, device)
            groups.setdefault(newcomers if is_no_group(group) else group, []).append(device_id)
    is_tested = campaign.phase in ("evaluating", "finished")
    settings, number = campaign.settings, max(fleet.releases, default=0)
    for group, device_ids in sorted(groups.items()):
        number += 1
        updates = [campaign.updates[d] for d in device_ids if is_tested and d in campaign.updates]
        tested = [update.evaluated for update in updates]
        yield ModelRelease(
            number=number,
            group=group,
            bundle=settings.bundle,
            model=campaign.models[group],
            run_id=settings.run_id,
            campaign=campaign.name,
            round=campaign.version.round,
            algorithm=settings.algorithm,
            devices=len(device_ids),
            metrics=Metrics(
                min(LARGEST_COUNT, sum(metrics.num_examples for metrics in tested)),
                sum(metrics.loss_sum for metrics in tested),
                min(LARGEST_COUNT, sum(metrics.num_correct for metrics in tested)),
            ),
            made_s=at_s,
        )


def released_source(fleet: Fleet, blobs: Blobs | None) -> TrainedModels | None:
    """Return the models of the last completed staged rollout, with the group of each device.

    It may be a return to an earlier release, so the models are not those that were taken back. None
    if there is none. Models that devices took up at the end of a campaign are not a release.

    Raises:
        BlobLost: a model is missing or damaged.
    """
    rollouts = (r for r in reversed(fleet.rollouts) if r.phase == "done")
    rollout = next((r for r in rollouts if not r.direct), None)
    if rollout is None or blobs is None or rollout.campaign not in fleet.campaigns:
        return None
    campaign = fleet.campaigns[rollout.campaign]
    models = {
        group: decode_tensors(blobs.get(fleet.releases[number].model), OWN_FILES)[0]
        for group, number in rollout.releases.items()
    }
    groups = {d: m.group for d, m in campaign.members.items() if m.group in models}
    number = max(rollout.releases.values())
    return TrainedModels(f"release {number} of campaign {rollout.campaign}", models, groups)


def read_steps(text: str) -> tuple[Step, ...]:
    """Return the steps of a rollout from their text form, such as ``canary,0.1,1``.

    A number is a share of the fleet, and may be in percent; shares grow up to 1. Any other word is
    a tag.

    Raises:
        ConfigError: the text is not of this form.
    """
    steps, last = list[Step](), 0.0
    for part in (part.strip() for part in text.split(",")):
        try:
            share = float(part.removesuffix("%")) / (100 if part.endswith("%") else 1)
        except ValueError:
            if not part:
                raise ConfigError(
                    "rollout_steps must be shares and tags, separated by commas, such as "
                    f"canary,0.1,1, got {text!r}"
                ) from None
            steps.append(Step(tags=(part,)))
            continue
        if not last < share <= 1:
            raise ConfigError(
                f"rollout_steps {text!r}: shares must be above 0, grow, and end with 1, got {part}"
            )
        last = share
        steps.append(Step(share))
    if steps[-1].share != 1:
        raise ConfigError(
            f"rollout_steps {text!r}: the last step must be 1, so that every device is reached"
        )
    return tuple(steps)
