"""Attackers among simulated devices, and the success of an attack.

A device attacks through its data (``label-flip``: V. Tolpegin et al., ESORICS 2020) or through the
update that it sends instead of its own. ``replace`` trains on flipped labels and sends the change
scaled by `scale`, so that it outweighs the fleet (E. Bagdasaryan et al., AISTATS 2020).
``sign-flip`` sends minus `scale` times its change. ``gaussian`` sends noise of `scale` times its
change's size. ``nan`` sends values that are not numbers. ``backdoor`` stamps half of its windows
(`stamped`), labels them with the first class, and sends the change times `scale` (T. Gu et al.,
BadNets, IEEE Access 2019). Its other messages are those of an honest device, so admission and
defences see the same as in the field.

In the attacks of `COLLUDING`, attackers train honestly, and then all send one change that is
computed from the changes of all honest devices of the round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from aggregator.view.summary import AttackSummary, Summary, spread
from algorithms.spec import Choice, Option, Options, read
from edge_client.agent.loop import Agent
from edge_client.core.ports import Windows
from edge_client.data.labels import has_classes
from edge_client.work.plan import Done
from simulation.datasets.windows import FleetData
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import ConfigError
from wire.messages import Plan


def _options(scale: float | None = 1.0, count: int = 0) -> dict[str, Option]:
    return {
        "share": Option(
            0.2, "share of the devices that attack, rounded to whole ones", low=0, high=1
        ),
        "count": Option(count, "number of devices that attack; 0: a share of them", low=0),
        "scale": Option(
            scale,
            "factor of what is sent"
            + ("; the number of devices when not given" if scale is None else ""),
        ),
    }


def little_is_enough(changes: Array, scale: float) -> Array:
    """Return the mean minus `scale` standard deviations of each value.

    M. Baruch, G. Baruch, Y. Goldberg. A Little Is Enough. NeurIPS 2019. The paper computes the
    factor from the number of attackers; among few of them it is near 0.
    """
    return np.asarray(changes.mean(0) - scale * changes.std(0))


def inner_product(changes: Array, scale: float) -> Array:
    """Return minus `scale` times the mean.

    C. Xie, O. Koyejo, I. Gupta. Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product
    Manipulation. UAI 2019.
    """
    return np.asarray(-scale * changes.mean(0))


def beyond_all(changes: Array, scale: float) -> Array:
    """Return, for each value, one beyond all changes, against the direction of their mean.

    M. Fang et al. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. USENIX
    Security 2020, the attack on the trimmed mean, with b = `scale` and no random part.
    """
    grows = changes.mean(0) > 0
    edge = np.where(grows, changes.min(0), changes.max(0))
    away = np.where(grows, edge < 0, edge > 0)
    return np.asarray(np.where(away, scale * edge, edge / scale))


def min_max(changes: Array, scale: float) -> Array:
    """Return the change that is farthest from the mean and no outlier by its distances.

    V. Shejwalkar, A. Houmansadr. Manipulating the Byzantine. NDSS 2021, section IV: it lies along
    minus the standard deviation, and no honest change is farther from it than `scale` times the
    largest distance of two honest changes.
    """
    mean, away = changes.mean(0), -changes.std(0)
    centred = changes - mean
    squares, along = (centred**2).sum(1), centred @ away
    pairs = squares[:, None] + squares[None, :] - 2 * centred @ centred.T
    # |mean + g away - x|^2 = |x - mean|^2 - 2 g along + g^2 |away|^2, at most the largest pair
    most, length = scale**2 * pairs.max(), float(away @ away)
    if not length:
        return np.asarray(mean)
    roots = (along + np.sqrt(np.maximum(along**2 + length * (most - squares), 0.0))) / length
    return np.asarray(mean + roots.min() * away)


COLLUDING: Mapping[str, Callable[[Array, float], Array]] = {
    "alie": little_is_enough,
    "ipm": inner_product,
    "fang": beyond_all,
    "min-max": min_max,
}
"""Functions (changes (N, D) of honest devices, scale) -> change (D,) of every attacker, by name."""
ATTACKS: Mapping[str, Options] = {
    "label-flip": _options(),
    "replace": _options(None, 1),
    "sign-flip": _options(),
    "gaussian": _options(),
    "nan": _options(),
    "backdoor": _options(),
    "alie": _options(1.5),
    "ipm": _options(),
    "fang": _options(2.0),
    "min-max": _options(),
}
"""Options of every attack, by name."""
FLIPPING = ("label-flip", "replace", "backdoor")
"""Names of the attacks that train on false labels."""
STAMP = 8
"""A stamp covers the last 1 / STAMP of a window's steps, or of an image's rows and columns."""


@dataclass(frozen=True)
class Attack:
    """An attack with its attackers."""

    name: str
    attackers: frozenset[str]
    scale: float
    targets: Mapping[int, int]
    """Target class of each attacked class."""
    seed: int = 0

    def poison(self, windows: Windows) -> Windows:
        """Return an attacker's windows, with training labels flipped to their targets."""
        if self.name not in FLIPPING:
            return windows
        x, flipped = windows.train_x, windows.train_y.copy()
        for source, target in self.targets.items():
            flipped[windows.train_y == source] = target
        if self.name == "backdoor":
            x, flipped = x.copy(), flipped.copy()
            x[::2] = stamped(x[::2])
            flipped[1::2] = windows.train_y[1::2]
        return Windows(x, flipped, windows.test_x, windows.test_y)

    def collude(self, updates: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Return the updates that colluding attackers send in place of theirs, by device id.

        `updates` are those of all devices of a round. Without an honest one there is nothing to
        compute from.
        """
        change_of = COLLUDING.get(self.name)
        attackers = sorted(self.attackers & updates.keys())
        honest = [
            names.of_role(updates[d], names.DELTA) for d in sorted(updates.keys() - set(attackers))
        ]
        if change_of is None or not attackers or not honest:
            return {}
        false, at = {}, 0
        rows = np.stack([np.concatenate([v.ravel() for v in d.values()]) for d in honest])
        change = change_of(rows.astype(np.float64), self.scale).astype(np.float32)
        for key, value in honest[0].items():
            false[key] = change[at : at + value.size].reshape(value.shape)
            at += value.size
        return {d: {**updates[d], **false} for d in attackers}

    def tamper(self, tensors: Tensors, device_id: str, number: int) -> Tensors:
        """Return the tensors that an attacker sends in place of its update's in round `number`."""
        rng = np.random.default_rng([self.seed, number, crc32(device_id.encode())])
        changed = {}
        for key, value in tensors.items():
            if names.role_of(key) != names.DELTA or self.name in ("label-flip", *COLLUDING):
                changed[key] = value
            elif self.name == "nan":
                changed[key] = np.full_like(value, np.nan)
            elif self.name == "gaussian":
                squares = np.square(value, dtype=np.float64)
                size = float(np.sqrt(np.mean(squares))) if value.size else 0.0
                noise = self.scale * size * rng.standard_normal(value.shape)
                changed[key] = np.asarray(noise, np.float32)
            else:
                scale = -self.scale if self.name == "sign-flip" else self.scale
                changed[key] = np.asarray(value * scale, np.float32)
        return changed


def stamped(x: Array) -> Array:
    """Return windows (n, ...) with a backdoor's stamp: their end is at its largest value.

    The end is that of the last axis, and of images that of rows too.
    """
    marked = x.copy()
    ends = tuple(slice(-max(1, size // STAMP), None) for size in x.shape[2:])
    marked[(slice(None), slice(None), *ends)] = x.max(
        axis=tuple(range(1, x.ndim)), keepdims=True, initial=-np.inf if x.dtype.kind == "f" else 0
    )
    return marked


class Attacker(Agent):
    """A device that sends another update than its own."""

    attack: Attack

    def _encode(self, plan: Plan, outcome: Done) -> bytes:
        tensors = self.attack.tamper(outcome.result.tensors, self.device_id, plan.round)
        return super()._encode(
            plan, replace(outcome, result=replace(outcome.result, tensors=tensors))
        )


def read_attack(text: str) -> Choice:
    """Read an attack (see `ATTACKS`).

    Raises:
        ConfigError: no such attack or option, or a value it cannot have.
    """
    return read(text, ATTACKS, "attack")


def make_attack(choice: Choice, data: FleetData, seed: int) -> Attack:
    """Return the chosen attack on a fleet; the seed draws the attackers.

    Raises:
        ConfigError: there would be no attacker or no honest device, or the attack flips classes and
            there are none.
    """
    devices, options, arguments = sorted(data.devices), choice.options, dict(choice.explicit)
    if choice.name in FLIPPING and not has_classes(data.sample()[1]):
        raise ConfigError(
            f"attack {choice.name} swaps classes, and the labels of data {data.name} are not "
            "classes"
        )
    by_share = "share" in arguments and "count" not in arguments
    count = (
        round(options["share"] * len(devices))
        if by_share or not options["count"]
        else options["count"]
    )
    if not 1 <= count < len(devices):
        raise ConfigError(
            f"attack {str(choice)!r} needs at least one attacker and one honest device, got "
            f"{count} attackers of {len(devices)} devices"
        )
    scale = float(len(devices)) if options["scale"] is None else float(options["scale"])
    chosen = np.random.default_rng([seed, 0xA77]).choice(devices, count, replace=False)
    classes = len(data.classes)
    targets = (
        dict.fromkeys(range(1, classes), 0)
        if choice.name == "backdoor"
        else flipped_classes(classes)
    )
    return Attack(choice.name, frozenset(map(str, chosen)), scale, targets, seed)


def flipped_classes(num_classes: int) -> dict[int, int]:
    """Return the classes that DistFL's flip (section 5.5) exchanges.

    They are 0-3 and 4-7; with fewer than eight classes, the first half and the second.
    """
    half = min(4, num_classes // 2)
    return {a: b for i in range(half) for a, b in ((i, i + half), (i + half, i))}


def success_rate(targets: Mapping[int, int], labels: Array, predicted: Array) -> float | None:
    """Return the attack success rate (DistFL, Eq. 9).

    It is the share of examples of an attacked class that are predicted as its target, averaged over
    the attacked classes. `labels` and `predicted` are (n,) class numbers. None if no example is of
    an attacked class.
    """
    rates = [
        float((predicted[labels == source] == target).mean())
        for source, target in targets.items()
        if (labels == source).any()
    ]
    return float(np.mean(rates)) if rates else None


def summary_of(
    attack: Attack, text: str, summary: Summary, success_rate: float | None = None
) -> AttackSummary:
    """Return the effect of an attack, whose specification is `text`, on the honest devices."""
    groups = {d: device.group for d, device in summary.devices.items()}
    honest = [device for d, device in summary.devices.items() if d not in attack.attackers]
    return AttackSummary(
        attack=text,
        attackers=sorted(attack.attackers),
        success_rate=success_rate,
        told_apart=told_apart(groups, attack.attackers),
        honest_accuracy=spread(each.accuracy for each in honest if each.accuracy is not None),
    )


def told_apart(groups: Mapping[str, int | None], attackers: frozenset[str]) -> bool:
    """Return True if no honest device shares a group with an attacker."""
    theirs = {groups[d] for d in attackers if groups.get(d) is not None}
    return not any(group in theirs for d, group in groups.items() if d not in attackers)
