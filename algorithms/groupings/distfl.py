"""DistFL: groups of devices with the same data distribution, found from models or surveys.

B. Liu et al. DistFL: Distribution-aware Federated Learning for Mobile Scenarios. IMWUT 5(4), 2021,
Fig. 2 and section 4.

A device is described by its signature, which has one or several views:

- ``responses`` (the paper's): the local models' class probabilities for the knowledge extracted
  from their pre-aggregate, compared by KL;
- ``noise`` (the paper's ablation): the same, with plain noise in place of knowledge;
- ``statistics``: the mean of the device's data at the input of every BatchNorm layer of the initial
  model;
- ``labels``: the gradient of the cross-entropy by the last layer's weights at the initial model,
  over the device's data.

The paper finds the threshold by eye (section 4.3). Here `significance` decides for every view, with
no number set by hand. The option ``cut=gap`` is the paper's rule made exact: a threshold in the
largest gap between the responses' divergences (`gap`). The authors' code trains one model for 5
rounds, groups once by a fixed divergence, 0.2, and keeps the groups: ``cut=fixed``, with `after`
and `threshold`. A device that joins later enters the group of the nearest device of its round if
their divergence is below that threshold.

``statistics`` and ``labels`` come from a survey: one pass over the training windows with the
*initial* model, before training, of each device that has no group yet. The running statistics of a
trained model are a worse measure. They mix the received statistics, the number of local steps and
the drift of the weights into the mean of the data, so that devices with unequal numbers of examples
are grouped by size. Surveys stay comparable: before and after groups have separate models, and for
devices that join late.

In a fleet of more than SAMPLE devices (`significance`), few newcomers and devices that are surveyed
again are placed by the groups' centres. The fleet is tested again when it has grown by a share
GROWN since the last test, or when devices fit into no group.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Placement, Probe
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.base import Defaults, group_of, keep_names
from algorithms.groupings.bootstrap import Test
from algorithms.groupings.gap import connect, group_by_gap
from algorithms.groupings.knowledge import Extraction, extract_knowledge, fitted_layers, plain_noise
from algorithms.groupings.responses import respond
from algorithms.groupings.significance import (
    FEWEST_DEVICES,
    FEWEST_MEMBERS,
    SAMPLE,
    find_groups,
    is_merged,
    is_split,
    join_groups,
)
from algorithms.groupings.surveys import Surveys, nearest_group
from algorithms.groupings.views import Points, Responses, View
from algorithms.spec import option
from wire.arrays.tensors import Tensors
from wire.errors import ConfigError

Signature = Literal["responses", "noise", "statistics", "labels", "both"]
SIGNATURES: tuple[Signature, ...] = ("responses", "noise", "statistics", "labels", "both")
"""Options of `signature`.

``both`` is every view but noise: the data (statistics, labels) and, in fleets that are tested as a
whole, the trained models (responses).
"""
Cut = Literal["test", "gap", "fixed"]
CUTS: tuple[Cut, ...] = ("test", "gap", "fixed")

GROWN = 0.1
"""Number of newcomers that starts a new test of a large fleet, as a share of the last test's."""
VIEWED = SAMPLE
"""Maximum number of devices whose distances are shown to people."""
AT_ONCE = 256
"""Number of models that are stacked at once to be averaged, which bounds memory."""


class DistFL(Extraction, Defaults):
    """Grouping of devices by the distribution of their data."""

    name: ClassVar[str] = "distfl"
    citation: ClassVar[str] = "Liu et al., IMWUT 5(4), 2021"
    in_sums = "works"
    mean = "uniform"
    signature: Signature = option("both", "what devices are compared by", choices=SIGNATURES)
    resurvey: int = option(0, "rounds between two surveys of a device; 0 for never", low=0)
    cut: Cut = option("test", "how responses become groups", choices=CUTS)
    threshold: float = option(0.2, "divergence of cut=fixed", above=0)
    after: int = option(5, "round of cut=fixed", low=1)

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self.surveys = self.places = self.signature in ("statistics", "labels", "both")
        if self.resurvey and not self.surveys:
            raise ConfigError(
                f"resurvey must be 0 with signature {self.signature!r}, which has no surveys, got "
                f"{self.resurvey}"
            )
        if self.cut != "test" and self.surveys:
            raise ConfigError(
                f"cut must be test with signature {self.signature!r}, got {self.cut!r}; gap and "
                "fixed need signature responses or noise"
            )

    def check_in_sums(self) -> None:
        for name, value in (("signature", "both"), ("resurvey", 0)):
            if (got := getattr(self, name)) != value:
                raise ConfigError(
                    f"{name} of grouping distfl must be {value} in secret mode, got {got}: groups "
                    "are found once, from sums of both views of a survey"
                )

    def check(self, model: Tensors, probe: Probe | None) -> None:
        if self.signature == "statistics" and probe is not None and not probe.norm_layers:
            raise ConfigError(
                "distfl with signature 'statistics' surveys the inputs of BatchNorm layers, and "
                "the model has none"
            )
        if not self.surveys and probe is None:
            raise ConfigError(
                f"distfl with signature {self.signature!r} needs an objective that shares the "
                "whole model, windows of measurements rather than ids, and a task with classes"
            )
        if self.signature == "responses" and probe is not None and not fitted_layers(model, probe):
            raise ConfigError(
                "distfl with signature 'responses' extracts knowledge from BatchNorm layers, and "
                "the model has none"
            )

    def start(self, memory: GroupingMemory, device_id: str) -> str:
        group = group_of(memory.membership, device_id)
        return NEWCOMER if self.surveys and device_id not in memory.membership else group

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        """Group devices by their surveys, or by the responses of their models.

        By responses alone, devices are grouped in every round. With surveys, they are grouped when
        devices are new or report again.
        """
        if not self.surveys:
            assert probe is not None, "checked before the first round"
            if self.cut == "fixed":
                return self._once(memory, models, probe, seed)
            return self._by_responses(memory, models, probe, seed)
        reports = [
            m
            for m in models
            if self.resurvey or m.start == NEWCOMER or m.device_id not in memory.membership
        ]
        before = Surveys.of(memory)
        surveys = before.with_reports(reports)
        if missing := [m.device_id for m in models if m.device_id not in surveys.positions]:
            raise ValueError(
                f"device {missing[0]} has no survey: its plan must ask for one before it trains"
            )
        if surveys is before:
            return Grouped(memory, device_ids=tuple(sorted(memory.membership)))
        info = {"device_ids": list(surveys.device_ids), "num_examples": list(surveys.num_examples)}
        if placed := self._place(memory, before, surveys, reports):
            next_memory = GroupingMemory(
                memory.membership | placed,
                surveys.arrays,
                info | {"num_tested": memory.info["num_tested"]},
            )
            return Grouped(
                next_memory,
                device_ids=tuple(sorted(next_memory.membership)),
                notes={"placed": len(placed)},
            )
        ids = surveys.device_ids
        views = self._views(surveys)
        notes: dict[str, Any] = {}
        first = tuple(m.device_id for m in models) == ids and {m.start for m in models} == {
            NEWCOMER
        }
        few = (
            len(ids) <= SAMPLE
        )  # the responses of trained models have long tails: large fleets would be split too often
        if (
            self.signature == "both"
            and first
            and few
            and probe is not None
            and fitted_layers(models[0].tensors, probe)
        ):
            views["responses"], notes = self._responses(models, probe, seed)
        labels, tests = find_groups(views, np.array(surveys.num_examples))
        notes["tests"] = [test.note() for test in tests]
        notes["untested"] = _untested(views, len(ids))
        membership = self._steady(
            memory, before, surveys, reports, keep_names(ids, labels, memory.membership), tests
        )
        return _show(
            GroupingMemory(membership, surveys.arrays, info | {"num_tested": len(ids)}),
            views,
            ids,
            notes,
        )

    def place_by_inputs(self, memory: GroupingMemory, survey: Tensors) -> Placement | None:
        """Return the group of most of the devices with the nearest inputs."""
        return nearest_group(Surveys.of(memory), memory.membership, survey)

    def forget(self, memory: GroupingMemory, device_id: str) -> GroupingMemory:
        """Return the memory without a device's group and survey."""
        next_memory, surveys = super().forget(memory, device_id), Surveys.of(memory)
        if device_id not in surveys.positions:
            return next_memory
        others = surveys.without(device_id)
        info = {"device_ids": list(others.device_ids), "num_examples": list(others.num_examples)}
        return GroupingMemory(next_memory.membership, others.arrays, memory.info | info)

    def _views(self, surveys: Surveys, scale: Surveys | None = None) -> dict[str, View]:
        """Return the views of the surveys.

        Devices that keep their classes report nothing in `labels`.
        """
        rows = surveys.rows(scale)
        chosen = rows if self.signature == "both" else (self.signature,)
        tells = {name: np.asarray(rows[name].any(1)) for name in chosen if name in rows}
        return {
            name: Points(rows[name], None if telling.all() else telling)
            for name, telling in tells.items()
        }

    def _steady(
        self,
        memory: GroupingMemory,
        before: Surveys,
        surveys: Surveys,
        reports: Sequence[LocalModel],
        following: dict[str, str],
        tests: Sequence[Test],
    ) -> dict[str, str]:
        """Return the groups that devices have after a test that found the groups `following`.

        More or fewer groups than before need strong evidence (`is_split`, `is_merged`). Without it,
        groups stay and the devices that report join the nearest one. If the number of groups is the
        same, a device that does not report stays in its group.
        """
        membership = {d: g for d, g in memory.membership.items() if d in before.positions}
        earlier, later = set(membership.values()), {following[d] for d in membership}
        if len(earlier) == len(later):
            reporting, present = {m.device_id for m in reports}, set(following.values())
            stay = {d: g for d, g in membership.items() if d not in reporting and g in present}
            return following | stay
        if len(later) > len(earlier):
            is_strong = is_split(tests)
        else:
            merged = {following[d] for d, group in membership.items() if group not in later}
            is_strong = all(self._is_merged(surveys, reports, following, g) for g in merged)
        if is_strong:
            return following
        return membership | self._nearest(memory, before, surveys, reports)[0]

    def _is_merged(
        self,
        surveys: Surveys,
        reports: Sequence[LocalModel],
        following: Mapping[str, str],
        group: str,
    ) -> bool:
        """Return True if the devices that would be in a group are clearly one group."""
        members = np.array([i for i, d in enumerate(surveys.device_ids) if following[d] == group])
        views = {name: view.of(members) for name, view in self._views(surveys).items()}
        reporting = np.array([surveys.positions[m.device_id] for m in reports])
        at = np.flatnonzero(np.isin(members, reporting))
        return is_merged(views, np.array(surveys.num_examples)[members], at)

    def _place(
        self,
        memory: GroupingMemory,
        before: Surveys,
        surveys: Surveys,
        reports: Sequence[LocalModel],
    ) -> dict[str, str] | None:
        """Return the group of each reporting device, or None if the fleet must be tested again."""
        tested = memory.info.get("num_tested", 0)
        if len(before.device_ids) <= SAMPLE or len(surveys.device_ids) - tested >= GROWN * tested:
            return None
        placed = self._nearest(memory, before, surveys, reports)
        return None if placed[1] >= FEWEST_MEMBERS else placed[0]

    def _nearest(
        self,
        memory: GroupingMemory,
        before: Surveys,
        surveys: Surveys,
        reports: Sequence[LocalModel],
    ) -> tuple[dict[str, str], int]:
        """Return the nearest group of each reporting device, and the number that fit into none.

        Groups have their centres before these reports.
        """
        names = sorted(set(memory.membership.values()), key=int)
        number = {name: i for i, name in enumerate(names)}
        labels = np.array([number[memory.membership[d]] for d in before.device_ids])
        ids = [m.device_id for m in reports if m.device_id in surveys.positions]
        rows = np.array([surveys.positions[d] for d in ids])
        placed, fits = join_groups(
            self._views(before),
            np.array(before.num_examples),
            labels,
            {name: view.of(rows) for name, view in self._views(surveys, before).items()},
            np.array(surveys.num_examples)[rows],
        )
        return {d: names[g] for d, g in zip(ids, placed, strict=True)}, int((~fits).sum())

    def _by_responses(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe, seed: int
    ) -> Grouped:
        view, notes = self._responses(models, probe, seed)
        views: dict[str, View] = {self.signature: view}
        if self.cut == "gap":
            labels, notes["threshold"] = group_by_gap(view.distances(np.arange(len(models))))
        else:
            labels, tests = find_groups(views, np.array([m.num_examples for m in models]))
            notes["tests"] = [test.note() for test in tests]
        ids = tuple(model.device_id for model in models)
        membership = memory.membership | keep_names(ids, labels, memory.membership)
        return _show(GroupingMemory(membership), views, ids, notes)

    def _once(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe, seed: int
    ) -> Grouped:
        """Keep one group for `after` rounds, then group once by the fixed threshold."""
        ids, rounds = tuple(model.device_id for model in models), memory.info.get("rounds", 0) + 1
        info = {"rounds": rounds}
        fresh = [d for d in ids if d not in memory.membership]
        if rounds < self.after:
            return Grouped(
                GroupingMemory(memory.membership | dict.fromkeys(fresh, "0"), info=info),
                device_ids=ids,
            )
        if rounds > self.after and not fresh:
            return Grouped(GroupingMemory(memory.membership, info=info), device_ids=ids)
        view, notes = self._responses(models, probe, seed)
        apart = view.distances(np.arange(len(models)))
        if rounds == self.after:
            labels = connect(apart, self.threshold)
            membership = {d: g for d, g in memory.membership.items() if d not in ids} | keep_names(
                ids, labels, memory.membership
            )
        else:
            membership = dict(memory.membership)
            for device in fresh:
                at = ids.index(device)
                near = {
                    min(apart[at, i], apart[i, at]): membership[d]
                    for i, d in enumerate(ids)
                    if d in membership
                }
                least = min(near, default=np.inf)
                new = str(1 + max(map(int, membership.values()), default=-1))
                membership[device] = near[least] if least < self.threshold else new
        return _show(GroupingMemory(membership, info=info), {self.signature: view}, ids, notes)

    def _responses(
        self, models: Sequence[LocalModel], probe: Probe, seed: int
    ) -> tuple[Responses, dict[str, Any]]:
        """Return the responses (Eq. 3 to 5: pre-aggregate, extract, respond) and notes."""
        notes: dict[str, Any] = {}
        if self.signature == "noise":
            inputs = plain_noise(probe, self.num_inputs, seed)
        else:
            inputs, losses = extract_knowledge(pre_aggregate(models), probe, self, seed)
            notes["knowledge"] = {
                "objective_first": round(losses[0], 4),
                "objective_last": round(losses[-1], 4),
            }
        return Responses(respond(models, probe, inputs)), notes


def _untested(views: Mapping[str, View], num_devices: int) -> list[dict[str, Any]]:
    """Return the views in which too few devices report something for a test, for a note."""
    counts = {name: int(view.tells(np.arange(num_devices)).sum()) for name, view in views.items()}
    return [
        {"view": name, "devices": count, "needed": FEWEST_DEVICES}
        for name, count in counts.items()
        if count < FEWEST_DEVICES
    ]


def _show(
    memory: GroupingMemory, views: dict[str, View], ids: tuple[str, ...], notes: dict[str, Any]
) -> Grouped:
    """Return the groups with the distances between all devices, or between VIEWED of them.

    In large fleets the devices are evenly spaced in the order of their ids.
    """
    shown = np.linspace(0, len(ids) - 1, min(len(ids), VIEWED)).astype(np.int64)
    return Grouped(
        memory,
        {name: view.distances(shown) for name, view in views.items() if view.tells(shown).all()},
        tuple(ids[i] for i in shown),
        notes,
    )


def pre_aggregate(models: Sequence[LocalModel]) -> Tensors:
    """Return M_global (Eq. 3): the unweighted mean of all models."""
    average: Tensors = {}
    for key, like in models[0].tensors.items():
        total = np.zeros(like.size)
        for at in range(0, len(models), AT_ONCE):
            total += np.stack(
                [model.tensors[key].ravel() for model in models[at : at + AT_ONCE]]
            ).sum(0, dtype=np.float64)
        average[key] = (total / len(models)).astype(np.float32).reshape(like.shape)
    return average
