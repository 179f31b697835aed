"""Attackers: what each sends, that defences see it, and how success is measured."""

import msgspec
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from algorithms.composition import read_algorithm
from simulation.engine.options import EngineOptions
from simulation.engine.workers.attacks import (
    ATTACKS,
    COLLUDING,
    Attack,
    flipped_classes,
    make_attack,
    read_attack,
    stamped,
    success_rate,
    told_apart,
)
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.errors import ConfigError


def test_who_attacks_is_decided_by_the_seed() -> None:
    data = synthetic_fleet(10)
    one, two = (
        make_attack(read_attack("label-flip:share=0.3"), data, 1),
        make_attack(read_attack("label-flip:share=0.3"), data, 1),
    )
    assert one.attackers == two.attackers
    assert len(one.attackers) == 3
    other = make_attack(read_attack("label-flip:share=0.3"), data, 2)
    assert other.attackers != one.attackers
    count = make_attack(read_attack("replace"), data, 0)
    assert (len(count.attackers), count.scale) == (1, 10.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("steal", "No attack 'steal'"),
        ("nan:share=x", "share must be a number from 0 to 1, got 'x'"),
        ("nan:size=1", "'size' is not an option of nan; it has share=0.2, count=0, scale=1"),
        ("nan:count=10", "got 10 attackers of 10 devices"),
        ("nan:share=0", "got 0 attackers of 10 devices"),
    ],
)
def test_wrong_attacks_are_one_clear_error(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_attack(read_attack(text), synthetic_fleet(10), 0)


def test_flipped_labels_are_distfls() -> None:
    assert flipped_classes(10) == {0: 4, 4: 0, 1: 5, 5: 1, 2: 6, 6: 2, 3: 7, 7: 3}
    assert flipped_classes(3) == {0: 1, 1: 0}
    data = synthetic_fleet(2)
    attack = make_attack(read_attack("label-flip:count=1"), data, 0)
    windows = data.devices["d0"]
    poisoned = attack.poison(windows)
    np.testing.assert_array_equal(poisoned.train_y[windows.train_y == 0], 1)
    np.testing.assert_array_equal(poisoned.train_y[windows.train_y == 2], 2)
    np.testing.assert_array_equal(poisoned.test_y, windows.test_y)


@pytest.mark.parametrize(
    "name", [name for name in ATTACKS if name not in ("label-flip", *COLLUDING)]
)
def test_what_attackers_send(name: str) -> None:
    attack = make_attack(read_attack(f"{name}:count=1:scale=3"), synthetic_fleet(4), 0)
    honest = {"delta/w": np.full(1000, 0.5, np.float32), "statistic/m": np.ones(2, np.float32)}
    sent = attack.tamper(honest, "d0", 1)
    np.testing.assert_array_equal(sent["statistic/m"], honest["statistic/m"])
    if name == "nan":
        assert np.isnan(sent["delta/w"]).all()
    elif name == "gaussian":
        assert sent["delta/w"].std() == pytest.approx(1.5, rel=0.1)
    else:
        np.testing.assert_allclose(
            sent["delta/w"], (-3 if name == "sign-flip" else 3) * honest["delta/w"]
        )


def sent_together(name: str, scale: float, rows: np.ndarray) -> np.ndarray:
    """Return the change that two colluding attackers send, given the honest devices' changes."""
    attack = Attack(name, frozenset(["x1", "x2"]), scale, {})
    honest = {f"d{i}": {"delta/a": row[:1], "delta/b": row[1:]} for i, row in enumerate(rows)}
    mine = {"delta/a": rows[0, :1], "delta/b": rows[0, 1:], "statistic/m": np.ones(1, np.float32)}
    for key, value in mine.items():
        np.testing.assert_array_equal(attack.tamper(mine, "x1", 1)[key], value)
    sent = attack.collude({**honest, "x1": mine, "x2": mine})
    assert sent.keys() == {"x1", "x2"}
    np.testing.assert_array_equal(sent["x1"]["delta/b"], sent["x2"]["delta/b"])
    np.testing.assert_array_equal(sent["x1"]["statistic/m"], mine["statistic/m"])
    return np.concatenate([sent["x1"]["delta/a"], sent["x1"]["delta/b"]])


def test_colluding_attackers_send_what_their_papers_say() -> None:
    rows = np.random.default_rng(0).normal(1, 0.5, (7, 40)).astype(np.float32)
    mean, spread = rows.mean(0), rows.std(0)
    np.testing.assert_allclose(sent_together("alie", 1.5, rows), mean - 1.5 * spread, rtol=1e-4)
    np.testing.assert_allclose(sent_together("ipm", 3.0, rows), -3 * mean, rtol=1e-4)
    beyond = sent_together("fang", 2.0, rows)
    assert (np.where(mean > 0, beyond < rows.min(0), beyond > rows.max(0))).all()
    far = sent_together("min-max", 1.0, rows)
    pairs = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    assert np.linalg.norm(rows - far, axis=1).max() == pytest.approx(pairs.max(), rel=1e-4)


def test_attackers_who_are_alone_or_honest_alone_send_nothing_else() -> None:
    attack, update = Attack("ipm", frozenset("x"), 1.0, {}), {"delta/w": np.ones(3, np.float32)}
    assert attack.collude({"x": update}) == {}
    assert attack.collude({"d": update}) == {}


def test_a_backdoor_is_in_half_of_the_windows_and_its_success_in_all_of_the_tests() -> None:
    data = synthetic_fleet(4)
    attack = make_attack(read_attack("backdoor:count=1"), data, 0)
    windows = data.devices["d0"]
    poisoned = attack.poison(windows)
    np.testing.assert_array_equal(poisoned.train_x[::2], stamped(windows.train_x[::2]))
    np.testing.assert_array_equal(poisoned.train_x[1::2], windows.train_x[1::2])
    assert not poisoned.train_y[::2].any()
    np.testing.assert_array_equal(poisoned.train_y[1::2], windows.train_y[1::2])
    marked = stamped(windows.test_x)
    changed = (marked != windows.test_x).any((0, 1))
    assert changed.sum() <= -(-windows.test_x.shape[2] // 8)
    np.testing.assert_array_equal(marked.max((1, 2)), windows.test_x.max((1, 2)))
    assert np.unique(attack.poison(windows).train_y).size > 1


def test_a_simulation_sees_colluding_attackers_and_backdoors() -> None:
    data = synthetic_fleet(6)
    settings = SimulationSettings(read_algorithm("fedavg"), 4, hyper={"lr": 0.05})
    honest = known(simulate(data, settings).summary.accuracy.mean)
    attacked = msgspec.structs.replace(settings, attack="ipm:count=2:scale=9.9")
    worse = known(simulate(data, attacked).summary.attack)
    assert known(worse.honest_accuracy.mean) < honest - 0.1
    marked = msgspec.structs.replace(settings, attack="backdoor:count=3", rounds=8)
    rate = known(known(simulate(data, marked).summary.attack).success_rate)
    assert rate > 0.5, rate
    with pytest.raises(ConfigError, match=r"attack ipm.*use another backend"):
        simulate(data, attacked, engine=EngineOptions(backend="messages"))


def test_attackers_of_similar_names_send_other_noise() -> None:
    attack = make_attack(read_attack("gaussian:count=2"), synthetic_fleet(4), 0)
    one, two = (
        attack.tamper({"delta/w": np.ones(100, np.float32)}, device_id, 1)["delta/w"]
        for device_id in ("p01", "p10")
    )
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.5


def test_success_rate_is_equation_9_averaged_over_classes() -> None:
    labels, predicted = np.array([0, 0, 0, 0, 1, 1, 2]), np.array([1, 1, 0, 2, 0, 1, 1])
    assert success_rate({0: 1, 1: 0}, labels, predicted) == pytest.approx((2 / 4 + 1 / 2) / 2)
    assert success_rate({5: 6}, labels, predicted) is None


def test_told_apart() -> None:
    assert told_apart({"a": 0, "b": 0, "c": 1}, frozenset("c"))
    assert not told_apart({"a": 0, "b": 1, "c": 1}, frozenset("c"))
    assert told_apart({"a": 0, "b": 0, "c": None}, frozenset("c"))


@pytest.mark.full
def test_distfl_puts_label_flippers_into_groups_of_their_own() -> None:
    data = synthetic_fleet(20, num_windows=120)
    summary = simulate(
        data,
        SimulationSettings(read_algorithm("distfl"), 2, attack="label-flip:share=0.4"),
    ).summary
    attack = known(summary.attack)
    attackers = set(attack.attackers)
    groups = [summary.devices[d].group for d in sorted(data.devices)]
    assert adjusted_rand_score([d in attackers for d in sorted(data.devices)], groups) == 1.0
    assert attack.told_apart


def test_robust_means_withstand_what_the_weighted_mean_does_not() -> None:
    data = synthetic_fleet(10)
    found = {
        name: simulate(
            data,
            SimulationSettings(
                read_algorithm(name),
                8,
                hyper={"lr": 0.02},
                attack="sign-flip:count=2:scale=20",
            ),
        ).summary.attack
        for name in ("fedavg", "fedavg+median", "fedavg+multi-krum", "fedavg+irls")
    }
    accuracy = {name: known(known(attack).honest_accuracy.mean) for name, attack in found.items()}
    assert accuracy["fedavg"] < 0.6
    assert min(v for k, v in accuracy.items() if k != "fedavg") > accuracy["fedavg"] + 0.2, accuracy


class TestAQuietPoisoner:
    """One of five, inside every bound: minus about ten times the others' mean change."""

    @staticmethod
    def accuracy(algorithm: str, attack: str) -> tuple[float, list[float]]:
        """Return what the honest devices measure of their group's last model, and the attacker's
        share in each round."""
        settings = SimulationSettings(read_algorithm(algorithm), 10, attack=attack)
        result = simulate(synthetic_fleet(5), settings)
        attackers = result.summary.attack.attackers if result.summary.attack else []
        records = [record for record in result.records if record.phase == "training"]
        honest = [m.accuracy for d, m in records[-1].evaluated.items() if d not in attackers]
        shares = [record.notes["shares"][d] for record in records for d in attackers]
        return float(np.mean(honest)), shares

    @pytest.mark.parametrize(
        "attack",
        ["ipm:count=1:scale=9.9", "sign-flip:count=1:scale=9.9", "fang:count=1", "alie:count=1"],
    )
    def test_moves_the_default_by_less_than_five_points_and_the_notes_say_its_share(
        self, attack: str
    ) -> None:
        (usual, _), (attacked, shares) = (
            self.accuracy("personal", ""),
            self.accuracy("personal", attack),
        )
        assert attacked > usual - 0.05
        if attack.startswith(("ipm", "sign-flip")):
            assert max(shares) < 0.05

    def test_decides_where_an_average_goes(self) -> None:
        settings = SimulationSettings(
            read_algorithm("personal+uniform"), 10, attack="ipm:count=1:scale=9.9"
        )
        record = simulate(synthetic_fleet(5), settings).records[-2]
        assert np.mean([m.accuracy for m in record.evaluated.values()]) < 0.5


def test_values_that_are_no_numbers_are_refused_and_the_round_goes_on_without_them() -> None:
    data = synthetic_fleet(6)
    outcome = simulate(data, SimulationSettings(read_algorithm("fedavg"), 3, attack="nan:count=2"))
    attack = known(outcome.summary.attack)
    attackers = set(attack.attackers)
    training = [r for r in outcome.records if r.phase == "training"]
    assert all(not attackers & r.evaluated.keys() and len(r.evaluated) == 4 for r in training)
    assert attack.honest_accuracy.mean is not None
