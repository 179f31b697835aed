"""The loss of a task is one thing that every objective trains by: as torch has it, on every
backend, or refused by name."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from algorithms.composition import make_algorithm, make_objective, read_algorithm
from algorithms.core.contract import ObjectiveMemory, Work
from algorithms.models.adoption.adopt import adopt
from algorithms.tasks.balanced import MOST, balanced_weights
from edge_client.core.ports import Windows
from export.describe import describe_bundle, example_inputs, named
from export.parity import check_parity
from export.publish import DEVICE_FILE, publish
from shoal.campaign_settings import usual_algorithm
from simulation.contract.rounds import small
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.objective import objective_for_fleet
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.support.bundles import some_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.objectives import OBJECTIVES
from wire.arrays import names
from wire.errors import ConfigError
from wire.identity.keys import new_key
from wire.messages import Apply, Evaluate

SMOOTH = "classification:label_smoothing=0.2"
BALANCED = "classification:class_weights=balanced"


def model(inputs: int = 12) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 7), nn.Tanh(), nn.Linear(7, 3))


def skewed_fleet(num_devices: int = 3) -> FleetData:
    """The synthetic fleet with an eighth of the windows of its last class, which is then rare on
    every device."""
    fleet = synthetic_fleet(num_devices, num_windows=60)

    def thinned(windows: Windows) -> Windows:
        kept = (windows.train_y != 2) | (np.cumsum(windows.train_y == 2) % 8 == 1)
        return Windows(windows.train_x[kept], windows.train_y[kept], windows.test_x, windows.test_y)

    return FleetData(
        fleet.name, fleet.window, fleet.classes, {d: thinned(w) for d, w in fleet.devices.items()}
    )


def ran(
    algorithm: str, fleet: FleetData, backend: BackendName = "auto", rounds: int = 1
) -> SimulationResult:
    options = (
        EngineOptions(backend, device="cpu") if backend == "batched" else EngineOptions(backend)
    )
    return simulate(fleet, SimulationSettings(read_algorithm(algorithm), rounds), engine=options)


@pytest.mark.parametrize(
    ("task", "smoothing", "weights"),
    [
        (SMOOTH, 0.2, (1.0, 1.0, 1.0)),
        ("classification:class_weights=1/0.5/4:label_smoothing=0.1", 0.1, (1.0, 0.5, 4.0)),
    ],
)
def test_steps_are_those_of_torch(task: str, smoothing: float, weights: tuple[float, ...]) -> None:
    plain, drawing = model(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(plain.parameters(), 0.005, 0.9)
    objective = make_objective(
        read_algorithm(f"fedavg+{task}"), adopt("m", model(), (2, 6), 3, nn.Identity())
    )
    tensors, step = objective.initial(), objective.graphs()["step"]
    hyper = {name: torch.tensor(value) for name, value in objective.hyper.items()}
    for _ in range(4):
        x, y = torch.randn(9, 2, 6, generator=drawing), torch.randint(3, (9,), generator=drawing)
        optimizer.zero_grad()
        (
            F.cross_entropy(plain(x), y, reduction="none", label_smoothing=smoothing)
            * torch.tensor(weights)[y]
        ).mean().backward()
        optimizer.step()
        tensors |= names.part(step(tensors, {"x": x, "y": y}, hyper), names.NEXT)
    for expected, found in zip(
        plain.parameters(), names.of_role(tensors, names.SHARED).values(), strict=True
    ):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


@given(counts=st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any))
def test_balanced_classes_count_alike_up_to_the_largest_weight(counts: list[int]) -> None:
    number = torch.tensor(counts, dtype=torch.float32)
    weights = balanced_weights(number / number.sum())
    assert 0 <= float(weights.min()) <= float(weights.max()) <= MOST * (1 + 1e-6)
    assert [bool(weight) for weight in weights] == [bool(count) for count in counts]
    below = (weights > 0) & (weights < MOST * (1 - 1e-6))
    parts = (weights * number)[below]
    torch.testing.assert_close(
        parts, torch.full_like(parts, float(number.sum()) / sum(map(bool, counts)))
    )
    if below.equal(number > 0):
        assert float((weights * number).sum()) == pytest.approx(float(number.sum()), rel=1e-5)


@pytest.mark.representatives("fedavg", "ditto", "fedgen")
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_trains_by_the_tasks_loss_or_is_refused_by_name(name: str) -> None:
    if not OBJECTIVES[name].follows_task:
        with pytest.raises(
            ConfigError,
            match=r"has a loss of its own, and cannot use the task "
            r"'classification:label_smoothing=0.2'",
        ):
            read_algorithm(f"{name}+{SMOOTH}")
        return
    fleet = synthetic_fleet(2, num_windows=24)
    plain, smooth = (
        ran(algorithm, fleet, "eager") for algorithm in (small(name), f"{small(name)}+{SMOOTH}")
    )
    answers = [result.predict("d0", fleet.devices["d0"].test_x) for result in (plain, smooth)]
    assert np.abs(answers[0] - answers[1]).max() > 1e-5


def test_those_with_a_loss_of_their_own_are_these() -> None:
    assert {n for n, made in OBJECTIVES.items() if not made.follows_task} == {
        "fedrod", "fedpcl", "fedgen", "fedrod+mr", "fedgen+dbe",
    }  # fmt: skip


def test_a_loss_of_ones_own_is_not_taken_for_the_tasks(tmp_path: Path) -> None:
    lines = [
        "from algorithms.objectives.fedavg import FedAvg",
        "class Own(FedAvg):",
        "    name = 'own'",
        "    citation = 'own'",
    ]
    (tmp_path / "own.py").write_text(
        "\n".join(
            [*lines, "    def loss(self, *given):", "        return super().loss(*given)", ""]
        )
    )
    with pytest.raises(ConfigError, match="own has a loss of its own"):
        read_algorithm(f"{tmp_path}/own.py:Own+{SMOOTH}")


def test_a_task_of_ones_own_is_a_loss_for_every_objective(tmp_path: Path) -> None:
    lines = [
        "from algorithms.tasks.classification import Classification",
        "class Focal(Classification):",
        "    name = 'focal'",
    ]
    lines += [
        "    citation = 'Lin et al., ICCV 2017'",
        "    plain = False",
        "    def losses(self, logits, y):",
    ]
    lines += [
        "        each = super().losses(logits, y)",
        "        return (1 - (-each).exp()) * each",
        "",
    ]
    (tmp_path / "focal.py").write_text("\n".join(lines))
    fleet = synthetic_fleet(2)
    focal = ran(f"ditto+{tmp_path}/focal.py:Focal", fleet, rounds=2)
    assert known(focal.summary.accuracy.mean) > 0.4
    assert focal.campaign.models != ran("ditto", fleet, rounds=2).campaign.models


class TestBalancedClasses:
    def test_a_rare_class_is_found_more_often(self) -> None:
        fleet = skewed_fleet()

        def found(algorithm: str) -> int:
            result = ran(algorithm, fleet, rounds=3)
            answers = {d: result.predict(d, w.test_x).argmax(1) for d, w in fleet.devices.items()}
            return sum(
                int(((answers[d] == 2) & (w.test_y == 2)).sum()) for d, w in fleet.devices.items()
            )

        assert found(f"fedavg+{BALANCED}") > found("fedavg") + 2

    @pytest.mark.parametrize("backend", ["batched", "messages"])
    def test_every_backend_makes_the_same_steps(self, backend: BackendName) -> None:
        algorithm = f"fedavg+{BALANCED}:label_smoothing=0.1"
        eager, other = (ran(algorithm, skewed_fleet(2), name, 2) for name in ("eager", backend))
        assert other.summary.accuracy.mean == pytest.approx(
            known(eager.summary.accuracy.mean), abs=0.03
        )

    def test_a_device_counts_before_it_trains_and_says_nothing_of_it(self) -> None:
        assert (
            known(ran(f"ditto+personal+adam+{BALANCED}", skewed_fleet(2)).summary.accuracy.mean)
            > 0.3
        )
        algorithm = make_algorithm(read_algorithm(f"fedrep+{BALANCED}"))
        memory, work = ObjectiveMemory(), Work(8, 1)
        first, second, *_ = algorithm.coordinator.programs(memory, work)[""]
        assert (first, second) == (
            Evaluate("train", "count_classes", report=False),
            Apply("keep_class_shares", report=False),
        )
        assert algorithm.coordinator.closing(memory, work) == (
            Evaluate(),
        )  # fedrep trains in rounds, not after the last

    @pytest.mark.slow
    def test_steps_on_a_device_are_those_of_eager_torch(self) -> None:
        fleet = skewed_fleet(2)
        shape = fleet.window.shape
        spec = read_algorithm(f"fedavg+{BALANCED}:label_smoothing=0.1")
        made = make_objective(spec, adopt("m", model(shape[0] * shape[1]), shape, 3, nn.Identity()))
        objective = some_graphs(
            made, "step", "evaluate", "predict", "count_classes", "keep_class_shares"
        )
        published = publish(
            objective, fleet.window, fleet.classes, fleet.sample(), new_key(), name="balanced"
        )
        assert (
            check_parity(published.bundle, objective, *fleet.sample(), steps=20).step_error < 1e-5
        )
        assert (
            published.bundle.manifest.algorithm
            == "fedavg+classification:class_weights=balanced:label_smoothing=0.1"
        )


@pytest.mark.parametrize(
    ("exported_for", "usual"),
    [
        ("fedavg", "distfl"),
        (f"fedavg+{SMOOTH}", f"distfl+{SMOOTH}"),
        (f"fedavg+personal+{SMOOTH}", f"fedavg+personal+{SMOOTH}"),
    ],
)
def test_a_service_takes_the_task_that_its_bundle_was_exported_for(
    exported_for: str, usual: str, tmp_path: Path
) -> None:
    fleet = synthetic_fleet(1)
    objective = objective_for_fleet(fleet, read_algorithm(exported_for), 0)
    bundle = describe_bundle(objective, name="b", classes=fleet.classes, window=fleet.window)
    (tmp_path / DEVICE_FILE).write_bytes(bundle.payload)
    assert usual_algorithm(tmp_path) == usual


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "fedavg+classification:label_smoothing=1",
            "label_smoothing must be a number from 0 below 1, got '1'",
        ),
        (
            "fedavg+classification:class_weights=a/b",
            "class_weights must be equal or balanced or numbers from 0 such as 1/2/0.5, got 'a/b'",
        ),
        (
            "fedavg+classification:class_weights=0/0",
            "class_weights must be equal or balanced or numbers from 0 such as 1/2/0.5, got '0/0'",
        ),
        (
            "fedavg+classification:class_weights=1/-1",
            "class_weights must be equal or balanced or numbers from 0 such as 1/2/0.5, got '1/-1'",
        ),
        (
            "dp-sgd+classification:class_weights=balanced",
            "dp-sgd limits the influence of a single window",
        ),
        ("fedpcl+classification:class_weights=balanced", "fedpcl has a loss of its own"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_algorithm(read_algorithm(name))


def test_another_number_of_weights_than_of_classes_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="class_weights must be one weight for each of 3 classes, got 2: 1/2"
    ):
        ran("fedavg+classification:class_weights=1/2", synthetic_fleet(2))


def test_a_clipped_step_follows_the_tasks_loss_too() -> None:
    spec = read_algorithm("fedavg+dp-sgd+classification:class_weights=0/1/1")
    objective = make_objective(spec, adopt("m", model(), (2, 6), 3, nn.Identity()))
    inputs = example_inputs(objective, (2, 6)) | {
        names.hyper("noise_multiplier"): torch.tensor(0.0)
    }  # of class 0, all of them
    made = named(objective.graphs()["step"])(inputs)
    assert all(
        torch.equal(made[names.following(key)], inputs[key])
        for key in names.of_role(inputs, names.SHARED)
    )
    moved = named(objective.graphs()["step"])(inputs | {names.Y: torch.ones_like(inputs[names.Y])})
    assert not any(
        torch.equal(moved[names.following(key)], inputs[key])
        for key in names.of_role(inputs, names.SHARED)
    )


def test_a_class_that_counts_for_nothing_is_not_learned() -> None:
    fleet = synthetic_fleet(2)
    result = ran("fedavg+classification:class_weights=0/1/1", fleet, rounds=2)
    answers: Tensor = torch.from_numpy(
        np.concatenate([result.predict(d, w.test_x) for d, w in fleet.devices.items()])
    )
    assert not (answers.argmax(1) == 0).any()
