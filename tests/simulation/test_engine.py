"""The fast engine against messages: the same bits, whatever the algorithm. Workers, checkpoints and cohorts change no result."""

from typing import Any

import pytest

from algorithms.registry import OBJECTIVES
from simulation.engine.options import Engine
from simulation.ran import Outcome
from simulation.simulate import SimulationSettings, simulate
from tests.conftest import synthetic_fleet

QUICK = ["fedavg", "distfl", "local", "scaffold", "fedrep", "lg-net", "ditto", "dbe", "ifca:k=2", "autocfl", "hierarchical", "distfl+irls"]
OTHERS = sorted(OBJECTIVES.keys() - set(QUICK))


def run(algorithm: str, path: Any, rounds: int = 2, **others: Any) -> Outcome:
    settings = SimulationSettings(algorithm, rounds, batch_size=8, **others)
    return simulate(synthetic_fleet(8, shift=1.0), settings, engine=Engine(path))


def same(one: Outcome, two: Outcome) -> None:
    assert one.state.models == two.state.models
    assert one.state.memory == two.state.memory
    timeless = [{k: v for k, v in o.summary.items() if k not in ("wall_s", "updates_per_s", "bytes", "path")} for o in (one, two)]
    assert timeless[0] == timeless[1]
    for way in ("up", "down"):
        assert one.summary["bytes"][way] == pytest.approx(two.summary["bytes"][way], rel=0.02)


@pytest.mark.parametrize("algorithm", QUICK)
def test_same_bits_as_by_messages(algorithm: str) -> None:
    same(run(algorithm, "messages"), run(algorithm, "eager"))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", OTHERS)
def test_same_bits_as_by_messages_for_every_objective(algorithm: str) -> None:
    same(run(algorithm, "messages"), run(algorithm, "eager"))


@pytest.mark.parametrize("others", [{"attack": "replace:count=2"}, {"attack": "nan:count=2"}, {"newcomers": 2}])
def test_same_bits_with_attackers_and_newcomers(others: dict[str, Any]) -> None:
    same(run("distfl", "messages", **others), run("distfl", "eager", **others))
