"""Optimizers on the device: every step is that of torch.optim, on every objective; what they keep
starts at zero in every round."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.composition import make_objective, read_algorithm
from algorithms.models.adoption.adopt import adopt
from export import parity
from export.describe import example_inputs, named
from export.parity import ParityError, check_parity
from export.publish import publish
from simulation.engine.options import EngineOptions
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import simulate
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.objectives import OBJECTIVES
from wire.arrays import names
from wire.errors import ConfigError
from wire.identity.keys import new_key

Torch = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
CASES: dict[str, Torch] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.005, 0.9),
    "fedavg:momentum=0.5+sgd:nesterov=true": lambda p: torch.optim.SGD(
        p, 0.005, 0.5, nesterov=True
    ),
    "sgd:weight_decay=0.1": lambda p: torch.optim.SGD(p, 0.005, 0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p),
    "adam:lr=0.01:beta1=0.8:beta2=0.99:eps=0.0001:weight_decay=0.1": lambda p: torch.optim.Adam(
        p, 0.01, (0.8, 0.99), 1e-4, 0.1
    ),
    "adamw:lr=0.02": lambda p: torch.optim.AdamW(p, 0.02),
    "adamw:weight_decay=0.5": lambda p: torch.optim.AdamW(p, weight_decay=0.5),
}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    drawing = torch.Generator().manual_seed(1)
    return [
        (torch.randn(9, 2, 6, generator=drawing), torch.randint(3, (9,), generator=drawing))
        for _ in range(6)
    ]


@pytest.mark.representatives("sgd-0.2", "adam*")
@pytest.mark.parametrize("max_norm", [0.0, 0.2])
@pytest.mark.parametrize("name", CASES)
def test_six_steps_are_those_of_torch(name: str, max_norm: float) -> None:
    plain = model()
    optimizer = CASES[name](list(plain.parameters()))
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        if max_norm:
            nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
        optimizer.step()

    spec = read_algorithm(f"{name}:max_norm={max_norm}" if max_norm else name)
    objective = make_objective(spec, adopt("m", model(), (2, 6), 3, nn.Identity()))
    tensors, step = objective.initial(), named(objective.graphs()["step"])
    for x, y in batches():
        made = step(example_inputs(objective, (2, 6)) | tensors | {names.X: x, names.Y: y})
        tensors |= {
            key.removeprefix(names.following.text): value
            for key, value in made.items()
            if key.startswith("next/")
        }
    for (_, expected), found in zip(
        plain.named_parameters(), names.of_role(tensors, names.SHARED).values(), strict=True
    ):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.representatives("fedavg", "scaffold", "ditto")
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_takes_another_optimizer_or_is_refused_with_a_reason(name: str) -> None:
    device = OBJECTIVES[name]
    if device.own_rule:
        with pytest.raises(ConfigError, match="has an update rule of its own"):
            read_algorithm(f"{name}+adam")
        return
    settings = SimulationSettings(read_algorithm(f"{name}+adam"), 2, local_epochs=2)
    run = simulate(synthetic_fleet(3), settings)
    assert known(run.summary.accuracy.mean) > 0.3


@pytest.mark.representatives("batched")
@pytest.mark.parametrize("backend", ["batched", "messages"])
def test_every_backend_makes_the_same_steps(backend: BackendName) -> None:
    settings = SimulationSettings(read_algorithm("adamw:max_norm=1+ditto+personal"), 2)
    options = (
        EngineOptions(backend, device="cpu") if backend == "batched" else EngineOptions(backend)
    )
    eager, other = (
        simulate(synthetic_fleet(3), settings, engine=engine)
        for engine in (EngineOptions("eager"), options)
    )
    assert other.summary.accuracy.mean == pytest.approx(
        known(eager.summary.accuracy.mean), abs=0.03
    )


def test_a_hyper_parameter_of_ones_own_that_is_called_as_one_of_the_optimizer_is_refused(
    tmp_path: Path,
) -> None:
    lines = [
        "from algorithms.objectives.fedavg import FedAvg",
        "class Smooth(FedAvg):",
        "    name = 'smooth'",
        "    citation = 'own'",
    ]
    (tmp_path / "own.py").write_text(
        "\n".join([*lines, "    hyper = {**FedAvg.hyper, 'eps': 0.1}", ""])
    )
    own = f"{tmp_path}/own.py:Smooth"
    read_algorithm(own)
    with pytest.raises(
        ConfigError,
        match=r"both have a hyper-parameter 'eps'; rename that of ",
    ):
        read_algorithm(f"{own}+adam")


def test_the_native_backend_refuses_what_it_does_not_have() -> None:
    with pytest.raises(ConfigError, match="native"):
        simulate(
            synthetic_fleet(2),
            SimulationSettings(read_algorithm("adam"), 1),
            engine=EngineOptions("native"),
        )


@pytest.mark.full
def test_steps_on_a_device_are_those_of_eager_torch() -> None:
    fleet = synthetic_fleet(2)
    objective = make_objective(
        read_algorithm("adamw:max_norm=1"),
        adopt("m", model_for(fleet.window.shape), fleet.window.shape, 3, nn.Identity()),
    )
    published = publish(
        objective, fleet.window, fleet.classes, fleet.sample(), new_key(), name="adamw"
    )
    assert check_parity(published.bundle, objective, *fleet.sample(), steps=20).step_error < 1e-5
    slots = [spec.name.partition(".")[0] for spec in published.bundle.manifest.of_role(names.SLOT)]
    assert {*slots} == {"mean", "square", "steps"}
    assert not any(
        published.bundle.initial[names.slot(spec.name)].any()
        for spec in published.bundle.manifest.of_role(names.SLOT)
    )
    assert published.bundle.manifest.hyper.keys() == {
        "lr",
        "beta1",
        "beta2",
        "eps",
        "weight_decay",
        "max_norm",
    }


def model_for(shape: tuple[int, ...]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0] * shape[1], 8), nn.ReLU(), nn.Linear(8, 3)
    )


@pytest.mark.slow
def test_adam_may_move_a_bias_in_front_of_batch_norm_by_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its gradient is nothing but rounding, which Adam makes steps of full size of, in eager
    float32 as in the graph."""
    fleet = synthetic_fleet(2)
    layers = (
        nn.Conv1d(fleet.window.shape[0], 8, 5),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    objective = make_objective(
        read_algorithm("adam:lr=0.003"),
        adopt("m", nn.Sequential(*layers), fleet.window.shape, 3, nn.Identity()),
    )
    export = partial(
        publish, objective, fleet.window, fleet.classes, fleet.sample(), new_key(), name="adam"
    )
    assert export().parity.step_error < parity.TYPICAL
    monkeypatch.setattr(parity, "ALIKE", 0.0)
    with pytest.raises(ParityError, match=r"0\.bias.* differs from float64"):
        export()
