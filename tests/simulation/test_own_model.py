"""A user's model from a file, with dropout: in simulation, exported, and what is wrong with it said
in a line."""

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from algorithms.build import build_model
from algorithms.composition import read_algorithm
from algorithms.models.adoption.dropout import keep, replace_dropouts
from algorithms.models.classifier import Classifier
from algorithms.objectives.fedavg import FedAvg
from export.capture import trace
from export.describe import example_inputs, named
from export.lowering.onnx_graph import to_onnx
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.objective import objective_for_fleet
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import simulate
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.objectives import OBJECTIVES
from wire.arrays.tensors import decode_tensors
from wire.errors import ConfigError

LINEAR = (
    "from torch import nn\ndef make(shape, classes):\n    return nn.Sequential(nn.Flatten(), "
    "nn.Linear"
)
DOCS = Path(__file__).parents[2] / "docs"


def written_in_the_docs(folder: Path) -> Path:
    programs = re.findall(
        r"^```python\n(.+?)^```$", (DOCS / "models.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (folder / "model.py").write_text(
        "\n".join(program for program in programs if "from torch import nn" in program)
    )
    return folder / "model.py"


@pytest.fixture
def from_the_docs(tmp_path: Path) -> str:
    return f"{written_in_the_docs(tmp_path)}:small"


NAMED_LIKE_STATISTICS = """
import torch
from torch import nn

class Shift(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.log_variance = nn.Parameter(torch.full((size,), -1.0))
        self.my_running_var = nn.Parameter(torch.full((size,), -1.0))

    def forward(self, x):
        return x * torch.exp(-0.5 * self.log_variance) + self.my_running_var

def make(shape, classes):
    body = nn.Linear(shape[0] * shape[1], 8), nn.BatchNorm1d(8), Shift(8)
    return nn.Sequential(nn.Flatten(), *body, nn.Linear(8, classes))
"""


def build(fleet: FleetData, name: str) -> Classifier:
    return build_model(
        name, fleet.window, len(fleet.classes), torch.ones(len(fleet.window.channels))
    )


@pytest.mark.representatives("distfl")
@pytest.mark.parametrize("algorithm", ["fedavg", "dbe", "distfl"])
def test_the_model_of_the_docs_learns_in_simulation(algorithm: str, from_the_docs: str) -> None:
    assert _learns(algorithm, from_the_docs)


def test_a_model_with_dropout_learns_by_clipped_examples(tmp_path: Path) -> None:
    layers = (
        "nn.Flatten(), nn.Linear(shape[0] * shape[1], 64), nn.ReLU(), nn.Dropout(0.1), "
        "nn.Linear(64, classes)"
    )
    (tmp_path / "model.py").write_text(
        f"from torch import nn\ndef make(shape, classes):\n    return nn.Sequential({layers})\n"
    )
    assert _learns("fedavg+dp-sgd:noise_multiplier=0.1:clip_norm=5", f"{tmp_path}/model.py:make")


def _learns(algorithm: str, model: str) -> bool:
    run = simulate(
        synthetic_fleet(4, num_windows=60),
        SimulationSettings(
            read_algorithm(algorithm), 5, local_epochs=5, model=model, hyper={"lr": 0.05}
        ),
    )
    return known(run.summary.accuracy.mean) > 0.8


def test_both_paths_of_a_simulation_drop_the_same(from_the_docs: str) -> None:
    fleet = synthetic_fleet(3)
    settings = SimulationSettings(read_algorithm("fedavg"), 1, model=from_the_docs)
    fast, through_messages = (
        simulate(fleet, settings, engine=EngineOptions(path)) for path in ("eager", "messages")
    )
    assert fast.campaign.models == through_messages.campaign.models


ENCODER = """
import torch
from torch import nn

class Encoder(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            16, 4, 32, dropout=0.1, activation="gelu", batch_first=True)
        self.patches = nn.Conv1d(shape[0], 16, 8, stride=8)
        self.encoder, self.drop = nn.TransformerEncoder(layer, 1), nn.Dropout(0.1)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.positions = nn.Parameter(0.02 * torch.randn(1, shape[1] // 8 + 1, 16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, classes)

    def forward(self, x):
        x = self.patches(x).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.encoder(self.drop(x)))[:, 0])
"""


def test_an_encoder_with_dropout_is_trained_by_the_engine_and_drops_what_torch_drops(
    tmp_path: Path,
) -> None:
    (tmp_path / "encoder.py").write_text(ENCODER)
    fleet = synthetic_fleet(3, num_windows=20)
    settings = SimulationSettings(
        read_algorithm("fedavg"), 2, model=f"{tmp_path}/encoder.py:Encoder", batch_size=8
    )
    engine, eager = (
        simulate(fleet, settings, engine=EngineOptions(backend)) for backend in ("auto", "eager")
    )
    assert (engine.summary.backend, eager.summary.backend) == ("native", "eager")
    assert engine.campaign.models.keys() == eager.campaign.models.keys()
    for group, name in eager.campaign.models.items():
        made = decode_tensors(engine.blobs.get(engine.campaign.models[group]))[0]
        for key, value in decode_tensors(eager.blobs.get(name))[0].items():
            np.testing.assert_allclose(
                made[key],
                value,
                rtol=0,
                atol=1e-4 * max(1e-2, float(np.abs(value).max())),
                err_msg=key,
            )


FROZEN = """
from torch import nn

def make(shape, classes):
    body = nn.Sequential(nn.Conv1d(shape[0], 8, 5), nn.BatchNorm1d(8), nn.ReLU())
    body.requires_grad_(False)
    neck = [nn.Conv1d(8, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    return nn.Sequential(body, *neck, nn.Linear(8, classes))
"""


@pytest.mark.representatives("fedavg", "ditto", "distfl")
@pytest.mark.parametrize(
    "algorithm",
    [
        *sorted(OBJECTIVES.keys() - {"cgau"}),
        "distfl",
        "distfl:signature=responses",
        "personal",
        "ifca",
    ],
)
def test_a_frozen_body_stays_on_the_device_with_every_objective(
    algorithm: str, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(FROZEN)
    run = simulate(
        synthetic_fleet(3),
        SimulationSettings(read_algorithm(algorithm), 2, model=f"{tmp_path}/model.py:make"),
    )
    models = [decode_tensors(run.blobs.get(digest))[0] for digest in run.campaign.models.values()]
    assert not [name for model in models for name in model if "extractor.0." in name]
    assert known(run.summary.accuracy.mean) > 0.2


@pytest.mark.parametrize("algorithm", ["fedavg", "personal"])
def test_the_adapters_of_the_docs_train_over_messages_as_in_the_fast_path(
    algorithm: str, tmp_path: Path
) -> None:
    fleet, model = synthetic_fleet(3), f"{written_in_the_docs(tmp_path)}:adapted"
    settings = SimulationSettings(read_algorithm(algorithm), 1, model=model)
    fast, messages = (
        simulate(fleet, settings, engine=EngineOptions(path)) for path in ("eager", "messages")
    )
    assert fast.campaign.models == messages.campaign.models
    sent, _ = decode_tensors(
        fast.blobs.get(fast.campaign.models[fast.campaign.members["d0"].group])
    )
    assert {name for name in sent if "fixed" in name} == set()
    assert sent["shared/extractor.layers.0.up"].any()


@pytest.mark.representatives("*-fedavg")
@pytest.mark.parametrize(
    "algorithm",
    ["fedavg", "distfl", "ifca", "scaffold", "fedavg+gaussian:noise_multiplier=0.01:clip_norm=9"],
)
@pytest.mark.parametrize("backend", ["eager", "messages"])
def test_parameters_that_are_named_like_statistics_are_trained(
    algorithm: str, backend: BackendName, tmp_path: Path
) -> None:
    """Over messages, agents train and every update passes the aggregator's admission: nobody is
    refused for a negative parameter."""
    (tmp_path / "model.py").write_text(NAMED_LIKE_STATISTICS)
    settings = SimulationSettings(
        read_algorithm(algorithm), 1, model=f"{tmp_path}/model.py:make", hyper={"lr": 0.01}
    )
    run = simulate(synthetic_fleet(3), settings, engine=EngineOptions(backend))
    model, _ = decode_tensors(run.blobs.get(run.campaign.models[run.campaign.members["d0"].group]))
    for name in ("log_variance", "my_running_var"):
        value = model[f"shared/extractor.3.{name}"]
        assert (value < 0).all()
        assert (value != -1).any()
    assert (model["statistic/extractor.2.running_var"] > 0).all()


@pytest.mark.representatives("fedavg", "ditto")
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_takes_its_random_numbers_from_the_batch(
    name: str, from_the_docs: str
) -> None:
    """The step is a function of its inputs alone, and what it drops is one of them."""
    fleet = synthetic_fleet(2)
    torch.manual_seed(0)
    objective = objective_for_fleet(fleet, read_algorithm(name), 0, from_the_docs)
    if not objective.random:
        assert name in ("cgau", "feddisk"), "an extractor that is frozen drops nothing"
        return
    inputs = example_inputs(objective, fleet.window.shape)
    inputs |= {
        key: torch.rand_like(value) for key, value in inputs.items() if key.startswith("received/")
    }
    step = named(objective.graphs()["step"])
    first, again = step(inputs), step(inputs)
    assert all(torch.equal(first[key], again[key]) for key in first)
    other = step(
        {
            k: v.roll(1, 0).flip(-1) if k.startswith("batch/uniform/") else v
            for k, v in inputs.items()
        }
    )
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.full
def test_the_exported_step_drops_what_eager_torch_drops(from_the_docs: str) -> None:
    fleet = synthetic_fleet(2)
    objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0, from_the_docs)
    inputs = example_inputs(objective, fleet.window.shape)
    inputs["batch/x"] = torch.randn_like(inputs["batch/x"])
    step = named(objective.graphs()["step"])
    captured = to_onnx(trace(step, inputs))
    assert "batch/uniform/extractor.6" in captured.inputs
    session = onnxruntime.InferenceSession(captured.onnx, providers=["CPUExecutionProvider"])
    found = dict(
        zip(
            captured.outputs,
            session.run(None, {k: inputs[k].detach().numpy() for k in captured.inputs}),
            strict=True,
        )
    )
    for key, value in step(inputs).items():
        np.testing.assert_allclose(
            found[key], value.detach().numpy(), rtol=2e-3, atol=2e-5, err_msg=key
        )


class TestDropout:
    def test_it_keeps_the_expected_share_and_the_mean(self) -> None:
        model = Classifier(nn.Identity(), nn.Sequential(nn.Dropout(0.25)), nn.Linear(1000, 3))
        layer = replace_dropouts(model, (1000,))["extractor.0"]
        drawn = torch.rand(50, *layer.shapes[0], generator=torch.Generator().manual_seed(0))
        factors = keep(drawn, layer.share)
        assert sorted(factors.unique().tolist()) == pytest.approx([0, 4 / 3])
        assert float(factors.mean()) == pytest.approx(1, abs=0.02)

    def test_nothing_drops_outside_training(self) -> None:
        model = Classifier(nn.Identity(), nn.Sequential(nn.Dropout(0.5)), nn.Linear(8, 3))
        model.shape = (8,)
        objective, x = FedAvg(model), torch.randn(4, 8)
        assert torch.equal(
            objective.forward(objective.initial(), {"x": x}, training=False).features, x
        )

    def test_channels_drop_whole(self) -> None:
        model = Classifier(
            nn.Identity(), nn.Sequential(nn.Dropout2d(0.5), nn.Flatten()), nn.Linear(48, 3)
        )
        assert replace_dropouts(model, (3, 4, 4))["extractor.0"].shapes == ((3, 1, 1),)

    @pytest.mark.parametrize(
        ("layer", "said"),
        [
            (
                nn.AlphaDropout(0.5),
                "'extractor.0' must be Dropout, Dropout1d or Dropout2d, got AlphaDropout",
            ),
            (nn.Dropout(1.0), "'extractor.0': p must be below 1, got 1"),
        ],
    )
    def test_what_has_no_rule_is_named(self, layer: nn.Module, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            replace_dropouts(Classifier(nn.Identity(), nn.Sequential(layer), nn.Linear(8, 3)), (8,))

    def test_one_layer_in_two_places_draws_for_each_call(self) -> None:
        layer = nn.Dropout(0.5)
        model = Classifier(nn.Identity(), nn.Sequential(layer, nn.ReLU(), layer), nn.Linear(8, 3))
        model.shape = (8,)
        objective, x = FedAvg(model), torch.rand(4, 8) + 1
        assert objective.random == {
            "uniform/extractor.0": (8,),
            "uniform/extractor.0.1": (8,),
        }
        drawn = {f"uniform/{name}": torch.rand(4, 8) for name in ("extractor.0", "extractor.0.1")}
        features = objective.forward(objective.initial(), {"x": x} | drawn, training=True).features
        both = [(value >= 0.5).float() / 0.5 for value in drawn.values()]
        torch.testing.assert_close(features, x * both[0] * both[1])


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("", "has no function 'make'"),
        ("def make(shape, classes):\n    return 1 / 0\n", r"model.py, line 2: ZeroDivisionError"),
        (
            "def make(shape, classes):\n    return 3\n",
            "is of type int. A model must be a torch.nn.Module whose last layer is torch.nn.Linear",
        ),
        (f"{LINEAR}(5, 3))\n", "cannot take examples"),
        (
            f"{LINEAR}(shape[0] * shape[1], 1))\n",
            r"must answer two examples with \[2, \d+\].*, got \[2, 1\]",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(program: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(program)
    with pytest.raises(ConfigError, match=said):
        build(synthetic_fleet(2), f"{tmp_path}/model.py:make")


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match=r"model file no\.py: there is no such file"):
        build(synthetic_fleet(2), "no.py:make")
