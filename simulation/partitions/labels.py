"""Partitions of a pool by its labels: devices have different shares of classes.

`dirichlet` and `pathological`: J. Zhang et al., DBE, NeurIPS 2023, section 5. `label_groups`:
AutoCFL, section 5.1. `category_imbalance`: B. Liu et al., DistFL, IMWUT 2021, section 5.1.
"""

import numpy as np

from simulation.datasets.pool import Pool
from simulation.partitions.assignment import (
    SHARING,
    Allocation,
    assign_by_shares,
    blocks,
)
from wire.arrays.tensors import Array
from wire.errors import ConfigError

AUTOCFL_GROUPS = "0-2,3-6,4-9,0-9"


def iid(pool: Pool, rng: np.random.Generator, *, devices: int) -> Allocation:
    """Assign both parts of the pool at random, with equal numbers of examples per device."""
    train, test = (
        np.array_split(rng.permutation(len(y)), devices) for y in (pool.train_y, pool.test_y)
    )
    return Allocation(train, test, ["all"] * devices)


def dirichlet(
    pool: Pool, rng: np.random.Generator, *, devices: int, alpha: float, least: int
) -> Allocation:
    """Assign every class in shares drawn from a Dirichlet distribution.

    The smaller `alpha`, the more uneven the shares. A device with fewer than `least` training
    examples takes the missing ones from the device that has most, in its own most frequent class.

    Raises:
        ConfigError: the pool has too few training examples to give every device `least` after
        rounding.
    """
    counts = np.bincount(pool.train_y, minlength=len(pool.classes))
    need = least + int(np.count_nonzero(counts))  # each class is rounded to whole examples
    if devices * need > counts.sum():
        raise ConfigError(
            f"dirichlet: {devices} devices with {least} examples each need {devices * need} "
            f"training examples because of rounding, and data {pool.name} has {counts.sum()}"
        )
    shares = rng.dirichlet(np.full(devices, alpha), len(counts)).T
    shares = np.nan_to_num(shares, nan=1 / devices)  # a tiny alpha underflows to 0 / 0
    return Allocation(*assign_by_shares(pool, _lift(shares, counts, need), rng))


def _lift(shares: Array, counts: Array, need: float) -> Array:
    """Change shares (devices, classes) so that every device gets at least `need` examples.

    `counts` (classes,) are the numbers of examples of each class in total.
    """
    amounts = shares * counts
    for poor in np.argsort(amounts.sum(1), kind="stable"):
        while (lack := need - amounts[poor].sum()) > 1e-9:
            spare = np.minimum(np.maximum(amounts.sum(1) - need, 0)[:, None], amounts)
            spare[poor] = 0
            label = max(
                np.flatnonzero(spare.max(0) > 0),
                key=lambda c: (amounts[poor, c], spare[:, c].max()),
            )
            rich = int(spare[:, label].argmax())
            moved = min(lack, spare[rich, label])
            amounts[poor, label] += moved
            amounts[rich, label] -= moved
    return np.where(counts > 0, amounts / np.maximum(counts, 1), shares)


def pathological(pool: Pool, rng: np.random.Generator, *, devices: int, classes: int) -> Allocation:
    """Assign only `classes` classes to each device, in different amounts.

    The largest amount of a class on a device is up to ten times the smallest. Devices with the same
    classes are one group.

    Raises:
        ConfigError: `classes` is more than the pool has.
    """
    total = len(pool.classes)
    if classes > total:
        raise ConfigError(
            f"pathological: classes must be at most {total}, the classes of data {pool.name}, got "
            f"{classes}"
        )
    order = rng.permutation(total)
    amounts, truth = np.zeros((devices, total)), []
    for device in range(devices):
        device_classes = order[(device * classes + np.arange(classes)) % total]
        amounts[device, device_classes] = rng.uniform(0.1, 1.0, classes)
        truth.append("+".join(str(c) for c in np.sort(device_classes)))
    return Allocation(
        *assign_by_shares(pool, amounts / np.maximum(amounts.sum(0), 1e-12), rng), truth
    )


def label_groups(pool: Pool, rng: np.random.Generator, *, devices: int, groups: str) -> Allocation:
    """Assign a range of classes to each of equally large groups of devices.

    A group has its classes in the pool's own proportions, and all devices have equally many
    examples. If ranges overlap, some examples are not assigned. Without `groups`, the ranges are
    AutoCFL's four for ten classes, and two halves otherwise.

    Raises:
        ConfigError: `groups` is not a list of ranges of the pool's classes.
    """
    total = len(pool.classes)
    halves = f"0-{(total + 1) // 2 - 1},{(total + 1) // 2}-{total - 1}" if total > 1 else "0-0"
    names = (groups or (AUTOCFL_GROUPS if total == 10 else halves)).split(",")
    ranges = []
    for name in names:
        first, _, last = name.strip().partition("-")
        numbers = first.isdigit() and (last.isdigit() or not last)
        if not numbers or not int(first) <= int(last or first) < total:
            raise ConfigError(
                f"label-groups: a group must be a range within 0-{total - 1}, such as 0-2, got "
                f"{name!r}"
            )
        ranges.append(list(range(int(first), int(last or first) + 1)))
    member = blocks(devices, len(ranges))
    counts = np.bincount(pool.train_y, minlength=total)
    weights = np.zeros((devices, total))
    for device, group in enumerate(member):
        weights[device, ranges[group]] = counts[ranges[group]] / max(1, counts[ranges[group]].sum())
    demand = weights.sum(0)
    size = min(counts[c] / demand[c] for c in range(total) if demand[c] > 0)
    return Allocation(
        *assign_by_shares(pool, size * weights / np.maximum(counts, 1), rng),
        [names[group].strip() for group in member],
    )


def drawn(
    pool: Pool, rng: np.random.Generator, *, devices: int, alpha: float, each: int
) -> Allocation:
    """Draw `each` training examples per device, and a quarter as many test examples.

    A device's class proportions are drawn from a Dirichlet distribution. Several devices may draw
    the same example, so that a fleet may be larger than the data.
    """
    shares = rng.dirichlet(np.full(len(pool.classes), alpha), devices)
    return Allocation(
        _draw(pool.train_y, shares, each, rng), _draw(pool.test_y, shares, -(-each // 4), rng)
    )


SHARING.add(drawn)


def _draw(y: Array, shares: Array, each: int, rng: np.random.Generator) -> list[Array]:
    order = np.argsort(y, kind="stable")
    counts = np.bincount(y, minlength=shares.shape[1])
    # a class without examples cannot be drawn
    weights = np.where(counts > 0, shares, 0) + 1e-12 * (counts > 0)
    ends = np.cumsum(weights / weights.sum(1, keepdims=True), axis=1)
    places: list[Array] = []
    for at in range(0, len(shares), 1000):
        chosen = (
            rng.random((len(ends[at : at + 1000]), each, 1)) > ends[at : at + 1000, None, :-1]
        ).sum(2)
        within = (rng.random(chosen.shape) * counts[chosen]).astype(np.int64)
        places.extend(np.sort(order[(np.cumsum(counts) - counts)[chosen] + within], axis=1))
    return places


def category_imbalance(
    pool: Pool, rng: np.random.Generator, *, devices: int, types: int
) -> Allocation:
    """Divide the classes into `types` sets, and assign each set to a block of devices.

    Ten classes and five types give two classes per set.

    Raises:
        ConfigError: `types` is more than there are classes or devices.
    """
    total = len(pool.classes)
    if types > total:
        raise ConfigError(
            f"category-imbalance: types must be at most {total}, the classes of data {pool.name}, "
            f"got {types}"
        )
    member = blocks(devices, types)
    shares = np.zeros((devices, total))
    for number, class_set in enumerate(np.array_split(np.arange(total), types)):
        for device in (d for d, group in enumerate(member) if group == number):
            shares[device, class_set] = 1 / member.count(number)
    return Allocation(
        *assign_by_shares(pool, shares, rng), [f"Type{group + 1}" for group in member]
    )
