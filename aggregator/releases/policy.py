"""When a campaign's models are made releases, and what a release says of them."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from aggregator.aggregation.inherit import Source
from aggregator.core.ports import BlobLost, Blobs, StorageFailed
from aggregator.core.release.releases import Draft
from aggregator.core.release.state import GOING, FleetState
from aggregator.core.round.asking import placed_of, start_key
from aggregator.core.state import DeviceCheckedIn, Event, RoundAggregated, RunState
from aggregator.releases.rollouts import Rollouts
from algorithms.core.keys import is_no_group
from wire.arrays.tensors import OWN_FILES, decode_tensors
from wire.errors import ConfigError
from wire.messages import LARGEST_COUNT, Metrics

log = logging.getLogger("shoal.aggregator")

When = Literal["off", "manual", "auto"]
"""*off*: there are no releases: devices take up a run's models when it is over. *manual*: releases
are made by order. *auto*: also when a run is over that nobody has ended by order, and after so many
rounds."""


@dataclass
class ReleasePolicy:
    """Makes the releases of campaigns."""

    rollouts: Rollouts
    _blobs: Callable[[str], Blobs]
    """Returns the blobs of a campaign, by its name."""
    _when: When
    _every: int = 0
    """Number of rounds of training after which models are released; 0: when a campaign is over."""
    _due: dict[str, RunState] = field(default_factory=dict)
    _released: dict[str, tuple[str, int]] = field(default_factory=dict)

    def observe(self, state: RunState, event: Event) -> None:
        """Tell the releases of a device that checked in, and remember whether the models of this
        state are to be released."""
        if isinstance(event, DeviceCheckedIn):
            self.rollouts.on_check_in(event.device_id)
        if self._when != "auto":
            return
        often = (
            isinstance(event, RoundAggregated)
            and bool(self._every)
            and not state.trained % self._every
        )
        over = (
            state.phase == "finished" and state.ended != "order"
        )  # what an operator ended is released by order alone
        if (
            (often or over)
            and state.trained
            and self._released.get(state.settings.name) != _which(state)
        ):
            self._due[state.settings.name] = state

    def tick(self) -> None:
        """Let releases go on, and release what is due. What cannot be stored now is tried again."""
        self.rollouts.tick()
        for name, state in list(self._due.items()):
            try:
                self.release(state)
            except StorageFailed as error:
                log.error("the models of campaign=%s are not released yet: %s", name, error)
                continue
            except (BlobLost, ConfigError) as error:
                log.error("the models of campaign=%s are not released: %s", name, error)
            self._released[name] = _which(state)
            del self._due[name]

    def release(self, state: RunState, roll_out: bool = True) -> tuple[int, ...]:
        """Make releases of the models that devices of a campaign start from, and roll them out
        unless told otherwise; models that were released, or are on their way, are not released
        again.

        Raises:
            ConfigError: nothing was trained yet.
            BlobLost, StorageFailed: nothing was made.
        """
        if not state.trained:
            raise ConfigError(
                f"campaign {state.settings.name}: no round of training is over, there is nothing "
                "to release"
            )
        name, newcomers = state.settings.name, newcomers_key(state)
        groups = {
            device_id: group_name(name, _key(state, device_id, newcomers))
            for device_id in state.devices
        }
        drafts = drafts_of(state)
        return self.rollouts.release(
            drafts, self._blobs(name), groups, group_name(name, newcomers), roll_out
        )


def _which(state: RunState) -> tuple[str, int]:
    """By what the models of a state are told from others."""
    return state.settings.run_id, state.made_in


def group_name(campaign: str, key: str) -> str:
    """What a group of a campaign is called in a fleet, by the key of its model."""
    return f"{campaign}/{key}"


def group_of(state: RunState | None, device_id: str) -> str:
    """The group that a campaign has put a device into; empty if it has not."""
    if state is None or (device_id not in state.starts and placed_of(state, device_id) is None):
        return ""
    return group_name(state.settings.name, start_key(state, device_id))


def released_group(states: Sequence[RunState], fleet: FleetState, device_id: str) -> str:
    """The group of a device in the latest of these campaigns whose models were released, or are
    being; empty if none were. A device that the campaign has put into no group is in that of
    newcomers."""
    groups = set(fleet.catalogue.released)
    groups |= {
        group
        for rollout in fleet.rollouts.values()
        if rollout.phase in GOING
        for group in rollout.releases
    }
    for state in reversed(states):
        name = state.settings.name
        newcomers = fleet.rollouts[name].newcomers if name in fleet.rollouts else ""
        for group in (group_name(name, start_key(state, device_id)), newcomers):
            if group in groups:
                return group
    return ""


def newcomers_key(state: RunState) -> str:
    """The key of the model that devices are to use which the campaign has put into no group. That
    is not what they would begin to train from, which may never have been trained: it is the largest
    group's, where a group has more than one device."""
    key = start_key(state, "")
    sizes = Counter(
        own
        for device_id in sorted(state.devices)
        if not is_no_group(own := start_key(state, device_id))
    )
    largest, size = sizes.most_common(1)[0] if sizes else (key, 0)
    return largest if is_no_group(key) and size > 1 else key


def _key(state: RunState, device_id: str, newcomers: str) -> str:
    key = start_key(state, device_id)
    return newcomers if is_no_group(key) else key


def drafts_of(state: RunState) -> list[Draft]:
    """The models of a campaign, one for each group that has devices, and that of newcomers."""
    newcomers = newcomers_key(state)
    devices: dict[str, list[str]] = {newcomers: []}
    for device_id in sorted(state.devices):
        devices.setdefault(_key(state, device_id, newcomers), []).append(device_id)
    met = state.received if state.phase in ("evaluating", "finished") else {}
    drafts = []
    for key, members in sorted(devices.items()):
        evaluated = [met[device_id].evaluated for device_id in members if device_id in met]
        sums = Metrics(
            min(LARGEST_COUNT, sum(m.num_examples for m in evaluated)),
            sum(m.loss_sum for m in evaluated),
            min(LARGEST_COUNT, sum(m.num_correct for m in evaluated)),
        )
        drafts.append(
            Draft(
                group=group_name(state.settings.name, key),
                bundle=state.settings.bundle,
                model=state.models[key],
                run_id=state.settings.run_id,
                campaign=state.settings.name,
                round=state.made_in,
                algorithm=state.settings.algorithm,
                devices=len(members),
                metrics=sums,
            )
        )
    return drafts


def released_source(state: FleetState, read: Callable[[str], bytes]) -> Source | None:
    """The released models of the campaign with the latest release, one for each of its groups; None
    where nothing is released. `read`: the bytes of a model, by its digest.

    Raises:
        BlobLost: a model is not kept any more, or damaged.
    """
    releases = state.catalogue.releases
    current = [releases[number] for number in sorted(state.catalogue.released.values())]
    if not current:
        return None
    latest = current[-1]
    chosen = {release.group: release for release in current if release.campaign == latest.campaign}
    keys = {group: group.removeprefix(group_name(latest.campaign, "")) for group in chosen}
    models = {
        keys[group]: decode_tensors(read(release.model), OWN_FILES)[0]
        for group, release in chosen.items()
    }
    groups = {
        device_id: keys[holder.group]
        for device_id, holder in state.devices.items()
        if holder.group in keys
    }
    numbers = ", ".join(str(release.number) for release in chosen.values())
    return Source(f"campaign {latest.campaign}, release {numbers}", models, groups)
