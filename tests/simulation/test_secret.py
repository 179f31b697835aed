"""Secret mode in a simulation: the sums are those that helpers open, to the bit."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from algorithms.composition import read_algorithm
from algorithms.core.cells import cells_of
from algorithms.groupings.sums import density
from algorithms.registry import CHOICES
from algorithms.sums import FIRST_CLIPS
from edge_client.core.sums import SecretPolicy, answer
from helper.core.ledger import Ledger
from helper.core.sums import Rules
from simulation.engine import sums as secret_sums
from simulation.engine.options import EngineOptions
from simulation.engine.progress import RunProgress
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.helper.exchange import Exchange
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.arrays.tensors import Array, Tensors, decode_tensors
from wire.errors import ConfigError, Stalled
from wire.identity.certificates import new_tls_key
from wire.secret.fixed import FixedPoint
from wire.secret.messages import sign
from wire.secret.question import SumQuestion

WORKING = [name for name, each in CHOICES["objective"].items() if each.in_sums == "works"]


NAMES = [f"d{number}" for number in range(20)]
DEVICE_KEYS = {name: new_tls_key() for name in NAMES}
ROSTER = {device: key.public_key() for device, key in DEVICE_KEYS.items()}
LEDGERS = [Ledger()] * 4


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "DRAWS", 999)


class Everybody(Exchange):
    """An exchange of twenty devices, with helpers that remember all sets."""

    def rules(self, helper: int) -> Rules:
        return Rules(self.keys[helper], ROSTER, self.min_sum)


def run(
    algorithm: str,
    devices: int = 7,
    engine: EngineOptions | None = None,
    shifted: bool = True,
    **others: Any,
) -> SimulationResult:
    settings = SimulationSettings(
        algorithm, **{"rounds": 2, "batch_size": 8, "secret": True, **others}
    )
    data = synthetic_fleet(devices, shift=1.0 if devices == 20 and shifted else 0.0)
    return simulate(data, settings, engine=engine or EngineOptions("eager"))


def model_of(result: SimulationResult) -> Tensors:
    return decode_tensors(result.blobs.get(result.campaign.version.models["0"]))[0]


def by_helpers(
    question: SumQuestion, numbers: Iterable[tuple[str, Mapping[str, Array]]], seed: int
) -> Tensors:
    """The sum that three helpers open of what devices send, masked and signed."""
    numbers = list(numbers)
    exchange = Everybody(ledgers=LEDGERS)
    exchange.question = msgspec.structs.replace(question, helpers=exchange.question.helpers)
    policy = SecretPolicy([key.public_key() for key in exchange.keys])
    for device_id, each in numbers:
        draw = secret_sums.rounding(seed, device_id).bytes
        share, values = answer(exchange.question, each, device_id, policy, draw)
        exchange.uploads[device_id] = share, sign(DEVICE_KEYS[device_id], share), values
    return exchange.opened([device_id for device_id, _ in numbers], [0, 2])


@pytest.mark.parametrize(
    ("algorithm", "questions"), [("fedavg+uniform", 2), ("distfl", 11), ("shared-gaussian", 2)]
)
def test_sums_are_those_that_helpers_open_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, questions: int
) -> None:
    """Helpers open sums of a fleet, or of its groups, which are found from sums."""
    LEDGERS[:] = [Ledger()] * 4
    devices = 20 if algorithm == "distfl" else 7

    rounds: list[SumQuestion] = []

    def record(
        question: SumQuestion, numbers: Iterable[tuple[str, Mapping[str, Array]]], seed: int
    ) -> Tensors:
        rounds.append(question)
        return by_helpers(question, numbers, seed)

    expected = run(algorithm, devices)
    monkeypatch.setattr(secret_sums, "sum_up", record)
    result = run(algorithm, devices)
    assert len(rounds) == questions
    assert result.records[-1].groups == expected.records[-1].groups
    for name, value in model_of(expected).items():
        np.testing.assert_array_equal(model_of(result)[name], value)
    follows = algorithm != "shared-gaussian"
    assert (rounds[0].parts != rounds[1].parts) == follows, "clips follow changes without noise"


def test_the_model_is_that_of_clear_mode_but_for_the_rounding() -> None:
    algorithm = "fedavg+uniform"
    secret, clear = run(algorithm, rounds=1), run(algorithm, rounds=1, secret=False)
    start = run(algorithm, rounds=1, lr=0.0, secret=False)
    assert {windows.num_train for windows in secret.data.devices.values()} == {40}
    for name, value in model_of(clear).items():
        unit = 1 / FixedPoint(16, 7).scale(FIRST_CLIPS[name.partition("/")[0]])
        moved = np.abs(value - model_of(start)[name]).max()
        assert np.abs(model_of(secret)[name] - value).max() <= unit + 0.01 * moved, name
    moved = model_of(clear)["shared/head.weight"] - model_of(start)["shared/head.weight"]
    rounded = model_of(secret)["shared/head.weight"] - model_of(start)["shared/head.weight"]
    assert np.corrcoef(moved.ravel(), rounded.ravel())[0, 1] > 0.99


@pytest.mark.representatives("fedprox", "lg-net")
@pytest.mark.parametrize("name", WORKING)
def test_every_objective_that_declares_itself_able_trains_in_sums(name: str) -> None:
    """Its model is that of clear mode but for the rounding, of the first round's coarse clips."""
    secret, clear = run(f"{name}+uniform"), run(f"{name}+uniform", secret=False)
    for key, value in model_of(clear).items():
        np.testing.assert_allclose(model_of(secret)[key], value, atol=4e-3)
    assert secret.summary.accuracy.mean == pytest.approx(clear.summary.accuracy.mean, abs=0.05)


def test_a_sum_has_the_noise_that_epsilon_needs() -> None:
    private = "shared-gaussian:epsilon=8:clip_norm=0.5:honest=1"
    still = run("fedavg+uniform", rounds=1, lr=0.0)
    noisy = run("fedavg+uniform", rounds=1, lr=0.0, privacy=private)
    multiplier = read_algorithm(noisy.summary.algorithm).privacy.options["noise_multiplier"]
    assert noisy.summary.epsilon == pytest.approx(8, rel=0.01)
    shared = [name for name in model_of(still) if name.startswith("shared/")]
    noise = np.concatenate([(model_of(noisy)[k] - model_of(still)[k]).ravel() for k in shared])
    # five of the seven devices have all of it, and the mean is over seven
    expected = float(multiplier) * 0.5 * math.sqrt(7 / 5) / 7
    assert noise.std() == pytest.approx(expected, rel=0.1)


def test_a_robust_mean_is_that_of_sums_over_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[tuple[str, Tensors]] = []
    opened = secret_sums.sum_up

    def record(
        question: SumQuestion, numbers: Iterable[tuple[str, Mapping[str, Array]]], seed: int
    ) -> Tensors:
        sums.append((question.group, opened(question, numbers, seed)))
        return sums[-1][1]

    monkeypatch.setattr(secret_sums, "sum_up", record)
    result = run("fedavg+median", 17, rounds=2)
    groups = [group for group, _ in sums]
    assert groups == ["initial.0", "initial.1", "initial.2", "0.0", "0.1", "0.2"]
    cells = cells_of([f"d{n}" for n in range(17)], 5)
    assert [len(cell) for cell in cells] == [6, 6, 5]
    head = "shared/head.weight"
    start = model_of(run("fedavg+median", 17, rounds=1))[head]
    means = [
        total[head] / len(cell) for (_, total), cell in zip(sums[3:6], sorted(cells), strict=True)
    ]
    expected = start + np.median(means, axis=0).reshape(start.shape)
    np.testing.assert_allclose(model_of(result)[head], expected, atol=1e-6)


def test_a_robust_mean_over_cells_bears_attackers_that_the_mean_does_not() -> None:
    attack = "sign-flip:count=1:scale=50"
    honest = run("fedavg+uniform", 15, rounds=6).summary.accuracy.mean
    mean = run("fedavg+uniform", 15, rounds=6, attack=attack).summary.accuracy.mean
    median = run("fedavg+median", 15, rounds=6, attack=attack).summary.accuracy.mean
    assert known(median) > known(honest) - 0.05
    assert known(median) > known(mean) + 0.1


def test_too_few_devices_for_cells_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 15 devices with min_sum 5, got 14"):
        run("fedavg+trimmed", 14)
    with pytest.raises(ConfigError, match="cannot run 'krum' in groups"):
        run("distfl+krum", 20)


class Interrupted(Exception):
    pass


def test_a_run_resumes_with_its_clips(tmp_path: Path) -> None:
    whole = run("fedavg+uniform", rounds=3)
    engine = EngineOptions("eager", checkpoint=tmp_path)
    settings = SimulationSettings("fedavg+uniform", 3, batch_size=8, secret=True)

    def interrupt(progress: RunProgress) -> None:
        if progress.trained == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        simulate(synthetic_fleet(7), settings, interrupt, engine=engine)
    with pytest.raises(ConfigError, match="is of a run with secret 5, and this one has 0"):
        run("fedavg+uniform", engine=engine, rounds=3, secret=False)
    for name, value in model_of(run("fedavg+uniform", engine=engine, rounds=3)).items():
        np.testing.assert_array_equal(model_of(whole)[name], value)


def test_a_round_without_enough_devices_is_not_opened() -> None:
    with pytest.raises(Stalled, match="Round 1: helpers would not open the sum: too-few: 4 dev"):
        run("fedavg+uniform", devices=4)
    assert run("fedavg+uniform", devices=4, min_sum=4, rounds=1).campaign.trained == 1


def test_a_round_that_shows_one_device_is_not_opened() -> None:
    question = SumQuestion("a" * 64, {}, 16, 7, 5, (), 0.0)
    with pytest.raises(Stalled, match=r"Round 2: .*differencing: .*would show 1 devices.*d6"):
        secret_sums.check_set(
            question, [f"d{n}" for n in range(6)], [[f"d{number}" for number in range(7)]], 2
        )


@pytest.mark.parametrize(
    ("others", "error"),
    [
        ({"algorithm": "personal"}, "Secret mode cannot run 'robust', the mean of algorithm"),
        ({"privacy": "dp-sgd"}, "Secret mode cannot run 'dp-sgd'"),
        ({"cohort": 5}, "cohort must be 0, got 5: in secret mode the same devices train"),
        ({"profiles": "phones"}, "profiles must be left out, got phones: in secret mode the same"),
        ({"policy": "sync"}, "policy must be left out, got sync: in secret mode the same"),
        ({"update_encoding": "int8"}, "update_encoding must be float32, got int8: in secret"),
        ({"engine": EngineOptions("messages")}, "secret: backend messages has no helpers"),
    ],
)
def test_what_secret_mode_cannot_do_is_refused_before_anything_starts(
    others: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        run(**{"algorithm": "fedavg+uniform", **others})


def test_a_device_sends_two_bytes_for_each_number() -> None:
    secret, clear = run("fedavg+uniform"), run("fedavg+uniform", secret=False)
    assert secret.summary.bytes.up < 0.8 * clear.summary.bytes.up


def test_groups_are_found_from_sums_before_the_first_training() -> None:
    result = run("distfl", 20)
    groups, truth = result.records[-1].groups, result.data.truth
    assert {(truth[d], group) for d, group in groups.items()} == {("0", "0"), ("1", "1")}
    phases = [record.phase for record in result.records]
    assert phases == ["preparing"] * 6 + ["training"] * 2 + ["evaluating"]
    assert [len(record.evaluated) for record in result.records[:6]] == [20] * 6
    tested = result.records[2].notes["survey"][""]
    assert tested["devices"] == 20
    assert tested["split"]
    assert tested["p"] <= 0.0034
    assert model_of(result)["shared/head.weight"].shape
    moved = [decode_tensors(result.blobs.get(result.campaign.version.models[g]))[0] for g in "01"]
    assert not np.array_equal(moved[0]["shared/head.weight"], moved[1]["shared/head.weight"])


def test_a_fleet_of_one_population_and_a_small_one_are_one_group() -> None:
    one = run("distfl", 20, shifted=False)
    assert set(one.records[-1].groups.values()) == {"0"}
    assert [r.phase for r in one.records][:4] == ["preparing"] * 3 + ["training"]
    small = run("distfl", 7)
    assert set(small.records[-1].groups.values()) == {"0"}
    assert [r.phase for r in small.records][:2] == ["preparing", "training"]


def test_a_survey_resumes_where_it_was(tmp_path: Path) -> None:
    whole, engine = run("distfl", 20), EngineOptions("eager", checkpoint=tmp_path)
    settings = SimulationSettings("distfl", 2, batch_size=8, secret=True)
    data = synthetic_fleet(20, shift=1.0)
    calls = list[RunProgress]()

    def interrupt(progress: RunProgress) -> None:
        calls.append(progress)
        if len(calls) == 2:  # the first one is before any round
            raise Interrupted

    for _ in range(4):
        calls.clear()
        with pytest.raises(Interrupted):
            simulate(data, settings, interrupt, engine=engine)
    resumed = simulate(data, settings, engine=engine)
    assert resumed.records[-1].groups == whole.records[-1].groups
    for name, value in model_of(whole).items():
        np.testing.assert_array_equal(model_of(resumed)[name], value)
