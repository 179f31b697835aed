"""Secret mode in a simulation: the sums are those that helpers open, to the bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from algorithms.registry import CHOICES
from algorithms.sums import FIRST_CLIPS
from edge_client.core.sums import SecretPolicy, answer, numbers_of
from simulation.engine import sums as secret_sums
from simulation.engine.options import EngineOptions
from simulation.engine.progress import RunProgress
from simulation.engine.workers.device_host import DeviceResult
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.helper.exchange import KEYS, Exchange
from tests.support.fleets import synthetic_fleet
from wire.arrays.tensors import Tensors, decode_tensors
from wire.errors import ConfigError, Stalled
from wire.secret.fixed import FixedPoint
from wire.secret.messages import sign
from wire.secret.question import SumQuestion

WORKING = [name for name, each in CHOICES["objective"].items() if each.in_sums == "works"]


def run(
    algorithm: str, devices: int = 7, engine: EngineOptions | None = None, **others: Any
) -> SimulationResult:
    settings = SimulationSettings(
        algorithm, **{"rounds": 2, "batch_size": 8, "secret": True, **others}
    )
    return simulate(synthetic_fleet(devices), settings, engine=engine or EngineOptions("eager"))


def model_of(result: SimulationResult) -> Tensors:
    return decode_tensors(result.blobs.get(result.campaign.version.models["0"]))[0]


def by_helpers(
    question: SumQuestion, results: Sequence[DeviceResult], received: Tensors, seed: int
) -> Tensors:
    """The sum that three helpers open of what devices send, masked and signed."""
    exchange = Exchange()
    exchange.question = msgspec.structs.replace(question, helpers=exchange.question.helpers)
    policy = SecretPolicy([key.public_key() for key in exchange.keys])
    for each in results:
        share, values = answer(
            exchange.question,
            numbers_of(
                exchange.question,
                each.tensors,
                received,
                (each.evaluated, each.trained),
            ),
            each.device_id,
            policy,
            secret_sums.rounding(seed, each.device_id).bytes,
        )
        exchange.uploads[each.device_id] = share, sign(KEYS[each.device_id], share), values
    return exchange.opened([each.device_id for each in results], [0, 2])


def test_sums_are_those_that_helpers_open_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm = "fedavg+uniform"
    rounds: list[tuple[Any, ...]] = []

    def record(
        question: SumQuestion, results: Sequence[DeviceResult], received: Tensors, seed: int
    ) -> Tensors:
        rounds.append((question, [*results], received, seed))
        return by_helpers(question, results, received, seed)

    expected = run(algorithm)
    monkeypatch.setattr(secret_sums, "sum_up", record)
    result = run(algorithm)
    assert len(rounds) == 2
    for name, value in model_of(expected).items():
        np.testing.assert_array_equal(model_of(result)[name], value)
    assert rounds[0][0].parts != rounds[1][0].parts, "clips follow the changes"


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
    results = [DeviceResult(f"d{number}") for number in range(6)]
    with pytest.raises(Stalled, match=r"Round 2: .*differencing: .*would show 1 devices.*d6"):
        secret_sums.check_set(question, results, [[f"d{number}" for number in range(7)]], 2)


@pytest.mark.parametrize(
    ("others", "error"),
    [
        ({"algorithm": "personal"}, "Secret mode cannot run 'distfl', the grouping of algorithm"),
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
