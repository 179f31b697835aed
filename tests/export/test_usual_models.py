"""Models as users write them, simulated, and exported for both runtimes: twenty steps on a device
are those of eager torch."""

import pytest
import torch
from torch import Tensor, nn

from algorithms.models.classifier import Classifier
from algorithms.objectives.fedavg import FedAvg
from benchmarks.models import objective_of, tried
from benchmarks.usual_models import USUAL
from export.bundle import capture_graphs
from export.exportable import obstacles
from wire.errors import ConfigError

pytestmark = pytest.mark.full

QUICK = ("lora",)
EVERY = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in USUAL]


@pytest.mark.parametrize("name", EVERY)
def test_steps_on_a_device_are_those_of_eager_torch(name: str) -> None:
    pytest.importorskip(
        "executorch",
        reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
    )
    assert obstacles(objective_of(name), USUAL[name].shape) == []
    found = tried(name)
    assert "refused" not in found, found["refused"]
    assert found["step_error"] < 1e-5
    assert bool(found["frozen"]) == (name in ("lora", "frozen body"))


class Determinant(nn.Module):
    """Determinant of nine numbers of a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 9)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.linalg.det(self.linear(x.mean(1)).unflatten(1, (3, 3))).unsqueeze(1)
        return made


@pytest.mark.parametrize(
    ("layer", "features", "said"),
    [
        (
            Determinant(),
            1,
            r"^layer extractor\.1 \(Determinant\): the graph cannot be written as ONNX: there is "
            r"no operator for \w+\.\w+",
        ),
        (
            nn.ConvTranspose1d(4, 2, 3),
            20,
            r"^layer extractor\.1 \(ConvTranspose1d\): ConvTranspose1d cannot be trained on a "
            r"device",
        ),
    ],
)
def test_a_layer_that_no_runtime_has_is_refused_by_its_name_and_operator(
    layer: nn.Module, features: int, said: str
) -> None:
    body = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), layer, nn.Flatten())
    with pytest.raises(ConfigError, match=said):
        capture_graphs(FedAvg(Classifier(nn.Identity(), body, nn.Linear(features, 3))), (2, 8))
