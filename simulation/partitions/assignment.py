"""Assignment of a pool's examples to devices, and the options that every partition of a pool has.

The rules themselves are in `labels`, `inputs` and `embedding`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from algorithms.spec import Option
from edge_client.core.ports import Windows
from simulation.datasets.assigned import Assigned
from simulation.datasets.pool import Pool, device_names, pool_of
from simulation.datasets.windows import FleetData
from wire.arrays.tensors import Array
from wire.errors import ConfigError

Change = Callable[[Array, int, np.random.Generator], Array]
"""(x (n, \\*window.shape), number of the device, generator) -> inputs as that device has them."""

SHARING: set[Callable[..., "Allocation"]] = set()
"""Rules that may assign an example to several devices."""


@dataclass(frozen=True)
class Allocation:
    """Indices of each device's examples in the pool's training part and in its test part."""

    train: Sequence[Array] = field(repr=False)
    test: Sequence[Array] = field(repr=False)
    truth: Sequence[str] = ()
    """Each device's true group, if the partition makes groups."""
    change: Change | None = None
    """Function that changes a device's inputs; None: inputs stay as they are."""


def common_options(split: str = "own", examples: int = 0, tests: int = 0) -> dict[str, Option]:
    """Return the options of every partition of a pool; the arguments are their defaults."""
    return {
        "examples": Option(examples, "training examples of a device at most; 0: all", low=0),
        "tests": Option(
            tests, "test examples of a device at most; 0: a quarter of examples, or all", low=0
        ),
        "imbalance": Option(
            "",
            "shares, such as 0.1,0.3,0.6: 9 of 20 devices keep only so much of their training "
            "examples (AutoCFL)",
        ),
        "split": Option(
            split,
            "own: test parts are assigned from the data's test part; random: a device's examples "
            "are divided anew, as DBE does, which puts "
            "overlapping windows on both sides; auto: random for images, own for windows",
            choices=("own", "random", "auto"),
        ),
        "test": Option(
            0.25, "share of the examples that split=random keeps for testing", low=0.01, high=0.99
        ),
    }


def assign_pool(
    data: FleetData | Pool,
    rng: np.random.Generator,
    assign: Callable[..., Allocation],
    *,
    examples: int,
    tests: int,
    imbalance: str,
    split: str,
    test: float,
    **own: Any,
) -> FleetData:
    """Return the fleet that a partition makes of a pool, or of the examples of a whole fleet.

    The steps are, in this order: assign examples, split them anew, limit their number, change
    inputs. `own` are the options of the rule `assign`; the others are those of `common_options`.

    Raises:
        ConfigError: the pool has fewer examples than devices, or an option does not fit the pool.
    """
    pool = data if isinstance(data, Pool) else pool_of(data)
    if own["devices"] > len(pool.train_y) and assign not in SHARING:
        raise ConfigError(
            f"devices must be at most {len(pool.train_y)}, the training examples of data "
            f"{pool.name}, got {own['devices']}. With partition drawn, devices may share examples."
        )
    assignment = assign(pool, rng, **own)
    if split == "random" or (split == "auto" and pool.window.height):
        pool, assignment = _divide_anew(pool, assignment, test, rng)
    assignment = _cut_down(
        assignment, examples, tests or -(-examples // 4), _read_shares(imbalance), rng
    )
    names = device_names(len(assignment.train))
    devices: Mapping[str, Windows] = Assigned(pool, names, assignment.train, assignment.test)
    if assignment.change is not None:
        devices = {
            name: _changed(windows, assignment.change, i, rng)
            for i, (name, windows) in enumerate(devices.items())
        }
    truth = dict(zip(names, assignment.truth, strict=True)) if assignment.truth else {}
    return FleetData(pool.name, pool.window, pool.classes, devices, truth)


def _changed(windows: Windows, change: Change, device: int, rng: np.random.Generator) -> Windows:
    train_x = change(windows.train_x, device, rng)
    return Windows(train_x, windows.train_y, change(windows.test_x, device, rng), windows.test_y)


def assign_by_shares(
    pool: Pool, shares: Array, rng: np.random.Generator
) -> tuple[list[Array], list[Array]]:
    """Assign examples of both parts of a pool by shares of each class.

    Device d gets the share `shares[d, c]` (devices, classes) of the examples of class c. The
    columns of `shares` sum to at most 1; the rest of a class is assigned to no device. No example
    is assigned twice. Returns the indices of each device's examples, for training and for testing.
    """
    return _by_shares(pool.train_y, shares, rng), _by_shares(pool.test_y, shares, rng)


def _by_shares(y: Array, shares: Array, rng: np.random.Generator) -> list[Array]:
    places: list[list[Array]] = [[] for _ in shares]
    for label in range(shares.shape[1]):
        at = rng.permutation(np.flatnonzero(y == label))
        # in a fixed order, rounding would favour the same devices in every class
        order = rng.permutation(len(shares))
        ends = np.rint(np.cumsum(shares[order, label]) * len(at)).astype(int)
        for device, piece in zip(order, np.split(at, ends), strict=False):
            places[device].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in places]


def blocks(devices: int, groups: int) -> list[int]:
    """Return the group of each device: `groups` blocks of consecutive devices of almost equal size.

    Raises:
        ConfigError: there are fewer devices than groups.
    """
    if devices < groups:
        raise ConfigError(f"devices must be at least {groups}, one for each group, got {devices}")
    return [i * groups // devices for i in range(devices)]


def _divide_anew(
    pool: Pool, assignment: Allocation, share: float, rng: np.random.Generator
) -> tuple[Pool, Allocation]:
    """Merge each device's examples, and make a random `share` of them its test part."""
    x, y = np.concatenate([pool.train_x, pool.test_x]), np.concatenate([pool.train_y, pool.test_y])
    train, test = [], []
    for own_train, own_test in zip(assignment.train, assignment.test, strict=True):
        mixed = rng.permutation(np.concatenate([own_train, own_test + len(pool.train_y)]))
        count = split_count(len(mixed), share)
        train.append(np.sort(mixed[count:]))
        test.append(np.sort(mixed[:count]))
    return replace(pool, train_x=x, train_y=y, test_x=x, test_y=y), replace(
        assignment, train=train, test=test
    )


def split_count(total: int, share: float) -> int:
    """Return the number of test examples among `total`.

    It lies between 1 and `total` - 1, and is 0 if `total` is below 2.
    """
    return min(max(round(share * total), 1), total - 1) if total > 1 else 0


def _cut_down(
    assignment: Allocation,
    examples: int,
    tests: int,
    shares: Sequence[float],
    rng: np.random.Generator,
) -> Allocation:
    """Limit each device's examples, then reduce the training part of some devices to a share.

    `examples` and `tests` are maximum numbers for training and testing; 0: no limit. Of 20 devices
    9 are reduced, as in AutoCFL; they get the `shares` in turn.
    """
    train, test = list(assignment.train), list(assignment.test)
    if examples:
        train = [_some(at, examples, rng) for at in train]
    if tests:
        test = [_some(at, tests, rng) for at in test]
    if shares:
        cut = rng.permutation(len(train))[: max(len(shares), round(0.45 * len(train)))]
        for i, device in enumerate(cut):
            at = train[device]
            train[device] = _some(at, max(1, round(shares[i % len(shares)] * len(at))), rng)
    return replace(assignment, train=train, test=test)


def _some(at: Array, count: int, rng: np.random.Generator) -> Array:
    return at if count >= len(at) else np.sort(rng.choice(at, count, replace=False))


def _read_shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        shares = [0.0]
    if not all(0 < share <= 1 for share in shares):
        raise ConfigError(
            f"imbalance must be shares above 0 and up to 1, such as 0.1,0.3,0.6, got {text!r}"
        )
    return shares
