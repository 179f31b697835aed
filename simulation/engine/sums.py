"""Secret mode in a simulation: the integers of devices and helpers, without masks.

The sum is that which helpers would open, to the bit. Helpers refuse a round here as they would.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import reduce
from zlib import crc32

import numpy as np

from aggregator.aggregation.stored import work_of
from aggregator.core.sums import opened, question_of, total_of
from aggregator.fleet.plan import round_seed
from algorithms.algorithm import State
from algorithms.core.contract import Grouped
from algorithms.sums import apply_sums, parts_of
from edge_client.core.sums import integers_of, numbers_of
from helper.core.ledger import Ledger, SetRefused
from simulation.engine.experiment import Experiment
from simulation.engine.workers.device_host import DeviceResult
from wire.arrays.tensors import Tensors, encode_tensors
from wire.codec import digest
from wire.errors import Stalled
from wire.messages import Plan
from wire.secret.messages import about_of
from wire.secret.parts import cut
from wire.secret.question import SumQuestion


def ask(experiment: Experiment, state: State, plans: Sequence[Plan]) -> SumQuestion:
    """Return the question of a round to the devices of these plans, which start from one model.

    It names no helper, and no time at which it closes.
    """
    model = digest(encode_tensors(experiment.algorithm.given(state, plans[0].model)))
    return question_of(
        about_of(experiment.bundle.digest, model, plans[0].verbs),
        parts_of(state),
        len(plans),
        experiment.settings.min_sum,
        (),
        0.0,
    )


def sum_up(
    question: SumQuestion, results: Iterable[DeviceResult], received: Tensors, seed: int
) -> Tensors:
    """Return the sums float64 (n,) that helpers would open, by part.

    Args:
        question: question of the round.
        results: what the devices have trained.
        received: the model from which they started.
        seed: seed of the rounding on devices.
    """
    total = total_of(
        question,
        (
            integers_of(
                question,
                numbers_of(
                    question,
                    each.tensors,
                    received,
                    (each.evaluated, each.trained),
                ),
                rounding(seed, each.device_id).bytes,
            )
            for each in results
        ),
    )
    return opened(question, total, ())


def rounding(seed: int, device_id: str) -> np.random.Generator:
    """Return the generator of a device's rounding in a round of this seed."""
    return np.random.default_rng([seed, crc32(device_id.encode()), 0x5EC])


def check_set(
    question: SumQuestion,
    results: Iterable[DeviceResult],
    earlier: Iterable[Iterable[str]],
    number: int,
) -> None:
    """Check that helpers would open the sum of a round.

    `earlier`: devices of each sum before. `number`: that of the round.

    Raises:
        Stalled: they would not.
    """
    ledger = Ledger(parts=reduce(cut, earlier, frozenset[frozenset[str]]()))
    devices = {result.device_id for result in results}
    try:
        ledger.check(question.digest, "", devices, question.min_sum)
    except SetRefused as error:
        raise Stalled(f"Round {number}: helpers would not open the sum: {error}") from None


def apply_results(
    experiment: Experiment,
    state: State,
    question: SumQuestion,
    plans: Sequence[Plan],
    results: Sequence[DeviceResult],
) -> tuple[State, Grouped]:
    """Return the state after a round of which the server learns one sum, and the grouping."""
    seed = round_seed(experiment.settings.seed, plans[0].round)
    sums = sum_up(question, results, state.models[plans[0].model], seed)
    devices = sorted(result.device_id for result in results)
    return apply_sums(
        experiment.algorithm, state, sums, devices, seed, work_of(experiment.settings)
    )


def as_masked(question: SumQuestion, result: DeviceResult) -> DeviceResult:
    """Return the result with the layout of what the device sends in place of its update."""
    carried = tuple(
        (f"masked/{part}", "uint8", (wanted.count * question.bits // 8,))
        for part, wanted in question.parts.items()
    )
    return dataclasses.replace(result, carried=carried)
