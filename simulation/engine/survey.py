"""Rounds of a simulation in secret mode that find groups from sums, before the first training."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from aggregator.core.settings import RunSettings
from aggregator.fleet.plan import make_plan, round_seed
from algorithms.algorithm import State
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.sums.tree import members_of, tell_of, untold
from algorithms.sums import after_exchanges, after_telling, exchanges_in, survey_verbs, tree_of
from simulation.engine.experiment import Experiment
from simulation.engine.sums import Sets, as_masked, ask_survey, opened_sums
from simulation.engine.workers.device_host import DeviceResult
from wire.arrays.tensors import Array
from wire.errors import Stalled
from wire.messages import Plan
from wire.secret.survey import SurveySum

CarryOut = Callable[[Sequence[Plan]], list[DeviceResult]]
"""Function that returns the results of plans, sorted by device id."""


def survey_round(
    experiment: Experiment,
    state: State,
    device_ids: Iterable[str],
    sets: Sets,
    number: int,
    carry_out: CarryOut,
) -> tuple[State, list[Plan], list[DeviceResult], Sets]:
    """Return the state after a round of exchanges, or after devices have told their sides.

    With it come the plans, the results with the layout of what devices send, and the sets of all
    sums so far.

    Args:
        experiment: the run.
        state: the state before.
        device_ids: devices of the fleet.
        sets: devices of each sum so far.
        number: number of the round.
        carry_out: carries out plans.

    Raises:
        Stalled: a device fails, or helpers would not open a sum.
    """
    settings, tree = experiment.settings, tree_of(state)
    if devices := untold(tree):
        tell = tell_of(tree)
        assert tell is not None, "a device is in a node that was split"
        plans = [make_plan(settings, number, d, NEWCOMER, survey_verbs(tell)) for d in devices]
        results = _all(carry_out(plans), plans)
        nodes = {each.device_id: each.node for each in results}
        return after_telling(state, nodes, settings.min_sum), plans, results, sets
    exchanges = exchanges_in(state, settings.min_sum)
    groups = {
        node: members_of(tree, node) if exchange.scale else tuple(sorted(device_ids))
        for node, exchange in exchanges.items()
    }
    by_node = {
        node: _plans(settings, number, groups[node], exchange)
        for node, exchange in exchanges.items()
    }
    plans = [plan for each in by_node.values() for plan in each]
    results = _all(carry_out(plans), plans)
    questions = {
        node: ask_survey(experiment, state, by_node[node], exchange)
        for node, exchange in exchanges.items()
    }
    node_of = {device_id: node for node, devices in groups.items() for device_id in devices}
    numbers: dict[str, dict[str, Mapping[str, Array]]] = {node: {} for node in exchanges}
    for each in results:
        assert each.numbers is not None
        numbers[node_of[each.device_id]][each.device_id] = each.numbers
    sums, sets = opened_sums(questions, numbers, sets, number, round_seed(settings.seed, number))
    opened = {node: (exchanges[node], group) for node, group in sums.items()}
    masked = [as_masked(questions[node_of[each.device_id]], each) for each in results]
    return after_exchanges(state, opened, settings.min_sum), plans, masked, sets


def _plans(
    settings: RunSettings, number: int, device_ids: Iterable[str], exchange: SurveySum
) -> list[Plan]:
    verbs = survey_verbs(exchange)
    return [make_plan(settings, number, d, NEWCOMER, verbs) for d in device_ids]


def _all(results: list[DeviceResult], plans: Sequence[Plan]) -> list[DeviceResult]:
    if len(results) < len(plans):
        raise Stalled(
            f"Round {plans[0].round}: {len(plans) - len(results)} of {len(plans)} devices cannot "
            "make their survey, and groups are found from sums over all of them"
        )
    return results
