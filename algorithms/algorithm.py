"""The server's side of an algorithm: from the updates of a round to the next models.

It uses the objective's coordinator, grouping, mean, privacy, server optimizer and personalisation.
The optimizer and the task work on devices only.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

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
from algorithms.core.stack import NUMPY, Arithmetic, Stack, cuda_devices, moved
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
SURVEY_INPUTS = Evaluate("inputs", "survey", "initial")
"""Survey of a device without labels, or of one whose policy keeps its classes."""
SMALLEST_VARIANCE = 1e-6
"""Minimum running variance; noise may have made it smaller."""
MOST_SHARES = 256
"""Maximum number of devices of a round for which shares are reported."""
Average = Callable[[str, Sequence[int]], tuple[Tensors, Array]]
"""Function that averages a group's models.

Arguments are the group and the rows of its members among the models of the round. The result is the
group's model and the share (N,) of each member, NaN if there are no shares.
"""


@dataclass(frozen=True)
class Contribution:
    """An admitted update.

    Its tensors are ``delta/NAME``, ``statistic/NAME`` and ``response/NAME``. `start` is the key of
    the model that the device started from.
    """

    device_id: str
    num_examples: int
    num_steps: int
    start: str
    tensors: Tensors | Callable[[], Tensors] = field(repr=False)
    """The tensors, or a function that reads them.

    The function is called once, when the tensors are needed. Only the responses of its result
    are stored.
    """
    loss: float = math.nan

    def read(self) -> Tensors:
        """Return the tensors."""
        return self.tensors() if callable(self.tensors) else self.tensors


@dataclass(frozen=True)
class State:
    """State of the server's side of an algorithm between rounds.

    It holds the model of each group (roles shared and statistic), and the states of grouping,
    coordinator, privacy and server optimizer.
    """

    models: dict[str, Tensors] = field(repr=False)
    memory: GroupingMemory = field(default_factory=GroupingMemory)
    context: ObjectiveMemory = field(default_factory=ObjectiveMemory)
    epsilon: float | None = None
    rounds: int = 0
    """Number of completed rounds of training."""
    extra_epochs: dict[str, int] = field(default_factory=dict)
    moments: dict[str, Tensors] = field(default_factory=dict, repr=False)
    """Moments of the server optimizer by group, ``MOMENT/shared/NAME`` float32.

    Groups without a step have none.
    """
    starts: dict[str, str] = field(default_factory=dict)
    """Key of the released model that each device starts from, by device id.

    Only before the first round.
    """
    clips: dict[str, dict[str, float]] = field(default_factory=dict)
    """Largest absolute value of a device's number in a secret sum, by group and part.

    Parts that are not here have the first clip (`algorithms.sums`).
    """


@dataclass(frozen=True)
class Algorithm:
    """The components behind an algorithm's name.

    `objective` is the name of the device's side, with which its bundle was exported. `coordinator`
    is the server's side of the objective. Both include the personalisation.
    """

    name: str
    objective: str
    coordinator: DefaultCoordinator
    grouping: Defaults
    mean: Mean
    privacy: DefaultPrivacy
    server_optimizer: ServerOptimizer = field(default_factory=NoServerOptimizer)
    secret: bytes = b""
    """Secret for the noise of the privacy mechanism; an empty one is for simulations only."""
    accelerator: str = "cpu"
    """Torch device that combines models, such as ``cuda``; ``cpu`` uses numpy and `arithmetic`.

    ``auto`` is a GPU that torch finds, for a mean that compares models. An average is as fast
    without.
    """
    arithmetic: Arithmetic = NUMPY
    """Implementation of the heaviest computations on the CPU."""
    has_classes: bool = True
    """True if models answer with classes; the server compares answers only then."""

    def __post_init__(self) -> None:
        if self.accelerator not in ("auto", "cpu", *cuda_devices()):
            raise ConfigError(
                "accelerator must be auto, cpu, or cuda if torch finds a GPU here, "
                f"got {self.accelerator!r}"
            )

    def begin(self, initial: Mapping[str, Array], probe: Probe, seed: int) -> State:
        """Return the state before the first round, from a bundle's initial tensors.

        Raises:
            ConfigError: the grouping needs a tensor that the objective keeps on the device.
        """
        model = exchanged(initial)
        self.grouping.check(model, self._usable(probe, model))
        return State(
            {NEWCOMER: model, **self.grouping.begin(model, seed)},
            context=self.coordinator.begin(dict(initial), seed),
        )

    def given(self, state: State, key: str) -> Tensors:
        """Return the model that devices of a group receive, with its tensors of role received."""
        received = self.coordinator.received(state.context, state.models, key)
        return {**state.models[key], **received}

    def programs(
        self,
        state: State,
        work: Work,
        digests: Mapping[str, str],
        after: Work | None = None,
        secret: bool = False,
    ) -> Programs:
        """Return the verbs of devices in the next round, by key of `Programs`.

        Two more keys are ``closing``, for the personalisation after the last round, and
        ``unlabelled``, for the placement of devices without labels.

        Args:
            digests: digest of each model's blob, by key of the model.
            after: work of the personalisation, if it differs from `work`.
            secret: True in secret mode, in which no device reports a survey of its own.
        """
        surveys, places = self.grouping.surveys and not secret, self.grouping.places and not secret
        # every further step costs privacy
        if self.privacy.in_step():
            work = replace(work, most_passes=1)
        programs = self.coordinator.programs(state.context, work)
        closing = self.coordinator.closing(state.context, after or work)
        placing: Programs = {UNLABELLED: (SURVEY_INPUTS,)} if places else {}
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
        round_programs: Programs = {}
        if surveys:
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
            survey = (SURVEY,) if surveys and (new or due) else ()
            round_programs[key] = (*choose, *survey, *verbs, *self.privacy.verbs())
        return round_programs | {"closing": (*choose, *closing)} | placing

    def prepare(self, state: State, contributions: Sequence[Contribution]) -> State:
        """Return the state after a preparation round.

        The devices' models are averaged by examples into the model that newcomers start from.
        """
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
        """Return the state after a round, and the round's grouping.

        Devices are grouped, and their models are averaged in each group.

        The order of `contributions` does not matter: they are sorted by device id, because a sum of
        floats depends on its order. A model counts in its group's mean unless its device is a
        newcomer and the group has a model already; the first model of such a device only places it.

        If the mean leaves devices out or weights them, the notes hold the share of each device in
        its group: ``shares``, by device id, rounded. They are left out in rounds of more than
        `MOST_SHARES` devices, and if shares differ between parameters.

        If the algorithm `streams`, contributions may have been summed before (`sum_up`): `branches`
        holds the sums, by key of the start model.
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

    def apply_means(
        self,
        state: State,
        changes: Mapping[str, Mapping[str, Array]],
        device_ids: Mapping[str, Sequence[str]],
        seed: int,
        work: Work,
    ) -> tuple[State, Grouped]:
        """Return the state after a round of which only mean changes are known, and the grouping.

        Args:
            state: the state before the round.
            changes: mean change (n,) of the devices that started from a model, by its key and by
                tensor.
            device_ids: devices that started from each model, by its key.
            seed: seed of the round.
            work: work of a device.
        """
        starts = {d: start for start, devices in device_ids.items() for d in devices}
        models = [LocalModel(d, 0, 0, start, {}) for d, start in sorted(starts.items())]
        grouped = Grouped(state.memory, device_ids=tuple(sorted(starts)))
        if not starts.keys() <= state.memory.membership.keys():
            grouped = self.grouping.group(state.memory, models, None, seed)
        means = {
            start: _with_variances(
                {
                    k: (v + change[k].reshape(v.shape)).astype(v.dtype)
                    for k, v in state.models[start].items()
                }
            )
            for start, change in changes.items()
        }
        following, moments, _ = self._combine(
            state,
            models,
            grouped.memory.membership,
            lambda group, rows: (means[models[rows[0]].start], np.full(len(rows), np.nan)),
        )
        return self._conclude(state, models, grouped, following, moments, work), grouped

    def _held(
        self, state: State, contributions: Sequence[Contribution], seed: int
    ) -> tuple[list[LocalModel], Average]:
        """Return the models of a round, and a function that averages their rows by `mean`."""
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
        """Return the models of a round without tensors, and a function that averages by sums.

        The sums are computed from contributions, or are `branches`.
        """
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
        """Return the models of the next round, the moments of the server optimizer, and the shares.

        Models and moments are by key of the group; shares are by device id.
        """
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
                origin_moments = state.moments.get(origin, {})
                following[group], moments[group] = advance(
                    self.server_optimizer, state.models[origin], following[group], origin_moments
                )
            shares |= {
                models[i].device_id: round(float(w), 4)
                for i, w in zip(trained or rows, weights, strict=True)
            }
        # if no device of a new group took part, the group starts from their previous model
        for (
            device_id,
            group,
        ) in membership.items():
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
        """Return the state after a round, given the models of the next one.

        The coordinator absorbs the round, and epsilon is updated.
        """
        context = self.coordinator.absorb(
            state.context, models, grouped.memory.membership, following
        )
        rounds = state.rounds + 1
        spent = self.privacy.epsilon_after(rounds, models, work)
        # without noise nothing is guaranteed
        epsilon = spent if spent is not None and math.isfinite(spent) else None
        return State(
            following, grouped.memory, context, epsilon, rounds, grouped.extra_epochs, moments
        )

    def place(self, state: State, device_id: str, survey: Tensors) -> Placement:
        """Return the placement of a device that no training has put into a group.

        Only the memory of the state is read. The group is the only one, or the one with the most
        similar inputs. If inputs say nothing, it is the largest group, or none if each group has a
        single device. `survey` is the device's survey of its inputs (``response/survey.NAME``), or
        empty.
        """
        start = self.grouping.start(state.memory, device_id)
        # the first of several models to choose from is no group
        if start != NEWCOMER and not self.grouping.chooses:
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
        """True if single models are not needed, so that each is added to its mean and discarded.

        A fleet of any size then needs memory for a few models. This takes no grouping by models, a
        mean that is an average, and a coordinator that absorbs nothing of a round.
        """
        return (
            self.mean.averages and not self.grouping.reads_models and not self.coordinator.absorbs
        )

    def _locals(
        self, state: State, contributions: Sequence[Contribution]
    ) -> tuple[list[LocalModel], Stack]:
        """Return the models of a round, sorted by device id, and the arena whose rows they are."""
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
        device = self.accelerator
        if device == "auto":
            device = "cpu" if self.mean.averages else next(iter(cuda_devices()), "cpu")
        return models, Stack(moved(arena, device), arithmetic=self.arithmetic)

    def _local(
        self,
        state: State,
        c: Contribution,
        layout: tuple[Slice, ...],
        received: Array,
        row: Array,
        update: Array,
    ) -> LocalModel:
        """Return a device's model, written into `row`: the received model plus the clipped change.

        The privacy mechanism clips the change. `update` receives the change of the shared tensors,
        unless it is empty.
        """
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
        """Return a group's model, and the share (N,) of each member."""
        if not stack.size:
            return {}, np.full(len(members), np.nan)
        average = mean.combine(
            stack, np.array([m.num_examples for m in members], dtype=np.int64), layout, seed
        )
        return self._finish(average.flat, layout, len(members), seed, group), average.weights

    def sum_up(self, received: Tensors, contributions: Sequence[Contribution]) -> StreamingMean:
        """Return the sum of the models of devices that started from the same model.

        `received` is that model (roles shared and statistic). The sum can be computed on any
        machine.
        """
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
        """Return the sum of the models of a group's members, who all started from one model."""
        (start,) = {c.start for c in members}
        if branches is None:
            return self.sum_up(state.models[start], members)
        mean = StreamingMean(size_of(layout_of(state.models[start])))
        for branch in sorted(branches[start], key=lambda b: b.begin):
            mean.join(branch)
        return mean

    def _usable(self, probe: Probe, model: Mapping[str, Array]) -> Probe | None:
        """Return the probe with this algorithm's arithmetic, or None if the server cannot use it.

        This is so if the server lacks a tensor that the probe reads, cannot synthesise inputs, or
        cannot compare answers.
        """
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
        """Return the tensors of a group's mean, with the noise of the privacy mechanism."""
        drawn = hashlib.sha256(self.secret + f"/{seed}/{group}".encode()).digest()
        noised = self.privacy.noise(flat, num_members, int.from_bytes(drawn))
        return _with_variances(views(noised, layout))


def _with_variances(model: Tensors) -> Tensors:
    """Return a model whose running variances are at least `SMALLEST_VARIANCE`."""
    return {
        k: np.maximum(v, np.float32(SMALLEST_VARIANCE)) if names.is_variance(k) else v
        for k, v in model.items()
    }


def origin_of(starts: Iterable[str]) -> str:
    """Return the key of the model that most devices of a group started from.

    The server optimizer continues from that model. So both halves of a split group continue from
    it, merged groups from the largest of them, and a group of newcomers from the initial model.
    """
    counts = Counter(starts)
    return min(counts, key=lambda key: (-counts[key], key))


def _ordered(contributions: Sequence[Contribution]) -> list[Contribution]:
    """Return the contributions sorted by device id.

    Raises:
        ValueError: there is none.
    """
    if not contributions:
        raise ValueError("a round cannot be applied without a single contribution")
    return sorted(contributions, key=lambda c: c.device_id)


def encode_memory(state: State) -> bytes:
    """Return a state without its models as one tensor file, for storage between rounds.

    It holds the states of grouping, coordinator and server optimizer, and the other fields.
    """
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
    text |= {"clips": state.clips} if state.clips else {}
    return encode_tensors(arrays, msgspec.json.encode(text))


def decode_memory(payload: bytes, models: dict[str, Tensors]) -> State:
    """Return the state from these models and the result of `encode_memory`."""
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
        rest.get("clips", {}),
    )
