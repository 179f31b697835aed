"""Attackers among simulated devices, and what they achieve.

A device is an attacker through its data (``label-flip``: V. Tolpegin et al., ESORICS 2020) or through the update that it sends instead
of its
own: ``replace`` trains on flipped labels and sends the change scaled by `scale`, so that it outweighs the fleet (E. Bagdasaryan et al.,
AISTATS
2020); ``sign-flip`` sends minus `scale` times its change; ``gaussian`` sends noise of `scale` times its change's size; ``nan`` sends
values that
are not numbers. Its messages are otherwise those of an honest device: admission and defences see what they would see in the field.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge_client.agent import Agent
from edge_client.executor import Result
from edge_client.ports import Windows
from simulation.datasets.windows import FleetData
from wire import names
from wire.errors import ConfigError
from wire.tensors import Array, Tensors

ATTACKS = {"label-flip": 1.0, "replace": 0.0, "sign-flip": 1.0, "gaussian": 1.0, "nan": 1.0}
"""Each attack and its usual `scale`; 0 stands for the number of devices."""


@dataclass(frozen=True)
class Attack:
    """Who attacks, and how."""

    name: str
    attackers: frozenset[str]
    scale: float
    targets: Mapping[int, int]
    """The class that each attacked class is to be taken for."""
    seed: int = 0

    def poison(self, windows: Windows) -> Windows:
        """An attacker's windows: training labels of attacked classes are those of their targets."""
        if self.name not in ("label-flip", "replace"):
            return windows
        flipped = windows.train_y.copy()
        for source, target in self.targets.items():
            flipped[windows.train_y == source] = target
        return Windows(windows.train_x, flipped, windows.test_x, windows.test_y)

    def tamper(self, tensors: Tensors, device_id: str, number: int) -> Tensors:
        """What an attacker sends in place of its update's tensors in the round of this number."""
        rng = np.random.default_rng([self.seed, number, sum(map(ord, device_id))])
        return {key: self._tampered(key, value, rng) for key, value in tensors.items()}

    def _tampered(self, key: str, value: Array, rng: np.random.Generator) -> Array:
        if names.role_of(key) != names.DELTA or self.name == "label-flip":
            return value
        if self.name == "nan":
            return np.full_like(value, np.nan)
        if self.name == "gaussian":
            size = float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) if value.size else 0.0
            return np.asarray(self.scale * size * rng.standard_normal(value.shape), np.float32)
        return np.asarray(value * (-self.scale if self.name == "sign-flip" else self.scale), np.float32)


class Attacker(Agent):
    """A device that sends another update than its own."""

    def __init__(self, *arguments: Any, attack: Attack, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._attack = attack

    def _encode(self, plan: Any, result: Result, train_s: float) -> bytes:
        tensors = self._attack.tamper(result.tensors, self.device_id, plan.round)
        return super()._encode(plan, replace(result, tensors=tensors), train_s)


def make_attack(text: str, data: FleetData, seed: int) -> Attack | None:
    """Read ``NAME[:share=0.2][:count=N][:scale=S]``; None for an empty text. The seed decides who attacks.

    Raises:
        ConfigError: no such attack or option, or nobody honest would be left.
    """
    if not text:
        return None
    name, *settings = text.split(":")
    if name not in ATTACKS:
        raise ConfigError(f"attack {text!r}: {name!r} is none of {', '.join(ATTACKS)}")
    options = {"share": 0.2, "count": 1.0 if name == "replace" else 0.0, "scale": ATTACKS[name] or float(len(data.devices))}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in options or not _is_number(value):
            raise ConfigError(f"attack {text!r}: {setting!r}, expected one of share=, count=, scale= with a number")
        options[key] = float(value)
        options |= {"count": 0.0} if key == "share" else {}
    count = round(options["count"] or options["share"] * len(data.devices))
    if not 1 <= count < len(data.devices):
        raise ConfigError(
            f"attack {text!r}: {count} attackers among {len(data.devices)} devices, expected at least one and one honest device"
        )
    chosen = np.random.default_rng([seed, 0xA77]).choice(sorted(data.devices), count, replace=False)
    return Attack(name, frozenset(map(str, chosen)), options["scale"], flipped_classes(len(data.classes)), seed)


def flipped_classes(num_classes: int) -> dict[int, int]:
    """DistFL's flip (section 5.5): classes 0-3 and 4-7 are taken for each other; with fewer than eight, the first half and the second."""
    half = min(4, num_classes // 2)
    return {a: b for i in range(half) for a, b in ((i, i + half), (i + half, i))}


def success_rate(targets: Mapping[int, int], labels: Array, predicted: Array) -> float | None:
    """Attack success rate (DistFL, Eq. 9): of each attacked class, the share of examples predicted as its target, averaged over the
    classes. `labels` and `predicted` are (n,) class numbers; None when no example is of an attacked class."""
    rates = [float((predicted[labels == source] == target).mean()) for source, target in targets.items() if (labels == source).any()]
    return float(np.mean(rates)) if rates else None


def told_apart(clusters: Mapping[str, int | None], attackers: frozenset[str]) -> bool:
    """Whether no honest device shares a group with an attacker."""
    theirs = {clusters[d] for d in attackers if clusters.get(d) is not None}
    return not any(group in theirs for d, group in clusters.items() if d not in attackers)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
