"""Secret mode in a simulation: the integers of devices and helpers, without masks.

The sums are those which helpers would open, to the bit. Helpers refuse a set here as they would.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from zlib import crc32

import numpy as np

from aggregator.aggregation.stored import work_of
from aggregator.core.sums import opened, question_of, total_of, whole_cells
from aggregator.fleet.plan import round_seed
from algorithms.algorithm import State
from algorithms.core.contract import Grouped
from algorithms.sums import (
    GroupSum,
    apply_sums,
    has_cells,
    noise_of,
    parts_of,
    survey_parts,
)
from edge_client.core.sums import integers_of, numbers_of
from helper.core.ledger import Ledger, SetRefused
from simulation.engine.experiment import Experiment
from simulation.engine.workers.device_host import DeviceResult
from wire.arrays.tensors import Array, Tensors, encode_tensors
from wire.codec import digest
from wire.errors import Stalled
from wire.messages import Plan
from wire.secret.messages import about_of
from wire.secret.parts import cut
from wire.secret.question import SumQuestion
from wire.secret.survey import SURVEY_BITS, SURVEY_MOST, SurveySum

Sets = tuple[tuple[str, ...], ...]
"""Devices of each sum so far."""


def ask(experiment: Experiment, state: State, plans: Sequence[Plan], key: str) -> SumQuestion:
    """Return the question of a round to the devices of these plans, which start from one model.

    `key`: key of the sum. The question names no helpers and has no deadline.
    """
    return question_of(
        _about(experiment, state, plans[0]),
        parts_of(experiment.algorithm, state, plans[0].model),
        len(plans),
        experiment.settings.min_sum,
        (),
        0.0,
        group=key,
        noise=noise_of(experiment.algorithm, state, experiment.settings.min_sum),
    )


def ask_survey(
    experiment: Experiment, state: State, plans: Sequence[Plan], exchange: SurveySum
) -> SumQuestion:
    """Return the question about an exchange of a survey to the devices of these plans."""
    settings = experiment.settings
    return question_of(
        _about(experiment, state, plans[0]),
        survey_parts(exchange, settings.responses),
        SURVEY_MOST,
        settings.min_sum,
        (),
        0.0,
        SURVEY_BITS,
    )


def _about(experiment: Experiment, state: State, plan: Plan) -> str:
    model = digest(encode_tensors(experiment.algorithm.given(state, plan.model)))
    return about_of(experiment.bundle.digest, model, plan.verbs)


def sum_up(
    question: SumQuestion,
    numbers: Iterable[tuple[str, Mapping[str, Array]]],
    seed: int,
) -> Tensors:
    """Return the sums float64 (n,) that helpers would open, by part.

    Args:
        question: the question.
        numbers: numbers (n,) of each device, by part.
        seed: seed of the rounding on devices.
    """
    integers = (
        integers_of(question, each, rounding(seed, device_id).bytes) for device_id, each in numbers
    )
    return opened(question, total_of(question, integers), ())


def rounding(seed: int, device_id: str) -> np.random.Generator:
    """Return the generator of a device's rounding in a round of this seed."""
    return np.random.default_rng([seed, crc32(device_id.encode()), 0x5EC])


def check_set(
    question: SumQuestion, device_ids: Iterable[str], earlier: Iterable[Iterable[str]], number: int
) -> None:
    """Check that helpers would open a sum of a round.

    `earlier`: devices of each sum before. `number`: that of the round.

    Raises:
        Stalled: they would not.
    """
    ledger = Ledger(parts=reduce(cut, earlier, frozenset[frozenset[str]]()))
    try:
        ledger.check(question.digest, "", set(device_ids), question.min_sum)
    except SetRefused as error:
        raise Stalled(f"Round {number}: helpers would not open the sum: {error}") from None


def opened_sums(
    questions: Mapping[str, SumQuestion],
    numbers: Mapping[str, Mapping[str, Mapping[str, Array]]],
    sets: Sets,
    number: int,
    seed: int,
) -> tuple[dict[str, GroupSum], Sets]:
    """Return the opened sum of each question of a round, and the sets of all sums so far.

    Args:
        questions: question by group or node.
        numbers: numbers by group or node, by device and by part.
        sets: devices of each sum before.
        number: number of the round.
        seed: seed of the round.

    Raises:
        Stalled: helpers would not open a sum.
    """
    groups = {}
    for key, question in sorted(questions.items()):
        devices = tuple(sorted(numbers[key]))
        check_set(question, devices, sets, number)
        groups[key] = GroupSum(sum_up(question, sorted(numbers[key].items()), seed), devices)
        sets = sets if devices in sets else (*sets, devices)
    return groups, sets


def apply_results(
    experiment: Experiment,
    state: State,
    plans: Sequence[Plan],
    results: Sequence[DeviceResult],
    sets: Sets,
) -> tuple[State, Grouped, list[DeviceResult], Sets]:
    """Return the state after a round of which the server learns a sum of each group.

    With it come the grouping, the results with the layout of what devices send, and the sets of all
    sums so far.

    Raises:
        Stalled: helpers would not open a sum.
    """
    number = plans[0].round
    seed, starts = (
        round_seed(experiment.settings.seed, number),
        {plan.device_id: plan.model for plan in plans},
    )
    by_key = _by_key(experiment, plans)
    questions = {key: ask(experiment, state, each, key) for key, each in by_key.items()}
    key_of = {plan.device_id: key for key, each in by_key.items() for plan in each}
    numbers: dict[str, dict[str, Mapping[str, Array]]] = {key: {} for key in questions}
    for each in results:
        key, received = key_of[each.device_id], state.models[starts[each.device_id]]
        numbers[key][each.device_id] = numbers_of(
            questions[key], each.tensors, received, (each.evaluated, each.trained)
        )
    groups, sets = opened_sums(questions, numbers, sets, number, seed)
    state, grouped = apply_sums(
        experiment.algorithm, state, groups, seed, work_of(experiment.settings)
    )
    masked = [as_masked(questions[key_of[each.device_id]], each) for each in results]
    return state, grouped, masked, sets


def _by_key(experiment: Experiment, plans: Iterable[Plan]) -> dict[str, list[Plan]]:
    """Return the plans by key of their sum: one sum for each model, or for each cell of devices."""
    by_key: dict[str, list[Plan]] = {}
    for plan in plans:
        by_key.setdefault(plan.model, []).append(plan)
    if not has_cells(experiment.algorithm.mean):
        return by_key
    of_device = {plan.device_id: plan for each in by_key.values() for plan in each}
    cells = whole_cells(
        (), of_device.keys(), experiment.settings.min_sum, lambda d: of_device[d].model
    )
    return {key: [of_device[d] for d in sorted(devices)] for key, devices in cells.items()}


def as_masked(question: SumQuestion, result: DeviceResult) -> DeviceResult:
    """Return the result with the layout of what the device sends in place of its update."""
    carried = tuple(
        (f"masked/{part}", "uint8", (wanted.count * question.bits // 8,))
        for part, wanted in question.parts.items()
    )
    return dataclasses.replace(result, carried=carried)
