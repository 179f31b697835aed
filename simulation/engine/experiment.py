"""Everything that a simulated run is made of, as one value for whichever engine carries it out."""

from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.core.settings import RunSettings
from algorithms.algorithm import Algorithm
from algorithms.core.contract import Objective, Probe
from edge_client.core.ports import Windows
from simulation.engine.workers.attacks import Attack
from wire.bundle import Bundle


@dataclass(frozen=True)
class Experiment:
    """A fleet, and what is to be trained on it."""

    settings: RunSettings
    algorithm: Algorithm
    objective: Objective
    probe: Probe
    bundle: Bundle
    devices: Mapping[str, Windows]
    attack: Attack | None = None
