"""Runs of the engine, and when two are the same."""

from typing import Any

import msgspec
import pytest

from aggregator.view.summary import MessageBytes
from algorithms.composition import read_algorithm
from simulation.engine.options import EngineOptions
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.support.fleets import synthetic_fleet


def run(algorithm: str, backend: Any, rounds: int = 2, **others: Any) -> SimulationResult:
    settings = SimulationSettings(read_algorithm(algorithm), rounds, batch_size=8, **others)
    return simulate(synthetic_fleet(8, shift=1.0), settings, engine=EngineOptions(backend))


def same(one: SimulationResult, two: SimulationResult) -> None:
    assert one.campaign.version.models == two.campaign.version.models
    assert one.campaign.version.memory == two.campaign.version.memory
    assert [record.groups for record in one.records] == [record.groups for record in two.records]
    timeless = [
        msgspec.structs.replace(
            o.summary,
            wall_s=0.0,
            updates_per_s=0.0,
            bytes=MessageBytes(0, 0),
            bytes_by_round=[],
            backend="",
            backend_reason="",
        )
        for o in (one, two)
    ]
    assert timeless[0] == timeless[1]
    for way in ("up", "down"):
        assert getattr(one.summary.bytes, way) == pytest.approx(
            getattr(two.summary.bytes, way), rel=0.02
        )
