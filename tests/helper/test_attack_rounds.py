"""Attack by many rounds: an attacker solves for each device from the sums that it was in.

The attacker chooses the sets, and has the sums that helpers open. A device has nearly the same
numbers in every round. The attacker knows the best ridge of its regression.
"""

from collections.abc import Callable

import numpy as np
import pytest

from helper.core.ledger import Ledger, SetRefused
from wire.arrays.tensors import Array

MIN_SUM, NUMBERS = 5, 300
RIDGES = (0.01, 0.1, 1.0, 10.0)


class Fleet:
    """Devices, and the numbers that each of them has in every round."""

    def __init__(self, devices: int, seed: int) -> None:
        self.rng = np.random.default_rng([devices, seed])
        self.own = self.rng.normal(size=(devices, NUMBERS))
        self.ledger, self.sets, self.sums = Ledger(), list[Array](), list[Array]()

    def ask(self, members: Array, number: int, is_asked: bool) -> None:
        """Open the sum of a set. With `is_asked`, helpers may refuse it."""
        devices, name = {f"d{d}" for d in np.flatnonzero(members)}, f"{number:064x}"
        if is_asked:
            try:
                self.ledger.check(name, name, devices, MIN_SUM)
            except SetRefused:
                return
            self.ledger = self.ledger.after(name, name, devices, MIN_SUM)
        noise = self.rng.normal(size=self.own.shape) / 10
        self.sets.append(members.astype(float))
        self.sums.append(members @ (self.own + noise))

    def cosine(self) -> float:
        """The mean cosine of the attacker's guess of a device's numbers with these numbers.

        Both are relative to the mean of the devices that were in the same sums.
        """
        sets, sums = np.array(self.sets), np.array(self.sums)
        together = np.unique(sets.T, axis=0, return_inverse=True)[1].ravel()
        best = 0.0
        for ridge in RIDGES:
            guess = sets.T @ np.linalg.solve(sets @ sets.T + ridge * np.eye(len(sets)), sums)
            cosines = []
            for device, part in enumerate(together):
                beside = np.flatnonzero(together == part)
                one = len(beside) > 1
                true = self.own[device] - one * self.own[beside].mean(axis=0)
                made = guess[device] - one * guess[beside].mean(axis=0)
                size = np.linalg.norm(true) * np.linalg.norm(made)
                cosines.append(float(true @ made / size) if size > 1e-9 else 0.0)
            best = max(best, float(np.mean(cosines)))
        return best


def free(fleet: Fleet) -> Array:
    """Seven of ten devices, any."""
    return fleet.rng.random(len(fleet.own)) < 0.7


def by_parts(fleet: Fleet) -> Array:
    """Seven of ten parts of the ledger, and a device more or less in every second round."""
    members = np.zeros(len(fleet.own), bool)
    for part in fleet.ledger.parts or [frozenset({f"d{d}" for d in range(len(fleet.own))})]:
        if fleet.rng.random() < 0.7:
            members[[int(name[1:]) for name in part]] = True
    members[fleet.rng.integers(len(fleet.own))] ^= fleet.rng.random() < 0.5
    return members


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("devices", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_without_a_ledger_many_rounds_give_every_device_away(devices: int, seed: int) -> None:
    fleet = Fleet(devices, seed)
    for number in range(2 * devices):
        fleet.ask(free(fleet), number, is_asked=False)
    assert fleet.cosine() > 0.9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("attendance", [free, by_parts])
@pytest.mark.parametrize("devices", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_of_the_sets_that_helpers_open_no_number_of_rounds_tells_a_device(
    devices: int, attendance: Callable[[Fleet], Array], seed: int
) -> None:
    fleet = Fleet(devices, seed)
    fleet.ask(np.ones(devices, bool), 0, is_asked=True)
    for number in range(1, 10 * devices):
        fleet.ask(attendance(fleet), number, is_asked=True)
    assert min(map(len, fleet.ledger.parts)) >= MIN_SUM
    assert fleet.cosine() < 0.02
