"""What an algorithm does on the server: from a round's updates to its next models. It is made of
objective, grouping, mean, privacy, server optimizer and what devices keep; its optimizer and its
task work on devices alone."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import torch

from algorithms.core.arena import flatten, layout_of, size_of, views, write_change
from algorithms.core.contract import (
    Grouped,
    GroupingMemory,
    LocalModel,
    Mean,
    ObjectiveMemory,
    Placement,
    Probe,
    Programs,
    ServerOptimizer,
    Slice,
    Work,
    exchanged,
)
from algorithms.core.keys import NEWCOMER, UNLABELLED, is_no_group
from algorithms.core.stack import NUMPY, Arithmetic, Stack
from algorithms.groupings.base import Defaults
from algorithms.means.streaming import Branch, StreamingMean, place_of
from algorithms.means.weighted import WeightedMean
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.privacy.base import DefaultPrivacy
from algorithms.server_optimizers.momentum import NoServerOptimizer
from algorithms.server_optimizers.stepping import advance
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Array, Tensors, decode_tensors, encode_tensors
from wire.errors import ConfigError
from wire.messages import Choose, Evaluate, Train

SURVEY = Evaluate("train", "survey", "initial")
SURVEY_INPUTS = Evaluate("windows", "survey", "initial")
"""The survey of a device without labels."""
SMALLEST_VARIANCE = 1e-6
"""A running variance that noise has made smaller is set to this."""
MOST_SHARES = 256
"""Shares are noted in rounds of at most so many devices."""
Average = Callable[[str, Sequence[int]], tuple[Tensors, Array]]
"""(group, rows of its members among a round's models) -> the group's model and the share (N,) of
each member; NaN where it has none."""


@dataclass(frozen=True)
class Contribution:
    """An admitted update, as the algorithm reads it: ``delta/NAME``, ``statistic/NAME`` and
    ``response/NAME``, and where it started."""

    device_id: str
    num_examples: int
    num_steps: int
    start: str
    tensors: Tensors | Callable[[], Tensors] = field(repr=False)
    """The tensors, or what reads them: it is called once, when they are needed, and nothing of what
    it returned is kept but responses."""
    loss: float = math.nan

    def read(self) -> Tensors:
        """The tensors."""
        return self.tensors() if callable(self.tensors) else self.tensors


@dataclass(frozen=True)
class State:
    """The server's half of an algorithm between rounds: the model of each group (roles shared and
    statistic), and what grouping, objective, privacy and server optimizer remember."""

    models: dict[str, Tensors] = field(repr=False)
    memory: GroupingMemory = field(default_factory=GroupingMemory)
    context: ObjectiveMemory = field(default_factory=ObjectiveMemory)
    epsilon: float | None = None
    rounds: int = 0
    """Rounds of training so far."""
    extra_epochs: dict[str, int] = field(default_factory=dict)
    moments: dict[str, Tensors] = field(default_factory=dict, repr=False)
    """By group that has had a step, what the server optimizer remembers (``MOMENT/shared/NAME``,
    float32)."""
    starts: dict[str, str] = field(default_factory=dict)
    """By device, the key of a model that others have trained and that it starts from; only before
    the first round."""


@dataclass(frozen=True)
class Algorithm:
    """The choices of one name. `objective` is the name of the device's half, with which its bundle
    was exported, `coordinator` the server's half; what a device keeps is in both."""

    name: str
    objective: str
    coordinator: DefaultCoordinator
    grouping: Defaults
    mean: Mean
    privacy: DefaultPrivacy
    server_optimizer: ServerOptimizer = field(default_factory=NoServerOptimizer)
    secret: bytes = b""
    """What nobody else knows, for the noise of the privacy mechanism; an empty one is good for
    simulations only."""
    device: str = "cpu"
    """Where torch combines models, such as ``cuda``; the processor's own forms are used for
    ``cpu``."""
    arithmetic: Arithmetic = NUMPY
    """Carries out what is heaviest on the processor."""
    has_classes: bool = True
    """Whether models answer by classes; the server compares the answers of none that does not."""

    def __post_init__(self) -> None:
        if self.device != "cpu" and not (
            self.device.partition(":")[0] == "cuda" and torch.cuda.is_available()
        ):
            raise ConfigError(
                f"device {self.device!r}: expected cpu, or cuda where torch finds one"
            )

    def begin(self, initial: Mapping[str, Array], probe: Probe, seed: int) -> State:
        """The state before the first round, from a bundle's initial tensors.

        Raises:
            ConfigError: the grouping needs something that the objective keeps on the device.
        """
        model = exchanged(initial)
        self.grouping.check(model, self._usable(probe, model))
        return State(
            {NEWCOMER: model, **self.grouping.begin(model, seed)},
            context=self.coordinator.begin(dict(initial), seed),
        )

    def given(self, state: State, key: str) -> Tensors:
        """Return the model that a group's devices are given, with its tensors of role received."""
        received = self.coordinator.received(state.context, state.models, key)
        return {**state.models[key], **received}

    def programs(
        self, state: State, work: Work, digests: Mapping[str, str], after: Work | None = None
    ) -> Programs:
        """What devices do in the next round, under ``closing`` after the last, and under
        ``unlabelled`` so that one without labels can be placed. `digests` names each model's blob;
        `after` is the work after the last round, where that is another."""
        if self.privacy.in_step():  # every further step costs privacy
            work = replace(work, most_passes=1)
        programs = self.coordinator.programs(state.context, work)
        closing = self.coordinator.closing(state.context, after or work)
        placing: Programs = {UNLABELLED: (SURVEY_INPUTS,)} if self.grouping.places else {}
        if self.coordinator.preparing(state.context):
            return (
                {key: (*verbs, *self.privacy.verbs()) for key, verbs in programs.items()}
                | {"closing": closing}
                | placing
            )
        choose = (
            (Choose(tuple(digests[k] for k in sorted(digests) if k != NEWCOMER)),)
            if self.grouping.chooses
            else ()
        )
        made: Programs = {}
        if self.grouping.surveys:
            programs = {
                f"start:{key}": programs[""] for key in (NEWCOMER, *digests) if is_no_group(key)
            } | programs
        for device_id, extra in state.extra_epochs.items():
            verbs = programs.get(f"device:{device_id}", programs[""])
            programs[f"device:{device_id}"] = tuple(
                msgspec.structs.replace(v, epochs=v.epochs + extra)
                if isinstance(v, Train) and v.report
                else v
                for v in verbs
            )
        due = self.grouping.resurvey > 0 and state.rounds % self.grouping.resurvey == 0
        for key, verbs in programs.items():
            kind, _, name = key.partition(":")
            new = (kind == "start" and is_no_group(name)) or (
                kind == "device" and name not in state.memory.membership
            )
            survey = (SURVEY,) if self.grouping.surveys and (new or due) else ()
            made[key] = (*choose, *survey, *verbs, *self.privacy.verbs())
        return made | {"closing": (*choose, *closing)} | placing

    def prepare(self, state: State, contributions: Sequence[Contribution]) -> State:
        """Take in a preparation: what devices trained is averaged by examples into the model that
        newcomers start from."""
        models, stack = self._locals(state, contributions)
        model, _ = self._average(
            WeightedMean(), stack, models, layout_of(state.models[NEWCOMER]), state.rounds, NEWCOMER
        )
        nobody = dict.fromkeys((m.device_id for m in models), NEWCOMER)
        context = self.coordinator.absorb(state.context, models, nobody, {NEWCOMER: model})
        return replace(state, models={**state.models, NEWCOMER: model}, context=context)

    def apply(
        self,
        state: State,
        contributions: Sequence[Contribution],
        probe: Probe,
        seed: int,
        work: Work,
        branches: Mapping[str, Sequence[Branch]] | None = None,
    ) -> tuple[State, Grouped]:
        """Group the devices of a round and average inside each group.

        Where a mean leaves devices out or counts them less, the notes say how much each one counted
        in its group: ``shares``, by device, rounded, in rounds of at most `MOST_SHARES` devices;
        not where shares differ between parameters.

        The order of `contributions` does not matter: they are sorted by device id, because a float
        sum depends on its order. A model counts in its group's mean unless its device started as a
        newcomer while the group has a model of its own; such a device's first model only places it.

        Where the algorithm `streams`, contributions may have been summed up before (`sum_up`):
        `branches` holds the sums, by start.
        """
        models, average = (
            self._summed(state, contributions, seed, branches)
            if self.streams
            else self._held(state, contributions, seed)
        )
        grouped = self.grouping.group(
            state.memory, models, self._usable(probe, state.models[NEWCOMER]), seed
        )
        following, moments, shares = self._combine(
            state, models, grouped.memory.membership, average
        )
        if (
            shares
            and not self.mean.averages
            and len(models) <= MOST_SHARES
            and all(map(math.isfinite, shares.values()))
        ):
            grouped = replace(grouped, notes={**grouped.notes, "shares": shares})
        return self._conclude(state, models, grouped, following, moments, work), grouped

    def _held(
        self, state: State, contributions: Sequence[Contribution], seed: int
    ) -> tuple[list[LocalModel], Average]:
        """A round's models, and the average by the algorithm's mean over rows of the arena that
        they are."""
        models, stack = self._locals(state, contributions)
        layout = layout_of(state.models[NEWCOMER])

        def average(group: str, rows: Sequence[int]) -> tuple[Tensors, Array]:
            return self._average(
                self.mean,
                stack.part(np.array(rows)),
                [models[i] for i in rows],
                layout,
                seed,
                group,
            )

        return models, average

    def _summed(
        self,
        state: State,
        contributions: Sequence[Contribution],
        seed: int,
        branches: Mapping[str, Sequence[Branch]] | None,
    ) -> tuple[list[LocalModel], Average]:
        """A round's models without their tensors, and the average by sums, which are made of
        contributions or of `branches`."""
        ordered = _ordered(contributions)
        layout = layout_of(state.models[NEWCOMER])

        def average(group: str, rows: Sequence[int]) -> tuple[Tensors, Array]:
            sums = self._sums(state, [ordered[i] for i in rows], branches)
            return self._finish(
                sums.result(), layout, len(rows), seed, group
            ) if layout else {}, np.full(len(rows), np.nan)

        return [
            LocalModel(c.device_id, c.num_examples, c.num_steps, c.start, {}, loss=c.loss)
            for c in ordered
        ], average

    def _combine(
        self,
        state: State,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        average: Average,
    ) -> tuple[dict[str, Tensors], dict[str, Tensors], dict[str, float]]:
        """By key, the models of the next round and what the server optimizer remembers; and the
        share of each device in its group's."""
        following, moments = dict(state.models), dict(state.moments)
        shares: dict[str, float] = {}
        for group in sorted({membership[m.device_id] for m in models}):
            rows = [i for i, m in enumerate(models) if membership[m.device_id] == group]
            trained = [i for i in rows if models[i].start != NEWCOMER]
            if not trained and group in state.models:
                continue
            following[group], weights = average(group, trained or rows)
            if self.server_optimizer.moves:
                origin = origin_of(models[i].start for i in trained or rows)
                held = state.moments.get(origin, {})
                following[group], moments[group] = advance(
                    self.server_optimizer, state.models[origin], following[group], held
                )
            shares |= {
                models[i].device_id: round(float(w), 4)
                for i, w in zip(trained or rows, weights, strict=True)
            }
        for (
            device_id,
            group,
        ) in membership.items():  # a new group whose devices were all away takes the model they had
            if group not in following:
                origin = state.memory.membership.get(device_id, NEWCOMER)
                following[group], moments[group] = (
                    state.models[origin],
                    state.moments.get(origin, {}),
                )
        alive = {NEWCOMER, *membership.values(), *(state.models if self.grouping.chooses else ())}
        return (
            {k: v for k, v in following.items() if k in alive},
            {k: v for k, v in moments.items() if k in alive and v},
            shares,
        )

    def _conclude(
        self,
        state: State,
        models: Sequence[LocalModel],
        grouped: Grouped,
        following: dict[str, Tensors],
        moments: dict[str, Tensors],
        work: Work,
    ) -> State:
        """The state after a round with these models of the next one: what the objective takes in,
        and what privacy has spent."""
        context = self.coordinator.absorb(
            state.context, models, grouped.memory.membership, following
        )
        rounds = state.rounds + 1
        spent = self.privacy.epsilon(rounds, models, work)
        epsilon = (
            spent if spent is not None and math.isfinite(spent) else None
        )  # without noise nothing is guaranteed
        return State(
            following, grouped.memory, context, epsilon, rounds, grouped.extra_epochs, moments
        )

    def place(
        self, state: State, contributions: Sequence[Contribution], probe: Probe, seed: int
    ) -> dict[str, str]:
        """Where devices belong that are not averaged with anybody: the group of every device,
        theirs included."""
        models, _ = self._locals(state, contributions)
        return self.grouping.group(
            state.memory, models, self._usable(probe, state.models[NEWCOMER]), seed
        ).memory.membership

    def place_unlabelled(self, state: State, device_id: str, survey: Tensors) -> Placement:
        """Where a device belongs that has no labels: in the only group, where its inputs say, or in
        the largest group where they say nothing; in none where every group is a single device's.
        `survey` holds what it surveyed of its inputs (``response/survey.NAME``), or nothing. Of the
        state only the memory is read."""
        start = self.grouping.start(state.memory, device_id)
        if start != NEWCOMER and not self.grouping.chooses:  # to choose takes labels
            return Placement(start, 1.0)
        sizes = Counter(state.memory.membership.values())
        if not sizes:
            return Placement(NEWCOMER, 1.0)
        largest = min(sizes, key=lambda group: (-sizes[group], int(group)))
        if (placed := self.grouping.place_by_inputs(state.memory, survey)) is not None:
            return placed
        if len(sizes) > 1 and sizes[largest] == 1:
            return Placement(NEWCOMER, 0.0)
        return Placement(largest, sizes[largest] / sizes.total())

    @property
    def streams(self) -> bool:
        """Whether nobody looks at single models, so that each is added to its mean and forgotten,
        and a fleet of any size needs memory for a few models: without grouping, with a mean that is
        an average, and a coordinator that takes in nothing of a round."""
        return (
            self.mean.averages and not self.grouping.reads_models and not self.coordinator.absorbs
        )

    def _locals(
        self, state: State, contributions: Sequence[Contribution]
    ) -> tuple[list[LocalModel], Stack]:
        """A round's models, sorted by device id, and the arena that they are rows of."""
        ordered = _ordered(contributions)
        layout = layout_of(state.models[NEWCOMER])
        arena = np.empty((len(contributions), size_of(layout)), np.float32)
        shared = sum(
            part.stop - part.start for part in layout if names.role_of(part.key) == names.SHARED
        )
        updates = np.empty(
            (len(contributions), shared if self.grouping.compares else 0), np.float32
        )
        received = {
            start: flatten(state.models[start], layout)
            for start in sorted({c.start for c in contributions})
        }
        rows = zip(ordered, arena, updates, strict=True)
        models = [
            self._local(state, c, layout, received[c.start], row, update) for c, row, update in rows
        ]
        return models, Stack(
            arena if self.device == "cpu" else torch.from_numpy(arena).to(self.device),
            arithmetic=self.arithmetic,
        )

    def _local(
        self,
        state: State,
        c: Contribution,
        layout: tuple[Slice, ...],
        received: Array,
        row: Array,
        update: Array,
    ) -> LocalModel:
        """A device's model, written into its row: what it received plus what it changed, clipped by
        the privacy mechanism. `update` takes the change of the shared tensors, if it has room for
        them."""
        tensors = c.read()
        write_change(row, layout, state.models[c.start], tensors)
        if update.size:
            np.concatenate(
                [
                    row[part.start : part.stop]
                    for part in layout
                    if names.role_of(part.key) == names.SHARED
                ],
                out=update,
            )
        np.add(self.privacy.clip(row), received, out=row)
        responses = names.of_role(tensors, names.RESPONSE)
        return LocalModel(
            c.device_id,
            c.num_examples,
            c.num_steps,
            c.start,
            views(row, layout),
            responses,
            update,
            c.loss,
        )

    def _average(
        self,
        mean: Mean,
        stack: Stack,
        members: Sequence[LocalModel],
        layout: tuple[Slice, ...],
        seed: int,
        group: str,
    ) -> tuple[Tensors, Array]:
        """A group's model, and the share (N,) of each member."""
        if not stack.size:
            return {}, np.full(len(members), np.nan)
        made = mean.combine(
            stack, np.array([m.num_examples for m in members], dtype=np.int64), layout, seed
        )
        return self._finish(made.flat, layout, len(members), seed, group), made.weights

    def sum_up(self, received: Tensors, contributions: Sequence[Contribution]) -> StreamingMean:
        """The sum of the models of devices that started from the same one (roles shared and
        statistic), wherever they trained."""
        layout = layout_of(received)
        start, row = flatten(received, layout), np.empty(size_of(layout), np.float32)
        mean = StreamingMean(len(row))
        for place, c in sorted(
            ((place_of(c.device_id), c) for c in contributions),
            key=lambda pair: (pair[0], pair[1].device_id),
        ):
            write_change(row, layout, received, c.read())
            np.add(self.privacy.clip(row), start, out=row)
            mean.add(row, c.num_examples if self.mean.by_examples else 1, place)
        return mean

    def _sums(
        self,
        state: State,
        members: Sequence[Contribution],
        branches: Mapping[str, Sequence[Branch]] | None,
    ) -> StreamingMean:
        """Of the members of a group, who have all started from one model."""
        (start,) = {c.start for c in members}
        if branches is None:
            return self.sum_up(state.models[start], members)
        mean = StreamingMean(size_of(layout_of(state.models[start])))
        for branch in sorted(branches[start], key=lambda b: b.begin):
            mean.join(branch)
        return mean

    def _usable(self, probe: Probe, model: Mapping[str, Array]) -> Probe | None:
        """The probe with this algorithm's arithmetic; None where the server does not hold all that
        the probe reads, or cannot make up inputs or compare answers."""
        if probe.of_ids or not self.has_classes:
            return None
        return (
            replace(probe, arithmetic=self.arithmetic)
            if all(name in model for name in probe.needs)
            else None
        )

    def _finish(
        self, flat: Array, layout: tuple[Slice, ...], num_members: int, seed: int, group: str
    ) -> Tensors:
        """The tensors of a group's mean, with the noise of the privacy mechanism."""
        drawn = hashlib.sha256(self.secret + f"/{seed}/{group}".encode()).digest()
        average = views(self.privacy.noise(flat, num_members, int.from_bytes(drawn)), layout)
        return {
            k: np.maximum(v, np.float32(SMALLEST_VARIANCE)) if names.is_variance(k) else v
            for k, v in average.items()
        }


def origin_of(starts: Iterable[str]) -> str:
    """The key of the model that most devices of a group started from: the server optimizer goes on
    from that one. So both halves of a group that splits go on from it, groups that merge from the
    largest of them, and a group of newcomers from the beginning."""
    counts = Counter(starts)
    return min(counts, key=lambda key: (-counts[key], key))


def _ordered(contributions: Sequence[Contribution]) -> list[Contribution]:
    """By device id.

    Raises:
        ValueError: there is none.
    """
    if not contributions:
        raise ValueError("a round cannot be applied without a single contribution")
    return sorted(contributions, key=lambda c: c.device_id)


def encode_memory(state: State) -> bytes:
    """The memories of grouping, objective and server optimizer, and the rest of a state that is no
    model, as one tensor file, to be kept between rounds and over restarts."""
    arrays = {f"grouping/{k}": v for k, v in state.memory.arrays.items()} | {
        f"objective/{k}": v for k, v in state.context.arrays.items()
    }
    arrays |= {
        f"server/{group}/{k}": v
        for group, moments in state.moments.items()
        for k, v in moments.items()
    }
    text: dict[str, Any] = {
        "membership": state.memory.membership,
        "grouping": state.memory.info,
        "objective": state.context.info,
        "epsilon": state.epsilon,
        "rounds": state.rounds,
        "extra_epochs": state.extra_epochs,
        "moments": sorted(state.moments),
    }
    text |= {"starts": state.starts} if state.starts else {}
    return encode_tensors(arrays, msgspec.json.encode(text))


def decode_memory(payload: bytes, models: dict[str, Tensors]) -> State:
    """Read what `encode_memory` wrote, into the state that it and the models are."""
    arrays, text = decode_tensors(payload, OWN_FILES)
    rest = msgspec.json.decode(text)
    moments = names.part(arrays, "server")
    memory = GroupingMemory(rest["membership"], names.part(arrays, "grouping"), rest["grouping"])
    return State(
        models,
        memory,
        ObjectiveMemory(names.part(arrays, "objective"), rest["objective"]),
        rest["epsilon"],
        rest["rounds"],
        rest["extra_epochs"],
        {group: names.part(moments, group) for group in rest["moments"]},
        rest.get("starts", {}),
    )
